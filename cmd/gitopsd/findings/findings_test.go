package findings

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/verify"
	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/render/types/compat"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/lockfile"
)

var update = flag.Bool("update", false, "write golden files")

// digest returns a digest made of one character.
func digest(c string) sources.Digest { return sources.Digest("sha256:" + strings.Repeat(c, 64)) }

// options are those of the tests: widgets v1 is an index of 1, v2 the single
// manifest 4, and schemas cannot be read.
var options = verify.Options{
	Images: []lockfile.Image{
		{Repository: "reg.io/widgets", Version: "v1", Digest: digest("1")},
		{Repository: "reg.io/widgets", Version: "v2", Digest: digest("4")},
	},
	Tree: func(string, manifest.ID) (map[string]any, error) { return nil, errors.New("not here") },
}

// typed returns types with a digest made of a word.
func typed(kind, schema string) []types.Type {
	return []types.Type{{Group: "acme.example", Version: "v1", Kind: kind, Digest: "h1:" + schema}}
}

func definitionID(kind string) manifest.ID {
	return manifest.ID{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition", Name: strings.ToLower(kind) + "s.acme.example"}
}

// large is a fleet of 50 clusters with 1,000 types of 40 packages each.
func large() []verify.Facts {
	const clusters, packages, kinds = 50, 40, 25
	var all []verify.Facts
	for i := range clusters {
		name := fmt.Sprintf("prod-%02d", i)
		c := verify.Facts{Name: name, Definitions: make(map[manifest.ID]*verify.Definition), Controllers: make(map[manifest.ID]*verify.Controller)}
		for p := range packages {
			pkg := fmt.Sprintf("provider-%02d", p)
			wanted := &behaviour.Identity{
				Workload: manifest.ID{Group: "apps", Kind: "Deployment", Namespace: "gitopsd-system", Name: pkg},
				Images:   []behaviour.Part{{Name: "package-runtime", Value: string(digest("1"))}},
			}
			c.Controllers[wanted.Workload] = &verify.Controller{Wanted: wanted, Source: "reg.io/widgets v1", Instances: []verify.Instance{{Pod: "gitopsd-system/" + pkg, Pods: 1, Images: wanted.Images}}}
			for k := range kinds {
				kind := fmt.Sprintf("Kind%02d%02d", p, k)
				c.Definitions[definitionID(kind)] = &verify.Definition{
					ID: definitionID(kind), Kind: kind, Group: "acme.example", Package: pkg, Source: "reg.io/widgets v1",
					Rendered: typed(kind, "one"), Live: typed(kind, "one"), Behaviour: wanted,
				}
			}
		}
		all = append(all, c)
	}
	return all
}

// controllerOf is the controller of a package in a cluster, by their numbers.
func controllerOf(all []verify.Facts, cluster, pkg int) *verify.Controller {
	return all[cluster].Controllers[manifest.ID{Group: "apps", Kind: "Deployment", Namespace: "gitopsd-system", Name: fmt.Sprintf("provider-%02d", pkg)}]
}

// The report on a fleet with a few differences fits on a page.
func TestLargeFleet(t *testing.T) {
	all := large()
	definition := func(cluster int, kind string) *verify.Definition { return all[cluster].Definitions[definitionID(kind)] }
	// One cluster runs an unknown image, three run an earlier version, and one has lost a
	// package. Seven types differ by declaration, two were edited, and all clusters have
	// some that nobody declared. One cluster does not answer.
	controllerOf(all, 7, 3).Instances[0].Images = []behaviour.Part{{Name: "package-runtime", Value: string(digest("9"))}}
	for _, i := range []int{11, 12, 13} {
		controllerOf(all, i, 5).Instances[0].Images = []behaviour.Part{{Name: "package-runtime", Value: string(digest("4"))}}
	}
	for k := range 25 {
		definition(20, fmt.Sprintf("Kind09%02d", k)).Live = nil
	}
	for k := range 7 {
		for i := range 10 {
			kind := fmt.Sprintf("Kind14%02d", k)
			definition(30+i, kind).Rendered, definition(30+i, kind).Live = typed(kind, "two"), typed(kind, "two")
		}
	}
	for _, i := range []int{40, 41} {
		definition(i, "Kind2000").Live = typed("Kind2000", "edited")
		definition(i, "Kind2000").Drift = []compat.Finding{{Name: "field-removed", Severity: compat.Breaking, Version: "v1", Path: ".spec.size", Detail: "integer -> none", Breaks: compat.Writers}}
	}
	for i := range all {
		for k := range 30 {
			kind := fmt.Sprintf("Found%02d", k)
			all[i].Definitions[definitionID(kind)] = &verify.Definition{ID: definitionID(kind), Kind: kind, Group: "acme.example", Live: typed(kind, "one")}
		}
	}
	all[49] = verify.Facts{Name: all[49].Name, Unread: true, Gaps: []string{"https://prod-49.example.org cannot be reached: connection refused"}}
	r := verify.Compare(t.Context(), all, options)
	var text, markdown strings.Builder
	if err := WriteText(&text, r, show.Options{}); err != nil {
		t.Fatal(err)
	}
	if err := WriteMarkdown(&markdown, r); err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/fleet.txt", text.String())
	golden(t, "testdata/fleet.md", markdown.String())
}

func golden(t *testing.T, file, have string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(have), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != have {
		t.Errorf("%s has changed (-update writes it):\n%s", file, have)
	}
}

// If very much differs, the text is still a few screens and the Markdown a comment.
func TestBounded(t *testing.T) {
	all := large()
	for i := range all {
		for id, d := range all[i].Definitions {
			d.Rendered = typed(d.Kind, fmt.Sprint(id.Name, i))
			d.Live = d.Rendered
			if i%3 == 0 {
				d.Live = typed(d.Kind, fmt.Sprint(id.Name, i, "live"))
				d.Drift = make([]compat.Finding, 40)
				for j := range d.Drift {
					d.Drift[j] = compat.Finding{Name: "field-removed", Path: strings.Repeat(".longname", 12) + fmt.Sprint(j)}
				}
			}
		}
		for _, c := range all[i].Controllers {
			c.Instances[0].Images = []behaviour.Part{{Name: "package-runtime", Value: fmt.Sprintf("sha256:%064x", i)}}
			for j := range 30 {
				c.Waiting = append(c.Waiting, fmt.Sprint("pod ", j))
			}
		}
		for j := range 30 {
			all[i].Gaps = append(all[i].Gaps, fmt.Sprintf("reason %d of %d", j, i))
		}
	}
	r := verify.Compare(t.Context(), all, options)
	var text, markdown strings.Builder
	if err := WriteText(&text, r, show.Options{}); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(text.String(), "\n"); lines > 500 || text.Len() > 60_000 {
		t.Errorf("%d lines of text, %d bytes\n%.5000s", lines, text.Len(), text.String())
	}
	if err := WriteMarkdown(&markdown, r); err != nil {
		t.Fatal(err)
	}
	if markdown.Len() > show.MaxComment {
		t.Errorf("%d bytes of Markdown", markdown.Len())
	}
	if !strings.Contains(markdown.String(), "more findings; run `gitopsd verify` to see them") {
		t.Errorf("nothing says that findings were left out\n%.3000s", markdown.String())
	}
	changes := 0
	for _, f := range r.Findings {
		changes += len(f.Changes)
	}
	if changes > verify.MaxChanges {
		t.Errorf("%d types are compared field by field, more than %d", changes, verify.MaxChanges)
	}
}

// Long reasons leave room for the findings.
func TestLongReasons(t *testing.T) {
	r := &verify.Report{Verdict: verify.NotVerified, Clusters: []string{"dev"}, Findings: []verify.Finding{
		{Kind: verify.Drifted, Types: []string{"Widget.acme.example"}, Sides: []verify.Side{{Clusters: []string{"dev"}, What: "x", Odd: true}}},
	}}
	for i := range 10 {
		r.NotVerified = append(r.NotVerified, verify.Gap{Cluster: "dev", Reason: fmt.Sprint(i, strings.Repeat(" the webhook does not answer", 400))})
	}
	var markdown strings.Builder
	if err := WriteMarkdown(&markdown, r); err != nil {
		t.Fatal(err)
	}
	if markdown.Len() > show.MaxComment || !strings.Contains(markdown.String(), "Widget.acme.example") {
		t.Errorf("%d bytes of Markdown\n%.1000s", markdown.Len(), markdown.String())
	}
}

// On a narrow terminal sentences are wrapped between words, and nothing is lost.
func TestWidth(t *testing.T) {
	all := large()[:2]
	controllerOf(all, 1, 0).Instances[0].Images = []behaviour.Part{{Name: "package-runtime", Value: string(digest("9"))}}
	all[0].Gaps = []string{strings.Repeat("long", 40) + " reason"}
	r := verify.Compare(t.Context(), all, options)
	var wide, narrow strings.Builder
	if err := WriteText(&wide, r, show.Options{}); err != nil {
		t.Fatal(err)
	}
	if err := WriteText(&narrow, r, show.Options{Width: 40}); err != nil {
		t.Fatal(err)
	}
	if a, b := strings.Fields(wide.String()), strings.Fields(narrow.String()); strings.Join(a, " ") != strings.Join(b, " ") {
		t.Errorf("wrapped\n%s\nnot wrapped\n%s", narrow.String(), wide.String())
	}
	for l := range strings.Lines(narrow.String()) {
		if strings.Contains(l, "Do:") && len(strings.TrimRight(l, "\n")) > 40 {
			t.Errorf("%d columns: %s", len(l), l)
		}
	}
}
