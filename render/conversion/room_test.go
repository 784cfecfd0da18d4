package conversion

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"gitopsd.dev/render/cel"
)

const amplified = `
-- v1 --
spec:
  type: object
  properties:
    big: {type: string}
    items: {type: array, items: {type: object, properties: {a: {type: string}}}}
-- v2 --
spec:
  type: object
  properties:
    big: {type: string}
    items: {type: array, items: {type: object, properties: {a: {type: string}, more: {type: string}}}}
-- rules --
conversions:
- from: v1
  to: v2
  rules: [{from: v1.spec.items, to: spec.items, itemRules: [{from: '%s', to: item.more}]}]
- from: v2
  to: v1
  rules: [{from: v2.spec.items, to: spec.items}]
  drop: ["spec.items[].more"]
`

// TestRoom checks that rules cannot make an object that is much larger than the one that
// they read.
func TestRoom(t *testing.T) {
	big := strings.Repeat("b", 100_000)
	for name, tt := range map[string]struct {
		rule, item string
		elements   int
	}{
		"a field of the object in each element": {"v1.spec.big", "{}", 150},
		"an expression in each element":         {"v1.spec.big + v1.metadata.name", "{}", 150},
		"expressions that cost little":          {strings.Repeat("strings.quote(", 8) + "self.a" + strings.Repeat(")", 8), `{"a":"` + strings.Repeat(`\\`, 1000) + `"}`, 40},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := compile(t, txtar.Parse(fmt.Appendf(nil, amplified, tt.rule)))
			object := `{"apiVersion":"example.io/v1","kind":"Widget","metadata":{"name":"a"},"spec":{"big":"` + big + `","items":[` +
				strings.Repeat(tt.item+",", tt.elements-1) + tt.item + `]}}`
			out, report, err := s.ConvertJSON([]byte(object), "v2")
			if errors.Is(err, cel.ErrTime) {
				return // on a machine with much else to do, which is no larger object either
			}
			if err != nil || len(out) > 3*maxWritten {
				t.Fatalf("%d bytes, %v", len(out), err)
			}
			if n := len(report.Failed); n == 0 || n == tt.elements {
				t.Errorf("%d rules failed; want some", n)
			}
			for _, n := range report.Failed {
				if !strings.Contains(n.Err, "write more than 8 MiB") && !strings.Contains(n.Err, "cost more than") && !strings.Contains(n.Err, "cost limit") {
					t.Fatal(n)
				}
			}
			back, _, err := s.ConvertJSON(out, "v1")
			if errors.Is(err, cel.ErrTime) {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want, err := Decode([]byte(object))
			if err != nil {
				t.Fatal(err)
			}
			have, err := Decode(back)
			if err != nil || text(t, have) != text(t, want) {
				t.Errorf("it comes back as %.100s (%v)", back, err)
			}
		})
	}
}
