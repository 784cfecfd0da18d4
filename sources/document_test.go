package sources

import (
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	sigsyaml "sigs.k8s.io/yaml"
)

func TestDecodeYAML(t *testing.T) {
	docs, err := DecodeYAML(strings.NewReader(`# a comment only
---
a: 1
b: [yes, "yes", 0x10, 1e3, 12345678901234567890, ~, 2024-01-02]
---
---
base: &base {x: 1, y: {z: on}}
derived: {<<: *base, x: 2}
`), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	want := []Document{
		{Line: 3, Tree: map[string]any{
			"a": int64(1),
			"b": []any{true, "yes", int64(16), 1e3, 12345678901234567890.0, nil, "2024-01-02"},
		}},
		{Line: 7, Tree: map[string]any{
			"base":    map[string]any{"x": int64(1), "true": map[string]any{"z": true}},
			"derived": map[string]any{"x": int64(2), "true": map[string]any{"z": true}},
		}},
	}
	if !reflect.DeepEqual(docs, want) {
		t.Errorf("have %#v\nwant %#v", docs, want)
	}
}

func TestDecodeYAMLFaults(t *testing.T) {
	bomb := "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'j'; c++ {
		bomb += string(c) + ": &" + string(c) + " [" + strings.TrimSuffix(strings.Repeat("*"+string(c-1)+",", 10), ",") + "]\n"
	}
	for _, tt := range []struct {
		name, in string
		limits   Limits
		want     string
		limit    bool
	}{
		{name: "duplicate key", in: "a: 1\nb:\n  c: 1\n  c: 2\n", want: `line 4: duplicate key "c"`},
		{name: "duplicate key beside a merge", in: "<<: {b: 2}\na: 1\na: 2\n", want: `line 3: duplicate key "a"`},
		{name: "duplicate key in another form", in: "true: 1\non: 2\n", want: `line 2: duplicate key "true"`},
		{name: "duplicate key in what comes again", in: "a: {b: 1}\nc: {b: 1, b: 1}\n", want: `line 2: duplicate key "b"`},
		{name: "conflict", in: "a: 1\n<<<<<<< HEAD\nb: 1\n=======\nb: 2\n>>>>>>> theirs\n", want: "line 2: Git left a merge conflict here; keep one of the two sides, and complete the merge or rebase"},
		{name: "conflict in the first line", in: "<<<<<<< HEAD\nb: 1\n=======\nb: 2\n>>>>>>> theirs\n", want: "line 1: Git left a merge conflict here; "},
		{name: "conflict between documents", in: "a: 1\n---\n<<<<<<< HEAD\n---\nb: 1\n", want: "line 3: Git left a merge conflict here; "},
		{name: "conflict far below", in: strings.Repeat("a:\n---\n", 9000) + "<<<<<<< HEAD\n", want: "line 18001: Git left a merge conflict here; "},
		{name: "list at the root", in: "- a\n", want: "line 1: a document must be a mapping"},
		{name: "scalar at the root", in: "a: 1\n---\nhello\n", want: "line 3: a document must be a mapping"},
		{name: "syntax", in: "a: 1\nb: [\n", want: "line 2"},
		{name: "not UTF-8", in: "a: \"\xff\xfe\"\n", want: "not valid UTF-8"},
		{name: "cut rune", in: "a: \xe2\x82", want: "not valid UTF-8"},
		{name: "aliases", in: bomb, want: "are aliases nested?", limit: true},
		{name: "aliases in many documents", in: strings.Repeat("---\na: &a [1,1,1,1,1,1,1,1,1,1]\nb: [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\n", 10), limits: Limits{TotalNodes: 1000}, want: "more than 1000 values so far", limit: true},
		{name: "alias in itself", in: "a: &a {b: *a}\n", want: "nested deeper", limit: true},
		{name: "alias of another document", in: "a: &x 1\n---\nb: *x\n", want: "line 3: an alias has no anchor in this document; quote a text that begins with *"},
		{name: "merge from another document", in: "a: &x {b: 1}\n---\n<<: *x\n", want: "line 3: an alias has no anchor in this document"},
		{name: "merge of a list in a list", in: "a: &x {b: 1}\nc:\n  <<: [*x, [*x]]\n", want: "line 3: << merges mappings only"},
		{name: "depth", in: "a: " + strings.Repeat("[", 600) + strings.Repeat("]", 600), want: "nested deeper than 500", limit: true},
		{name: "bytes", in: "a: 1234567890", limits: Limits{Bytes: 8}, want: "more than 8 bytes", limit: true},
		{name: "documents", in: "a: 1\n---\na: 1\n---\na: 1\n", limits: Limits{Documents: 2}, want: "line 5: more than 2 documents", limit: true},
		{name: "infinity", in: "a: .inf", want: "not a number that JSON can hold"},
		{name: "unknown tag", in: "a: !!binary aGk=", want: "tag !!binary means nothing"},
		{name: "password like a tag", in: "a: !hunter2", want: "line 1: the tag means nothing in a Kubernetes document; a text that begins with ! needs quotes"},
		{name: "password like an alias", in: "a: *hunter2", want: "an alias has no anchor; quote a text that begins with *"},
		{name: "byte order mark before a marker", in: "a: 1\n\ufeff---\nb: 2\n", want: "line 2: begins with a byte order mark (U+FEFF)"},
		{name: "byte order mark below a comment", in: "---\n# a\n\ufeffa: 1\n", want: "line 3: begins with a byte order mark (U+FEFF)"},
		{name: "mapping as key", in: "? a: 1\n: 2", want: "a key must be a scalar, not a mapping"},
		{name: "template", in: "a:\n  b: {{ .Values.b }}", want: "line 2: a key must be a scalar, not a mapping; if {{ }} is for a template, commit what that renders"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := DecodeYAML(strings.NewReader(tt.in), tt.limits)
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hunter") {
				t.Fatalf("error %v, want one with %q", err, tt.want)
			}
			if errors.Is(err, ErrLimit) != tt.limit {
				t.Errorf("errors.Is(%v, ErrLimit) = %t", err, !tt.limit)
			}
		})
	}
}

// A rune may be cut in two by the end of a read.
func TestDecodeYAMLByteByByte(t *testing.T) {
	docs, err := DecodeYAML(iotest.OneByteReader(strings.NewReader("a: größer 👍\n")), Limits{})
	if err != nil || docs[0].Tree["a"] != "größer 👍" {
		t.Fatalf("%v, %v", docs, err)
	}
}

// Files that begin with a byte order mark may be joined, also with long lines between.
func TestDecodeYAMLByteOrderMark(t *testing.T) {
	const mark = "\ufeff"
	long := "# " + strings.Repeat("x", 40<<10) + "\n"
	for _, tt := range []struct{ name, in, want string }{
		{"first document", mark + "a: 1\n", `[{"a":1}]`},
		{"every document", mark + "a: 1\n---\n" + mark + "a: 2\n---\n" + mark + "a: 3\n", `[{"a":1},{"a":2},{"a":3}]`},
		{"after a marker with blanks", "a: 1\n--- \t\r\n" + mark + "a: 2\r\n", `[{"a":1},{"a":2}]`},
		{"before a comment", "---\n" + mark + "# a\na: 1\n", `[{"a":1}]`},
		{"before a long line", "---\n" + mark + long + "a: 1\n---\n" + mark + "a: 2\n", `[{"a":1},{"a":2}]`},
		{"nothing more", "a: 1\n---\n" + mark, `[{"a":1}]`},
		{"in a line of a text", "a: \"b\n" + mark + "c\"\n", `[{"a":"b ` + mark + `c"}]`},
		{"in a text", "a: \"" + mark + "b\"\n", `[{"a":"` + mark + `b"}]`},
		{"in a block that looks like a marker", "a: |\n  ---\n  " + mark + "b\n", `[{"a":"---\n` + mark + `b\n"}]`},
		{"another letter", "---\n\uff21: 1\n", "[{\"\uff21\":1}]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, r := range []io.Reader{strings.NewReader(tt.in), iotest.OneByteReader(strings.NewReader(tt.in)), iotest.DataErrReader(strings.NewReader(tt.in))} {
				docs, err := DecodeYAML(r, Limits{})
				if err != nil {
					t.Fatal(err)
				}
				trees := []map[string]any{}
				for _, d := range docs {
					trees = append(trees, d.Tree)
				}
				if have, _ := json.Marshal(trees); string(have) != tt.want {
					t.Errorf("have %s\nwant %s", have, tt.want)
				}
			}
		})
	}
}

// Every stream that sigs.k8s.io/yaml, as in kubectl, and DecodeYAML both accept has the same
// values in both.
func FuzzDecodeYAML(f *testing.F) {
	for _, seed := range []string{
		"a: 1\nb: [yes, no, on, 'y', 0o17, 017, 0b11, -0x1f, 1_000, 1e400, .5, +1, 2001-01-01]\n",
		"a: &x {b: c}\nd: *x\ne: {<<: *x, f: 1}\n", "? a\n: b\n", "1: a\n1.5: b\nnull: c\ntrue: d\n",
		"a: |\n  x\n\n  y\n", "a: \"\\u263A\"\n", "{\"a\": {\"b\": [1, 2.0, null]}}", "--- {}\n...\n---\na: b\n", "&00\n---\n0:",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		// Explicit tags differ in the two parsers' YAML versions; no Kubernetes
		// tool writes them.
		if len(in) > 4096 || strings.Contains(in, "!") {
			return
		}
		docs, err := DecodeYAML(strings.NewReader(in), Limits{Nodes: 10_000})
		if err != nil || len(docs) != 1 {
			return
		}
		var want, have any
		// It reads the first document alone, which may be null and is left out here.
		if err := sigsyaml.UnmarshalStrict([]byte(in), &want); err != nil || want == nil {
			return
		}
		text, err := json.Marshal(docs[0].Tree)
		if err != nil {
			t.Fatalf("%q decoded to a tree that JSON cannot hold: %v", in, err)
		}
		if err := json.Unmarshal(text, &have); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(have, want) {
			t.Errorf("%q\nhave %#v\nwant %#v", in, have, want)
		}
	})
}

// repeated is a text without end.
type repeated string

func (r repeated) Read(p []byte) (int, error) {
	for n := 0; n < len(p); {
		n += copy(p[n:], r)
	}
	return len(p), nil
}

// Nodes are counted before they are built: what a file of 64 MiB costs does not
// depend on how many it has. It measures what the process allocates, and so runs
// by itself.
func TestDecodeYAMLCountsFirst(t *testing.T) {
	for name, r := range map[string]io.Reader{
		"flow list":            io.MultiReader(strings.NewReader("a: ["), io.LimitReader(repeated("1,"), 64<<20)),
		"flow mapping":         io.MultiReader(strings.NewReader("{"), io.LimitReader(repeated("? x,"), 64<<20)),
		"nested":               io.MultiReader(strings.NewReader("a: "), io.LimitReader(repeated("[{"), 64<<20)),
		"block":                io.LimitReader(repeated("a:\n- b\n"), 64<<20),
		"many lines":           io.MultiReader(strings.NewReader("a:\n"), io.LimitReader(repeated("- 1\n"), 64<<20)),
		"no end of a document": io.MultiReader(strings.NewReader("a: [\n"), io.LimitReader(repeated("1,\n --- \n1,\n---1,"), 64<<20)),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := DecodeYAML(r, Limits{Separators: 100_000})
		runtime.ReadMemStats(&after)
		if err == nil {
			t.Errorf("%s: is read", name)
		}
		if spent := (after.TotalAlloc - before.TotalAlloc) >> 20; spent > 100 {
			t.Errorf("%s: %d MiB allocated: %v", name, spent, err)
		}
	}
}

// The bound is a document's, not the stream's.
func TestDecodeYAMLCountsDocuments(t *testing.T) {
	t.Parallel()
	doc := "a: [" + strings.Repeat("1,", 90) + "]\n"
	limits := Limits{Separators: 100}
	for name, in := range map[string]string{
		"several":      doc + "---\n" + doc + "--- \n" + doc + "---\t\n" + doc,
		"windows":      strings.ReplaceAll(doc+"---\n"+doc+"---\n"+doc, "\n", "\r\n"),
		"on the line":  "--- {" + strings.TrimSpace(doc) + "}\n--- {" + strings.TrimSpace(doc) + "}\n",
		"byte by byte": doc + "---\n" + doc,
	} {
		var r io.Reader = strings.NewReader(in)
		if name == "byte by byte" {
			r = iotest.OneByteReader(r)
		}
		if _, err := DecodeYAML(r, limits); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := DecodeYAML(strings.NewReader(doc+"---\nb: 1\n"+doc+"c: |\n "+doc), limits)
	if !errors.Is(err, ErrLimit) || !strings.Contains(err.Error(), "line 6: a document of more than 100 values") {
		t.Errorf("one too large: %v", err)
	}
}
