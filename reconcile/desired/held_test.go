package desired

import (
	"io/fs"
	"strings"
	"testing"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/resolve"
)

// What the lock has stays where a declaration cannot be read or waits for approval,
// and both are told.
func TestLockedStays(t *testing.T) {
	var fetched int
	v0 := string(sources.DigestOf([]byte("reg.io/a:v0")))
	f := files{
		"clusters.yaml":   cluster("typo") + cluster("manual"),
		"c/typo/a.yaml":   strings.Replace(configuration("a", "reg.io/a:v1"), "v1}", "v1, packagePullPolicy: Alwys}", 1) + configMap,
		"c/manual/a.yaml": strings.Replace(configuration("a", "reg.io/a:v1"), "v1}", "v1, revisionActivationPolicy: Manual}", 1) + configMap,
		"clusters.lock":   "@manual reg.io/a v0\n@typo reg.io/a v0\nreg.io/a v0 " + v0 + "\nreg.io/a v0/package.yaml " + v0 + "\n",
	}
	// The packages of a commit may be in its own files.
	asked := 0
	c := New(Config{FromTree: func(tree fs.FS) (resolve.Config, error) {
		asked++
		_, err := fs.Stat(tree, "clusters.yaml")
		return shelf(&fetched), err
	}})
	for range 2 {
		s, err := c.Compute(t.Context(), f.commit(), Earlier{})
		if err != nil {
			t.Fatal(err)
		}
		if s.LockChanged() {
			t.Errorf("the lock became\n%s", s.Lock.Format())
		}
		typo, manual := s.Get("typo"), s.Get("manual")
		if len(typo.Packages) != 0 || !typo.Keeps(manifest.ID{Kind: "X", Name: "x"}, "a") || typo.Objects.Len() != 1 || len(typo.Faults) != 1 {
			t.Errorf("typo: %v, faults %v", typo.Packages, typo.Faults)
		}
		if want := "package a stays at v0, which clusters.lock has, while its declaration cannot be read"; len(typo.Notes) != 1 || typo.Notes[0] != want {
			t.Errorf("typo: notes %q", typo.Notes)
		}
		if len(manual.Packages) != 1 || manual.Packages[0].Pin.Ref.Tag != "v0" || manual.Packages[0].Declaration.Ref.Tag != "v0" || !manual.Complete() {
			t.Errorf("manual: %v, %v", manual.Packages, manual.Problems())
		}
		if len(manual.Waiting) != 1 || !strings.HasPrefix(manual.Waiting[0], "reg.io/a:v1 waits for approval in manual, where v0 stays: ") || len(s.Waiting) != 1 {
			t.Errorf("manual: waiting %q", manual.Waiting)
		}
	}
	if asked != 2 || fetched != 1 {
		t.Errorf("asked %d times, fetched %d packages", asked, fetched)
	}
}
