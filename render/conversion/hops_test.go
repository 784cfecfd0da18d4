package conversion

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"gitopsd.dev/render/conversion/stash"
	"gitopsd.dev/render/conversion/structural"
	"gitopsd.dev/render/exact"
	"gitopsd.dev/render/manifest"
)

// three has three versions, each with fields that the others lack, converted through the
// first.
const three = `
-- v1 --
spec:
  type: object
  properties:
    a: {type: string}
    keep1: {type: string, maxLength: 9}
    t: {type: string}
    l: {type: array, items: {type: object, properties: {a: {type: string}, one: {type: string}}}}
    m: {type: object, additionalProperties: {type: object, properties: {p: {type: string}, one: {type: integer}}}}
-- v2 --
spec:
  type: object
  properties:
    b: {type: string}
    keep2: {type: string, maxLength: 9}
    s: {type: integer}
    l: {type: array, items: {type: object, properties: {b: {type: string}, two: {type: string}}}}
    m: {type: object, additionalProperties: {type: object, properties: {q: {type: string}, two: {type: integer}}}}
-- v3 --
spec:
  type: object
  properties:
    c: {type: string}
    keep3: {type: string, maxLength: 9}
    t: {type: string}
    l: {type: array, items: {type: object, properties: {c: {type: string}, three: {type: string}}}}
    m: {type: array, items: {type: object, properties: {k: {type: string}, r: {type: string}, three: {type: integer}}}}
-- rules --
hub: v1
conversions:
- from: v1
  to: v2
  rules:
  - {from: self.spec.a, to: spec.b}
  - {field: spec.t, to: spec.s, transformation: duration(self).getSeconds()}
  - {from: self.spec.l, to: spec.l, itemRules: [{from: self.a, to: item.b}]}
  - {from: self.spec.m, to: spec.m, itemRules: [{from: self.p, to: item.q}]}
  preserve: [spec.keep1, "spec.l[].one", "spec.m[].one"]
- from: v2
  to: v1
  rules:
  - {from: self.spec.b, to: spec.a}
  - {field: spec.s, to: spec.t, transformation: string(self) + 's'}
  - {from: self.spec.l, to: spec.l, itemRules: [{from: self.b, to: item.a}]}
  - {from: self.spec.m, to: spec.m, itemRules: [{from: self.q, to: item.p}]}
  preserve: [spec.keep2, "spec.l[].two", "spec.m[].two"]
- from: v1
  to: v3
  rules:
  - {from: self.spec.a, to: spec.c}
  - {from: self.spec.l, to: spec.l, itemRules: [{from: self.a, to: item.c}]}
  - {from: self.spec.m, to: spec.m, itemRules: [{from: self.p, to: item.r}, {from: key, to: item.k}]}
  preserve: [spec.keep1, "spec.l[].one", "spec.m[].one"]
- from: v3
  to: v1
  rules:
  - {from: self.spec.c, to: spec.a}
  - {from: self.spec.l, to: spec.l, itemRules: [{from: self.c, to: item.a}]}
  - {from: self.spec.m, to: spec.m, itemRules: [{from: self.r, to: item.p}, {from: self.k, to: key}]}
  preserve: [spec.keep3, "spec.l[].three", "spec.m[].three"]
`

// TestHops converts random objects through all versions in any order, with an edit in one
// of them. Back in its own version an object has the edit, and is otherwise unchanged.
func TestHops(t *testing.T) {
	s := compile(t, txtar.Parse([]byte(three)))
	r := rand.New(rand.NewPCG(17, 9))
	// The names of two fields in each version.
	fields := map[string][2]string{"v1": {"a", "t"}, "v2": {"b", "s"}, "v3": {"c", "t"}}
	edited := func(name string, object map[string]any, field int) {
		spec, _ := object["spec"].(map[string]any)
		if spec == nil {
			return
		}
		var v any = []string{"EDIT", "77s"}[field]
		if fields[name][field] == "s" {
			v = int64(77)
		}
		spec[fields[name][field]] = v
	}
	version := func() string { return s.Versions()[r.IntN(3)] }
	tried := 0
	for range 2000 {
		from, at, field := version(), version(), r.IntN(2)
		seen := structural.Visible(s.Schema(from))
		object, _ := random(r, seen, 0).(map[string]any)
		if object == nil || structural.Fits(seen, object, "") != nil || manifest.Mapping(object, "spec") == nil {
			continue
		}
		tried++
		if manifest.Mapping(object, "metadata") == nil {
			object["metadata"] = map[string]any{}
		}
		object["apiVersion"], object["kind"] = "example.io/"+from, "Widget"
		way := []string{version(), version(), at, version(), version(), from}
		way = slices.Delete(way, 0, r.IntN(3))
		now := maps.Clone(object)
		want := exact.Clone(object)
		done := false
		for _, to := range way {
			now, _ = convert(t, s, now, to)
			if to == at && !done {
				now, done = exact.Clone(now), true
				edited(at, now, field)
			}
		}
		edited(from, want, field)
		if d := stash.Differences(seen, want, now, nil, nil); len(d) > 0 {
			t.Fatalf("%s by way of %v, edited in %s, has not %s = %v:\n%s\n%s", from, way, at, d[0].Path, d[0].Value, text(t, object), text(t, now))
		}
	}
	if tried < 200 {
		t.Errorf("%d objects", tried)
	}
}
