package git

import (
	"context"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gitopsd.dev/sources/git/wire"
)

// Fleet returns the name of the fleet that the branch declares, for instance
// "git.example.org/platform/fleet#main". It does not depend on the scheme and
// credentials of the URL. A directory has the name of its absolute path.
func (r *Repository) Fleet() string { return r.location.name() + "#" + r.cfg.Branch }

// Accepts reports whether another name is this fleet's too: the name by the URL without an SSH
// port, or by another work tree of a directory's repository.
func (r *Repository) Accepts(fleet string) bool {
	repository, branch, _ := strings.Cut(fleet, "#")
	return branch == r.cfg.Branch && slices.Contains(r.location.aliases(), repository)
}

// SameRepository reports whether a fleet's repository has one of these names, or differs only in
// the port: a name does not say whether that is SSH's. Branches are not compared.
func SameRepository(fleet string, names []string) bool {
	repository, _, _ := strings.Cut(fleet, "#")
	return slices.ContainsFunc(names, func(name string) bool { return withoutPort(name) == withoutPort(repository) })
}

func withoutPort(name string) string {
	address, path, _ := strings.Cut(name, "/")
	if host, port, err := net.SplitHostPort(address); err == nil && port != "" {
		return host + "/" + path
	}
	return name
}

// defaultPorts are left out of fleets' names.
var defaultPorts = []string{"", "80", "443", "22"}

// name returns the repository in a fleet's name.
func (l location) name() string {
	name := filepath.ToSlash(l.dir)
	if l.url != nil {
		host := strings.ToLower(l.url.Hostname())
		if port := l.url.Port(); !slices.Contains(defaultPorts, port) {
			host = net.JoinHostPort(host, port)
		}
		name = host + "/" + strings.TrimSuffix(strings.Trim(pathOf(l.url), "/"), ".git")
	}
	return strings.ReplaceAll(name, "#", "%23")
}

// aliases returns other names of the repository. Clusters may have recorded them.
func (l location) aliases() []string {
	switch {
	case l.url == nil:
		return workTrees(l.dir)
	case l.url.Scheme == "ssh":
		return []string{withoutPort(l.name())}
	}
	return nil
}

// workTrees returns the names of all work trees of the repository in a directory.
func workTrees(dir string) []string {
	gitDir, err := findGitDir(dir)
	if err != nil {
		return nil
	}
	common := commonDir(gitDir)
	roots := []string{dir, common}
	if filepath.Base(common) == ".git" { // it is not bare
		roots[1] = filepath.Dir(common)
	}
	linked, _ := filepath.Glob(filepath.Join(common, "worktrees", "*", "gitdir"))
	for _, file := range linked {
		// It holds the path of .git in the work tree (gitrepository-layout(5)).
		if content, err := os.ReadFile(file); err == nil {
			roots = append(roots, filepath.Dir(resolvePath(filepath.Dir(file), strings.TrimSpace(string(content)))))
		}
	}
	for i, root := range roots {
		roots[i] = location{dir: root}.name()
	}
	return roots
}

// pathOf returns the path in a URL. In user@host:path it does not begin with a slash.
func pathOf(u *url.URL) string {
	if u.Opaque != "" {
		return u.Opaque
	}
	return u.Path
}

// Names returns the names that the repository may have in fleets' names: those of its work trees
// and, if it has any, of its remotes. It fails if the configuration cannot be read.
func (d *Directory) Names(ctx context.Context) (trees, remotes []string, err error) {
	d.local.mu.Lock()
	cfg, err := d.local.storage.Config()
	d.local.mu.Unlock()
	if err != nil {
		return nil, nil, err
	}
	var urls []string
	for _, remote := range cfg.Remotes {
		urls = append(urls, remote.URLs...)
	}
	// The user's and the system's configuration may replace URLs (insteadOf), and include
	// files. Without git, the repository's own has to do.
	effective, _ := wire.RemoteURLs(ctx, d.Root)
	for _, u := range append(urls, effective...) {
		if !strings.Contains(u, "://") && !scpLike.MatchString(u) && !filepath.IsAbs(u) {
			u = filepath.Join(d.Root, u)
		}
		// No fleet has a URL that does not parse.
		if loc, err := parseURL(u); err == nil {
			remotes = append(remotes, loc.name())
		}
	}
	slices.Sort(remotes)
	return workTrees(d.Root), slices.Compact(remotes), nil
}
