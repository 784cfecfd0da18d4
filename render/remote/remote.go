// Package remote parses the addresses of remote bases: directories of other repositories
// that kustomizations name. It also decides which of them may be used. It is pure;
// sources/git fetches, and render/kustomize builds.
//
// A remote base is allowed if an operator has named a prefix of its repository's URL, and
// if it names the full hash of a commit. A hash always means the same files, so that
// rendering is reproducible without a record in the lock. Tags and branches move.
//
// address.go parses addresses as kustomize does, but refuses everything that could make
// one repository look like another: user names, escapes, dots, ports of other hosts.
// allow.go has the prefixes.
package remote

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"gitopsd.dev/sources"
)

// Bases are the remote bases of a build. The zero value allows none.
type Bases struct {
	// Allowed are the repositories that may be used.
	Allowed Prefixes
	// Trees are the fetched commits.
	Trees map[sources.Tree]fs.FS
}

// Split returns the tree of a build's file, and the file's path in it; ok is false if the
// file is in no tree.
func (b Bases) Split(file string) (tree sources.Tree, name string, ok bool) {
	for tree := range b.Trees {
		if name, ok := within(tree, file); ok {
			return tree, name, true
		}
	}
	return sources.Tree{}, "", false
}

// Base is a directory of another repository.
type Base struct {
	// Tree is the commit.
	Tree sources.Tree
	// Dir is the path in the commit, "." for the root.
	Dir string
	// Timeout limits the time of the fetch.
	Timeout time.Duration
}

// Root returns the directory of a tree's files in a build, in errors and in origins:
// "github.com/org/repo@COMMIT". The hash makes it unique without the URL's scheme.
func Root(t sources.Tree) string {
	_, name, _ := strings.Cut(t.Repository, "://")
	return name + "@" + t.Commit
}

// within returns the path of a build's file in a tree; ok is false if the file is not in
// the tree.
func within(t sources.Tree, file string) (name string, ok bool) {
	root := Root(t)
	if file == root {
		return ".", true
	}
	return strings.CutPrefix(file, root+"/")
}

// Name returns the directory's path in a build.
func (b Base) Name() string { return path.Join(Root(b.Tree), b.Dir) }

// Looks reports whether an entry looks remote. That is true for all entries that kustomize
// would fetch, and for a few more.
func Looks(entry string) bool {
	return slices.ContainsFunc(looks, func(r *regexp.Regexp) bool { return r.MatchString(entry) })
}

// Kustomize fetches entries that url.Parse recognizes as HTTP, and clones entries that
// begin with a scheme, with "git::", with a user or with github.com.
var looks = []*regexp.Regexp{
	regexp.MustCompile(`^\s*[A-Za-z][A-Za-z0-9+.-]*:`),
	regexp.MustCompile(`^\s*[A-Za-z][A-Za-z0-9-]*@`),
	regexp.MustCompile(`^\s*(?i:github\.com)[/:]`),
}

// Shown returns an entry for errors, without passwords and tokens, which people put into
// URLs.
func Shown(entry string) string {
	address, query, asks := strings.Cut(entry, "?")
	if scheme, rest, ok := strings.Cut(address, "://"); ok {
		authority, names, _ := strings.Cut(rest, "/")
		if i := strings.LastIndexByte(authority, '@'); i >= 0 {
			address = scheme + "://…" + authority[i:] + "/" + names
		}
	}
	if !asks {
		return address
	}
	var kept []string
	for part := range strings.SplitSeq(query, "&") {
		if key, _, _ := strings.Cut(part, "="); !slices.Contains(parameters, key) {
			part = key + "=…"
		}
		kept = append(kept, part)
	}
	return address + "?" + strings.Join(kept, "&")
}

// Base parses an entry of a kustomization that looks remote. It fails if the entry must not
// be used. The error advises what to write instead, and does not name the entry.
func (p Prefixes) Base(entry string) (Base, error) {
	if len(p) == 0 {
		return Base{}, errors.New("is remote, or looks so: gitopsd builds from the fleet repository alone, unless its operator allows others with --allow-remote-bases; copy what it names into the repository" + locally(entry))
	}
	a, err := parse(entry)
	if err != nil {
		return Base{}, err
	}
	switch {
	case a.scheme == "ssh":
		return Base{}, fmt.Errorf("remote bases are fetched without credentials, and SSH needs a key; write %s, if it can be read there", a.over("https"))
	case !p.allow(a):
		return Base{}, fmt.Errorf("%s is not below what --allow-remote-bases allows (%s); copy what it names into the repository, or ask the operator", a.repository(), p)
	case a.ref == "":
		return Base{}, fmt.Errorf("names no commit, and what it means could change with every push; write ?ref= and a commit's full hash (`git ls-remote %s HEAD` prints the newest)", a.repository())
	case !isCommit.MatchString(a.ref):
		return Base{}, fmt.Errorf("a tag, a branch or part of a hash can come to mean another commit; write ?ref= and the commit's full hash, 40 hexadecimal digits (the last line of `git ls-remote %s '%s' '%[2]s^{}'`)", a.repository(), a.ref)
	}
	return Base{
		Tree:    sources.Tree{Repository: a.repository(), Commit: strings.ToLower(a.ref)},
		Dir:     a.dir,
		Timeout: a.timeout,
	}, nil
}

var isCommit = regexp.MustCompile(`^[0-9a-fA-F]{40}$`)

// locally returns advice for an entry that is a local path.
func locally(entry string) string {
	if strings.ContainsAny(entry, "?\n") || strings.Contains(entry, "//") {
		return ""
	}
	return fmt.Sprintf(" (a local path that looks like this is written ./%s)", entry)
}
