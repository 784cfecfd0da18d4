package cli

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"gitopsd.dev/cmd/gitopsd/preview"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/unit"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/clusters"
	"gitopsd.dev/sources/lockfile"
)

// The earlier version of a package is the cluster's, or the lock's if the cluster does not tell
// it.
func TestInstalledNames(t *testing.T) {
	t.Parallel()
	digest := func(text string) sources.Digest { return sources.DigestOf([]byte(text)) }
	lock, err := lockfile.Parse("clusters.lock", []byte(
		"reg.io/p v1 "+string(digest("one"))+"\nreg.io/p v2 "+string(digest("two"))+"\n"))
	if err != nil {
		t.Fatal(err)
	}
	ref := sources.Ref{Repository: "reg.io/p", Tag: "v2"}
	u := desired.Registered(clusters.Cluster{Name: "dev"}, "")
	u.Packages = []sources.Selected{{Declaration: sources.Declaration{Name: "p"}, Pin: sources.Pin{Ref: ref, Digest: digest("two")}}}
	for _, tt := range []struct {
		name      string
		installed map[string]unit.Installed
		locked    string
		want      string
		fromLock  bool
	}{
		{"the revision before", map[string]unit.Installed{"p": {Revision: "p-" + digest("one").Short()}}, "reg.io/p v2", "reg.io/p v1", false},
		{"this revision", map[string]unit.Installed{"p": {Revision: "p-" + digest("two").Short()}}, "reg.io/p v1", "reg.io/p v2", false},
		{"a revision that no lock has", map[string]unit.Installed{"p": {Revision: "p-0123456789ab"}}, "reg.io/p v1", "reg.io/p p-0123456789ab", false},
		{"as Crossplane has it", map[string]unit.Installed{"p": {Reference: "reg.io/p:v0@" + string(digest("none"))}}, "reg.io/p v1", "reg.io/p v0", false},
		{"nothing is installed", map[string]unit.Installed{"p": {}}, "reg.io/p v1", "", false},
		{"nothing tells it", nil, "reg.io/p v1", "reg.io/p v1", true},
		{"nothing tells it, and the lock has the same", nil, "reg.io/p v2", "reg.io/p v2", false},
		{"nothing tells it, nor does the lock", nil, "", "", false},
	} {
		locked := make(map[string]string)
		if tt.locked != "" {
			locked["p"] = tt.locked
		}
		names, fromLock := installedNames(u, tt.installed, locked, lock)
		if names["p"] != tt.want || fromLock["p"] != tt.fromLock {
			t.Errorf("%s: %q, from the lock: %t", tt.name, names["p"], fromLock["p"])
		}
	}
}

// A fault of several clusters is reported once.
func TestFaultsAreToldOnce(t *testing.T) {
	t.Parallel()
	refused := &plan.Plan{Steps: []plan.Step{{Action: plan.Refused}}}
	f := &preview.Fleet{Errors: []string{"package p: not found"}, Clusters: []preview.ClusterPlan{
		{Name: "a", Plan: refused}, {Name: "b", Err: "down"}, {Name: "c", Plan: refused}, {Name: "d", Plan: refused, Suspended: true}, {Name: "e", Plan: refused}, {Name: "f", Plan: refused},
	}}
	want := []string{
		"package p: not found",
		"4 clusters (a, c, e …): gitopsd run would fail at 1 step, which the plan shows with its reason",
		"cluster b: down",
	}
	if have := faults(f); !slices.Equal(have, want) {
		t.Errorf("have %q\nwant %q", have, want)
	}
}

// A working tree has the revision of the commit that is checked out, if both are equal.
func TestRevisionOf(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	git := func(args ...string) {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=a", "-c", "user.email=a@b.example"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
	}
	revision := func() string {
		t.Helper()
		tree, err := openTree(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		defer tree.Close()
		return revisionOf(dir, tree)
	}
	git("init", "--quiet")
	writeFile(t, dir, "clusters.yaml", "a")
	if have := revision(); have != "" {
		t.Errorf("without a commit it is %q", have)
	}
	git("add", ".")
	git("commit", "--quiet", "--message", "a")
	commit, repo, err := commitOf(dir, "HEAD")
	if err != nil {
		t.Fatal(err)
	}
	defer repo.Close()
	if have := revision(); len(have) != 10 || have != commit.Hash[:10] {
		t.Errorf("%q, want the first digits of %s", have, commit.Hash)
	}
	writeFile(t, dir, "clusters.yaml", "b")
	if have := revision(); have != "" {
		t.Errorf("with a change it is %q", have)
	}
	writeFile(t, dir, "clusters.yaml", "a")
	writeFile(t, dir, "other.yaml", "a")
	if have := revision(); have != "" {
		t.Errorf("with a file more it is %q", have)
	}
	if err := errors.Join(os.Remove(filepath.Join(dir, "other.yaml")), os.Remove(filepath.Join(dir, "clusters.yaml"))); err != nil {
		t.Fatal(err)
	}
	if have := revision(); have != "" {
		t.Errorf("with a file less it is %q", have)
	}
}
