package cli

import (
	"bytes"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/upgrade"
	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/edit"
	"gitopsd.dev/render/types/compat"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/lockfile"
)

// The line of outdated about a package, and its details about the controller.
func TestOutdatedText(t *testing.T) {
	t.Parallel()
	image := behaviour.Difference{What: "image", Name: "package-runtime", Before: "a", After: "b"}
	v2 := func(change func(c *upgrade.Candidate)) *upgrade.Versions {
		c := &upgrade.Candidate{Version: "v2.0.0", Types: compat.Count{Same: 3}}
		change(c)
		return &upgrade.Versions{Repository: "reg.io/w", Current: "v1.0.0", Clusters: []string{"dev"}, Latest: c}
	}
	update := v2(func(c *upgrade.Candidate) { c.Types = compat.Count{Changed: 1, Breaking: 1} })
	update.Update = &upgrade.Candidate{Version: "v1.1.0", Types: compat.Count{Same: 3}}
	update.Held = []string{"accepted by reg.io/app (<2.0.0)", "accepted by reg.io/web (v1.x)"}
	for _, tt := range []struct {
		name    string
		of      *upgrade.Versions
		want    string // the line's last cell
		details string // lines with the details
	}{
		{"types unchanged", v2(func(*upgrade.Candidate) {}), "v2.0.0: same types", ""},
		{"another controller", v2(func(c *upgrade.Candidate) { c.Controller = []behaviour.Difference{image} }), "v2.0.0: types unchanged, controller changed", "controller: image package-runtime: a -> b"},
		{"a controller gained", v2(func(c *upgrade.Candidate) {
			c.Controller = []behaviour.Difference{{What: "image", Name: "package-runtime", After: "b", Added: true}, {What: "right", Name: "get widgets", Added: true}}
		}), "v2.0.0: types unchanged, controller changed", "controller: image package-runtime added: b\ncontroller: right get widgets added"},
		{"a controller lost", v2(func(c *upgrade.Candidate) {
			c.Controller = []behaviour.Difference{{What: "image", Name: "package-runtime", Before: "a", Removed: true}}
		}), "v2.0.0: types unchanged, controller changed", "controller: image package-runtime removed: a"},
		{"types and controller", v2(func(c *upgrade.Candidate) {
			c.Types, c.Controller = compat.Count{Changed: 1}, []behaviour.Difference{image}
		}), "v2.0.0: 1 type changed", "controller: image package-runtime: a -> b"},
		{"the controller is not known", v2(func(c *upgrade.Candidate) { c.ControllerError = "reg.io/image: not found" }), "v2.0.0: same types, what changes in the controller is not known", "controller: not known: reg.io/image: not found"},
		{"conversion rules", v2(func(c *upgrade.Candidate) {
			c.Misfits = []upgrade.Misfit{{Definition: "widgets.acme.example", Clusters: []string{"dev"}, Error: "no v1\nno v2"}}
		}), "v2.0.0: same types, and the conversion rules of 1 type do not fit", "conversion rules of widgets.acme.example do not fit (dev): no v1\n  no v2"},
		{"it cannot be read", v2(func(c *upgrade.Candidate) { c.Error = "reg.io/w: not found" }), "v2.0.0: not known", ""},
		{"held back", update, "v1.1.0: same types; v2.0.0: 1 type changed, 1 breaking; v2.0.0 is not accepted by reg.io/app (<2.0.0) nor accepted by reg.io/web (v1.x)", ""},
		{"taken back", &upgrade.Versions{Repository: "reg.io/w", Current: "v1.0.0", Clusters: []string{"dev"}, Excluded: "slow", Retracted: "broken", Replaces: "in place of reg.io/x"},
			"v1.0.0 is excluded: slow; v1.0.0 is retracted: broken; in place of reg.io/x", ""},
		{"skipped", &upgrade.Versions{Repository: "reg.io/w", Current: "v1.0.0", Clusters: []string{"dev"}, Skipped: []string{"v1.1.0 is excluded: slow"}}, "v1.1.0 is excluded: slow", ""},
		{"no list", &upgrade.Versions{Repository: "reg.io/w", Current: "v1.0.0", Clusters: []string{"dev"}, Error: "reg.io/w: down"}, "not known", ""},
		{"no version", &upgrade.Versions{Repository: "reg.io/w", Current: "latest", Clusters: []string{"dev"}, Note: "latest is no semantic version"}, "latest is no semantic version", ""},
		{"up to date", &upgrade.Versions{Repository: "reg.io/w", Current: "v1.0.0", Clusters: []string{"dev"}}, "up to date", ""},
		{"hostile", v2(func(c *upgrade.Candidate) { c.ControllerError = "a\x1b[2Jb" }), "v2.0.0: same types, what changes in the controller is not known", "controller: not known: a[2Jb"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			o := outdatedOptions{details: true}
			if err := o.print(&out, []*upgrade.Versions{tt.of}, true, nil); err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(out.String(), "\n")
			at := strings.Index(lines[0], "TYPES")
			if at < 0 || len(lines) < 2 || len(lines[1]) < at {
				t.Fatalf("%s", out.String())
			}
			if have := lines[1][at:]; have != tt.want {
				t.Errorf("%q, want %q", have, tt.want)
			}
			var details []string
			for _, l := range lines[2:] {
				if text, ok := strings.CutPrefix(l, "  "); ok {
					details = append(details, text)
				}
			}
			if have := strings.Join(details, "\n"); have != tt.details {
				t.Errorf("details %q, want %q", have, tt.details)
			}
		})
	}
}

// The output of bump --all: what moves, what stays and why, and what must be allowed.
func TestBumpAllText(t *testing.T) {
	t.Parallel()
	lock := func(text string) *lockfile.File {
		f, err := lockfile.Parse("clusters.lock", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	const a, b = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	bumped := &upgrade.Bump{
		Edits: []upgrade.Edit{
			{Place: edit.Place{File: "a/db.yaml", Line: 6, Text: "reg.io/acme/db:v1.0.0"}, To: "reg.io/acme/db:v1.1.0", Clusters: []string{"a", "b", "c", "d", "e"}},
			{Place: edit.Place{File: "a/web.yaml", Line: 3, Text: "reg.io/acme/web:v1.0.0"}, To: "reg.io/acme/web:v1.2.0", Clusters: []string{"a"}},
		},
		Notes: []*upgrade.Note{
			{Package: "app", Text: "v2.0.0 is the newest"}, {Package: "app", Clusters: []string{"b"}, Text: "its tags are not listed"}, {Text: "a\x1b[2Jb"},
		},
		Before: lock("@a reg.io/acme/db v1.0.0\nreg.io/acme/db v1.0.0 " + a + "\n"),
		Lock:   lock("@a reg.io/acme/db v1.1.0\nreg.io/acme/db v1.1.0 " + b + "\n"),
		Moves: []*upgrade.Move{
			{Repository: "reg.io/acme/db", From: "v1.0.0", To: "v1.1.0", Clusters: []string{"a"}, Types: compat.Count{Changed: 1, Breaking: 1}, Declaration: "Configuration db", Refused: []string{"field-removed"},
				Changes: []compat.Change{{Name: "dbs.acme.example", Change: compat.Changed, Compatibility: compat.Breaking}, {Name: "tables.acme.example", Change: compat.Added, Compatibility: compat.Compatible}}},
			{Repository: "reg.io/acme/new", To: "v1.0.0", Clusters: []string{"a"}, Types: compat.Count{Added: 2}},
			{Repository: "reg.io/acme/old", From: string(sources.DigestOf([]byte("x"))), Clusters: []string{"a"}, Error: "its types are not known"},
		},
	}
	const want = `a/db.yaml:6: reg.io/acme/db:v1.0.0 -> reg.io/acme/db:v1.1.0 (a, b, c, d and 1 more)
a/web.yaml:3: reg.io/acme/web:v1.0.0 -> reg.io/acme/web:v1.2.0 (a)
app: v2.0.0 is the newest
app: b: its tags are not listed
a[2Jb

clusters.lock:
- @a reg.io/acme/db v1.0.0
- reg.io/acme/db v1.0.0 ` + a + `
+ @a reg.io/acme/db v1.1.0
+ reg.io/acme/db v1.1.0 ` + b + `

reg.io/acme/db v1.0.0 -> v1.1.0 in a: 1 type changed, 1 breaking
  dbs.acme.example: changed, breaking

reg.io/acme/new v1.0.0, new in a: 2 types added

reg.io/acme/old sha256:2d711642b726, no longer needed in a: its types are not known

This breaks somebody, and ` + "`gitopsd run`" + ` refuses it until the declaration of Configuration db says why it is fine:

metadata:
  annotations:
    gitopsd.dev/allow-breaking: |
      v1.1.0:field-removed=<why that is fine>
`
	var out bytes.Buffer
	printBump(&out, bumped, false)
	if out.String() != want {
		t.Errorf("have\n%s\nwant\n%s", out.String(), want)
	}
	var all bytes.Buffer
	printBump(&all, bumped, true)
	if !strings.Contains(all.String(), "  dbs.acme.example: changed, breaking\n  tables.acme.example: added, compatible\n") {
		t.Errorf("with details\n%s", all.String())
	}
}

// The controllers of two definitions are compared if both are known, or known not to exist.
func TestControllersOfTypes(t *testing.T) {
	t.Parallel()
	one := &behaviour.Identity{Images: []behaviour.Part{{Name: "c", Value: "a"}}}
	two := &behaviour.Identity{Images: []behaviour.Part{{Name: "c", Value: "b"}}}
	for _, tt := range []struct {
		name     string
		old, now *definition
		want     string
	}{
		{"the same", &definition{controller: one}, &definition{controller: one}, ""},
		{"another", &definition{controller: one}, &definition{controller: two}, "image c: a -> b"},
		{"gained in a cluster", &definition{rendered: true}, &definition{controller: two}, "image c added: b"},
		{"lost in a cluster", &definition{controller: one}, &definition{rendered: true}, "image c removed: a"},
		{"gained by a package", &definition{alone: true}, &definition{controller: two}, "image c added: b"},
		{"lost by a package", &definition{controller: one}, &definition{alone: true}, "image c removed: a"},
		{"a file says nothing of it", &definition{}, &definition{controller: two}, ""},
		{"nor does the other", &definition{controller: one}, &definition{}, ""},
		{"no controller in either", &definition{rendered: true}, &definition{alone: true}, ""},
		{"a new type", nil, &definition{controller: two}, ""},
		{"a type that goes", &definition{controller: one}, nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			name := map[string]any{"kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "widgets.acme.example"}}
			list := func(d *definition) []definition {
				if d == nil {
					return nil
				}
				d.tree = name
				return []definition{*d}
			}
			compared := compareControllers([]compat.Change{{Kind: "CustomResourceDefinition", Name: "widgets.acme.example", Change: compat.Same}}, list(tt.old), list(tt.now))
			var out bytes.Buffer
			if err := new(typesOptions).writeComparison(&out, compared); err != nil {
				t.Fatal(err)
			}
			want := "1 the same, 0 changed, 0 added, 0 removed; 0 breaking\n"
			if tt.want != "" {
				want = "controller of widgets.acme.example differs\n  " + tt.want + "\n" + strings.TrimSuffix(want, "\n") + "; 1 with another controller\n"
			}
			if out.String() != want {
				t.Errorf("have\n%s\nwant\n%s", out.String(), want)
			}
		})
	}
}
