// Package remote reads the addresses by which kustomizations name directories of
// other repositories, and says which of them may be used. It is pure: fetching is
// sources/git's, and what is built of a directory is render/kustomize's.
//
// A remote base is allowed where an operator has named a prefix of its
// repository's URL, and only by the full hash of a commit: the same hash is the
// same files for ever, so that rendering stays reproducible without a record in
// the lock. Tags and branches move.
//
// Addresses are read as kustomize reads them (address.go), but for what could
// make one repository look like another: user names, escapes, dots, other hosts'
// ports. These are refused rather than interpreted. allow.go has the prefixes.
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
	// Trees are the commits that are here.
	Trees map[sources.Tree]fs.FS
}

// Split returns the tree that a file of a build is in, and its path there; ok is
// false if it is in none.
func (b Bases) Split(file string) (tree sources.Tree, name string, ok bool) {
	for tree := range b.Trees {
		if name, ok := Within(tree, file); ok {
			return tree, name, true
		}
	}
	return sources.Tree{}, "", false
}

// Base is a directory of another repository.
type Base struct {
	// Tree is the commit that has it.
	Tree sources.Tree
	// Dir is its path there, "." for the root.
	Dir string
	// Timeout is how long fetching may take.
	Timeout time.Duration
}

// Root is the name under which a build, its errors and origins have the files of
// a tree: "github.com/org/repo@COMMIT". The hash makes it unique; so it does not
// matter that the URL's scheme is left out.
func Root(t sources.Tree) string {
	_, name, _ := strings.Cut(t.Repository, "://")
	return name + "@" + t.Commit
}

// Within returns the path in a tree of a file of a build; ok is false if the file
// is elsewhere.
func Within(t sources.Tree, file string) (name string, ok bool) {
	root := Root(t)
	if file == root {
		return ".", true
	}
	return strings.CutPrefix(file, root+"/")
}

// Name is the directory's name in a build.
func (b Base) Name() string { return path.Join(Root(b.Tree), b.Dir) }

// Looks reports whether kustomize would fetch an entry, or might. It says so
// of a little more than that.
func Looks(entry string) bool {
	return slices.ContainsFunc(looks, func(r *regexp.Regexp) bool { return r.MatchString(entry) })
}

// Kustomize fetches what url.Parse finds to be HTTP, and clones what begins with
// a scheme, with "git::", with a user or with github.com.
var looks = []*regexp.Regexp{
	regexp.MustCompile(`^\s*[A-Za-z][A-Za-z0-9+.-]*:`),
	regexp.MustCompile(`^\s*[A-Za-z][A-Za-z0-9-]*@`),
	regexp.MustCompile(`^\s*(?i:github\.com)[/:]`),
}

// Shown is an entry as errors may show it: people put passwords and tokens into
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

// Base reads an entry of a kustomization that looks remote. The error says why it
// cannot be used, and what to write instead; it does not name the entry.
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

// locally is a way out for what is no address after all.
func locally(entry string) string {
	if strings.ContainsAny(entry, "?\n") || strings.Contains(entry, "//") {
		return ""
	}
	return fmt.Sprintf(" (a local path that looks like this is written ./%s)", entry)
}
