package conversion

import (
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"gitopsd.dev/render/exact"
)

const inMetadata = `
-- v1 --
spec: {type: object, properties: {x: {type: string}}}
-- v2 --
spec: {type: object, properties: {x: {type: string}, title: {type: string}, notes: {type: string}, more: {type: string}}}
-- rules --
conversions:
- from: v1
  to: v2
  rules:
  - {from: 'self.metadata.labels["example.io/title"]', to: spec.title}
  - {from: 'self.metadata.annotations["example.io/notes"]', to: spec.notes}
  - {from: 'self.metadata.annotations["example.io/more"]', to: spec.more}
- from: v2
  to: v1
  rules:
  - {from: self.spec.title, to: 'metadata.labels["example.io/title"]'}
  - {from: self.spec.notes, to: 'metadata.annotations["example.io/notes"]'}
  - {from: self.spec.more, to: 'metadata.annotations["example.io/more"]'}
`

// TestValidMetadata converts objects whose fields cannot all be labels and annotations. An API server fails every
// LIST of the type if one object comes back with invalid ones.
func TestValidMetadata(t *testing.T) {
	s := compile(t, txtar.Parse([]byte(inMetadata)))
	large, half, small := strings.Repeat("n", 200<<10), strings.Repeat("h", 100<<10), strings.Repeat("m", 60<<10)
	for name, tt := range map[string]struct {
		in, failed string
		lossless   bool
	}{
		"valid":             {`{apiVersion: v2, spec: {title: hello, notes: "hello, world"}}`, "", true},
		"empty":             {`{apiVersion: v2, spec: {title: "", notes: ""}}`, "", true},
		"label":             {`{apiVersion: v2, spec: {title: "hello, world"}}`, `metadata.labels["example.io/title"]`, true},
		"long label":        {`{apiVersion: v2, spec: {title: ` + strings.Repeat("a", 64) + `}}`, `metadata.labels["example.io/title"]`, true},
		"annotation":        {`{apiVersion: v2, spec: {notes: ` + large + large + `}}`, `metadata.annotations["example.io/notes"]`, false},
		"annotations":       {`{apiVersion: v2, spec: {notes: ` + small + `, more: ` + large + `}}`, `metadata.annotations["example.io/more"]`, false},
		"restored":          {`{apiVersion: v2, metadata: {annotations: {gitopsd.dev/conversion-stash: '{"v1":[{"path":"metadata.labels[\"example.io/title\"]","value":"hello, world"}]}'}}, spec: {title: "hello, world"}}`, `metadata.labels["example.io/title"]`, true},
		"all restored":      {`{apiVersion: v2, metadata: {annotations: {own: ` + small + `, gitopsd.dev/conversion-stash: '{"v1":[{"path":"metadata.annotations[\"example.io/more\"]","value":"` + half + `"}]}'}}, spec: {notes: ` + half + `, more: ` + half + `}}`, `metadata.annotations["example.io/more"]`, false},
		"beside the user's": {`{apiVersion: v2, metadata: {annotations: {own: ` + large + `}}, spec: {notes: ` + small + `}}`, `metadata.annotations["example.io/notes"]`, false},
	} {
		in := widget(t, tt.in)
		out, report := convert(t, s, in, "v1")
		u := unstructured.Unstructured{Object: out}
		wrong := append(metav1validation.ValidateLabels(u.GetLabels(), field.NewPath("labels")), validation.ValidateAnnotations(u.GetAnnotations(), field.NewPath("annotations"))...)
		if len(wrong) > 0 {
			t.Errorf("%s: an API server refuses it: %v", name, wrong.ToAggregate())
		}
		if got := paths(report.Failed); got != tt.failed {
			t.Errorf("%s: failed %q, want %q", name, got, tt.failed)
		}
		back, _ := convert(t, s, out, "v2")
		if got := exact.Equal(bare(back), bare(in)); got != tt.lossless {
			t.Errorf("%s: comes back the same: %v", name, got)
		}
	}
}

// Names that no label or annotation can have are errors of the rules.
func TestMetadataNames(t *testing.T) {
	for _, name := range []string{`labels["Not a name"]`, `labels["a/b/c"]`, `annotations["no name!"]`, `annotations["` + strings.Repeat("a", 64) + `"]`} {
		rules := strings.ReplaceAll(strings.ReplaceAll(inMetadata, `labels["example.io/title"]`, name), `annotations["example.io/notes"]`, name)
		archive := txtar.Parse([]byte(rules))
		if _, err := Compile(definition(t, archive), []Document{document(t, file(archive, "rules"))}); err == nil || !strings.Contains(err.Error(), "no name of a label or annotation") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
