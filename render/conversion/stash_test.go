package conversion

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"gitopsd.dev/render/conversion/stash"
	"gitopsd.dev/render/exact"
	"gitopsd.dev/render/manifest"
)

const both = `
-- v1 --
spec:
  type: object
  properties:
    title: {type: string}
    timeout: {type: string}
    old: {type: string, maxLength: 1000000}
    ports:
      type: array
      x-kubernetes-list-type: map
      x-kubernetes-list-map-keys: [id]
      items: {type: object, properties: {id: {type: integer}, note: {type: string}, one: {type: string}}}
    free: {type: array, items: {type: object, properties: {a: {type: string}, one: {type: string}}}}
-- v2 --
spec:
  type: object
  properties:
    name: {type: string}
    seconds: {type: integer}
    young: {type: string}
    deep: {type: object, properties: {er: {type: string}, name: {type: string}}}
    ports:
      type: array
      x-kubernetes-list-type: map
      x-kubernetes-list-map-keys: [key]
      items: {type: object, properties: {key: {type: integer}, note: {type: string}, two: {type: string}}}
    free: {type: array, items: {type: object, properties: {b: {type: string}, two: {type: string}}}}
-- rules --
conversions:
- from: v1
  to: v2
  rules:
  - {from: v1.spec.title, to: spec.name}
  - {field: spec.timeout, to: spec.seconds, transformation: duration(self).getSeconds()}
  - {from: v1.spec.ports, to: spec.ports, itemRules: [{from: self.id, to: item.key}]}
  - {from: v1.spec.free, to: spec.free, itemRules: [{from: self.a, to: item.b}]}
  preserve: [spec.old, "spec.ports[].one", "spec.free[].one"]
- from: v2
  to: v1
  rules:
  - {from: v2.spec.name, to: spec.title}
  - {field: spec.seconds, to: spec.timeout, transformation: string(self) + 's'}
  - {from: v2.spec.ports, to: spec.ports, itemRules: [{from: self.key, to: item.id}]}
  - {from: v2.spec.free, to: spec.free, itemRules: [{from: self.b, to: item.a}]}
  preserve: [spec.young, spec.deep, "spec.ports[].two", "spec.free[].two"]
`

// TestStash converts an object, edits it in the other version, and converts it back.
func TestStash(t *testing.T) {
	s := compile(t, txtar.Parse([]byte(both)))
	for _, tt := range []struct {
		name, in string
		edit     func(spec map[string]any)
		want     string // the spec
		stale    string
	}{
		{
			name: "what the other version cannot hold comes back",
			in:   "apiVersion: v2\nspec: {name: a, young: b, deep: {er: c}}",
			want: "{name: a, young: b, deep: {er: c}}",
		},
		{
			name: "an edit to a field that both have leaves the rest",
			in:   "apiVersion: v2\nspec: {name: a, young: b}",
			edit: func(spec map[string]any) { spec["title"] = "z" },
			want: "{name: z, young: b}",
		},
		{
			name:  "an edit to a converted field wins over the stash",
			in:    "apiVersion: v1\nspec: {timeout: 1m30s, old: x}",
			edit:  func(spec map[string]any) { spec["seconds"] = int64(120) },
			want:  "{timeout: 120s, old: x}",
			stale: "spec.timeout",
		},
		{
			name:  "a field removed in the other version stays removed",
			in:    "apiVersion: v1\nspec: {timeout: 1m30s}",
			edit:  func(spec map[string]any) { delete(spec, "seconds") },
			want:  "{}",
			stale: "spec.timeout",
		},
		{
			name: "items of a list with keys are found by key when they are reordered",
			in:   "apiVersion: v1\nspec: {ports: [{id: 1, note: a, one: x}, {id: 2, note: b, one: z}]}",
			edit: func(spec map[string]any) {
				ports := spec["ports"].([]any)
				ports[0], ports[1] = ports[1], ports[0]
			},
			want: "{ports: [{id: 2, note: b, one: z}, {id: 1, note: a, one: x}]}",
		},
		{
			name:  "an item removed in the other version stays removed, and the others keep theirs",
			in:    "apiVersion: v1\nspec: {ports: [{id: 1, note: a, one: x}, {id: 2, note: b, one: z}]}",
			edit:  func(spec map[string]any) { spec["ports"] = spec["ports"].([]any)[1:] },
			want:  "{ports: [{id: 2, note: b, one: z}]}",
			stale: "spec.ports[id=1].one",
		},
		{
			name: "an edit in an item leaves what the stash has of the item",
			in:   "apiVersion: v1\nspec: {ports: [{id: 1, note: a, one: x}]}",
			edit: func(spec map[string]any) { spec["ports"].([]any)[0].(map[string]any)["note"] = "q" },
			want: "{ports: [{id: 1, note: q, one: x}]}",
		},
		{
			name: "a list without keys comes back as it was",
			in:   "apiVersion: v1\nspec: {free: [{a: b, one: x}]}",
			want: "{free: [{a: b, one: x}]}",
		},
		{
			name:  "a list without keys is the edited one, if it was edited",
			in:    "apiVersion: v1\nspec: {free: [{a: b, one: x}]}",
			edit:  func(spec map[string]any) { spec["free"].([]any)[0].(map[string]any)["b"] = "q" },
			want:  "{free: [{a: q}]}",
			stale: "spec.free",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := widget(t, tt.in)
			from := strings.TrimPrefix(fmt.Sprint(in["apiVersion"]), "example.io/")
			to := map[string]string{"v1": "v2", "v2": "v1"}[from]
			out, _ := convert(t, s, in, to)
			out = exact.Clone(out)
			if tt.edit != nil {
				tt.edit(out["spec"].(map[string]any))
			}
			back, report := convert(t, s, out, from)
			want := widget(t, "apiVersion: "+from+"\nspec: "+tt.want)
			if have := text(t, back); have != text(t, want) {
				t.Errorf("have\n%s\nwant\n%s", have, text(t, want))
			}
			if have := paths(report.Stale); have != tt.stale {
				t.Errorf("stale: %q, want %q", have, tt.stale)
			}
		})
	}
}

// TestStashBothWays restores fields that v1 lacks in a conversion that also stashes fields
// that v2 lacks. An edit of a list wins, although both versions stash a field of it.
func TestStashBothWays(t *testing.T) {
	s := compile(t, txtar.Parse([]byte(both)))
	v2, _ := convert(t, s, widget(t, "apiVersion: v2\nspec: {name: a, young: b, deep: {er: c, name: d}, free: [{b: x, two: t}]}"), "v1")
	v1 := exact.Clone(v2)
	spec := v1["spec"].(map[string]any)
	spec["old"] = "o"
	spec["timeout"] = "2m"
	spec["free"].([]any)[0].(map[string]any)["one"] = "u"
	out, report := convert(t, s, v1, "v2")
	want := widget(t, "apiVersion: v2\nspec: {name: a, seconds: 120, young: b, deep: {er: c, name: d}, free: [{b: x, two: t}]}")
	if text(t, bare(out)) != text(t, want) {
		t.Errorf("have\n%s\nwant\n%s", text(t, bare(out)), text(t, want))
	}
	if paths(report.Stashed) != "spec.free spec.old spec.timeout" {
		t.Errorf("stashed %s", paths(report.Stashed))
	}
	again, _ := convert(t, s, out, "v1")
	if text(t, again) != text(t, v1) {
		t.Errorf("have\n%s\nwant\n%s", text(t, again), text(t, v1))
	}
	edited := exact.Clone(again)
	edited["spec"].(map[string]any)["free"].([]any)[0].(map[string]any)["a"] = "edited"
	last, _ := convert(t, s, edited, "v2")
	if have := text(t, last["spec"].(map[string]any)["free"]); have != `[{"b":"edited"}]` {
		t.Errorf("the edit gave %s", have)
	}
}

// TestStashUnderFailingRule edits an object where a rule fails before and after the
// edit, so that the stashed value and the edit look the same from the other version.
// The edit wins, and comes back.
func TestStashUnderFailingRule(t *testing.T) {
	archive, err := txtar.ParseFile("testdata/express-computed-strings.txtar")
	if err != nil {
		t.Fatal(err)
	}
	s := compile(t, archive)
	out, report := convert(t, s, widget(t, `{apiVersion: v1, spec: {host: ""}}`), "v2")
	if paths(report.Stashed) != "spec.host" {
		t.Fatalf("stashed %q", paths(report.Stashed))
	}
	unedited, _ := convert(t, s, out, "v1")
	if have := text(t, unedited["spec"]); have != `{"host":""}` {
		t.Errorf("without an edit: %s", have)
	}
	edited := exact.Clone(out)
	edited["spec"].(map[string]any)["address"] = "example.org"
	back, report := convert(t, s, edited, "v1")
	if have := text(t, back["spec"]); have != `{"host":"example.org"}` || paths(report.Stale) != "spec.host" {
		t.Errorf("after the edit: %s, stale %q", have, paths(report.Stale))
	}
	again, _ := convert(t, s, back, "v2")
	if have := text(t, again["spec"]); have != `{"address":"example.org"}` {
		t.Errorf("after the edit and back: %s", have)
	}
}

// TestForeignStash checks that an annotation that is garbage, or that a user wrote, does
// no harm.
func TestForeignStash(t *testing.T) {
	s := compile(t, txtar.Parse([]byte(both)))
	for _, tt := range []struct{ stash, want string }{
		{`garbage`, `{"name":"a"}`},
		{`{"v2":3,"v1":[],"v9":{}}`, `{"name":"a"}`},
		{`{"v2":[{"path":"spec.young","value":"z"}]}`, `{"name":"a","young":"z"}`}, // it could be set in v2 too
		{`{"v2":[{"path":"spec.young","value":3},{"path":"spec.none","value":3},{"path":"a[","value":3},{"path":"spec.ports[0].two","value":"x"}]}`, `{"name":"a"}`},
		{`{"v2":[{"path":"spec.name","value":"other"},{"path":"spec","value":{"name":"other"}},{"path":"spec.name"},{"path":"spec"}]}`, `{"name":"a"}`},
		{`{"v2":[{"path":"metadata","value":{"name":"b"}},{"path":"metadata.name","value":"b"},{"path":"apiVersion","value":"b"}]}`, `{"name":"a"}`},
		{`{"v1":[{"path":"spec.old","value":"x"}]}`, `{"name":"a"}`},
		{`{"v2":` + strings.Repeat("[", 100_000) + `}`, `{"name":"a"}`},
	} {
		object := widget(t, "apiVersion: v1\nspec: {title: a}")
		object["metadata"].(map[string]any)["annotations"] = map[string]any{manifest.ConversionStashAnnotation: tt.stash}
		out, _ := convert(t, s, object, "v2")
		if have := text(t, out["spec"]); have != tt.want {
			t.Errorf("%.100s gives %s, want %s", tt.stash, have, tt.want)
		}
		if out["metadata"].(map[string]any)["name"] != "a" || manifest.Mapping(out, "metadata", "annotations") != nil {
			t.Errorf("%.100s gives %v", tt.stash, out["metadata"])
		}
	}
}

// TestStashBound checks that the largest field is dropped and reported before annotations
// become too large for the API server.
func TestStashBound(t *testing.T) {
	s := compile(t, txtar.Parse([]byte(both)))
	object := widget(t, "apiVersion: v1\nspec: {timeout: 1m30s}")
	object["spec"].(map[string]any)["old"] = strings.Repeat("x", stash.MaxBytes)
	out, report := convert(t, s, object, "v2")
	if paths(report.Dropped) != "spec.old" || paths(report.Stashed) != "spec.timeout" || report.Dropped[0].Bytes != stash.MaxBytes+2 {
		t.Errorf("dropped %v, stashed %v", paths(report.Dropped), paths(report.Stashed))
	}
	if n := len(manifest.Text(out, "metadata", "annotations", manifest.ConversionStashAnnotation)); n == 0 || n > 100 {
		t.Errorf("the stash has %d bytes", n)
	}
	// Other annotations leave less room.
	object["spec"].(map[string]any)["old"] = strings.Repeat("x", 1000)
	object["metadata"].(map[string]any)["annotations"] = map[string]any{"other": strings.Repeat("x", stash.MaxAnnotations-500)}
	if _, report = convert(t, s, object, "v2"); paths(report.Dropped) != "spec.old" {
		t.Errorf("dropped %v", paths(report.Dropped))
	}
	if len(s.Warnings()) == 0 || !strings.Contains(s.Warnings()[0], "has no limit of size") {
		t.Errorf("warnings %q", s.Warnings())
	}
}

// Fields that an object keeps for a removed version stay, but never take the room of
// fields of existing versions.
func TestStashOfRemovedVersion(t *testing.T) {
	s := compile(t, txtar.Parse([]byte(both)))
	removed := func(size int) map[string]any {
		object := widget(t, "apiVersion: v1\nspec: {timeout: 1m30s}")
		object["spec"].(map[string]any)["old"] = strings.Repeat("x", 3*stash.MaxBytes/4)
		kept := text(t, map[string]any{"v0": []any{map[string]any{"path": "spec.gone", "value": strings.Repeat("y", size)}}})
		object["metadata"].(map[string]any)["annotations"] = map[string]any{manifest.ConversionStashAnnotation: kept}
		return object
	}
	object := removed(100)
	there, report := convert(t, s, object, "v2")
	again, _ := convert(t, s, there, "v1")
	if text(t, again) != text(t, object) || len(report.Dropped) > 0 {
		t.Errorf("there and back it is not as it was; dropped %v", paths(report.Dropped))
	}
	object = removed(stash.MaxBytes / 2)
	there, report = convert(t, s, object, "v2")
	if len(report.Dropped) != 1 || report.Dropped[0].From != "v0" || report.Dropped[0].Path != "spec.gone" {
		t.Errorf("dropped %v", paths(report.Dropped))
	}
	again, _ = convert(t, s, there, "v1")
	if text(t, bare(again)) != text(t, bare(object)) {
		t.Error("what the removed version had took the room of what v1 has")
	}
}

func TestWithout(t *testing.T) {
	for _, tt := range []struct{ name, text, left string }{
		{"one of two", `{"v1":[{"path":"spec.a","value":12345678901234567890.10}],"v2":[{"path":"spec.b","value":9007199254740993}]}`, `{"v2":[{"path":"spec.b","value":9007199254740993}]}`},
		{"the last", `{"v1":[]}`, ""},
	} {
		if left, had := stash.Without(tt.text, "v1"); !had || left != tt.left {
			t.Errorf("%s: leaves %s (%t), want %s", tt.name, left, had, tt.left)
		}
	}
	for _, text := range []string{"", "{}", `{"v2":[]}`, "[]", "null", `"v1"`, "garbage", `{"v1":`, strings.Repeat(" ", stash.MaxAnnotations+1) + `{"v1":[]}`} {
		if left, had := stash.Without(text, "v1"); had || left != text {
			t.Errorf("%.40s: leaves %.40s (%t)", text, left, had)
		}
	}
}

// TestWarningOfStatus checks the warning about a preserved field of the status: writing an
// annotation needs no right to write the status.
func TestWarningOfStatus(t *testing.T) {
	s := compile(t, txtar.Parse([]byte(`
-- v1 --
status: {type: object, properties: {approved: {type: boolean}}}
-- v2 --
spec: {type: object, properties: {a: {type: string}}}
-- rules --
conversions:
- {from: v1, to: v2, preserve: [status.approved]}
- {from: v2, to: v1, drop: [spec.a]}
`)))
	want := "rules.yaml:1: conversions[0].preserve[0]: status.approved of v1 is kept in an annotation of the objects in version v2; whoever may write these can change it there, without a right to write their status"
	if len(s.Warnings()) != 1 || s.Warnings()[0] != want {
		t.Errorf("%q, want %s", s.Warnings(), want)
	}
}

// TestWarningOfList checks the warning about a preserved field of items that nothing identifies.
func TestWarningOfList(t *testing.T) {
	for keys, want := range map[string]string{
		"": "rules.yaml:1: conversions[0].preserve[0]: spec.hosts[].secret of v1 is in a list without keys; if any of its items changes in version v2, all of them lose it. Give spec.hosts x-kubernetes-list-type: map and x-kubernetes-list-map-keys",
		"x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [name], ": "",
	} {
		s := compile(t, txtar.Parse([]byte(`
-- v1 --
spec: {type: object, properties: {hosts: {type: array, `+keys+`items: {type: object, properties: {name: {type: string}, secret: {type: string, maxLength: 9}}}}}}
-- v2 --
spec: {type: object, properties: {hosts: {type: array, `+keys+`items: {type: object, properties: {name: {type: string}}}}}}
-- rules --
conversions:
- {from: v1, to: v2, preserve: ["spec.hosts[].secret"]}
`)))
		if got := strings.Join(s.Warnings(), "\n"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestStashOfManyItems keeps a field of each of many items, and drops only those that do
// not fit.
func TestStashOfManyItems(t *testing.T) {
	s := compile(t, txtar.Parse([]byte(both)))
	for _, tt := range []struct {
		items, bytes int
		drops        bool
	}{{1200, 1, false}, {1200, 200, true}} {
		n := tt.items
		var ports []any
		for i := range n {
			ports = append(ports, map[string]any{"id": int64(i), "one": strings.Repeat("x", tt.bytes)})
		}
		object := widget(t, "apiVersion: v1\nspec: {}")
		object["spec"].(map[string]any)["ports"] = ports
		out, there := convert(t, s, object, "v2")
		if kept, dropped := len(there.Stashed), len(there.Dropped); kept+dropped != n || dropped > 0 != tt.drops {
			t.Errorf("of %d fields %d are stashed, %d dropped", n, kept, dropped)
		}
		if size := len(manifest.Text(out, "metadata", "annotations", manifest.ConversionStashAnnotation)); size > stash.MaxBytes || tt.drops && size < stash.MaxBytes-300 {
			t.Errorf("the stash of %d fields has %d bytes", n, size)
		}
		if _, back := convert(t, s, out, "v1"); len(back.Restored) != len(there.Stashed) || len(back.Stale) > 0 {
			t.Errorf("of %d fields in the stash %d are restored, %d stale", len(there.Stashed), len(back.Restored), len(back.Stale))
		}
	}
}

// TestIgnoredStash checks that ignored parts of an annotation that no conversion wrote are
// reported.
func TestIgnoredStash(t *testing.T) {
	s := compile(t, txtar.Parse([]byte(both)))
	for _, tt := range []struct{ stash, want string }{
		{`garbage`, "ignored, since no conversion wrote it"},
		{`[]`, "ignored, since no conversion wrote it"},
		{strings.Repeat(" ", stash.MaxAnnotations+1), "ignored, since it has 229377 bytes, and conversions write at most 131072"},
		{`{"v2":3,"v1":[{"path":"a["},{"value":1},7]}`, "4 entries ignored, since no conversion wrote them"},
		{`{"v2":[` + strings.Repeat(`{"path":"a"},`, stash.MaxEntries+1) + `{"path":"a"}]}`, "2 entries ignored, since no conversion wrote them"},
	} {
		object := widget(t, "apiVersion: v1\nspec: {title: a}")
		object["metadata"].(map[string]any)["annotations"] = map[string]any{manifest.ConversionStashAnnotation: tt.stash}
		_, report := convert(t, s, object, "v2")
		if len(report.Ignored) != 1 || report.Ignored[0].Path != stash.Path.String() || report.Ignored[0].Err != tt.want {
			t.Errorf("%.50s: %.300s, want %s", tt.stash, fmt.Sprint(report.Ignored), tt.want)
		}
	}
}

// TestNumbers keeps the text of numbers, and integers over 2^53.
func TestNumbers(t *testing.T) {
	s := compile(t, txtar.Parse([]byte(`
-- v1 --
spec: {type: object, properties: {a: {type: number}, i: {type: integer}, x: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
-- v2 --
spec: {type: object, properties: {b: {type: number}, j: {type: integer}, w: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
-- rules --
conversions:
- {from: v1, to: v2, rules: [{from: v1.spec.a, to: spec.b}, {from: v1.spec.i + 1, to: spec.j}, {from: "has(self.spec.x) ? optional.of(self.spec.x) : optional.none()", to: spec.w}]}
- {from: v2, to: v1, rules: [{from: v2.spec.b, to: spec.a}, {from: v2.spec.j - 1, to: spec.i}, {from: v2.spec.w, to: spec.x}]}
`)))
	in := `{"apiVersion":"example.io/v1","kind":"Widget","spec":{"a":1.50,"i":9007199254740993,"x":{"big":18446744073709551616,"e":1e3,"l":[1.0,-0]}}}`
	object, err := Decode([]byte(in))
	if err != nil {
		t.Fatal(err)
	}
	out, report := convert(t, s, object, "v2")
	want := `{"apiVersion":"example.io/v2","kind":"Widget","spec":{"b":1.50,"j":9007199254740994,"w":{"big":18446744073709551616,"e":1e3,"l":[1.0,-0]}}}`
	if text(t, out) != want {
		t.Errorf("have\n%s\nwant\n%s\n%+v", text(t, out), want, report)
	}
	if back, _ := convert(t, s, out, "v1"); text(t, back) != in {
		t.Errorf("have\n%s\nwant\n%s", text(t, back), in)
	}
}

// TestDeep converts an object that is nested as deeply as API servers store it, and back.
// A failure would fail every LIST of the type.
func TestDeep(t *testing.T) {
	s := compile(t, txtar.Parse([]byte(`
-- v1 --
spec: {type: object, properties: {a: {type: string}, open: {x-kubernetes-preserve-unknown-fields: true}, kept: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
-- v2 --
spec: {type: object, properties: {b: {type: string}, open: {x-kubernetes-preserve-unknown-fields: true}}}
-- rules --
conversions:
- {from: v1, to: v2, rules: [{from: v1.spec.a, to: spec.b}], preserve: [spec.kept]}
- {from: v2, to: v1, rules: [{from: v2.spec.b, to: spec.a}]}
`)))
	const levels = 9_900
	deep := strings.Repeat(`{"a":`, levels) + `[7]` + strings.Repeat("}", levels)
	for _, field := range []string{"open", "kept"} {
		in := `{"apiVersion":"example.io/v1","kind":"Widget","metadata":{"name":"a"},"spec":{"a":"x","` + field + `":` + deep + `}}`
		out, _, err := s.ConvertJSON([]byte(in), "v2")
		if err != nil {
			t.Errorf("%s: %v", field, err)
			continue
		}
		back, report, err := s.ConvertJSON(out, "v1")
		if err != nil || string(back) != in {
			t.Errorf("%s: comes back as %.200s, %v, %.300s", field, back, err, fmt.Sprint(report))
		}
	}
}

// Elements that the other version removed do not keep the fields of the others from coming back, however many they are.
func TestStashOfRemovedElements(t *testing.T) {
	s := compile(t, txtar.Parse([]byte(both)))
	in := widget(t, "apiVersion: v1\nspec: {}")
	var ports []any
	for i := range 60 {
		ports = append(ports, map[string]any{"id": int64(i), "note": "a", "one": fmt.Sprint("x", i)})
	}
	in["spec"].(map[string]any)["ports"] = ports
	out, _ := convert(t, s, in, "v2")
	out = exact.Clone(out)
	spec := out["spec"].(map[string]any)
	all := spec["ports"].([]any)
	var left []any
	for i, p := range all {
		if i%4 > 0 {
			left = append(left, p)
		}
	}
	spec["ports"] = left
	back, report := convert(t, s, out, "v1")
	for _, p := range back["spec"].(map[string]any)["ports"].([]any) {
		p := p.(map[string]any)
		if p["one"] != fmt.Sprint("x", p["id"]) {
			t.Errorf("element %v has %v", p["id"], p["one"])
		}
	}
	if want := len(all) - len(left); len(report.Stale) != want || len(report.Dropped) > 0 {
		t.Errorf("%d fields are stale, want %d; dropped %v", len(report.Stale), want, report.Dropped)
	}
}

// The search for what still holds gives up a stash that somebody has written, and says so.
func TestStashWithoutEnd(t *testing.T) {
	const many = 300
	s := compile(t, txtar.Parse([]byte(both)))
	in := widget(t, "apiVersion: v2\nspec: {}")
	var ports []any
	var entries []string
	for i := range many {
		ports = append(ports, map[string]any{"key": int64(i), "note": "a"})
		entries = append(entries, fmt.Sprintf(`{"path":"spec.ports[id=%d].note"}`, i))
	}
	in["spec"].(map[string]any)["ports"] = ports
	manifest.Mapping(in, "metadata")["annotations"] = map[string]any{manifest.ConversionStashAnnotation: `{"v1":[` + strings.Join(entries, ",") + `]}`}
	out, report := convert(t, s, in, "v1")
	if len(report.Restored) > 0 || len(report.Dropped) == 0 || len(report.Dropped)+len(report.Stale) != many {
		t.Errorf("restored %d, stale %d, dropped %d", len(report.Restored), len(report.Stale), len(report.Dropped))
	}
	if got := len(manifest.List(out, "spec", "ports")); got != many {
		t.Errorf("%d ports are left", got)
	}
}

// A field that rules derive or drop is not restored, whoever wrote the stash.
func TestStashOfDerivedFields(t *testing.T) {
	for rules, want := range map[string]string{
		"{from: v1, to: v2, rules: [{from: \"v1.spec.size > 3 ? 'big' : 'small'\", to: spec.tier}], derive: [spec.tier]}\n- {from: v2, to: v1}": `"tier":"small"`,
		"{from: v2, to: v1, drop: [spec.tier]}": "",
	} {
		s := compile(t, txtar.Parse([]byte(`
-- v1 --
spec: {type: object, properties: {size: {type: integer}}}
-- v2 --
spec: {type: object, properties: {size: {type: integer}, tier: {type: string}}}
-- rules --
conversions:
- `+rules)))
		in := widget(t, `{apiVersion: v1, metadata: {annotations: {gitopsd.dev/conversion-stash: '{"v2":[{"path":"spec.tier","value":"gold"}]}'}}, spec: {size: 1}}`)
		out, report := convert(t, s, in, "v2")
		if got := text(t, out); strings.Contains(got, "gold") || !strings.Contains(got, want) || len(report.Stale) != 1 {
			t.Errorf("%s:\n%s\n%v", rules, got, report)
		}
	}
}

// TestWarningOfExpression checks the warnings about fields that only expressions read: what
// their results do not give back is kept like preserved fields.
func TestWarningOfExpression(t *testing.T) {
	const keyed = "x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [name], "
	for _, tt := range []struct{ name, keys, rule, want string }{
		{"many to one", "", `{from: "self.a.upperAscii()", to: item.b}`, "rules.yaml:1: conversions[0].rules[0].itemRules[0]: spec.hosts[].a of v1 is in a list without keys; if any of its items changes in version v2, all of them lose it, unless the rules compute it back. Give spec.hosts x-kubernetes-list-type: map and x-kubernetes-list-map-keys"},
		{"a transformation", "", `{from: self.a, transformation: "self.upperAscii()", to: item.b}`, "rules.yaml:1: conversions[0].rules[0].itemRules[0]: spec.hosts[].a of v1 is in a list without keys; if any of its items changes in version v2, all of them lose it, unless the rules compute it back. Give spec.hosts x-kubernetes-list-type: map and x-kubernetes-list-map-keys"},
		{"with keys", keyed, `{from: "self.a.upperAscii()", to: item.b}`, ""},
		{"moved", "", `{from: self.a, to: item.b}`, ""},
		{"copied", "", `{from: self.a, to: item.b}, {from: "self.name + '!'", to: item.c}`, ""},
	} {
		s := compile(t, txtar.Parse([]byte(`
-- v1 --
spec: {type: object, properties: {hosts: {type: array, `+tt.keys+`items: {type: object, properties: {name: {type: string}, a: {type: string, maxLength: 9}}}}}}
-- v2 --
spec: {type: object, properties: {hosts: {type: array, `+tt.keys+`items: {type: object, properties: {name: {type: string}, b: {type: string, maxLength: 9}, c: {type: string, maxLength: 9}}}}}}
-- rules --
conversions:
- {from: v1, to: v2, rules: [{from: v1.spec.hosts, to: spec.hosts, itemRules: [`+tt.rule+`]}]}
- {from: v2, to: v1, rules: [{from: v2.spec.hosts, to: spec.hosts, itemRules: [{from: self.b, to: item.a}]}], drop: ["spec.hosts[].c"]}
`)))
		if got := strings.Join(s.Warnings(), "\n"); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}
