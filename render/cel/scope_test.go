package cel

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"gitopsd.dev/render/exact"
	"gitopsd.dev/render/manifest/manifesttest"
)

func scope(t *testing.T) (*Scope, map[string]any) {
	t.Helper()
	source := ObjectType(manifesttest.Tree(t, schemaText))
	status, _ := source.Field("status")
	conditions, _ := status.Field("conditions")
	condition, ok := conditions.Element()
	if !ok {
		t.Fatal("conditions have no elements")
	}
	s, err := NewScope(Variable{"v1", source}, Variable{"self", condition}, Variable{"key", StringType})
	if err != nil {
		t.Fatal(err)
	}
	return s, manifesttest.Tree(t, objectText)
}

func TestFunc(t *testing.T) {
	s, object := scope(t)
	object["spec"].(map[string]any)["size"] = int64(9007199254740993)
	object["spec"].(map[string]any)["free"] = map[string]any{"n": json.Number("1.50")}
	for _, tt := range []struct{ text, result, want string }{
		{`self.type + "-" + key`, "string", `"Ready-k"`},
		{`v1.spec.size`, "int", `9007199254740993`},
		{`v1.spec.size + 1`, "int", `9007199254740994`},
		{`v1.metadata.labels["x"]`, "string", `"one"`},
		{`v1.status.since`, "string", `"2024-01-02T03:04:05Z"`},
		{"v1.spec.`a.b-c/d`.d", "string", `"e"`},
		{`v1.status.namespace`, "string", `"prod"`},
		{`v1.spec.free`, "map", `{"n":1.50}`},
		{`v1.spec.free.n * 2.0`, "double", `3`},
		{`{"n": v1.spec.free, "s": self.type}`, "map", `{"n":{"n":1.50},"s":"Ready"}`},
		{`json.marshal(v1.spec.free)`, "string", `"{\"n\":1.50}"`},
		{`json.unmarshal("{\"n\":1.50}")`, "dyn", `{"n":1.50}`},
		{`v1.?metadata.labels["z"]`, "string", "absent"},
		{`v1.metadata.labels["z"]`, "string", "absent"},
		{`[v1.spec.free] + [{"m": key}]`, "list", `[{"n":1.50},{"m":"k"}]`},
		{`v1.status.conditions + v1.status.conditions`, "list", `[{"observedGeneration":2`},
		{`v1.status.conditions.map(c, c.type)`, "list", `["Ready"]`},
		{`v1.status.conditions`, "list", `[{"observedGeneration":2,"status":"True","type":"Ready"}]`},
		{`self`, "object", `{"observedGeneration":2,"status":"True","type":"Ready"}`},
		{`quantity("1Gi").asInteger()`, "int", "1073741824"},
		{`url("https://a.b/c").getHost()`, "string", `"a.b"`},
		{`duration("1m30s")`, "google.protobuf.Duration", "error: the result is of type"},
		{`json.unmarshal(key)`, "dyn", "error: json.unmarshal"},
		{`self.typo`, "", "1:5: undefined field 'typo'"},
		{`v1.spec.size + "a"`, "", "no matching overload"},
		{``, "", "empty"},
		{strings.Repeat("["+strings.Repeat("1,", 30)+"1].exists_one(b, ", 5) + `key == "a"` + strings.Repeat(")", 5), "", "costs at least"},
	} {
		f, err := s.Compile(tt.text)
		if err != nil {
			if tt.result != "" || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: %v, want %s", tt.text, err, tt.want)
			}
			continue
		}
		if f.Result().Kind() != tt.result {
			t.Errorf("%s is a %s, want %s", tt.text, f.Result().Kind(), tt.result)
		}
		var b Budget
		v, err := f.Eval(&b, object, object["status"].(map[string]any)["conditions"].([]any)[0], "k")
		b.Done()
		have := ""
		switch {
		case errors.Is(err, ErrAbsent):
			have = "absent"
		case err != nil:
			have = "error: " + err.Error()
		default:
			text, err := exact.Encode(v)
			if err != nil {
				t.Fatal(err)
			}
			have = string(text)
		}
		if !strings.HasPrefix(have, tt.want) {
			t.Errorf("%s gives %.200s, want %s", tt.text, have, tt.want)
		}
	}
}

func TestReads(t *testing.T) {
	s, _ := scope(t)
	for text, want := range map[string]string{
		`self.type + key`: "[{self [type]} {key []}]",
		`has(v1.spec.size) ? v1.spec.?ratio.orValue(1.0) : 2.0`:    "[{v1 [spec size]} {v1 [spec ratio]}]",
		`v1.status.conditions.filter(c, c.type == self.type)`:      "[{v1 [status conditions]} {self [type]}]",
		`v1.status.conditions[0].type`:                             "[{v1 [status conditions]}]",
		`v1.metadata.labels["x"] + v1.metadata.annotations["a.b"]`: "[{v1 [metadata labels x]} {v1 [metadata annotations a.b]}]",
	} {
		f, err := s.Compile(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if have := fmt.Sprint(f.Reads()); have != want {
			t.Errorf("%s reads %s, want %s", text, have, want)
		}
	}
}

// TestObjectCost checks that expressions that are each within their limit cannot together
// exceed the limit of an object.
func TestObjectCost(t *testing.T) {
	s, _ := scope(t)
	text := `v1.spec.free.list.map(a, v1.spec.free.list.map(b, a + b).size()).size()`
	f, err := s.Compile(text)
	if err != nil {
		t.Fatal(err)
	}
	object := map[string]any{"spec": map[string]any{"free": map[string]any{"list": slicesOf(300)}}}
	var b Budget
	defer b.Done()
	for range 100 {
		if _, err = f.Eval(&b, object, nil, ""); err != nil {
			break
		}
	}
	// A machine with much else to do comes to the limit of the time first.
	if !errors.Is(err, ErrCost) && !errors.Is(err, ErrTime) && (err == nil || !strings.Contains(err.Error(), "cost limit")) {
		t.Errorf("spent without end: %v", err)
	}
}

func slicesOf(n int) []any {
	list := make([]any, n)
	for i := range list {
		list[i] = "x"
	}
	return list
}

func TestLiteral(t *testing.T) {
	if have, ok := Literal(`{"a": key + "{", 'b': [1, 2]}`); fmt.Sprint(have, ok) != `[{a key + "{"} {b [1, 2]}] true` {
		t.Error(have, ok)
	}
	for _, text := range []string{`{a: 1}`, `{}`, `self`, `{`, `{"a" + "b": 1}`} {
		if have, ok := Literal(text); ok {
			t.Error(text, have)
		}
	}
	if have, ok := Quoted(`{name: key, feeling: self.feeling}`); have != `{"name": key, "feeling": self.feeling}` || !ok {
		t.Error(have, ok)
	}
}

// TestLight checks that the cost of an expression without loops about small values is not
// counted, until many are evaluated about one object, and that its result is the same.
func TestLight(t *testing.T) {
	schema := map[string]any{"type": "object", "properties": map[string]any{"spec": map[string]any{"type": "object", "properties": map[string]any{
		"a": scalar("string"), "list": map[string]any{"type": "array", "items": scalar("string")}}}}}
	s, err := NewScope(Variable{Name: "self", Type: ObjectType(schema)})
	if err != nil {
		t.Fatal(err)
	}
	compile := func(text string) *Func {
		f, err := s.Compile(text)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	spec := func(fields map[string]any) map[string]any { return map[string]any{"spec": fields} }
	small, large := strings.Repeat("a", smallText), strings.Repeat("a", smallText+1)
	for _, tt := range []struct {
		text   string
		object map[string]any
		light  bool
	}{
		{"self.spec.a + 'b'", spec(map[string]any{"a": small}), true},
		{"self.spec.a + 'b'", spec(map[string]any{"a": large}), false},
		{"self.spec.a + 'b'", spec(map[string]any{}), true},
		{"self.spec.list[0]", spec(map[string]any{"list": []any{"a"}}), false},
		{"self.spec.a.split('').map(c, c + c)[0]", spec(map[string]any{"a": small}), false},
	} {
		f := compile(tt.text)
		var b Budget
		have, problem := f.Eval(&b, tt.object)
		if light := b.lights > 0; light != tt.light || light != (b.spent == 0) {
			t.Errorf("%s of %.20v: light %t, spent %d", tt.text, tt.object, light, b.spent)
		}
		b.Done()
		f.light = nil
		b = Budget{}
		want, counted := f.Eval(&b, tt.object)
		b.Done()
		if !exact.Equal(have, want) || !errors.Is(problem, counted) {
			t.Errorf("%s of %.20v gives %v (%v), and counted %v (%v)", tt.text, tt.object, have, problem, want, counted)
		}
	}
	f := compile("self.spec.a + 'b'")
	var b Budget
	defer b.Done()
	for range maxLights/f.lightCost + 1 {
		if _, err := f.Eval(&b, spec(map[string]any{"a": "a"})); err != nil {
			t.Fatal(err)
		}
	}
	if b.spent == 0 || b.lights > maxLights {
		t.Errorf("spent %d, lights %d", b.spent, b.lights)
	}
	b.Again()
	if b.spent+b.lights != 0 {
		t.Error("the budget is not whole again")
	}
}

// TestLightTime checks that the time limit also applies to expressions without counted
// cost.
func TestLightTime(t *testing.T) {
	s, err := NewScope(Variable{"self", Type{}})
	if err != nil {
		t.Fatal(err)
	}
	f, err := s.Compile("self.a + 'b'")
	if err != nil {
		t.Fatal(err)
	}
	b := Budget{end: time.Now().Add(-time.Second)}
	defer b.Done()
	for n := 0; err == nil && n <= lateCheck; n++ {
		_, err = f.Eval(&b, map[string]any{"a": "a"})
	}
	if !errors.Is(err, ErrTime) || !b.Late() || b.spent > 0 {
		t.Errorf("%v, late %t, spent %d", err, b.Late(), b.spent)
	}
	if _, err := f.Eval(&b, map[string]any{"a": "a"}); !errors.Is(err, ErrTime) {
		t.Errorf("after that: %v", err)
	}
}
