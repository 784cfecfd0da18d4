package cel

import (
	"errors"
	"strings"
	"testing"

	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/sources"
)

const schemaText = `
type: object
properties:
  apiVersion: {type: string}
  kind: {type: string}
  metadata: {type: object}
  spec:
    type: object
    properties:
      size: {type: integer}
      ratio: {type: number}
      port: {x-kubernetes-int-or-string: true}
      a.b-c/d: {type: object, properties: {d: {type: string}}}
      free: {type: object, x-kubernetes-preserve-unknown-fields: true}
      open: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {known: {type: string}}}
      template: {type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}
  status:
    type: object
    properties:
      phase: {type: string}
      since: {type: string, format: date-time}
      namespace: {type: string}
      nodes: {type: object, additionalProperties: {type: object, properties: {ready: {type: boolean}}}}
      conditions:
        type: array
        items:
          type: object
          properties: {type: {type: string}, status: {type: string}, observedGeneration: {type: integer}}
`

const objectText = `
apiVersion: example.org/v1
kind: Gadget
metadata: {name: a, generation: 2, labels: {x: one}}
spec:
  size: 3
  ratio: 1
  port: http
  a.b-c/d: {d: e}
  free: {deep: {er: true}}
  open: {known: a, other: 1}
  template: {kind: Pod, spec: {x: 1}}
status:
  phase: Ready
  since: "2024-01-02T03:04:05Z"
  namespace: prod
  nodes: {one: {ready: true}, two: {ready: false}}
  conditions:
  - {type: Ready, status: "True", observedGeneration: 2}
`

func TestProgram(t *testing.T) {
	schema := manifesttest.Tree(t, schemaText)
	object := manifesttest.Tree(t, objectText)
	for _, tt := range []struct {
		text string
		want string // true, false, absent, or a part of the error; with the schema
		free string // without it, if that is different
	}{
		{text: `status.phase == 'Ready'`, want: "true"},
		{text: `self.status.phase == 'Ready'`, want: "true"},
		{text: `status.phase in ['Failed', 'Lost']`, want: "false"},
		{text: `status.conditions.exists(c, c.type == 'Ready' && c.status == 'True' && c.observedGeneration == metadata.generation)`, want: "true"},
		{text: `status.conditions.filter(e, e.type == 'Ready').all(e, e.status == 'False')`, want: "false"},
		{text: `status.?conditions.orValue([]).exists(c, c.type == 'Gone')`, want: "false"},
		{text: `status.nodes.exists(n, !status.nodes[n].ready)`, want: "true"},
		{text: `timestamp(status.since) < timestamp('2025-01-01T00:00:00Z')`, want: "true"},
		{text: `status.namespace == 'prod'`, want: "true"},
		{text: "spec.`a.b-c/d`.d == 'e'", want: "true"},
		{text: `spec.ratio > 0.5 && spec.ratio + 1 == 2`, want: "true"},
		{text: `spec.port == 'http'`, want: "true"},
		{text: `spec.free.deep.er`, want: "true"},
		{text: `spec.open.other == 1 && spec.open.known == 'a'`, want: "true"},
		{text: `spec.template.kind == 'Pod' && spec.template.spec.x == 1`, want: "true"},
		{text: `metadata.labels['x'] == 'one'`, want: "true"},
		{text: `has(metadata.deletionTimestamp)`, want: "false"},
		{text: `metadata.labels['z'] == 'y'`, want: "absent"},
		{text: `spec.free.none`, want: "absent"},
		{text: `status.conditions[4].type == 'Ready'`, want: "absent"},

		{text: `status.phse == 'Ready'`, want: "1:7: undefined field 'phse'", free: "absent"},
		{text: `status.conditions.exists(c,
  c.stat == 'True')`, want: "2:4: undefined field 'stat'", free: "absent"},
		{text: `status.phase == 1`, want: "no matching overload", free: "false"},
		{text: `status.phase`, want: "the expression gives string; bool is needed", free: "the expression gave string; bool is needed"},
		{text: `status.phase ==`, want: "1:16: Syntax error"},
		{text: `phase == 'Ready'`, want: "1:1: undeclared reference to 'phase'"},
		{text: `lower(status.phase) == 'ready'`, want: "undeclared reference to 'lower'"},
		{text: ` `, want: "the expression is empty"},
		{text: `true` + strings.Repeat(" ", maxLength), want: "at most 8192 are read"},
		// A few expensive iterations: many cheap ones would exceed the time limit on a busy
		// machine.
		{text: `[1,2,3,4,5,6,7,8,9,10].all(a, [1,2,3,4,5,6,7,8,9,10].all(b, !(status.phase + '` + strings.Repeat("a", 3000) + `').contains(status.phase + '` +
			strings.Repeat("b", 2000) + `')))`, want: "cost limit"},
	} {
		check := func(schema map[string]any, want string) {
			t.Helper()
			have := ""
			p, err := Compile(tt.text, schema, Bool)
			if err == nil {
				var b bool
				b, err = p.True(object)
				have = map[bool]string{true: "true", false: "false"}[b]
			}
			switch {
			case errors.Is(err, ErrAbsent):
				have = "absent"
			case err != nil:
				have = err.Error()
			}
			if !strings.Contains(have, want) {
				t.Errorf("%s\n(with a schema: %t) gives %s\nwant %s", tt.text, schema != nil, have, want)
			}
		}
		check(schema, tt.want)
		if tt.free == "" {
			tt.free = tt.want
		}
		check(nil, tt.free)
	}
	p, err := Compile(`'phase is ' + status.phase`, schema, String)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := p.Text(object); text != "phase is Ready" || err != nil {
		t.Errorf("the text is %q, %v", text, err)
	}
}

// No expression, schema or object causes a panic.
func FuzzCompile(f *testing.F) {
	f.Add(`status.phase == 'Ready'`, schemaText, objectText)
	f.Add(`self.a[0].b`, `{type: object, properties: {a: {type: array, items: {type: array}}}}`, `{a: 1}`)
	f.Add("self.`[`.b", `{properties: {"[": {type: object, properties: {b: 1}}}}`, `{"[": {b: null}}`)
	f.Fuzz(func(t *testing.T, text, schema, object string) {
		read := func(text string) map[string]any {
			docs, _ := sources.DecodeYAML(strings.NewReader(text), sources.Limits{Bytes: 1 << 16})
			if len(docs) == 0 {
				return map[string]any{}
			}
			return docs[0].Tree
		}
		tree := read(object)
		for _, s := range []map[string]any{nil, read(schema)} {
			if p, err := Compile(text, s, Bool); err == nil {
				_, _ = p.True(tree)
			}
		}
	})
}
