package conversion

import (
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"gitopsd.dev/render/manifest"
)

// A stash that somebody has written gives back nothing that API servers cannot read: they
// would fail every LIST of the type.
func TestForgedStash(t *testing.T) {
	s := compile(t, txtar.Parse([]byte(`
-- v1 --
spec: {type: object, properties: {a: {type: string}}}
-- v2 --
spec:
  type: object
  properties:
    a: {type: string}
    ratio: {type: number}
    kept: {x-kubernetes-preserve-unknown-fields: true}
    embedded: {type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}
-- rules --
conversions:
- {from: v2, to: v1, preserve: [spec.ratio, spec.kept, spec.embedded]}
`)))
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for name, tt := range map[string]struct {
		entry string
		comes bool
	}{
		"number":              {`{"path":"spec.ratio","value":1.5}`, true},
		"a large number":      {`{"path":"spec.ratio","value":123456789012345678901234567890}`, true},
		"infinite":            {`{"path":"spec.ratio","value":1e400}`, false},
		"infinite inside":     {`{"path":"spec.kept","value":{"a":[1e999]}}`, false},
		"nested":              {`{"path":"spec.kept","value":` + deep(1000) + `}`, true},
		"nested too deep":     {`{"path":"spec.kept","value":` + deep(9997) + `}`, false},
		"embedded":            {`{"path":"spec.embedded","value":{"apiVersion":"v1","kind":"Pod","metadata":{"labels":{"a":"b"}},"spec":{}}}`, true},
		"embedded labels":     {`{"path":"spec.embedded","value":{"apiVersion":"v1","kind":"Pod","metadata":{"labels":{"a":1}}}}`, false},
		"embedded kind":       {`{"path":"spec.embedded","value":{"apiVersion":"v1","kind":7}}`, false},
		"embedded time":       {`{"path":"spec.embedded","value":{"apiVersion":"v1","kind":"X","metadata":{"creationTimestamp":"nope"}}}`, false},
		"part of an embedded": {`{"path":"spec.embedded.metadata","value":{"labels":{"a":1}}}`, false},
		"the version":         {`{"path":"apiVersion","value":"example.io/v9"}`, false},
		"the kind":            {`{"path":"kind","value":"Other"}`, false},
	} {
		in := widget(t, "{apiVersion: v1, spec: {a: x}}")
		manifest.Mapping(in, "metadata")["annotations"] = map[string]any{manifest.ConversionStashAnnotation: `{"v2":[` + tt.entry + `]}`}
		out, report := convert(t, s, in, "v2")
		if comes := len(report.Restored) == 1; comes != tt.comes || len(report.Stale) == 1 == tt.comes || out["apiVersion"] != "example.io/v2" || out["kind"] != "Widget" {
			t.Errorf("%s: restored %v, stale %.200v", name, report.Restored, report.Stale)
		}
	}
}
