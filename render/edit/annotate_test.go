package edit

import (
	"bytes"
	"strings"
	"testing"

	"gitopsd.dev/sources"
)

const (
	key   = "gitopsd.dev/type"
	value = "h1:mZ8aNsOd+i6q0ZMVpYuZ3F1zZ8jPpPZ6N9mO8yH7Qw0="
	other = "h1:AAAANsOd+i6q0ZMVpYuZ3F1zZ8jPpPZ6N9mO8yH7Qw0="
)

// widgets pins Widgets.
func widgets(o Object) (string, error) {
	if o.Kind == "Widget" {
		return value, nil
	}
	return "", nil
}

// Everything but the annotation stays the same, to the byte. In the texts V is the value,
// and O another one. Text from | to the end of the line or the next | is added; the input
// is the text without it.
func TestAnnotate(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, before, after string }{
		{"after the name",
			"apiVersion: a.b/v1\nkind: Widget\nmetadata:\n  name: w # yes\nspec: {a: 1}\n",
			"apiVersion: a.b/v1\nkind: Widget\nmetadata:\n  name: w # yes\n  annotations:\n    gitopsd.dev/type: V\nspec: {a: 1}\n"},
		{"after the namespace, indented as the file is",
			"kind: Widget\nmetadata:\n    namespace: n\n    name: \"w\"\n    labels:\n        a: b\n",
			"kind: Widget\nmetadata:\n    namespace: n\n    name: \"w\"\n    annotations:\n        gitopsd.dev/type: V\n    labels:\n        a: b\n"},
		{"name further down",
			"kind: Widget\nmetadata:\n  labels: {a: b}\n  name: w\n",
			"kind: Widget\nmetadata:\n  annotations:\n    gitopsd.dev/type: V\n  labels: {a: b}\n  name: w\n"},
		{"beside others",
			"kind: Widget\nmetadata:\n  name: w\n  annotations: # many\n    # why\n    a: |\n      b\n\n  labels: {}\n",
			"kind: Widget\nmetadata:\n  name: w\n  annotations: # many\n    gitopsd.dev/type: V\n    # why\n    a: |\n      b\n\n  labels: {}\n"},
		{"empty annotations",
			"kind: Widget\nmetadata:\n  name: w\n  annotations:\n",
			"kind: Widget\nmetadata:\n  name: w\n  annotations:\n    gitopsd.dev/type: V\n"},
		{"empty flow annotations",
			"kind: Widget\nmetadata:\n  name: w\n  annotations: { }\n",
			"kind: Widget\nmetadata:\n  name: w\n  annotations: {gitopsd.dev/type: \"V\" }\n"},
		{"flow",
			"kind: Widget\nmetadata: {name: 'w', labels: {a: b}}\n",
			"kind: Widget\nmetadata: {name: 'w', annotations: {gitopsd.dev/type: \"V\"}, labels: {a: b}}\n"},
		{"flow beside others",
			"kind: Widget\nmetadata: {name: w, annotations: {a: b}}\n",
			"kind: Widget\nmetadata: {name: w, annotations: {gitopsd.dev/type: \"V\", a: b}}\n"},
		{"renewed",
			"kind: Widget\nmetadata:\n  name: w\n  annotations:\n    gitopsd.dev/type:   O   # from dev\n",
			"kind: Widget\nmetadata:\n  name: w\n  annotations:\n    gitopsd.dev/type:   V   # from dev\n"},
		{"renewed in quotes",
			"kind: Widget\nmetadata: {name: w, annotations: {'gitopsd.dev/type': 'O'}}\n",
			"kind: Widget\nmetadata: {name: w, annotations: {'gitopsd.dev/type': 'V'}}\n"},
		{"present but empty",
			"kind: Widget\nmetadata:\n  name: w\n  annotations:\n    gitopsd.dev/type: # later\n    a: b\n",
			"kind: Widget\nmetadata:\n  name: w\n  annotations:\n    gitopsd.dev/type: V # later\n    a: b\n"},
		{"present but empty, at the end",
			"kind: Widget\nmetadata:\n  name: w\n  annotations:\n    gitopsd.dev/type :",
			"kind: Widget\nmetadata:\n  name: w\n  annotations:\n    gitopsd.dev/type : V"},
		{"present but empty, Windows",
			"kind: Widget\r\nmetadata:\r\n  name: w\r\n  annotations:\r\n    'gitopsd.dev/type':\r\n",
			"kind: Widget\r\nmetadata:\r\n  name: w\r\n  annotations:\r\n    'gitopsd.dev/type': V\r\n"},
		{"an empty text",
			"kind: Widget\nmetadata:\n  name: w\n  annotations:\n    gitopsd.dev/type: '' # later\n",
			"kind: Widget\nmetadata:\n  name: w\n  annotations:\n    gitopsd.dev/type: 'V' # later\n"},
		{"an empty text in JSON",
			"{\"kind\": \"Widget\", \"metadata\": {\"name\": \"w\", \"annotations\": {\"gitopsd.dev/type\": \"\"}}}",
			"{\"kind\": \"Widget\", \"metadata\": {\"name\": \"w\", \"annotations\": {\"gitopsd.dev/type\": \"V\"}}}"},
		{"null",
			"kind: Widget\nmetadata:\n  name: w\n  annotations:\n    gitopsd.dev/type: ~ # later\n",
			"kind: Widget\nmetadata:\n  name: w\n  annotations:\n    gitopsd.dev/type: V # later\n"},
		{"null in JSON",
			"{\"kind\": \"Widget\", \"metadata\": {\"name\": \"w\", \"annotations\": {\"gitopsd.dev/type\": null}}}",
			"{\"kind\": \"Widget\", \"metadata\": {\"name\": \"w\", \"annotations\": {\"gitopsd.dev/type\": \"V\"}}}"},
		{"empty in flow",
			"kind: Widget\nmetadata: {name: w, annotations: {gitopsd.dev/type: , a: b}}\n",
			"kind: Widget\nmetadata: {name: w, annotations: {gitopsd.dev/type: \"V\" , a: b}}\n"},
		{"annotations are null",
			"kind: Widget\nmetadata:\n  name: w\n  annotations: ~ # none\n  labels: {}\n",
			"kind: Widget\nmetadata:\n  name: w\n  annotations: {gitopsd.dev/type: \"V\"} # none\n  labels: {}\n"},
		{"annotations are null in JSON",
			"{\"kind\": \"Widget\", \"metadata\": {\"name\": \"w\", \"annotations\": null}}",
			"{\"kind\": \"Widget\", \"metadata\": {\"name\": \"w\", \"annotations\": {\"gitopsd.dev/type\": \"V\"}}}"},
		{"annotations without a value, with a comment",
			"kind: Widget\nmetadata:\n  name: w\n  annotations: # none\n  labels: {}\n",
			"kind: Widget\nmetadata:\n  name: w\n  annotations: # none\n    gitopsd.dev/type: V\n  labels: {}\n"},
		{"annotations without a value in flow",
			"kind: Widget\nmetadata: {name: w, annotations: }\n",
			"kind: Widget\nmetadata: {name: w, annotations: {gitopsd.dev/type: \"V\"} }\n"},
		{"a name over two lines",
			"kind: Widget\nmetadata: # yes\n  name: >-\n    w\n  # why\n  labels: {}\n",
			"kind: Widget\nmetadata: # yes\n  annotations:\n    gitopsd.dev/type: V\n  name: >-\n    w\n  # why\n  labels: {}\n"},
		{"a namespace over two lines",
			"kind: Widget\nmetadata:\n    name: w\n    namespace: |-\n        n\n",
			"kind: Widget\nmetadata:\n    annotations:\n        gitopsd.dev/type: V\n    name: w\n    namespace: |-\n        n\n"},
		{"an escaped name in flow",
			"kind: Widget\nmetadata: {name: \"\\x77\", labels: {}}\n",
			"kind: Widget\nmetadata: {annotations: {gitopsd.dev/type: \"V\"}, name: \"\\x77\", labels: {}}\n"},
		{"right already",
			"kind: Widget\nmetadata: {name: w, annotations: {gitopsd.dev/type: V}}\n",
			"kind: Widget\nmetadata: {name: w, annotations: {gitopsd.dev/type: V}}\n"},
		{"Windows",
			"kind: Widget\r\nmetadata:\r\n  name: w\r\nspec: {}\r\n",
			"kind: Widget\r\nmetadata:\r\n  name: w\r\n  annotations:\r\n    gitopsd.dev/type: V\r\nspec: {}\r\n"},
		{"no end of the last line",
			"kind: Widget\nmetadata:\n  name: w",
			"kind: Widget\nmetadata:\n  name: w\n  annotations:\n    gitopsd.dev/type: V"},
		{"mark, and letters of several bytes",
			"\ufeffkind: Widget\nmetadata: {labels: {ä: \"é\u2028\"}, name: w}\n",
			"\ufeffkind: Widget\nmetadata: {annotations: {gitopsd.dev/type: \"V\"}, labels: {ä: \"é\u2028\"}, name: w}\n"},
		{"several documents",
			"# top\n---\n---\nkind: Other\nmetadata: {name: o}\n--- # second\nkind: Widget\nmetadata:\n  name: w\n...\n---\nkind: Widget\nmetadata:\n  name: x\n# end\n",
			"# top\n---\n---\nkind: Other\nmetadata: {name: o}\n--- # second\nkind: Widget\nmetadata:\n  name: w\n  annotations:\n    gitopsd.dev/type: V\n...\n---\nkind: Widget\nmetadata:\n  name: x\n  annotations:\n    gitopsd.dev/type: V\n# end\n"},
		{"list",
			"kind: List\nitems:\n- metadata:\n    name: w\n  kind: Widget\n- kind: Other\n  metadata: {name: o}\n- {kind: Widget, metadata: {name: x}}\n",
			"kind: List\nitems:\n- metadata:\n    name: w\n    annotations:\n      gitopsd.dev/type: V\n  kind: Widget\n- kind: Other\n  metadata: {name: o}\n- {kind: Widget, metadata: {name: x, annotations: {gitopsd.dev/type: \"V\"}}}\n"},
		{"JSON",
			"{\n  \"kind\": \"Widget\",\n  \"metadata\": {\n    \"name\": \"w\"\n  }\n}\n",
			"{\n  \"kind\": \"Widget\",\n  \"metadata\": {\n    \"name\": \"w\",\n    \"annotations\": {\"gitopsd.dev/type\": \"V\"}\n  }\n}\n"},
		{"JSON beside others",
			"{\"kind\": \"Widget\", \"metadata\": {\"annotations\": {\n\t\t\"a\": \"b\"}, \"name\": \"w\"}}",
			"{\"kind\": \"Widget\", \"metadata\": {\"annotations\": {\n\t\t\"gitopsd.dev/type\": \"V\",\n  \"a\": \"b\"}, \"name\": \"w\"}}"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			fill := strings.NewReplacer("V", value, "O", other).Replace
			before, want := fill(strings.ReplaceAll(tt.before, "Other", "Else")), fill(strings.ReplaceAll(tt.after, "Other", "Else"))
			have, err := Annotate([]byte(before), key, widgets)
			if err != nil {
				t.Fatal(err)
			}
			if string(have) != want {
				t.Errorf("have\n%q\nwant\n%q", have, want)
			}
			again, err := Annotate(have, key, widgets)
			if err != nil || !bytes.Equal(again, have) {
				t.Errorf("a second time: %v\n%q", err, again)
			}
		})
	}
}

// If an edit would change something else, the error says what to write by hand.
func TestAnnotateRefuses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, text, want string }{
		{"shared metadata", "kind: List\nitems:\n- kind: Widget\n  metadata: &m\n    name: w\n- kind: Else\n  metadata: *m\n", "anchors"},
		{"merged annotations", "base: &b\n  annotations: {a: b}\nkind: Widget\nmetadata:\n  <<: *b\n  name: w\n", key + ": " + value},
		{"a value over several lines", "kind: Widget\nmetadata:\n  name: w\n  annotations:\n    gitopsd.dev/type: >-\n      h1:x\n", "line 1: Widget w"},
		{"an empty value with a tag", "kind: Widget\nmetadata:\n  name: w\n  annotations:\n    gitopsd.dev/type: !!str\n", "line 1: Widget w"},
		{"an empty value with an anchor", "kind: Widget\nmetadata:\n  name: w\n  annotations:\n    gitopsd.dev/type: &a\n    b: *a\n", key + ": " + value},
		{"a key without a colon", "kind: Widget\nmetadata: {name: w, annotations: {gitopsd.dev/type}}\n", "line 1: Widget w"},
		{"no metadata", "kind: Widget\nspec: {}\n", "no metadata"},
		{"not YAML", "kind: [\n", "line"},
		{"not UTF-8", "kind: Widget\nmetadata: {name: \xff}\n", "UTF-8"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			have, err := Annotate([]byte(tt.text), key, widgets)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%q, %v; want an error about %q", have, err, tt.want)
			}
		})
	}
}

// For any input, the output differs only in the annotation, and a second run changes
// nothing.
func FuzzAnnotate(f *testing.F) {
	for _, s := range []string{
		"kind: Widget\nmetadata:\n  name: w\n", "kind: Widget\nmetadata: {name: w}\n---\n{kind: Widget, metadata: {name: a, annotations: {}}}",
		"kind: XList\nitems: [{kind: Widget, metadata: {name: w}}]", "? kind\n: Widget\n? metadata\n: ? name\n  : w\n",
		"kind: Widget\nmetadata:\n  name: >-\n    w\n", "kind: Widget\nmetadata:\n  annotations: ~ # none\n  name: w\n",
		"kind: Widget\nmetadata:\n  annotations:\n    gitopsd.dev/type: # later\n  name: w\n", "{kind: Widget, metadata: {name: w, annotations: {gitopsd.dev/type: , a: ''}}}",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		have, err := Annotate([]byte(text), key, widgets)
		if err != nil {
			return
		}
		if _, err := sources.DecodeYAML(bytes.NewReader(have), sources.Limits{}); err != nil {
			t.Fatalf("%q became %q: %v", text, have, err)
		}
		again, err := Annotate(have, key, widgets)
		if err != nil || !bytes.Equal(again, have) {
			t.Fatalf("%q became %q, and then %q: %v", text, have, again, err)
		}
	})
}
