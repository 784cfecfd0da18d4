package clusters

import (
	"strings"
	"testing"

	"gitopsd.dev/sources"
)

const rulesDocument = `apiVersion: gitopsd.dev/v1alpha1
kind: Packages
spec:
  exclude:
  - package: registry.example.org/acme/widgets
    version: ">=1.2.0 <1.2.4"
    reason: |
      loses data,
      see #42
  - {package: acme/gadgets, version: stable, reason: moves}
  select:
  - {package: registry.example.org/acme/base, version: v1.4.0}
  replace:
  - {package: reg.io/a, with: reg.io/fork/a}
  - {package: reg.io/a, version: v1.2.0, with: "reg.io/fork/a:v1.2.1"}
  - {package: reg.io/b, directory: ./packages/b/}
`

func TestPackages(t *testing.T) {
	t.Parallel()
	for _, text := range []string{rulesDocument + "---\n" + valid, valid + "---\n" + rulesDocument} {
		r, err := Parse("clusters.yaml", []byte(text))
		if err != nil || r.RulesErr != nil || len(r.Clusters) != 2 {
			t.Fatalf("%v, %v, %d clusters", err, r.RulesErr, len(r.Clusters))
		}
		if e := r.Rules.Excluded(sources.Ref{Repository: "registry.example.org/acme/widgets", Tag: "v1.2.3"}); e == nil || e.Reason != "loses data, see #42" {
			t.Errorf("have %v", e)
		}
		if e := r.Rules.Excluded(sources.Ref{Repository: sources.DefaultRegistry + "/acme/gadgets", Tag: "stable"}); e == nil {
			t.Error("a repository without a registry is another one")
		}
		if s := r.Rules.Selected("registry.example.org/acme/base"); s == nil || s.Ref.Tag != "v1.4.0" {
			t.Errorf("have %v", s)
		}
	}
	r, err := Parse("clusters.yaml", []byte(rulesDocument+"---\n"+valid))
	if err != nil {
		t.Fatal(err)
	}
	for ref, want := range map[string]string{"v1.0.0": "reg.io/fork/a", "v1.2.0": "reg.io/fork/a:v1.2.1", "": "reg.io/fork/a"} {
		if by := r.Rules.Replaced(sources.Ref{Repository: "reg.io/a", Tag: ref}); by == nil || by.With.String() != want {
			t.Errorf("%q is replaced by %+v, want %s", ref, by, want)
		}
	}
	if by := r.Rules.Fixed("reg.io/b"); by == nil || by.Directory != "packages/b" || r.Rules.Fixed("reg.io/a") != nil || r.Rules.VersionsOf("reg.io/a") != "reg.io/fork/a" {
		t.Errorf("have %+v", by)
	}
	r, _ = Parse("clusters.yaml", []byte(rulesDocument+"---\n"+valid))
	if place := r.Rules.Excludes[1].Place; place != "clusters.yaml:10" {
		t.Errorf("the second entry is at %s", place)
	}
}

// A document with errors has none of its rules followed, and nobody chooses
// versions meanwhile.
func TestPackagesFaults(t *testing.T) {
	t.Parallel()
	spec := func(lines ...string) string {
		return "apiVersion: gitopsd.dev/v1alpha1\nkind: Packages\nspec:\n" + strings.Join(lines, "\n") + "\n"
	}
	for _, tt := range []struct{ name, doc, want string }{
		{"no reason", spec("  exclude:", "  - {package: reg.io/a, version: v1.0.0}"), "clusters.yaml:5: spec.exclude.0.reason: is missing: say why"},
		{"no version", spec("  exclude:", "  - {package: reg.io/a, reason: x}"), "clusters.yaml:5: spec.exclude.0.version: no version is named"},
		{"no package", spec("  exclude:", "  - {version: v1.0.0, reason: x}"), "clusters.yaml:5: spec.exclude.0.package: is missing"},
		{"a reference", spec("  select:", "  - {package: 'reg.io/a:v1.0.0', version: v1.0.0}"), `clusters.yaml:5: spec.select.0.package: "reg.io/a:v1.0.0" is not a repository`},
		{"a range is no choice", spec("  select:", "  - {package: reg.io/a, version: '>=1.0.0'}"), `spec.select.0.version: ">=1.0.0": want a tag, a digest or tag@digest`},
		{"two choices", spec("  select:", "  - {package: reg.io/a, version: v1.0.0}", "  - {package: reg.io/a, version: v1.0.0}"), "clusters.yaml:6: spec.select.1.package: reg.io/a has a version at clusters.yaml:5 already"},
		{"chosen and excluded", spec("  exclude:", "  - {package: reg.io/a, version: v1.0.0, reason: bad}", "  select:", "  - {package: reg.io/a, version: v1.0.0}"), "clusters.yaml:7: spec.select.0.version: v1.0.0 is excluded: bad (clusters.yaml:5)"},
		{"replaced by nothing", spec("  replace:", "  - {package: reg.io/a}"), "clusters.yaml:5: spec.replace.0: needs one of with"},
		{"replaced by both", spec("  replace:", "  - {package: reg.io/a, with: reg.io/b, directory: b}"), "spec.replace.0: needs one of with"},
		{"replaced by itself", spec("  replace:", "  - {package: reg.io/a, with: 'reg.io/a:v2.0.0'}"), "spec.replace.0.with: is the same repository"},
		{"replaced by what is excluded", spec("  exclude:", "  - {package: reg.io/b, version: v1.0.0, reason: bad}", "  replace:", "  - {package: reg.io/a, with: 'reg.io/b:v1.0.0'}"), "clusters.yaml:7: spec.replace.0.with: reg.io/b:v1.0.0 is excluded: bad (clusters.yaml:5)"},
		{"replaced by no reference", spec("  replace:", "  - {package: reg.io/a, with: '../a'}"), `spec.replace.0.with: "../a": want a repository`},
		{"replaced from outside", spec("  replace:", "  - {package: reg.io/a, directory: '../a'}"), `spec.replace.0.directory: "../a" leaves the repository`},
		{"replaced from anywhere", spec("  replace:", "  - {package: reg.io/a, directory: '/etc'}"), `spec.replace.0.directory: "/etc" leaves the repository`},
		{"a range is replaced", spec("  replace:", "  - {package: reg.io/a, version: '>=1', directory: a}"), `spec.replace.0.version: ">=1" is no tag`},
		{"replaced twice under two names", spec("  replace:", "  - {package: docker.io/a, directory: a}", "  - {package: index.docker.io/a, with: reg.io/b}"), "clusters.yaml:6: spec.replace.1: docker.io/a is replaced at clusters.yaml:5 already"},
		{"replaced twice", spec("  replace:", "  - {package: reg.io/a, directory: a}", "  - {package: reg.io/a, with: reg.io/b}"), "clusters.yaml:6: spec.replace.1: reg.io/a is replaced at clusters.yaml:5 already"},
		{"unknown key", spec("  exlude: []"), "clusters.yaml:4: exlude: is not a field here; did you mean exclude?"},
		{"unknown key of an entry", spec("  exclude:", "  - {pakcage: reg.io/a}"), "clusters.yaml:5: pakcage: is not a field here; did you mean package?"},
		{"wrong type", spec("  exclude: v1.0.0"), "clusters.yaml:4: a str (v1.0.0) stands where a list is wanted"},
		{"kind", strings.Replace(spec("  exclude: []"), "Packages", "package", 1), `clusters.yaml:2: kind: "package"; did you mean Packages?`},
		{"another kind with its fields", strings.Replace(spec("  exclude: []"), "Packages", "Versions", 1), `clusters.yaml:2: kind: "Versions"; did you mean Packages?`},
		{"a misspelt kind", strings.Replace(spec("  exlude: []"), "Packages", "Packges", 1), `clusters.yaml:2: kind: "Packges"; did you mean Packages?`},
		{"no kind", strings.Replace(spec("  exclude: []"), "kind: Packages\n", "", 1), `clusters.yaml:1: kind: ""; did you mean Packages?`},
		{"a kind in upper case", strings.Replace(spec("  exclude: []"), "kind", "Kind", 1), "clusters.yaml:2: Kind: is not a field here; did you mean kind?"},
		{"no spec", "exclude: []\n", "clusters.yaml:1: exclude: is not a field here"},
		{"the kind of clusters", strings.Replace(spec("  exclude: []"), "Packages", "Cluster", 1), "clusters.yaml:4: exclude: is not a field here"},
		{"in a list", "- " + strings.ReplaceAll(strings.TrimSpace(spec("  exclude: []")), "\n", "\n  ") + "\n", "clusters.yaml:1: a document must be a mapping"},
		{"cut off", "apiVersion: gitopsd.dev/v1alpha1\nkind: Packa\n", `clusters.yaml:2: kind: "Packa"; did you mean Packages?`},
		{"apiVersion", strings.Replace(spec("  exclude: []"), "v1alpha1", "v2", 1), `clusters.yaml:1: apiVersion: "gitopsd.dev/v2"`},
		{"syntax", spec("  exclude: ["), "clusters.yaml:"},
		{"two documents", spec("  exclude: []") + "---\n" + spec("  exclude: []"), "clusters.yaml:6: there is a Packages document at line 1 already"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, err := Parse("clusters.yaml", []byte(tt.doc+"---\n"+valid))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v\nwant one with %q", err, tt.want)
			}
			if r.RulesErr == nil || len(r.Rules.Excludes) > 0 || len(r.Rules.Selects) > 0 {
				t.Errorf("rules %+v, %v", r.Rules, r.RulesErr)
			}
			if len(r.Clusters) != 2 {
				t.Errorf("%d clusters go on, want 2", len(r.Clusters))
			}
		})
	}
	// Other documents' faults leave the rules alone.
	for _, doc := range []string{"- a\n", "kind: Clutser\n", "apiVersion: gitopsd.dev/v1alpha1\nkind: Cluster\nspec: [\n"} {
		if r, err := Parse("clusters.yaml", []byte(doc+"---\n"+rulesDocument+"---\n"+valid)); err == nil || r.RulesErr != nil || len(r.Rules.Excludes) != 2 {
			t.Errorf("%q: %v, rules %+v, %v", doc, err, r.Rules, r.RulesErr)
		}
	}
}
