package preview

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types/compat"
)

// manyClusters returns a fleet in which a package of seven definitions is refused in all clusters
// and a ConfigMap changes. A few clusters differ; with own all plans do.
func manyClusters(t *testing.T, n int, own bool) *Fleet {
	t.Helper()
	before := setOf(t, crd(t, 0, "a", "b"), crd(t, 1, "a"), crd(t, 2, "a"), crd(t, 3, "a"), crd(t, 4, "a"), crd(t, 5, "a"), crd(t, 6, "a"))
	after := setOf(t, crd(t, 0, "a"), crd(t, 1, "a", "b"), crd(t, 2, "a", "b"), crd(t, 3, "a", "b"), crd(t, 4, "a", "b"), crd(t, 5, "a", "b"), crd(t, 6, "a", "b"))
	var c plan.Comparer
	f := &Fleet{Source: "working tree", Revision: "a5a241f000"}
	for i := range n {
		name := fmt.Sprintf("edge-%04d", i)
		p := between(t, &c, name, before, after, nil, nil)
		mood := "green"
		if own {
			mood = name
		}
		settings := plan.Step{Action: plan.Configure, ID: manifest.ConfigMap.ID("default", "settings"), Stage: plan.Settings, Reason: "changed in the repository",
			Changes: []plan.Change{{Path: "data.mood", Old: "blue", New: mood}}}
		for range i % 3 {
			p.Steps = append(p.Steps, plan.Step{Action: plan.Unchanged, ID: manifest.ConfigMap.ID("default", "same")})
		}
		cp := ClusterPlan{
			Name: name, Packages: map[string]string{"things": "reg.io/things v2.0.0"}, Before: map[string]string{"things": "reg.io/things v1.0.0"},
			Declared: map[string]string{"things": "Provider things (base/things.yaml:1)"},
		}
		switch i {
		case 5:
			cp.Err = "unreachable: connection refused"
		case 6:
			cp.Plan = &plan.Plan{Steps: []plan.Step{{Action: plan.Unchanged, ID: manifest.ConfigMap.ID("default", "same")}}}
		default:
			p.Steps = append(p.Steps, settings)
			cp.Plan = p
		}
		f.Clusters = append(f.Clusters, cp)
		f.Lock = append(f.Lock, "- @"+name+" reg.io/things v1.0.0")
	}
	for i := range n {
		f.Lock = append(f.Lock, "+ @"+f.Clusters[i].Name+" reg.io/things v2.0.0")
	}
	return f
}

// 62 clusters fit on a screen of 80 columns and 40 lines. The verdict is first and last.
func TestManyClustersFitOnAScreen(t *testing.T) {
	t.Parallel()
	b := textOf(t, manyClusters(t, 62, false), show.Options{Width: 80})
	lines := strings.Split(strings.TrimSuffix(b, "\n"), "\n")
	rows := 0
	for _, l := range lines {
		rows += 1 + (max(utf8.RuneCountInString(l), 1)-1)/80
	}
	if rows > 40 {
		t.Errorf("%d rows", rows)
	}
	flat := squeeze(b)
	const verdict = "Problems: 1 cluster has no plan, 60 have steps that would fail, 1 matches a5a241f000, 124 lines of clusters.lock change"
	for _, want := range []string{
		"60 clusters (edge-0000, edge-0001, edge-0002 …): 1 change, 7 refused, 0 to 2 unchanged",
		"! package things (reg.io/things v1.0.0 -> v2.0.0) refused: breaking: field-removed (things0.acme.example); 7 objects stay as they are",
		"to allow it, add to metadata.annotations of Provider things (base/things.yaml:1): gitopsd.dev/allow-breaking: | v2.0.0:field-removed=<reason>",
		"Cluster edge-0005: no plan", "Cluster edge-0006: 1 unchanged",
		"- @… reg.io/things v1.0.0 in 62 clusters (edge-0000, edge-0001, edge-0002 …)",
		"~ changed ! would fail " + verdict,
	} {
		if !strings.Contains(flat, want) {
			t.Errorf("%q is missing", want)
		}
	}
	if !strings.HasPrefix(flat, verdict) {
		t.Errorf("it does not begin with %q", verdict)
	}
	if strings.Index(flat, "data.mood") > strings.Index(flat, "7 objects stay") {
		t.Error("what is refused comes before what changes")
	}
	if t.Failed() {
		t.Log("\n" + b)
	}
}

func squeeze(text string) string { return strings.Join(strings.Fields(text), " ") }

// 1,000 clusters fit into a comment on GitHub, whether their plans are equal or not.
func TestManyClustersFitInAComment(t *testing.T) {
	t.Parallel()
	const limit = 65_536 // characters
	for _, tt := range []struct {
		own   bool
		want  []string
		lacks string
	}{
		{false, []string{
			"### gitopsd plan: things v1.0.0 -> v2.0.0\n\n**Problems: 1 cluster has no plan, 998 have steps that would fail, 1 matches a5a241f000, 2000 lines of clusters.lock change**\n",
			"| 998 clusters (edge-0000, edge-0001, edge-0002 …) | 1 change, 7 refused, 0 to 2 unchanged |\n",
			"edge-0999", "\n!   ~ configmap/default/settings: changed in the repository\n", "v2.0.0:field-removed=<reason>\n", "\nMarks: `~ changed`, `! would fail`\n",
		}, "more section"},
		{true, []string{"more clusters |", "more sections; run `gitopsd plan` to see them\n"}, ""},
	} {
		b := markdownOf(t, manyClusters(t, 1000, tt.own))
		if n := utf8.RuneCountInString(b); n > limit {
			t.Errorf("own plans %t: %d characters", tt.own, n)
		}
		for _, want := range append(tt.want, "clusters.lock change**\n") {
			if !strings.Contains(b, want) {
				t.Errorf("own plans %t: %q is missing in\n%.5000s", tt.own, want, b)
			}
		}
		if tt.lacks != "" && strings.Contains(b, tt.lacks) {
			t.Errorf("own plans %t: it has %q", tt.own, tt.lacks)
		}
		if open, closed := strings.Count(b, "<details>"), strings.Count(b, "</details>"); open != closed || open == 0 {
			t.Errorf("%d sections are opened, %d closed", open, closed)
		}
	}
}

// Of many different plans the last are shown as numbers, unless everything is shown.
func TestManyDifferentPlansAreNumbers(t *testing.T) {
	t.Parallel()
	f := manyClusters(t, 62, true)
	b := textOf(t, f, show.Options{})
	all := textOf(t, f, show.Options{All: true})
	if !strings.Contains(b, "\n  19 clusters (edge-0010, edge-0013, edge-0016 …): 1 change, 7 refused, 1 unchanged\n") &&
		!strings.Contains(b, ": 1 change, 7 refused, 1 unchanged\n") {
		t.Errorf("no numbers in\n%s", b)
	}
	if n := strings.Count(all, "data.mood"); n != 60 {
		t.Errorf("%d of 60 plans are shown with --all", n)
	}
}

// Clusters with equal plans are one group.
func TestAlike(t *testing.T) {
	t.Parallel()
	step := func(reason string, value any) plan.Step {
		return plan.Step{Action: plan.Configure, ID: manifest.ConfigMap.ID("default", "a"), Reason: reason, Changes: []plan.Change{{Path: "data.a", Old: "", New: value}}}
	}
	at := func(file string) plan.Step {
		s := step("", "x")
		s.Action, s.Reason, s.Object = plan.Refused, "it is wrong", placed(t, file)
		return s
	}
	long := strings.Repeat("x", 200)
	for _, tt := range []struct {
		name string
		a, b ClusterPlan
		same bool
	}{
		{"equal", planned(step("r", "x")), planned(step("r", "x")), true},
		{"unchanged objects beside", planned(step("r", "x")), planned(step("r", "x"), plan.Step{Action: plan.Unchanged, ID: manifest.ConfigMap.ID("default", "b")}), true},
		{"from another file", planned(at("a.yaml")), planned(at("b.yaml")), true},
		{"another reason", planned(step("r", "x")), planned(step("s", "x")), false},
		{"another value", planned(step("r", "x")), planned(step("r", "y")), false},
		{"a value that is too long to be shown", planned(step("r", long+"a")), planned(step("r", long+"b")), false},
		{"suspended", planned(step("r", "x")), ClusterPlan{Suspended: true, Plan: planned(step("r", "x")).Plan}, false},
		{"another version", planned(step("r", "x")), ClusterPlan{Plan: &plan.Plan{Steps: []plan.Step{{Action: plan.Create, ID: manifest.ConfigMap.ID("default", "a"), Package: "p"}}}}, false},
		{"suspended, with nothing to tell", planned(), ClusterPlan{Suspended: true, Plan: &plan.Plan{}}, false},
		{"a value of another type", planned(step("r", []any{strings.Repeat("x", 90), "1"})), planned(step("r", []any{strings.Repeat("x", 90), int64(1)})), false},
		{"values that end elsewhere", planned(step("r", long+" b")), planned(step("r", long), plan.Step{Action: plan.Unchanged}), false},
		{"an error with a plan of which nothing is to be told", ClusterPlan{Err: "down", Plan: &plan.Plan{}}, ClusterPlan{Err: "down"}, false},
		{"errors", ClusterPlan{Err: "down"}, ClusterPlan{Err: "down"}, true},
		{"other errors", ClusterPlan{Err: "down"}, ClusterPlan{Err: "forbidden"}, false},
		{"nothing to tell", planned(), planned(plan.Step{Action: plan.Unchanged, ID: manifest.ConfigMap.ID("default", "b")}), true},
	} {
		f := &Fleet{Clusters: []ClusterPlan{tt.a, tt.b}}
		if same := len(f.alike()) == 1; same != tt.same {
			t.Errorf("%s: put together: %t", tt.name, same)
		}
	}
}

func planned(steps ...plan.Step) ClusterPlan { return ClusterPlan{Plan: &plan.Plan{Steps: steps}} }

// placed returns an object at line 3 of a file.
func placed(t *testing.T, file string) *manifest.Object {
	t.Helper()
	o, err := manifest.New(map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "a", "namespace": "default"}}, manifest.Origin{File: file, Line: 3})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// Steps that are refused, in conflict or held are shown with the lines that would allow them, and
// the file and line of the object.
func TestLinesToPaste(t *testing.T) {
	t.Parallel()
	conflict := plan.Step{Action: plan.Conflict, ID: manifest.ConfigMap.ID("default", "a"), Object: placed(t, "apps/a.yaml"), Reason: "it is managed by Helm; annotate it",
		Allow: &plan.Allow{On: plan.OnObject, Annotation: manifest.AdoptAnnotation, Value: "true", Sources: "helm", Cause: "it is managed by Helm"}}
	var conflicts, held []plan.Step
	for i := range 30 {
		c := conflict
		c.ID.Name = fmt.Sprintf("a%02d", i)
		conflicts = append(conflicts, c)
		kind := manifest.ConfigMap
		if i%2 == 0 {
			kind = manifest.Secret
		}
		held = append(held, plan.Step{Action: plan.Held, ID: kind.ID("default", c.ID.Name), Reason: "kept: this would prune 30 of the 31 objects; to allow that, …",
			Allow: &plan.Allow{On: plan.OnCluster, Annotation: manifest.AllowPruneAnnotation, Value: "30", Cause: "kept: this would prune 30 of the 31 objects"}})
	}
	own := plan.Step{Action: plan.Refused, ID: crdID("things.acme.example"), Reason: "breaking: field-removed; its annotation can allow it",
		Allow: &plan.Allow{On: plan.OnObject, Annotation: manifest.AllowBreakingAnnotation, Findings: []string{"field-removed"}, Version: "h1:abc", Cause: "breaking: field-removed"}}
	var several []plan.Step
	for i := range 5 {
		one := own
		one.ID = crdID(fmt.Sprintf("things%d.acme.example", i))
		several = append(several, one)
	}
	for _, tt := range []struct {
		name  string
		steps []plan.Step
		want  string
	}{
		{"several definitions by themselves", several, `
  manifests
    ! 5 × customresourcedefinition.apiextensions.k8s.io: things0.acme.example, things1.acme.example, things2.acme.example, … 2 more, refused: breaking: field-removed
        to allow it, annotate each with gitopsd.dev/allow-breaking; --all shows the lines
`},
		{"one conflict", []plan.Step{conflict}, `
  manifests
    ! configmap/default/a in conflict: it is managed by Helm (apps/a.yaml:3)
        to allow it, add to its metadata.annotations:
          gitopsd.dev/adopt: "true"
        or, for all objects of the same owner, to those of Cluster dev in clusters.yaml:
          gitopsd.dev/adopt: "helm"
`},
		{"many conflicts", conflicts, `
  manifests
    ! 30 × configmap: default/a00, default/a01, default/a02, … 27 more, in conflict: it is managed by Helm
        to allow it, add to metadata.annotations of Cluster dev in clusters.yaml:
          gitopsd.dev/adopt: "helm"
`},
		{"a prune of nearly everything", held, `
  manifests
    = 30 × objects: secret/default/a00, configmap/default/a01, secret/default/a02, … 27 more, held: this would prune 30 of the 31 objects
        to allow it, add to metadata.annotations of Cluster dev in clusters.yaml:
          gitopsd.dev/allow-prune: "30"
`},
		{"a definition by itself", []plan.Step{own}, `
  manifests
    ! customresourcedefinition.apiextensions.k8s.io/things.acme.example refused: breaking: field-removed
        to allow it, add to its metadata.annotations:
          gitopsd.dev/allow-breaking: |
            h1:abc:field-removed=<reason>
`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := planned(tt.steps...)
			c.Name = "dev"
			f := &Fleet{Source: "working tree", Clusters: []ClusterPlan{c}}
			text := textOf(t, f, show.Options{})
			markdown := markdownOf(t, f)
			json := jsonOf(t, f)
			if !strings.Contains(text, tt.want) {
				t.Errorf("want%s\nhave\n%s", tt.want, text)
			}
			lines := strings.Split(strings.TrimSpace(tt.want), "\n")
			if last := lines[len(lines)-1]; !strings.Contains(markdown, "\n"+last+"\n") {
				t.Errorf("no %q in\n%s", last, markdown)
			}
			a := tt.steps[0].Allow
			if want := fmt.Sprintf("\"annotation\": %q,\n            \"value\": %q", a.Annotation, a.Text("")); !strings.Contains(json, want) {
				t.Errorf("no %s in\n%s", want, json)
			}
		})
	}
}

// A definition that changes only in its generator's annotation is not shown as changed, unless
// everything is shown.
func TestRecordsOfGenerators(t *testing.T) {
	t.Parallel()
	record := plan.Change{Path: `metadata.annotations["controller-gen.kubebuilder.io/version"]`, Old: "v0.15.0", New: "v0.16.0"}
	other := plan.Change{Path: "spec.names.singular", Old: "a", New: "b"}
	f := &Fleet{Source: "working tree", Clusters: []ClusterPlan{{Name: "dev", Plan: &plan.Plan{Steps: []plan.Step{
		{Action: plan.Configure, ID: crdID("a.acme.example"), Reason: "changed in the repository", Changes: []plan.Change{record}},
		{Action: plan.Configure, ID: crdID("b.acme.example"), Reason: "changed in the repository", Changes: []plan.Change{record, other}},
		{Action: plan.Configure, ID: manifest.ConfigMap.ID("a", "c"), Reason: "changed in the repository", Changes: []plan.Change{record}},
	}}}}}
	for _, tt := range []struct {
		all  bool
		want []string
		not  string
	}{
		{false, []string{"Cluster dev: 2 changes, 1 unchanged (1 except for their generator)\n", "    1 definition changes only in the annotation controller-gen.kubebuilder.io/version\n", "/b.acme.example: changed"}, "/a.acme.example"},
		{true, []string{"/a.acme.example: changed"}, "only in the annotation"},
	} {
		b := textOf(t, f, show.Options{All: tt.all})
		for _, want := range tt.want {
			if !strings.Contains(b, want) {
				t.Errorf("all %t: no %q in\n%s", tt.all, want, b)
			}
		}
		if strings.Contains(b, tt.not) {
			t.Errorf("all %t: %q in\n%s", tt.all, tt.not, b)
		}
	}
}

func TestToldFindings(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, detail, want string }{
		{"constraint-added", "maxItems: none -> 100", "maxItems 100 added"},
		{"constraint-removed", "maxItems: 100 -> none", "maxItems 100 removed"},
		{"constraint-changed", "maxItems: 100 -> 10", "maxItems: 100 -> 10"},
		{"field-added", "none -> string", "string"},
		{"versions-disagree", "field-removed: integer -> none", "field-removed integer"},
		{"field-removed", "string -> none", "string"},
		{"max-length", "none -> 63", "63 added"},
		{"default-added", "none -> {\"a\":\"b\"}, which may not suit it", "{\"a\":\"b\"}, which may not suit it"},
		{"type-changed", "string -> integer", "string -> integer"},
		{"other", "a sentence", "a sentence"},
	} {
		if have := told(compat.Finding{Name: tt.name, Detail: tt.detail}); have != tt.want {
			t.Errorf("%s: %s: %q, want %q", tt.name, tt.detail, have, tt.want)
		}
	}
}

func TestVerdict(t *testing.T) {
	t.Parallel()
	unchanged := planned(plan.Step{Action: plan.Unchanged, ID: manifest.ConfigMap.ID("a", "a")})
	changed := planned(plan.Step{Action: plan.Create, ID: manifest.ConfigMap.ID("a", "a")})
	held := planned(plan.Step{Action: plan.Held, ID: manifest.ConfigMap.ID("a", "a")})
	many := plan.Step{Action: plan.Held, ID: manifest.ConfigMap.ID("a", "b"), Allow: &plan.Allow{On: plan.OnCluster, Annotation: manifest.AllowPruneAnnotation, Value: "2"}}
	guarded := planned(many, many)
	refused := planned(plan.Step{Action: plan.Refused, ID: manifest.ConfigMap.ID("a", "a")}, changed.Plan.Steps[0])
	rejected := planned(plan.Step{Action: plan.Create, ID: manifest.ConfigMap.ID("a", "a"), Rejected: "no"})
	suspended := changed
	suspended.Suspended = true
	unread := planned(unchanged.Plan.Steps...)
	unread.Plan.Unreadable = map[schema.GroupKind]string{{Kind: "Secret"}: "forbidden"}
	for _, tt := range []struct {
		fleet Fleet
		want  string
	}{
		{Fleet{Clusters: []ClusterPlan{unchanged, unchanged, unchanged}, Revision: "a5a241f000"}, "No changes: 3 clusters match a5a241f000"},
		{Fleet{Clusters: []ClusterPlan{unchanged}, Source: "working tree"}, "No changes: 1 cluster matches the working tree"},
		{Fleet{Clusters: []ClusterPlan{unchanged}, Source: "working tree", Against: "main"}, "No changes: 1 cluster is as at main"},
		{Fleet{Clusters: []ClusterPlan{unchanged, unchanged}, Source: "working tree", Against: "main"}, "No changes: 2 clusters are as at main"},
		{Fleet{Source: "working tree"}, "No changes: no cluster is registered"},
		{Fleet{Clusters: []ClusterPlan{changed, unchanged}, Source: "working tree"}, "Changes: 1 cluster changes, 1 matches the working tree"},
		{Fleet{Clusters: []ClusterPlan{unchanged}, Source: "working tree", Lock: []string{"+ a"}}, "Changes: 1 cluster matches the working tree, 1 line of clusters.lock changes"},
		{Fleet{Clusters: []ClusterPlan{held, unchanged}, Source: "working tree"}, "Held back: 1 cluster holds objects back, 1 matches the working tree"},
		{Fleet{Clusters: []ClusterPlan{guarded, unchanged}, Source: "working tree"}, "Held back: 1 cluster holds objects back, 1 matches the working tree; 2 objects are kept until the annotation gitopsd.dev/allow-prune allows it"},
		{Fleet{Clusters: []ClusterPlan{planned(append(changed.Plan.Steps, guarded.Plan.Steps...)...)}, Source: "working tree"}, "Changes: 1 cluster changes; 2 objects are kept until the annotation gitopsd.dev/allow-prune allows it"},
		{Fleet{Clusters: []ClusterPlan{suspended}, Source: "working tree"}, "No changes: 1 cluster is suspended"},
		{Fleet{Clusters: []ClusterPlan{unread, unchanged}, Source: "working tree"}, "No changes found: 1 cluster could not be read whole, 1 matches the working tree"},
		{Fleet{Clusters: []ClusterPlan{unread, changed}, Source: "working tree"}, "Changes: 1 cluster changes, 1 could not be read whole"},
		{Fleet{Clusters: []ClusterPlan{refused, rejected, changed, changed, {Err: "down"}}, Source: "working tree"}, "Problems: 1 cluster has no plan, 2 have steps that would fail, 2 change"},
		{Fleet{Clusters: []ClusterPlan{unchanged}, Source: "working tree", Errors: []string{"e"}}, "Problems: 1 cluster matches the working tree, 1 error"},
	} {
		if have := tt.fleet.verdict().text; have != tt.want {
			t.Errorf("%q, want %q", have, tt.want)
		}
		if changes := !strings.HasPrefix(tt.want, "No changes") && len(tt.fleet.Errors) == 0; tt.fleet.HasChanges() != changes {
			t.Errorf("%q: changes %t", tt.want, !changes)
		}
	}
}

// Numbers that are zero are left out. Drift is counted separately.
func TestHeadlines(t *testing.T) {
	t.Parallel()
	id := manifest.ConfigMap.ID("a", "a")
	for _, tt := range []struct {
		steps []plan.Step
		want  string
	}{
		{nil, "no objects"},
		{[]plan.Step{{Action: plan.Unchanged, ID: id}}, "1 unchanged"},
		{[]plan.Step{{Action: plan.Configure, ID: id}, {Action: plan.Configure, ID: id, Drift: true}}, "1 change, 1 drifted"},
		{[]plan.Step{{Action: plan.Refused, ID: id}, {Action: plan.Create, ID: id}, {Action: plan.Prune, ID: id}, {Action: plan.Wait, ID: id}}, "1 new, 1 to prune, 1 waiting, 1 refused"},
		{[]plan.Step{{Action: plan.Create, ID: id, Rejected: "no"}, {Action: plan.Create, ID: id, NotValidated: "who knows"}}, "1 new, 1 rejected, 1 not validated"},
	} {
		c := planned(tt.steps...)
		if have := (&alike{of: []*ClusterPlan{&c}}).headline(); have != tt.want {
			t.Errorf("%q, want %q", have, tt.want)
		}
	}
}

// The first character of a line colours it. Marks keep their columns.
func TestDiffColours(t *testing.T) {
	t.Parallel()
	const text = "  package p\n    + a\n    ~ b: changed\n        data.x: 1 -> 2\n    - c\n    ! d refused\n    = e held\n    … 3 more\n"
	const want = "  package p\n+     a\n!   ~ b: changed\n        data.x: 1 -> 2\n-     c\n-   ! d refused\n#   = e held\n    … 3 more"
	if have := diff(text); have != want {
		t.Errorf("have\n%s\nwant\n%s", have, want)
	}
}

// A fleet without clusters has no table of them.
func TestNoClusters(t *testing.T) {
	t.Parallel()
	f := new(Fleet)
	markdown, text := markdownOf(t, f), textOf(t, f, show.Options{})
	const verdict = "No changes: no cluster is registered"
	if markdown != "### gitopsd plan\n\n**"+verdict+"**\n" || text != verdict+"\n" {
		t.Errorf("%s\n%s", markdown, text)
	}
}
