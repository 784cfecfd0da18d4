package preview

import (
	"encoding/json"
	"strings"
	"testing"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/prove"
	"gitopsd.dev/render/conversion/proof"
	"gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest"
)

// Proofs of conversion rules are shown once for all clusters, with the smallest objects. For a
// cluster's own objects only names are shown.
func TestProofs(t *testing.T) {
	t.Parallel()
	object := func(version, key string) map[string]any {
		return map[string]any{"apiVersion": "example.io/" + version, "kind": "Widget", "metadata": map[string]any{"name": "example"}, "spec": map[string]any{key: "y"}}
	}
	finding := proof.Finding{
		Law: proof.RoundTrip, From: "v1", To: "v2", Rules: []string{"rules.yaml:3: conversions[0].rules[0]"}, Times: 12,
		Differences: []proof.Difference{{Path: field.Path{field.Key("spec"), field.Key("title")}, Before: `"y"`}},
		Object:      object("v1", "title"), Converted: object("v2", "name"),
	}
	allowed := finding
	allowed.Law, allowed.Edit = proof.Edits, "add a label"
	p := &prove.Proof{
		Result: &proof.Result{
			Pairs:    []proof.Pair{{From: "v1", To: "v2", Objects: 40}, {From: "v2", To: "v1", Objects: 2}},
			Findings: []proof.Finding{finding, allowed, {Law: proof.RuleFails, From: "v1", To: "v2", Reason: "a value", Rules: []string{"rules.yaml:7"}, Object: object("v1", "title")}}, More: 2,
		},
		Unfinished: true, Warnings: []string{"rules.yaml:9: spec.note of v1 has no limit of size"},
		Refused: []string{"round-trip"}, Allowed: map[string]string{"edits": "nobody edits v2"}, Version: "h1:AAAAAAAAAAAA",
	}
	crd := manifest.CRD.ID("", "widgets.example.io")
	widget := manifest.GroupKind{Group: "example.io", Kind: "Widget"}
	live := &prove.Live{Version: "v1", Objects: 1200, Stopped: "not all were tried: there are more than 1200", Findings: []prove.LiveFinding{
		{Law: proof.RoundTrip, Text: "v1 -> v2 -> v1: spec.title does not come back as it was", Objects: []manifest.ID{widget.ID("default", "a"), widget.ID("default", "b")}, Times: 5},
	}}
	f := &Fleet{Clusters: []ClusterPlan{
		{Name: "dev", Plan: &plan.Plan{Steps: []plan.Step{{Action: plan.Refused, ID: crd, Proof: p, Tried: live, Reason: "no"}}}},
		{Name: "prod", Plan: &plan.Plan{Steps: []plan.Step{{Action: plan.Refused, ID: crd, Proof: p, Reason: "no"}}}},
	}}
	b := textOf(t, f, show.Options{})
	const want = `Conversion rules of widgets.example.io in dev, prod: 4 counterexamples in 42 objects, stopped by the time limit, refused
  ! round-trip: v1 -> v2 -> v1: spec.title does not come back as it was (12 objects show it)
      rule: rules.yaml:3: conversions[0].rules[0]
      smallest object, v1:
        apiVersion: example.io/v1
        kind: Widget
        metadata:
          name: example
        spec:
          title: "y"
      becomes, v2:
        apiVersion: example.io/v2
        kind: Widget
        metadata:
          name: example
        spec:
          name: "y"
      difference:
        - spec.title: "y"
  ~ edits: v1 -> v2 -> v1 -> v2: spec.title does not stay as an edit left it (add a label) (12 objects show it) (allowed: nobody edits v2)
`
	for _, part := range []string{
		want,
		"  … 2 more counterexamples\n  v1 -> v2: a rule fails, and its value is kept in the stash: rules.yaml:7\n  rules.yaml:9: spec.note of v1 has no limit of size\n\nCluster dev",
		"  1200 objects of widgets.example.io tried by its conversion rules, read in v1; not all were tried: there are more than 1200\n" +
			"    ! v1 -> v2 -> v1: spec.title does not come back as it was: widget.example.io/default/a, widget.example.io/default/b, and 3 more\n",
	} {
		if !strings.Contains(b, part) {
			t.Errorf("text:\n%s\nwant in it:\n%s", b, part)
		}
	}
	if got := f.Clusters[0].Untrue(); len(got) != 1 || got[0] != "widgets.example.io" || f.Clusters[1].Untrue() != nil {
		t.Errorf("untrue: %q, %q", got, f.Clusters[1].Untrue())
	}

	b = jsonOf(t, f)
	var doc fleetJSON
	if err := json.Unmarshal([]byte(b), &doc); err != nil {
		t.Fatal(err)
	}
	if len(doc.Conversions) != 1 || len(doc.Conversions[0].Counterexamples) != 3 || doc.Conversions[0].Objects != 42 || len(doc.Clusters[0].Tried) != 1 || doc.Clusters[0].Tried[0].Findings[0].Times != 5 {
		t.Errorf("JSON:\n%s", b)
	}
	b = markdownOf(t, f)
	if !strings.Contains(b, "conversion rules of widgets.example.io in dev, prod: 4 counterexamples") || !strings.Contains(b, "1200 objects of widgets.example.io") {
		t.Errorf("Markdown:\n%s", b)
	}
}

// Clusters with equal rules and different allowances have different tables. Failing rules that are
// not listed are counted, and are not counterexamples.
func TestProofsByAllowance(t *testing.T) {
	t.Parallel()
	step := func(reason string) ClusterPlan {
		p := &prove.Proof{Result: &proof.Result{MoreFailing: 3}, Version: "h1:AAAAAAAAAAAA", Allowed: map[string]string{"edits": reason}}
		return ClusterPlan{Plan: &plan.Plan{Steps: []plan.Step{{Action: plan.Configure, ID: manifest.CRD.ID("", "widgets.example.io"), Proof: p}}}}
	}
	f := &Fleet{Clusters: []ClusterPlan{step("nobody edits v2"), step("nobody edits v2"), step("v2 is new")}}
	tables := f.proofTables()
	if len(tables) != 2 || len(tables[0].Clusters) != 2 {
		t.Errorf("%d tables", len(tables))
	}
	text := show.Sprint(func(text *show.Text) { textWriter{Text: text}.proofs(tables[:1]) })
	if !strings.Contains(text, ": no counterexample in 0 objects\n") || !strings.Contains(text, "  … 3 more failing rules\n") {
		t.Error(text)
	}
}
