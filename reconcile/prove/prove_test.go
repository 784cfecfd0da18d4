package prove

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"gitopsd.dev/render"
	"gitopsd.dev/render/conversion"
	"gitopsd.dev/render/conversion/proof"
	"gitopsd.dev/render/exact"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
)

const definition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.io}
spec:
  group: example.io
  scope: Namespaced
  names: {kind: Widget, plural: widgets}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {title: {type: string, maxLength: 20}}}}}}}
  - {name: v2, served: true, storage: false, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {name: {type: string, maxLength: 20}}}}}}}
`

// rules renames title to name; read is the expression that reads it, and annotation is
// one of the document.
func rules(t *testing.T, read, annotation string) *render.Conversion {
	t.Helper()
	return compiled(t, annotation, `[
  {from: v1, to: v2, rules: [{from: "`+read+`", to: spec.name}]},
  {from: v2, to: v1, rules: [{from: v2.spec.name, to: spec.title}]}]`)
}

// keeps are conversions that keep title for v1 and name for v2.
const keeps = "[{from: v1, to: v2, preserve: [spec.title]}, {from: v2, to: v1, preserve: [spec.name]}]"

func compiled(t *testing.T, annotation, conversions string) *render.Conversion {
	t.Helper()
	o, err := manifest.New(manifesttest.Tree(t, definition), manifest.Origin{File: "crd.yaml", Line: 1})
	if err != nil {
		t.Fatal(err)
	}
	tree := manifesttest.Tree(t, "{apiVersion: apis.kcp.dev/v1alpha1, kind: APIConversionRules, metadata: {name: widgets.example.io}, spec: {conversions: "+conversions+"}}")
	if annotation != "" {
		tree["metadata"].(map[string]any)["annotations"] = map[string]any{manifest.AllowBreakingAnnotation: annotation}
	}
	documents := []conversion.Document{{Origin: manifest.Origin{File: "rules.yaml", Line: 3}, Tree: tree}}
	set, err := conversion.Compile(o.Tree(), documents)
	if err != nil {
		t.Fatal(err)
	}
	return &render.Conversion{Set: set, Documents: documents, Definition: o}
}

const (
	renames = "v1.spec.title"
	// lengthens makes names of 21 characters, which v2 does not admit.
	lengthens = "v1.spec.title + '!'"
)

func prove(t *testing.T, c *Cache, of *render.Conversion) *Proof {
	t.Helper()
	p, err := c.Prove(t.Context(), of)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Rules that keep every law are not refused, and are tried once.
func TestProve(t *testing.T) {
	t.Parallel()
	c := new(Cache)
	p := prove(t, c, rules(t, renames, ""))
	if p.Why() != "" || len(p.Findings) > 0 || p.Objects() < 20 || p.Unfinished {
		t.Errorf("%d objects, %q:\n%s", p.Objects(), p.Why(), p)
	}
	if prove(t, c, rules(t, renames, "")).Result != p.Result {
		t.Error("the same rules were tried again")
	}
}

// A counterexample refuses rules, unless an annotation allows this of these very rules.
func TestRefused(t *testing.T) {
	t.Parallel()
	c := new(Cache)
	p := prove(t, c, rules(t, lengthens, ""))
	if len(p.Refused) == 0 || p.Refused[0] != "admitted" {
		t.Fatalf("refused: %q\n%s", p.Refused, p)
	}
	for _, part := range []string{
		"its conversion rules have a counterexample: v1 -> v2: the result is not valid: spec.name: Too long", "(rules.yaml:3: conversions[0].rules[0])",
		`annotate them (rules.yaml:3) with gitopsd.dev/allow-breaking, a line "` + p.Version + `:admitted=<reason>"`,
	} {
		if !strings.Contains(p.Why(), part) {
			t.Errorf("%q is not in %q", part, p.Why())
		}
	}
	var allowed string
	for _, name := range p.Refused {
		allowed += p.Version + ":" + name + "=titles are short\n"
	}
	for _, tt := range []struct {
		name, annotation string
		want             string // in Why, "" for nothing
	}{
		{"allowed", allowed, ""},
		{"of other rules", strings.ReplaceAll(allowed, p.Version, "h1:AAAAAAAAAAAA"), "counterexample"},
		{"another law", p.Version + ":total=because", ":admitted=<reason>"},
		{"without a reason", p.Version + ":admitted=", "gives no reason"},
		{"no such law", p.Version + ":field-removed=because", `there is no finding "field-removed"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			why := prove(t, c, rules(t, lengthens, tt.annotation)).Why()
			if tt.want == "" && why != "" || !strings.Contains(why, tt.want) {
				t.Errorf("it says %q, want %q", why, tt.want)
			}
		})
	}
	if prove(t, c, rules(t, lengthens, allowed)).Allowed["admitted"] != "titles are short" {
		t.Error("the reason is lost")
	}
}

// A proof that takes too long says so; a caller that gives up leaves it to others.
func TestUnfinished(t *testing.T) {
	t.Parallel()
	p := prove(t, &Cache{Longest: time.Nanosecond}, rules(t, renames, ""))
	if !p.Unfinished || p.Why() != "" {
		t.Errorf("unfinished: %t, %q", p.Unfinished, p.Why())
	}

	of := rules(t, renames, "")
	c := &Cache{done: make(map[string]*entry), slots: make(chan struct{}, 1)}
	c.slots <- struct{}{}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Prove(gone, of); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	<-c.slots
	if p := prove(t, c, of); p.Unfinished || p.Objects() == 0 {
		t.Errorf("%d objects, unfinished: %t", p.Objects(), p.Unfinished)
	}
}

// The number of remembered proofs is bounded.
func TestForgotten(t *testing.T) {
	t.Parallel()
	c := &Cache{done: make(map[string]*entry), slots: make(chan struct{}, 1)}
	c.slots <- struct{}{} // nothing is tried
	for i := range mostKept + 10 {
		of := rules(t, renames, "")
		of.Documents[0].Origin.Line = i
		c.entry(of)
	}
	if len(c.done) != mostKept || len(c.order) != mostKept {
		t.Errorf("%d and %d are remembered", len(c.done), len(c.order))
	}
}

// Objects of a cluster are named, and nothing that is in them is shown.
func TestLive(t *testing.T) {
	t.Parallel()
	trial, err := NewTrial(rules(t, lengthens, ""), "v1")
	if err != nil {
		t.Fatal(err)
	}
	try := func(name, title string) {
		t.Helper()
		tree := manifesttest.Tree(t, "{apiVersion: example.io/v1, kind: Widget, metadata: {name: "+name+", namespace: default, managedFields: [{manager: kubectl}]}, spec: {title: "+title+"}}")
		if err := trial.Try(t.Context(), tree, nil); err != nil {
			t.Fatal(err)
		}
	}
	const secret = "hunter2hunter2hunter"
	try("before", secret)
	trial.Again()
	try("short", "fine")
	if r := trial.Result(); r.Failed() || r.Objects != 1 || r.Version != "v1" {
		t.Errorf("result %+v", r)
	}
	for _, name := range []string{"a", "b", "c", "d"} {
		try(name, secret)
	}
	r := trial.Result()
	if !r.Failed() || r.Objects != 5 || len(r.Findings) != 1 {
		t.Fatalf("result %+v", r)
	}
	f := r.Findings[0]
	if f.Text != "v1 -> v2: the result is not valid (spec.name)" || f.Times != 4 || len(f.Objects) != mostNamed || f.Objects[0].String() != "widget.example.io/default/a" {
		t.Errorf("finding %+v", f)
	}
	// Rules that fail in very many ways leave room for what breaks a law.
	trial.Again()
	for i := range 2 * mostWays {
		trial.live.Findings = append(trial.live.Findings, LiveFinding{Law: proof.RuleFails, Text: fmt.Sprint(i)}, LiveFinding{Law: proof.RoundTrip, Text: fmt.Sprint("w", i), Allowed: "on purpose"})
	}
	try("e", secret)
	if !r.Failed() || !strings.Contains(r.Why(), "v1 -> v2: the result is not valid (spec.name): widget.example.io/default/e") {
		t.Errorf("beside many others: failed is %t, %q", r.Failed(), r.Why())
	}
	if err := trial.Try(t.Context(), manifesttest.Tree(t, "{apiVersion: example.io/v7, kind: Widget, metadata: {name: x}}"), nil); err == nil || err.Error() != "the rules have no version v7" {
		t.Errorf("error: %v", err)
	}
}

// Rules that no longer keep a field for another version, since they convert it, lose the
// values that objects keep already. The objects are named.
func TestKeptFieldsAreLost(t *testing.T) {
	t.Parallel()
	old := compiled(t, "", keeps)
	object := func(version, spec string) map[string]any {
		return manifesttest.Tree(t, "{apiVersion: example.io/"+version+", kind: Widget, metadata: {name: one, namespace: default}, spec: {"+spec+"}}")
	}
	convert := func(of *render.Conversion, object map[string]any, to string) map[string]any {
		t.Helper()
		converted, _, err := of.Set.Convert(object, to)
		if err != nil {
			t.Fatal(err)
		}
		return converted
	}
	kept := convert(old, object("v2", "name: hunter2"), "v1")
	both := exact.Clone(kept)
	both["spec"] = map[string]any{"title": "another"}
	same := exact.Clone(kept)
	same["spec"] = map[string]any{"title": "hunter2"}
	for _, tt := range []struct {
		name       string
		new        *render.Conversion
		stored     map[string]any
		want, asks string
	}{
		{"converted now", rules(t, renames, ""), kept, "v1 -> v2: spec.name, which the stash keeps, is lost", "v2"},
		{"converted from another value", rules(t, renames, ""), both, "v1 -> v2: spec.name, which the stash keeps, is lost", "v2"},
		{"converted from the same value", rules(t, renames, ""), same, "", ""},
		{"kept as before", old, kept, "", ""},
		{"nothing is kept", rules(t, renames, ""), object("v1", "title: a"), "", ""},
		{"dropped on purpose", compiled(t, "", "[{from: v1, to: v2, preserve: [spec.title]}, {from: v2, to: v1, drop: [spec.name]}]"), kept, "", ""},
	} {
		trial, err := NewTrial(tt.new, "v1")
		if err != nil {
			t.Fatal(err)
		}
		asked := ""
		now := func(_ context.Context, version string) (map[string]any, error) {
			asked += version
			return convert(old, tt.stored, version), nil
		}
		if err := trial.Try(t.Context(), tt.stored, now); err != nil {
			t.Fatal(err)
		}
		have := ""
		for _, f := range trial.Result().Findings {
			have += f.Text
		}
		if have != tt.want || asked != tt.asks || strings.Contains(have, "hunter2") {
			t.Errorf("%s: found %q and asked for %q, want %q and %q", tt.name, have, asked, tt.want, tt.asks)
		}
	}

	// A few objects show it, and the others are not read any more.
	many, err := NewTrial(rules(t, renames, ""), "v1")
	if err != nil {
		t.Fatal(err)
	}
	reads := 0
	for range 2 * mostNamed {
		err := many.Try(t.Context(), kept, func(_ context.Context, version string) (map[string]any, error) {
			reads++
			return convert(old, kept, version), nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if reads != mostNamed || !many.Result().Failed() || many.Result().Objects != 2*mostNamed {
		t.Errorf("%d reads, result %+v", reads, many.Result())
	}

	// What clients cannot read now is not lost, and an error ends the trial.
	trial, err := NewTrial(rules(t, renames, ""), "v1")
	if err != nil {
		t.Fatal(err)
	}
	if err := trial.Try(t.Context(), kept, func(context.Context, string) (map[string]any, error) { return nil, nil }); err != nil || trial.Result().Failed() {
		t.Errorf("not served: error %v, %+v", err, trial.Result())
	}
	refused := errors.New("no")
	if err := trial.Try(t.Context(), kept, func(context.Context, string) (map[string]any, error) { return nil, refused }); !errors.Is(err, refused) {
		t.Errorf("error %v, want %v", err, refused)
	}
}
