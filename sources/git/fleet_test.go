package git

import (
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

func TestRemotes(t *testing.T) {
	t.Parallel()
	f := newFixture(t, wayBy("http"))
	f.commit("A fleet", fleet)
	dir := f.workTree()
	run(t, dir, "remote", "add", "upstream", "git@git.example.org:platform/fleet.git")
	run(t, dir, "remote", "add", "beside", "../other")
	d, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	names, err := d.Remotes()
	if err != nil || !slices.Contains(names, "git.example.org/platform/fleet") || !slices.Contains(names, filepath.ToSlash(filepath.Join(filepath.Dir(dir), "other"))) {
		t.Errorf("%q, %v", names, err)
	}
}
