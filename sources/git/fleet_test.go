package git

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// One repository has one name by whatever URL, and no other has it.
func TestFleetName(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, tt := range []struct {
		name string
		urls []string
	}{
		{"git.example.org/platform/fleet", []string{
			"https://git.example.org/platform/fleet.git", "https://git.example.org/platform/fleet", "https://me:token@Git.Example.org:443/platform/fleet.git/",
			"http://git.example.org/platform/fleet", "ssh://git@git.example.org/platform/fleet.git", "ssh://git@git.example.org:22/platform/fleet",
			"git@git.example.org:platform/fleet.git", "git.example.org:/platform/fleet",
		}},
		{"git.example.org/me/fleet", []string{"https://git.example.org/me/fleet.git"}},
		{"git.example.org:8443/platform/fleet", []string{"https://git.example.org:8443/platform/fleet"}},
		{"git.example.org/platform/fleet%23main", []string{"git@git.example.org:platform/fleet#main"}},
		{filepath.ToSlash(dir), []string{dir, "file://" + filepath.ToSlash(dir), dir + "/"}},
	} {
		for _, u := range tt.urls {
			loc, err := parseURL(u)
			if err != nil || loc.name() != tt.name {
				t.Errorf("%s is %q, %v; want %q", u, loc.name(), err, tt.name)
			}
		}
	}
}

// A daemon may move to SSH on another port, but to no other server. A plan compares no ports.
func TestFleetPort(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		url, fleet   string
		accepts, may bool // a daemon, and a plan
	}{
		{"ssh://git@git.example.org:7999/platform/fleet.git", "git.example.org/platform/fleet#main", true, true},
		{"ssh://git@git.example.org:7999/platform/fleet.git", "git.example.org/platform/fleet#other", false, true},
		{"ssh://git@git.example.org:7999/platform/fleet.git", "git.example.org:8443/platform/fleet#main", false, true},
		{"ssh://git@git.example.org:7999/platform/fleet.git", "git.example.com/platform/fleet#main", false, false},
		{"ssh://git@git.example.org:7999/platform/fleet.git", "git.example.org/me/fleet#main", false, false},
		{"ssh://git@[2001:db8::1]:7999/fleet.git", "2001:db8::1/fleet#main", true, true},
		{"https://git.example.org:8443/platform/fleet.git", "git.example.org/platform/fleet#main", false, true},
		{"https://git.example.org/platform/fleet.git", "git.example.org:7999/platform/fleet#main", false, true},
		{"https://git.example.org/platform/fleet.git", "git.example.org/me/fleet#main", false, false},
		{"/srv/fleet", "/srv/fleet/other#main", false, false},
	} {
		loc, err := parseURL(tt.url)
		if err != nil {
			t.Fatal(err)
		}
		r := &Repository{cfg: Config{Branch: "main"}, location: loc}
		if have := r.Accepts(tt.fleet); have != tt.accepts {
			t.Errorf("%s is %s for a daemon: %t", tt.url, tt.fleet, have)
		}
		if have := SameRepository(tt.fleet, []string{loc.name()}); have != tt.may {
			t.Errorf("%s is %s for a plan: %t", tt.url, tt.fleet, have)
		}
	}
}

// All work trees of a repository are one fleet, and a clone is another.
func TestFleetOfWorkTrees(t *testing.T) {
	t.Parallel()
	f := newFixture(t, wayBy("http"))
	f.commit("A fleet", fleet)
	dir := f.workTree()
	linked, clone := filepath.Join(t.TempDir(), "linked"), filepath.Join(t.TempDir(), "clone")
	run(t, dir, "worktree", "add", "--quiet", "-b", "topic", linked)
	run(t, dir, "clone", "--quiet", dir, clone)
	of := func(dir string) *Repository {
		loc, err := parseURL(dir)
		if err != nil {
			t.Fatal(err)
		}
		return &Repository{cfg: Config{Branch: "main"}, location: loc}
	}
	for _, tt := range []struct {
		a, b string
		want bool
	}{{dir, linked, true}, {linked, dir, true}, {linked, linked, true}, {dir, clone, false}, {clone, linked, false}} {
		if have := of(tt.a).Accepts(of(tt.b).Fleet()); have != tt.want {
			t.Errorf("%s accepts %s: %t", tt.a, tt.b, have)
		}
	}
}

// The remotes are those of git's whole configuration, not only the repository's.
func TestNames(t *testing.T) {
	f := newFixture(t, wayBy("http"))
	f.commit("A fleet", fleet)
	dir := f.workTree()
	mine := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(mine, []byte("[url \"https://git.example.org/\"]\n\tinsteadOf = example:\n\tinsteadOf = old:\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GIT_CONFIG_GLOBAL", mine)
	run(t, dir, "remote", "add", "upstream", "git@git.example.org:platform/fleet.git")
	run(t, dir, "remote", "add", "short", "example:platform/short")
	run(t, dir, "remote", "add", "beside", "../other")
	d, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	trees, remotes, err := d.Names(t.Context())
	if err != nil || !slices.Contains(trees, filepath.ToSlash(dir)) {
		t.Errorf("%q, %v", trees, err)
	}
	for _, want := range []string{"git.example.org/platform/fleet", "git.example.org/platform/short", filepath.ToSlash(filepath.Join(filepath.Dir(dir), "other"))} {
		if !slices.Contains(remotes, want) {
			t.Errorf("%q lacks %s", remotes, want)
		}
	}
}
