package health

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
)

// Every rule that gitopsd brings has cases, each with the verdict that is wanted and,
// where a person reads it, the reason. The general rules would get one of them wrong:
// otherwise there would be no need for the rule.
func TestShipped(t *testing.T) {
	all, err := readShipped()
	if err != nil {
		t.Fatal(err)
	}
	for gk, r := range all {
		name := strings.ToLower(gk.Kind) + "." + gk.Group + ".yaml"
		if _, err := compileRule(r, nil); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		text, err := os.ReadFile(filepath.Join("shipped/cases", name))
		if err != nil {
			t.Errorf("%s is not named after its kind, or has no cases: %v", name, err)
			continue
		}
		seen := make(map[string]bool)
		needed := false
		var custom Custom
		for _, doc := range manifesttest.Documents(t, string(text)) {
			want, _ := doc.Tree["want"].(string)
			reason, _ := doc.Tree["reason"].(string)
			delete(doc.Tree, "want")
			delete(doc.Tree, "reason")
			v, ok := custom.Of(doc.Tree, nil, time.Time{})
			if !ok || string(v.Status) != want || v.Reason == "" || reason != "" && v.Reason != reason {
				t.Errorf("%s: %v is %+v\nwant %s: %s", name, doc.Tree["metadata"], v, want, reason)
			}
			seen[want] = true
			needed = needed || string(Rules{}.Of(doc.Tree, nil, time.Time{}).Status) != want
		}
		if !needed {
			t.Errorf("%s is not needed: the general rules get all of its cases right", name)
		}
		for _, status := range []Status{Healthy, InProgress} {
			if !seen[string(status)] {
				t.Errorf("%s has no case that is %s", name, status)
			}
		}
	}
	cases, err := os.ReadDir("shipped/cases")
	if err != nil || len(cases) != len(all) {
		t.Errorf("%d files with cases and %d rules: %v", len(cases), len(all), err)
	}
}

// The rules that gitopsd brings and the general ones do not contradict each other in
// what was written as cases of the latter.
func TestShippedAgrees(t *testing.T) {
	files, err := filepath.Glob("testdata/kinds/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	judged := 0
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, doc := range manifesttest.Documents(t, string(text)) {
			object, _ := doc.Tree["object"].(map[string]any)
			v, ok := (*Custom)(nil).Of(object, nil, time.Time{})
			if !ok {
				continue
			}
			judged++
			if string(v.Status) != doc.Tree["want"] {
				t.Errorf("%s:%d: %+v, want %v", name, doc.Line, v, doc.Tree["want"])
			}
		}
	}
	if judged == 0 {
		t.Error("the corpus has no object of these kinds")
	}
}

const gadgetCRD = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.example.org, annotations: {gitopsd.dev/health: %q}}
spec:
  group: example.org
  names: {kind: Gadget, plural: gadgets}
  versions:
  - name: v1
    served: true
    schema: {openAPIV3Schema: {type: object, properties: {status: {type: object, properties: {phase: {type: string}, message: {type: string}}}}}}
  - name: v2
    served: true
    schema: {openAPIV3Schema: {type: object, properties: {status: {type: object, properties: {phase: {type: string}, state: {type: string}}}}}}
  - name: v0
    served: false
    schema: {openAPIV3Schema: {type: object}}
`

func TestAnnotation(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		object     string // below the metadata
		want       string // of the verdict, or a part of the error
	}{
		{"healthy", "current: status.phase == 'Ready'", "status: {phase: Ready}", "Healthy current holds: status.phase == 'Ready'"},
		{"none holds", "current: status.phase == 'Ready'", "status: {phase: Waiting}", "InProgress current does not hold yet: status.phase == 'Ready'"},
		{"no status", "current: status.phase == 'Ready'", "spec: {}", "InProgress current does not hold yet"},
		{"failed", "{current: \"status.phase == 'Ready'\", failed: status.phase == 'Broken'}", "status: {phase: Broken}", "Failed failed holds: status.phase == 'Broken'"},
		{"in progress comes first", "{current: 'true', failed: 'true', inProgress: 'true'}", "status: {}", "InProgress inProgress holds"},
		{"failed comes before current", "{current: 'true', failed: 'true'}", "status: {}", "Failed failed holds"},
		{"message", "{current: status.phase == 'Ready', message: \"'phase ' + status.phase\"}", "status: {phase: Odd}", "InProgress phase Odd"},
		{"no message", "{current: status.phase == 'Ready', message: \"'phase ' + status.phase\"}", "spec: {}", "InProgress current does not hold yet"},
		{"generation", "current: 'true'", "status: {observedGeneration: '1'}", "InProgress its controller has seen generation 1, and it is at 2"},

		{"typo in a field", "current: status.phse == 'Ready'", "", "gitopsd.dev/health: current:1:7: undefined field 'phse'\n  status.phse == 'Ready'"},
		{"one version", "current: status.state == 'Ready'", "", "current:1:7: undefined field 'state'\n  status.state == 'Ready'\n  in version v1; dyn(self) is not checked"},
		{"one version, not checked", "current: dyn(self).status.state == 'Ready'", "status: {state: Ready}", "Healthy"},
		{"two faults", "{current: status.phase, failed: 'status.'}", "", "current: the expression gives string; bool is needed\n  status.phase\nfailed:1:8: Syntax error"},
		{"unknown key", "{current: 'true', curent: 'true'}", "", "curent: is not a field here; use current, failed, inProgress and message"},
		{"no current", "failed: 'true'", "", "current: is missing"},
		{"a boolean", "current: true", "", "current: is not a string: put the expression in quotes"},
		{"no mapping", "status.phase == 'Ready'", "", "mapping"},
		{"nothing", "# later", "", "has 0 documents; write one mapping"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var c Custom
			err := c.AddAnnotated(manifesttest.Tree(t, fmt.Sprintf(gadgetCRD, tt.text)))
			object := manifesttest.Tree(t, "apiVersion: example.org/v2\nkind: Gadget\nmetadata: {name: a, generation: 2}\n"+tt.object)
			v, ok := c.Of(object, nil, time.Time{})
			if !ok {
				t.Fatal("there is no rule")
			}
			have := string(v.Status) + " " + v.Reason
			if err != nil {
				have = err.Error()
				if v.Status != Unknown || !strings.HasPrefix(v.Reason, "its health rule has an error: ") {
					t.Errorf("its objects are %+v", v)
				}
			}
			if !strings.Contains(have, tt.want) || v.Rule != "annotation gitopsd.dev/health" {
				t.Errorf("have %s\nwant %s", have, tt.want)
			}
		})
	}
}

// The rule of a CRD precedes the cluster's, which precedes those that gitopsd brings.
func TestPrecedence(t *testing.T) {
	rollout := manifest.GroupKind{Group: "argoproj.io", Kind: "Rollout"}
	object := manifesttest.Tree(t, "{apiVersion: argoproj.io/v1alpha1, kind: Rollout, status: {phase: Paused}}")
	var c Custom
	if v, ok := c.Of(object, nil, time.Time{}); !ok || v.Status != InProgress || v.Rule != "shipped for Rollout.argoproj.io" {
		t.Errorf("gitopsd's own: %+v", v)
	}
	for _, r := range []Rule{
		{Kind: rollout, From: "first", Expressions: Expressions{Current: "status.phase == 'Paused'"}},
		{Kind: rollout, From: "second", Expressions: Expressions{Current: "false"}},
	} {
		if err := c.Add(r, nil); err != nil {
			t.Fatal(err)
		}
	}
	if v, ok := c.Of(object, nil, time.Time{}); !ok || v.Status != Healthy || v.Rule != "first" {
		t.Errorf("a rule of the cluster: %+v", v)
	}
	if _, ok := c.Of(map[string]any{"apiVersion": "v1", "kind": "Pod"}, nil, time.Time{}); ok {
		t.Error("a Pod has a rule")
	}
	if v, ok := (*Custom)(nil).Of(object, nil, time.Time{}); !ok || v.Status != InProgress {
		t.Errorf("without rules of one's own: %+v", v)
	}
}

// No expression shows what is in a Secret.
func TestSecret(t *testing.T) {
	var c Custom
	err := c.Add(Rule{Kind: manifest.Secret, Expressions: Expressions{Current: "true", Message: "data.password"}}, nil)
	if err == nil {
		t.Fatal("a Secret was judged by expressions")
	}
	v, _ := c.Of(map[string]any{"apiVersion": "v1", "kind": "Secret", "data": map[string]any{"password": "hunter2"}}, nil, time.Time{})
	if v.Status != Unknown || strings.Contains(v.Reason, "hunter2") {
		t.Errorf("it is %+v", v)
	}
}

func FuzzParseExpressions(f *testing.F) {
	f.Add("current: status.phase == 'Ready'\nfailed: 'true'")
	f.Add("{}")
	f.Fuzz(func(t *testing.T, text string) {
		e, err := parseExpressions(text)
		if err == nil && strings.TrimSpace(e.Current) == "" {
			t.Errorf("%q has no expression for a healthy object", text)
		}
	})
}

// An object of another shape than a rule of gitopsd's expects is judged by the general
// rules, and by a rule of one's own not at all.
func TestOddShape(t *testing.T) {
	object := manifesttest.Tree(t, `{apiVersion: argoproj.io/v1alpha1, kind: Application, status: {health: {status: Healthy}, conditions: odd, phase: Failed}}`)
	var c Custom
	if v := (Rules{Custom: c.Of}).Of(object, nil, time.Time{}); v.Status != Failed || v.Rule != ruleWords {
		t.Errorf("it is %+v", v)
	}
	r := Rule{Kind: manifest.GroupKind{Group: "argoproj.io", Kind: "Application"}, From: "mine", Expressions: Expressions{Current: "status.phase > 3"}}
	if err := c.Add(r, nil); err != nil {
		t.Fatal(err)
	}
	if v := (Rules{Custom: c.Of}).Of(object, nil, time.Time{}); v.Status != Unknown || v.Rule != "mine" {
		t.Errorf("by one's own rule it is %+v", v)
	}
}

// A rule does not wait for ever for a controller that never reports a generation.
func TestNoGeneration(t *testing.T) {
	object := manifesttest.Tree(t, `{apiVersion: example.org/v1, kind: Gadget, metadata: {generation: 2, creationTimestamp: "2026-01-01T00:00:00Z"}, status: {observedGeneration: 0, phase: Done}}`)
	var c Custom
	if err := c.Add(Rule{Kind: manifest.GroupKind{Group: "example.org", Kind: "Gadget"}, Expressions: Expressions{Current: "status.phase == 'Done'"}}, nil); err != nil {
		t.Fatal(err)
	}
	made := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for after, want := range map[time.Duration]Status{time.Minute: InProgress, time.Hour: Healthy} {
		if v, _ := c.Of(object, nil, made.Add(after)); v.Status != want {
			t.Errorf("after %s it is %+v", after, v)
		}
	}
}

// What an object may be judged by does not depend on the line of a rule.
func TestKey(t *testing.T) {
	key := func(from, current string) string {
		var c Custom
		r := Rule{Kind: manifest.GroupKind{Group: "example.org", Kind: "Gadget"}, From: from, Expressions: Expressions{Current: current}}
		if err := c.Add(r, nil); err != nil {
			t.Fatal(err)
		}
		return c.Key()
	}
	if key("clusters.yaml:7", "true") != key("clusters.yaml:9", "true") {
		t.Error("everything is judged again after a line moved")
	}
	if key("clusters.yaml:7", "true") == key("clusters.yaml:7", "false") {
		t.Error("nothing is judged again after a rule changed")
	}
}
