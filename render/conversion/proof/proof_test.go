package proof

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/render/conversion"
	"gitopsd.dev/render/exact"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
)

var update = flag.Bool("update", false, "write the golden files")

const (
	before     = `{type: object, properties: {firstName: {type: string}, secret: {type: string}, size: {type: integer}, colors: {type: array, items: {type: object, properties: {name: {type: string}}}}}}`
	after      = `{type: object, properties: {first: {type: string}, size: {type: integer}, colors: {type: array, items: {type: object, properties: {name: {type: string}}}}}}`
	annotation = "example.com/stash"
)

// handWritten converts between the two schemas above like a hand-written webhook:
// firstName becomes first, and secret is kept in an annotation. Each test adds one fault.
type handWritten struct {
	// spoil changes the converted object; object is the input.
	spoil  func(object, converted map[string]any, to string)
	fail   func(object map[string]any) error
	report conversion.Report
	// restores is a field of v2 that is stashed although v2 has it, and restored. If absent
	// is set, it is only restored if the field is absent.
	restores string
	absent   bool
}

func (h handWritten) Versions() []string { return []string{"v1", "v2"} }

func (h handWritten) Convert(object map[string]any, to string) (map[string]any, conversion.Report, error) {
	if h.fail != nil {
		if err := h.fail(object); err != nil {
			return nil, conversion.Report{}, err
		}
	}
	c := exact.Clone(object)
	c["apiVersion"] = "example.io/" + to
	if c["apiVersion"] == object["apiVersion"] {
		return c, h.report, nil
	}
	spec, meta := manifest.Mapping(c, "spec"), manifest.Mapping(c, "metadata")
	move := func(from, to string) {
		if v, ok := spec[from]; ok {
			delete(spec, from)
			spec[to] = v
		}
	}
	annotations := manifest.Mapping(meta, "annotations")
	if to == "v2" {
		kept := make(map[string]any)
		move("firstName", "first")
		if v, ok := spec["secret"]; ok {
			delete(spec, "secret")
			kept["secret"] = v
		}
		if v, ok := spec[h.restores]; ok {
			kept[h.restores] = v
		}
		if delete(annotations, annotation); len(kept) > 0 {
			if annotations == nil {
				annotations = make(map[string]any)
				meta["annotations"] = annotations
			}
			annotations[annotation] = string(manifest.AppendJSON(nil, kept))
		}
	} else {
		var kept map[string]any
		if json.Unmarshal([]byte(manifest.Text(annotations, annotation)), &kept) == nil && spec != nil {
			for name, v := range kept {
				if spec[name] == nil || !h.absent {
					spec[name] = v
				}
			}
		}
		move("first", "firstName")
		delete(annotations, annotation)
	}
	if h.spoil != nil {
		h.spoil(object, c, to)
	}
	return c, h.report, nil
}

// documents returns the rules that correspond to handWritten.
func documents(t *testing.T, drop string) []conversion.Document {
	t.Helper()
	return []conversion.Document{{Origin: manifest.Origin{File: "rules.yaml", Line: 1}, Tree: manifesttest.Tree(t, `
apiVersion: apis.kcp.dev/v1alpha1
kind: APIConversionRules
metadata: {name: widgets.example.io}
spec:
  conversions:
  - {from: v1, to: v2, rules: [{from: v1.spec.firstName, to: spec.first}], drop: `+drop+`}
  - {from: v2, to: v1, rules: [{from: v2.spec.first, to: spec.firstName}]}
`)}}
}

// A conversion that keeps every law has no findings. Each broken law is found, with the
// smallest object that shows it.
func TestLaws(t *testing.T) {
	spec := func(o map[string]any) map[string]any { return manifest.Mapping(o, "spec") }
	for _, tt := range []struct {
		name  string
		rules handWritten
		law   Law // empty for none
		// title is the beginning of a finding's title, and smallest the spec of its object.
		title, smallest string
		drop            string
	}{
		{name: "right"},
		{name: "case changes", law: RoundTrip, title: "v1 -> v2 -> v1: spec.firstName does not come back as it was", smallest: `{"firstName":"A"}`,
			rules: handWritten{spoil: func(_, c map[string]any, to string) {
				if v, ok := spec(c)["first"].(string); ok && to == "v2" {
					spec(c)["first"] = strings.ToLower(v)
				}
			}}},
		{name: "only empty strings", law: RoundTrip, title: "v1 -> v2 -> v1: spec.firstName does not come back as it was", smallest: `{"firstName":""}`,
			rules: handWritten{spoil: func(_, c map[string]any, to string) {
				if spec(c)["first"] == "" && to == "v2" {
					delete(spec(c), "first")
				}
			}}},
		{name: "integers become floats", law: RoundTrip, title: "v1 -> v2 -> v1: spec.size does not come back as it was", smallest: `{"size":4503599627370496}`,
			rules: handWritten{spoil: func(_, c map[string]any, to string) {
				if n, ok := spec(c)["size"].(int64); ok && to == "v2" && (n >= 1<<52 || n <= -1<<52) {
					spec(c)["size"] = int64(float32(n / 3))
				}
			}}},
		{name: "a parent for nothing", law: RoundTrip, title: "v1 -> v2 -> v1: spec does not come back as it was", smallest: ``,
			rules: handWritten{spoil: func(_, c map[string]any, to string) {
				if c["spec"] == nil {
					c["spec"] = map[string]any{}
				}
			}}},
		{name: "the order of a list", law: RoundTrip, title: "v1 -> v2 -> v1: spec.colors[0].name does not come back as it was", smallest: `{"colors":[{},{"name":""}]}`,
			rules: handWritten{spoil: func(_, c map[string]any, to string) {
				l := manifest.List(c, "spec", "colors")
				if len(l) > 1 && to == "v2" {
					slices.Reverse(l)
				}
			}}},
		{name: "leftovers", law: Leftovers, title: "v1 -> v2: the result has fields that v2 lacks: spec.firstName", smallest: `{"firstName":""}`,
			rules: handWritten{spoil: func(o, c map[string]any, to string) {
				if v, ok := spec(o)["firstName"]; ok && to == "v2" {
					spec(c)["firstName"] = v
				}
			}}},
		{name: "a value of another type", law: Admitted, title: `v1 -> v2: the result is not valid: spec.first: Invalid value: "integer": spec.first in body must be of type string: "integer"`, smallest: `{"firstName":""}`,
			rules: handWritten{spoil: func(o, c map[string]any, to string) {
				if v, ok := spec(c)["first"].(string); ok && to == "v2" {
					spec(c)["first"] = int64(len(v))
				} else if n, ok := spec(o)["first"].(int64); ok && to == "v1" {
					spec(c)["firstName"] = strings.Repeat("x", int(n))
				}
			}}},
		{name: "elements of another type", law: Admitted, title: "v1 -> v2: the result is not valid: spec.colors[0].name: Invalid value", smallest: `{"colors":[{"name":""}]}`,
			rules: handWritten{spoil: func(_, c map[string]any, to string) {
				for _, color := range manifest.List(c, "spec", "colors") {
					if m, _ := color.(map[string]any); m["name"] != nil && to == "v2" {
						m["name"] = int64(len(m["name"].(string)))
					} else if n, ok := m["name"].(int64); ok {
						m["name"] = strings.Repeat("x", int(n))
					}
				}
			}}},
		{name: "the stash wins over an edit", law: Edits, title: `v1 -> v2 -> v1 -> v2: spec.first does not stay as an edit left it`, smallest: `{"firstName":`,
			rules: handWritten{restores: "first"}},
		{name: "a removed field comes back", law: Edits, title: `v1 -> v2 -> v1 -> v2: spec.colors does not stay as an edit left it`, smallest: `{"colors":[]}`,
			rules: handWritten{restores: "colors", absent: true}},
		{name: "metadata", law: Metadata, title: "v1 -> v2 changes metadata.finalizers, which conversions must not",
			rules: handWritten{spoil: func(_, c map[string]any, to string) {
				if to == "v2" {
					delete(manifest.Mapping(c, "metadata"), "finalizers")
				}
			}}},
		{name: "labels", law: RoundTrip, title: `v1 -> v2 -> v1: metadata.labels does not come back as it was`,
			rules: handWritten{spoil: func(_, c map[string]any, to string) {
				delete(manifest.Mapping(c, "metadata"), "labels")
			}}},
		{name: "an error", law: Total, title: "v1 -> v2: the conversion fails: no such size", smallest: `{"size":0}`,
			rules: handWritten{fail: func(o map[string]any) error {
				if spec(o)["size"] == int64(0) && o["apiVersion"] == "example.io/v1" {
					return errors.New("no such size")
				}
				return nil
			}}},
		{name: "a panic", law: Total, title: "v1 -> v2: the conversion fails: panic: assignment to entry in nil map", smallest: ``,
			rules: handWritten{spoil: func(_, c map[string]any, to string) {
				if to == "v2" {
					spec(c)["first"] = "x"
					delete(spec(c), "first")
				}
			}}},
		{name: "the input is changed", law: Total, title: "v1 -> v2: the conversion fails: the conversion changed its input", smallest: `{"size":0}`,
			rules: handWritten{spoil: func(o, _ map[string]any, to string) {
				if spec(o)["size"] != nil && to == "v2" {
					delete(spec(o), "size")
				}
			}}},
		{name: "a rule fails", law: RuleFails, title: "v1 -> v2: a rule fails, and its value is kept in the stash: no such key",
			rules: handWritten{report: conversion.Report{Failed: []conversion.Note{{Rule: "rules.yaml: rule 1", Err: "no such key"}}}}},
		{name: "dropped on purpose", drop: "[spec.secret]", rules: handWritten{spoil: func(_, c map[string]any, to string) {
			if to == "v1" {
				delete(spec(c), "secret")
			}
		}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			result, err := Run(t.Context(), Config{Rules: tt.rules, Documents: documents(t, cmp.Or(tt.drop, "[]")), Definition: crd(t, before, after), Most: 200, Stash: annotation})
			if err != nil {
				t.Fatal(err)
			}
			brief := make(map[string]bool)
			for _, f := range result.Findings {
				if brief[f.Brief()] {
					t.Errorf("shown twice: %s", f.Brief())
				}
				brief[f.Brief()] = true
			}
			if tt.law == "" {
				for _, f := range result.Findings {
					t.Errorf("%s", f)
				}
				for _, p := range result.Pairs {
					if p.Objects != 200 || p.Edits < 400 || p.Partial > 100 {
						t.Errorf("%+v", p)
					}
				}
				return
			}
			i := slices.IndexFunc(result.Findings, func(f Finding) bool { return f.Law == tt.law && strings.HasPrefix(f.Title(), tt.title) })
			if i < 0 {
				for _, f := range result.Findings {
					t.Log(f.Title())
				}
				t.Fatalf("not found: %s", tt.title)
			}
			f := result.Findings[i]
			smallest := ""
			if s, ok := f.Object["spec"]; ok {
				smallest = string(manifest.AppendJSON(nil, s))
			}
			if !strings.HasPrefix(smallest, tt.smallest) || len(smallest) > len(tt.smallest)+8 {
				t.Errorf("the smallest object is %s, want %s", smallest, tt.smallest)
			}
			if result.Failed() != (tt.law != RuleFails) {
				t.Errorf("failed: %v", result.Failed())
			}
		})
	}
}

// The texts and the order of findings are the same in each run.
func TestFindingText(t *testing.T) {
	rules := handWritten{spoil: func(_, c map[string]any, to string) {
		s := manifest.Mapping(c, "spec")
		if v, ok := s["first"].(string); ok && to == "v2" {
			s["first"] = strings.TrimSuffix(v, "b")
		}
	}}
	var b strings.Builder
	for range 2 {
		result, err := Run(t.Context(), Config{Rules: rules, Documents: documents(t, "[]"), Definition: crd(t, before, after), Most: 300, Stash: annotation})
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		for _, f := range result.Findings {
			fmt.Fprintf(&text, "%s\n", f)
		}
		if b.Len() > 0 && b.String() != text.String() {
			t.Errorf("two runs differ:\n%s\n%s", &b, &text)
		}
		b = strings.Builder{}
		b.WriteString(text.String())
	}
	const golden = "testdata/findings.txt"
	if *update {
		if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("have:\n%s\nwant:\n%s", &b, want)
	}
}

// Given objects are tried first, unchanged.
func TestGivenObjects(t *testing.T) {
	given := manifesttest.Tree(t, `{apiVersion: example.io/v1, kind: Widget, metadata: {name: live, labels: {a: b}}, spec: {firstName: never generated}}`)
	rules := handWritten{spoil: func(o, c map[string]any, to string) {
		if s := manifest.Mapping(c, "spec"); s["first"] == "never generated" {
			delete(s, "first")
		}
	}}
	result, err := Run(t.Context(), Config{Rules: rules, Definition: crd(t, before, after), Objects: []map[string]any{given}, Most: 100, Stash: annotation})
	if err != nil || len(result.Findings) != 1 || result.Findings[0].Times != 1 || result.Findings[0].Law != RoundTrip {
		t.Errorf("%v: %+v", err, result)
	}
}

// BenchmarkRun reports objects per second. Each is converted there and back, checked, and
// edited three times.
func BenchmarkRun(b *testing.B) {
	d := crd(b, before, after)
	objects := 0
	for b.Loop() {
		result, err := Run(b.Context(), Config{Rules: handWritten{}, Definition: d, Most: 500, Stash: annotation})
		if err != nil || len(result.Findings) > 0 {
			b.Fatal(err, result.Findings)
		}
		objects += result.Pairs[0].Objects + result.Pairs[1].Objects
	}
	b.ReportMetric(float64(objects)/b.Elapsed().Seconds(), "objects/s")
}

// A finding describes the object that it shows, even if rules fail only sometimes, such
// as rules that run out of time.
func TestFindingOfItsObject(t *testing.T) {
	t.Parallel()
	calls := 0
	rules := handWritten{spoil: func(_, c map[string]any, to string) {
		spec := manifest.Mapping(c, "spec")
		v, ok := spec["first"].(string)
		if !ok || to != "v2" {
			return
		}
		if calls++; calls <= 3 {
			spec["first"] = "not " + v
		}
	}}
	given := manifesttest.Tree(t, "{apiVersion: example.io/v1, kind: Widget, metadata: {name: a}, spec: {firstName: Ada, size: 3}}")
	r, err := Run(t.Context(), Config{Rules: rules, Definition: crd(t, before, after), Objects: []map[string]any{given}, Most: 100, Stash: annotation})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Findings) != 1 {
		t.Fatalf("%d findings:\n%s", len(r.Findings), r)
	}
	f := r.Findings[0]
	object, converted := manifest.Mapping(f.Object, "spec"), manifest.Mapping(f.Converted, "spec")
	if converted["first"] != fmt.Sprint("not ", object["firstName"]) || len(object) != len(converted) {
		t.Errorf("%v is said to become %v", object, converted)
	}
}

// Rules that fail in many ways do not hide broken laws, and a law that is broken in many
// ways does not hide another.
func TestManyFindings(t *testing.T) {
	t.Parallel()
	var failing conversion.Report
	for i := range 3 * mostFindings {
		failing.Failed = append(failing.Failed, conversion.Note{Rule: fmt.Sprint("rule ", i), Err: "no"})
	}
	loses := handWritten{report: failing, spoil: func(o, c map[string]any, to string) {
		if to == "v2" {
			delete(manifest.Mapping(c, "spec"), "first")
		}
	}}
	r, err := Run(t.Context(), Config{Rules: loses, Definition: crd(t, before, after), Most: 50, Stash: annotation})
	if err != nil {
		t.Fatal(err)
	}
	if !r.Failed() || len(r.Laws) != 1 || r.Laws[0] != RoundTrip || r.More != 0 || r.MoreFailing == 0 {
		t.Errorf("failed is %t, laws %v, %d more, %d more failing", r.Failed(), r.Laws, r.More, r.MoreFailing)
	}
	if text := r.String(); !strings.HasPrefix(text, "2 counterexamples;") || !strings.Contains(text, "spec.firstName does not come back") || !strings.Contains(text, "more rules fail on values") {
		t.Errorf("%s", text)
	}

	p := &prover{}
	for i := range 3 * mostFindings {
		if p.room(RoundTrip) {
			p.result.Findings = append(p.result.Findings, Finding{Law: RoundTrip, about: fmt.Sprint(i)})
		}
	}
	if !p.room(Admitted) || p.result.More != 2*mostFindings {
		t.Errorf("%d more", p.result.More)
	}
}

// What only the schema of the other version has is found, where no rule is about it.
func TestOtherSchema(t *testing.T) {
	t.Parallel()
	const moves = `{type: object, properties: {%s: {type: string, maxLength: 20}, %s}}`
	for _, tt := range []struct {
		name, v1, v2 string
		forth, back  string // more rules
		// title is the beginning of a finding's title, empty if there is none, smallest the
		// spec of its object, and advice a part of its advice.
		title, smallest, advice string
	}{
		{name: "a default", v1: `replicas: {type: integer}`, v2: `replicas: {type: integer, default: 3}`,
			title: "v1 -> v2 -> v1: spec.replicas does not come back as it was after an edit of something else (add a label)", smallest: `{}`,
			advice: "a default of v2; give v1 the same default"},
		{name: "a length", v1: `f: {type: string}`, v2: `f: {type: string, maxLength: 512}`,
			title: "v1 -> v2: the result is not valid: spec.f: Too long", smallest: `{"f":"` + strings.Repeat("y", 513) + `"}`},
		{name: "a number of items", v1: `f: {type: array, items: {type: string}}`, v2: `f: {type: array, maxItems: 5, items: {type: string}}`,
			title: "v1 -> v2: the result is not valid: spec.f: Too many", smallest: `{"f":["","","","","",""]}`},
		{name: "a number of keyed items", v1: `f: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [id], items: {type: object, required: [id], properties: {id: {type: string}}}}`,
			v2:    `f: {type: array, maxItems: 20, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [id], items: {type: object, required: [id], properties: {id: {type: string}}}}`,
			title: "v1 -> v2: the result is not valid: spec.f: Too many"},
		{name: "a number of distinct items", v1: `f: {type: array, x-kubernetes-list-type: set, items: {type: string, minLength: 2}}`, v2: `f: {type: array, maxItems: 20, x-kubernetes-list-type: set, items: {type: string, minLength: 2}}`,
			title: "v1 -> v2: the result is not valid: spec.f: Too many"},
		{name: "a number of keys", v1: `f: {type: object, additionalProperties: {type: string}}`, v2: `f: {type: object, maxProperties: 8, additionalProperties: {type: string}}`,
			title: "v1 -> v2: the result is not valid: spec.f: Too many", smallest: `{"f":{"k0":"","k1":"","k2":"","k3":"","k4":"","k5":"","k6":"","k7":"","k8":""}}`},
		{name: "a maximum", v1: `f: {type: integer}`, v2: `f: {type: integer, maximum: 70000000000000000}`,
			title: "v1 -> v2: the result is not valid: spec.f: Invalid value"},
		{name: "the limit of a moved field", forth: ", {from: v1.spec.old2, to: spec.new2}", back: ", {from: v2.spec.new2, to: spec.old2}",
			v1: `old2: {type: string}`, v2: `new2: {type: string, maxLength: 600}`,
			title: "v1 -> v2: the result is not valid: spec.new2: Too long", smallest: `{"old2":"` + strings.Repeat("y", 601) + `"}`},
		{name: "the limit of an item's field",
			forth: ", {from: v1.spec.ls, to: spec.ms, itemRules: [{from: self.a, to: item.b}]}", back: ", {from: v2.spec.ms, to: spec.ls, itemRules: [{from: self.b, to: item.a}]}",
			v1: `ls: {type: array, maxItems: 5, items: {type: object, properties: {a: {type: string}}}}`, v2: `ms: {type: array, maxItems: 5, items: {type: object, properties: {b: {type: string, maxLength: 600}}}}`,
			title: "v1 -> v2: the result is not valid: spec.ms[0].b: Too long", smallest: `{"ls":[{"a":"` + strings.Repeat("y", 601) + `"}]}`},
		{name: "a limit of its own", v1: `f: {type: string, maxLength: 5}`, v2: `f: {type: string, maxLength: 5}`},
		{name: "the same default", v1: `replicas: {type: integer, default: 3}`, v2: `replicas: {type: integer, default: 3}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := crd(t, fmt.Sprintf(moves, "old", tt.v1), fmt.Sprintf(moves, "new", tt.v2))
			documents := []conversion.Document{{Origin: manifest.Origin{File: "rules.yaml", Line: 1}, Tree: manifesttest.Tree(t, `
apiVersion: apis.kcp.dev/v1alpha1
kind: APIConversionRules
metadata: {name: widgets.example.io}
spec:
  conversions:
  - {from: v1, to: v2, rules: [{from: v1.spec.old, to: spec.new}`+tt.forth+`]}
  - {from: v2, to: v1, rules: [{from: v2.spec.new, to: spec.old}`+tt.back+`]}
`)}}
			set, err := conversion.Compile(d, documents)
			if err != nil {
				t.Fatal(err)
			}
			r, err := Run(t.Context(), Config{Rules: set, Documents: documents, Definition: d, Most: 100, Stash: manifest.ConversionStashAnnotation})
			if err != nil {
				t.Fatal(err)
			}
			if tt.title == "" {
				if r.Failed() {
					t.Errorf("%s", r)
				}
				return
			}
			i := slices.IndexFunc(r.Findings, func(f Finding) bool { return strings.HasPrefix(f.Title(), tt.title) })
			if i < 0 {
				t.Fatalf("not found:\n%s", r)
			}
			f := r.Findings[i]
			if have := string(manifest.AppendJSON(nil, f.Object["spec"])); tt.smallest != "" && have != tt.smallest || !strings.Contains(f.String(), tt.advice) {
				t.Errorf("%s", f)
			}
		})
	}
}
