package preview

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
)

var update = flag.Bool("update", false, "write the golden files")

func object(t *testing.T, tree map[string]any) *manifest.Object {
	t.Helper()
	o, err := manifest.New(tree, manifest.Origin{})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func crdID(name string) manifest.ID {
	return manifest.ID{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition", Name: name}
}

// example returns a fleet with everything that a plan can show.
func example() *Fleet {
	var steps []plan.Step
	for i := range 12 {
		steps = append(steps, plan.Step{Action: plan.Create, ID: crdID(fmt.Sprintf("things%d.acme.example", i)), Package: "things"})
	}
	many := []plan.Change{
		{Path: "spec.versions[name=v1].schema.openAPIV3Schema.description", Old: "a", New: "b"},
		{Path: "spec.versions[name=v1].schema.openAPIV3Schema.properties.description", Added: true, New: map[string]any{"type": "string"}},
	}
	for i := range 10 {
		many = append(many, plan.Change{Path: fmt.Sprintf("spec.versions[name=v1].field%d", i), Old: int64(i), New: int64(i + 1)})
	}
	steps = append(steps,
		plan.Step{Action: plan.Configure, ID: crdID("widgets.acme.example"), Package: "things", Reason: "changed in the repository", Changes: many},
		plan.Step{Action: plan.Unchanged, ID: crdID("same.acme.example"), Package: "things"},
		plan.Step{Action: plan.Configure, ID: manifest.ID{Kind: "Secret", Namespace: "default", Name: "token"}, Reason: "changed in the repository",
			Changes: []plan.Change{{Path: "data.password", Hidden: true}, {Path: "data.user", Hidden: true, Added: true}}},
		plan.Step{Action: plan.Configure, ID: manifest.ID{Kind: "ConfigMap", Namespace: "default", Name: "cm"}, Reason: "drift: data.a changed by kubectl-edit", Drift: true,
			Rejected: "admission webhook \"x\" denied the request: ```no```", NotValidated: "webhook y does not support dry runs"},
		plan.Step{Action: plan.Conflict, ID: manifest.ID{Group: "apps", Kind: "Deployment", Namespace: "default", Name: "web"}, Reason: "it is Helm's"},
		plan.Step{Action: plan.Prune, ID: manifest.ID{Kind: "ConfigMap", Namespace: "default", Name: "old"}},
	)
	for i := range steps {
		steps[i].Stage = plan.StageOf(steps[i].ID)
	}
	return &Fleet{
		Source: "working tree",
		Clusters: []ClusterPlan{
			{Name: "dev", Packages: map[string]string{"things": "reg.io/things v2.0.0", "quiet": "reg.io/quiet v1.0.0", "silent": "reg.io/silent v1.0.0"}, Details: map[string]PackageDetails{
				"things": {Repository: "reg.io/things", Version: "v2.0.0", From: "mirror.io/things (by ImageConfig mirror)", Verified: "signed by key acme (ImageConfig cosign)"},
				"quiet":  {Repository: "reg.io/quiet", Version: "v1.0.0", Verified: "signed by key acme (ImageConfig cosign)"},
				"silent": {Repository: "reg.io/silent", Version: "v1.0.0"},
			}, Plan: &plan.Plan{Cluster: "dev", Steps: steps,
				Unreadable: map[schema.GroupKind]string{{Group: "acme.example", Kind: "Gadget"}: "forbidden"}}},
			{Name: "prod", Err: "cluster prod: unreachable: connection refused"},
			{Name: "same", Plan: &plan.Plan{Cluster: "same", Steps: steps[13:14]}},
		},
		Lock:   []string{"- @dev reg.io/things v1.0.0", "+ @dev reg.io/things v2.0.0"},
		Errors: []string{"package other: reg.io/other:v1: not found"},
		Notes:  []string{"reg.io/more:v1 has a new revision"},
	}
}

func TestFormats(t *testing.T) { testFormats(t, "plan", example()) }

// textOf, markdownOf and jsonOf return the forms of a preview.
func textOf(t *testing.T, f *Fleet, o show.Options) string {
	t.Helper()
	return written(t, func(w io.Writer) error { return f.WriteText(w, o) })
}

func markdownOf(t *testing.T, f *Fleet) string {
	t.Helper()
	return written(t, f.WriteMarkdown)
}

func jsonOf(t *testing.T, f *Fleet) string {
	t.Helper()
	return written(t, f.WriteJSON)
}

func written(t *testing.T, write func(io.Writer) error) string {
	t.Helper()
	var b strings.Builder
	if err := write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// testFormats compares all forms of a preview with golden files.
func testFormats(t *testing.T, name string, f *Fleet) {
	for file, have := range map[string]string{
		name + ".txt":     textOf(t, f, show.Options{}),
		name + "-all.txt": textOf(t, f, show.Options{All: true}),
		name + "-60.txt":  textOf(t, f, show.Options{Width: 60}), // columns
		name + ".json":    jsonOf(t, f),
		name + ".md":      markdownOf(t, f),
	} {
		t.Run(file, func(t *testing.T) {
			golden := filepath.Join("testdata", file)
			if *update {
				if err := os.WriteFile(golden, []byte(have), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if have != string(want) {
				t.Errorf("%s differs (go test -update writes it); have\n%s", golden, have)
			}
		})
	}
}

func TestColourIsAskedFor(t *testing.T) {
	for _, colour := range []bool{false, true} {
		b := textOf(t, example(), show.Options{Colour: colour})
		if strings.Contains(b, "\x1b[") != colour {
			t.Errorf("colour %t: %q", colour, b)
		}
	}
}

// A comment of a bounded size is valid Markdown.
func TestMarkdownFitsAComment(t *testing.T) {
	f := &Fleet{Source: "working tree"}
	for c := range 40 {
		p := &plan.Plan{Cluster: fmt.Sprintf("cluster-%d", c)}
		for i := range 500 {
			p.Steps = append(p.Steps, plan.Step{Action: plan.Configure, ID: manifest.ID{Group: "acme.example", Kind: "Thing", Name: fmt.Sprintf("thing%d", i)}, Reason: "changed in the repository of " + p.Cluster})
		}
		f.Clusters = append(f.Clusters, ClusterPlan{Name: p.Cluster, Plan: p})
	}
	text := markdownOf(t, f)
	if len(text) > show.MaxComment || len(text) < show.MaxComment/2 {
		t.Errorf("%d bytes, want at most %d, and not much less", len(text), show.MaxComment)
	}
	if open, closed := strings.Count(text, "<details>"), strings.Count(text, "</details>"); open != 40 || closed != 40 {
		t.Errorf("%d sections are opened, %d closed", open, closed)
	}
	if n := strings.Count(text, "\n```"); n%2 != 0 {
		t.Errorf("%d fences", n)
	}
	if !strings.Contains(text, "more lines; run `gitopsd plan` to see them") {
		t.Error("nothing says that it was cut")
	}
}

// A large fleet, and one in which everything fails, leave room in the comment.
func TestMarkdownOfALargeFleet(t *testing.T) {
	changed := &plan.Plan{Steps: []plan.Step{{Action: plan.Create, ID: manifest.ID{Kind: "ConfigMap", Name: "a"}}}}
	quiet := &plan.Plan{Steps: []plan.Step{{Action: plan.Unchanged, ID: manifest.ID{Kind: "ConfigMap", Name: "a"}}}}
	f := &Fleet{Source: "working tree"}
	for c := range 2000 {
		cp := ClusterPlan{Name: fmt.Sprintf("cluster-%d", c), Plan: quiet}
		if c%500 == 0 {
			cp.Plan = changed
		}
		f.Clusters = append(f.Clusters, cp)
	}
	failing := &Fleet{Source: "working tree"}
	for c := range 2000 {
		failing.Clusters = append(failing.Clusters, ClusterPlan{Name: fmt.Sprintf("cluster-%d", c), Err: fmt.Sprint(c, strings.Repeat(" it does not answer", 10))})
		failing.Errors = append(failing.Errors, strings.Repeat("nothing works ", 10))
		failing.Notes = append(failing.Notes, strings.Repeat("a note ", 10))
	}
	for _, tt := range []struct {
		fleet *Fleet
		want  []string
	}{
		{f, []string{"**Changes: 4 clusters change, 1996 match the working tree**\n", "| 4 clusters (cluster-0, cluster-500, cluster-1000 …) | 1 new |\n", "| 1996 clusters (cluster-1, cluster-2, cluster-3 …) | 1 unchanged |\n"}},
		{failing, []string{"**Problems: 2000 clusters have no plan, 2000 errors**\n", "| … 1940 more clusters |", "more bytes\n", "> … and 1980 more\n"}},
	} {
		b := markdownOf(t, tt.fleet)
		if len(b) > show.MaxComment {
			t.Errorf("%d bytes, want at most %d", len(b), show.MaxComment)
		}
		for _, want := range tt.want {
			if !strings.Contains(b, want) {
				t.Errorf("it lacks %q:\n%.3000s", want, b)
			}
		}
	}
}

// A plan shows that a Secret changes, and no values.
func TestSecretsAreNotShown(t *testing.T) {
	secret := func(value string) *manifest.Object {
		return object(t, map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": "s", "namespace": "a"}, "stringData": map[string]any{"k": value}})
	}
	p := between(t, new(plan.Comparer), "dev", setOf(t, secret("hunter2")), setOf(t, secret("hunter3")), nil, nil)
	f := &Fleet{Clusters: []ClusterPlan{{Name: "dev", Plan: p}}}
	for name, text := range map[string]string{"text": textOf(t, f, show.Options{All: true}), "json": jsonOf(t, f), "markdown": markdownOf(t, f)} {
		if !strings.Contains(text, "stringData.k") || strings.Contains(text, "hunter") {
			t.Errorf("%s: want the key and no value:\n%s", name, text)
		}
	}
}
