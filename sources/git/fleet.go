package git

import (
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
)

// Fleet returns the name of the fleet that the branch declares, for instance
// "git.example.org/platform/fleet#main". It does not depend on the scheme and
// credentials of the URL. A directory has the name of its absolute path.
func (r *Repository) Fleet() string { return r.name + "#" + r.cfg.Branch }

// FleetRepository returns the repository in a fleet's name.
func FleetRepository(fleet string) string {
	repository, _, _ := strings.Cut(fleet, "#")
	return repository
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

// pathOf returns the path in a URL. In user@host:path it does not begin with a slash.
func pathOf(u *url.URL) string {
	if u.Opaque != "" {
		return u.Opaque
	}
	return u.Path
}

// Remotes returns the repositories of the directory's remotes, as in fleets' names. It
// fails if the configuration cannot be read.
func (d *Directory) Remotes() ([]string, error) {
	d.local.mu.Lock()
	defer d.local.mu.Unlock()
	cfg, err := d.local.storage.Config()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, remote := range cfg.Remotes {
		for _, u := range remote.URLs {
			if !strings.Contains(u, "://") && !scpLike.MatchString(u) && !filepath.IsAbs(u) {
				u = filepath.Join(d.Root, u)
			}
			// No fleet has a URL that does not parse.
			if loc, err := parseURL(u); err == nil {
				names = append(names, loc.name())
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
