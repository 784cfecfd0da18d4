package field_test

import (
	"reflect"
	"testing"

	"gitopsd.dev/render/field"
)

func TestPath(t *testing.T) {
	t.Parallel()
	object := map[string]any{
		"metadata": map[string]any{"labels": map[string]any{"a.b/c": "x"}, "finalizers": []any{"a/wait", "b"}},
		"spec": map[string]any{
			"ports": []any{map[string]any{"port": int64(80), "protocol": "TCP"}, map[string]any{"port": int64(80), "protocol": "UDP", "name": `a],"b"`}},
		},
	}
	for _, tt := range []struct {
		text string
		path field.Path
		want any // nil if it is not there
	}{
		{"spec.replicas", field.Path{field.Key("spec"), field.Key("replicas")}, nil},
		{`metadata.labels["a.b/c"]`, field.Path{field.Key("metadata"), field.Key("labels"), field.Key("a.b/c")}, "x"},
		{"metadata.finalizers[=a/wait]", field.Path{field.Key("metadata"), field.Key("finalizers"), field.Element(field.Pair{Value: "a/wait"})}, "a/wait"},
		{"metadata.finalizers[1]", field.Path{field.Key("metadata"), field.Key("finalizers"), field.Index(1)}, "b"},
		{"metadata.finalizers[2]", field.Path{field.Key("metadata"), field.Key("finalizers"), field.Index(2)}, nil},
		{"spec.ports[port=80,protocol=UDP].protocol", field.Path{field.Key("spec"), field.Key("ports"), field.Element(field.Pair{Field: "port", Value: "80"}, field.Pair{Field: "protocol", Value: "UDP"}), field.Key("protocol")}, "UDP"},
		{`spec.ports[name="a],\"b\""].port`, field.Path{field.Key("spec"), field.Key("ports"), field.Element(field.Pair{Field: "name", Value: `a],"b"`}), field.Key("port")}, int64(80)},
		{`["80"].x`, field.Path{field.Key("80"), field.Key("x")}, nil},
		{`[""]`, field.Path{field.Key("")}, nil},
	} {
		if have := tt.path.String(); have != tt.text {
			t.Errorf("have %s, want %s", have, tt.text)
		}
		path, err := field.Parse(tt.text)
		if err != nil || !reflect.DeepEqual(path, tt.path) {
			t.Errorf("%s is read as %#v, %v", tt.text, path, err)
		}
		if have, ok := tt.path.In(object); have != tt.want || ok != (tt.want != nil) {
			t.Errorf("%s is %v, %t; want %v", tt.text, have, ok, tt.want)
		}
	}
	for _, text := range []string{"", ".", "a.", "a..b", "[", "[]", "a[b", "a[b]", `["`, `["a"`, "[`a`]", "[a.b=c]", `[a="b"c]`, "[a=b", "[-1]"} {
		if path, err := field.Parse(text); err == nil {
			t.Errorf("%q is read as %#v", text, path)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"spec.replicas", `metadata.labels["a.b/c"].x`, `spec.containers[name=app,image="x]"].ports[0]`, "m.finalizers[=a/b]", ".a", "a.", "[", "a[b", `["`, "a..b", "a[]"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		path, err := field.Parse(text)
		if err != nil {
			return
		}
		again, err := field.Parse(path.String())
		if err != nil || !reflect.DeepEqual(again, path) {
			t.Errorf("%q is read as %#v, and %s as %#v, %v", text, path, path, again, err)
		}
	})
}

// A path of a schema may go through every element or value, and is printed as it is parsed.
func TestParseSchema(t *testing.T) {
	each, all := field.Step{List: true, Every: true}, field.Step{Every: true}
	for _, tt := range []struct {
		text string
		want field.Path // nil for an error
	}{
		{"spec.size", field.Path{field.Key("spec"), field.Key("size")}},
		{"spec.rules[*].port", field.Path{field.Key("spec"), field.Key("rules"), each, field.Key("port")}},
		{".spec.tags{*}", field.Path{field.Key("spec"), field.Key("tags"), all}},
		{"spec.a{*}[*].b", field.Path{field.Key("spec"), field.Key("a"), all, each, field.Key("b")}},
		{`spec["a{*}"].b`, field.Path{field.Key("spec"), field.Key("a{*}"), field.Key("b")}},
		{`spec["[*]"]`, field.Path{field.Key("spec"), field.Key("[*]")}},
		{"spec.rules[name=web]", field.Path{field.Key("spec"), field.Key("rules"), field.Element(field.Pair{Field: "name", Value: "web"})}},
		{"", nil}, {"spec.", nil}, {"spec..a", nil}, {"spec[*", nil}, {"spec[**]", nil},
	} {
		have, err := field.ParseSchema(tt.text)
		if !reflect.DeepEqual(have, tt.want) || (err == nil) != (tt.want != nil) {
			t.Errorf("%q: %#v, %v, want %#v", tt.text, have, err, tt.want)
		}
		if again, err := field.ParseSchema(have.String()); tt.want != nil && (err != nil || !reflect.DeepEqual(again, have)) {
			t.Errorf("%q is printed as %s", tt.text, have)
		}
	}
	if _, err := field.Parse("spec.rules[*]"); err == nil {
		t.Error("a path of one object goes through every element")
	}
	if v, ok := (field.Path{field.Key("a"), each}).In(map[string]any{"a": []any{"b"}}); ok {
		t.Errorf("every element is found as %v", v)
	}
}

func FuzzParseSchema(f *testing.F) {
	for _, seed := range []string{"spec.rules[*].port", "spec.tags{*}", `a["{*}"]{*}`, "a{*}b", "{*}", "[*]", "a{", "a.{*}"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		path, err := field.ParseSchema(text)
		if err != nil {
			return
		}
		again, err := field.ParseSchema(path.String())
		if err != nil || !reflect.DeepEqual(again, path) {
			t.Errorf("%q is read as %#v, and %s as %#v, %v", text, path, path, again, err)
		}
	})
}
