package xpkg

import (
	"errors"
	"io"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"

	"gitopsd.dev/sources"
)

// streams are texts whose documents are not where a careless reader looks.
var streams = map[string]string{
	"none":                   "",
	"one":                    "a: 1\n",
	"no newline at the end":  "a: 1\n---\nb: 2",
	"marker at the end":      "a: 1\n---",
	"markers alone":          "---\n---\n---\n",
	"comment on a marker":    "--- # one\na: 1\n--- # two\nb: 2\n",
	"content on a marker":    "--- {a: 1}\n--- {b: 2}\n",
	"tab after a marker":     "---\t{a: 1}\n---\t{b: 2}\n",
	"carriage returns":       "a: 1\r\n---\r\nb: 2\r\n",
	"four dashes":            "a: |\n  x\n  ----\n---\nb: 2\n",
	"dashes in a block":      "a: |\n  ---\n  b\n---\nb: 2\n",
	"dashes as a key":        "---x: 1\n---\nb: 2\n",
	"end markers":            "a: 1\n...\n---\nb: 2\n...\n",
	"end markers alone":      "a: 1\n...\nb: 2\n",
	"directives":             "%YAML 1.1\n---\na: 1\n...\n%YAML 1.1\n---\nb: 2\n",
	"directives, commented":  "a: 1\n...\n# c\n%YAML 1.1\n\n# d\n\n---\nb: 2\n",
	"percent in a text":      "a: '\n%YAML 1.1'\n---\nb: 2\n",
	"marker in quotes":       "a: \"x\n--- y\"\n",
	"unclosed before marker": "a: [1,\n---\nb: 2\n",
	"byte order mark":        "\ufeffa: 1\n---\nb: 2\n",
	"byte order marks":       "\ufeffa: 1\n---\n\ufeffb: 2\n---\n\ufeff# c\nd: 3\n",
	"anchors":                "a: &x 1\nb: *x\n---\nc: 3\n",
	"anchor of another":      "a: &x 1\n---\nb: *x\n",
	"late error":             strings.Repeat("a: 1\n---\n", 100) + "a: b: c\n",
}

// checkStream compares decoding in batches, however small and however the bytes
// come, with decoding at once.
func checkStream(t *testing.T, text string) {
	t.Helper()
	want, wantErr := sources.DecodeYAML(strings.NewReader(text), sources.Limits{Documents: maxDocuments, Nodes: maxDocumentValues})
	for _, size := range []int{1, 20, batchBytes} {
		for what, r := range map[string]io.Reader{"whole": strings.NewReader(text), "bytewise": iotest.OneByteReader(strings.NewReader(text))} {
			got, err := decodeBatches(r, size, anyShare())
			if (err == nil) != (wantErr == nil) && !errors.Is(err, sources.ErrLimit) {
				t.Fatalf("%q in batches of %d, %s: error %v, want %v", text, size, what, err, wantErr)
			}
			if err == nil && !(len(got) == 0 && len(want) == 0) && !reflect.DeepEqual(got, want) {
				t.Fatalf("%q in batches of %d, %s: %v, want %v", text, size, what, got, want)
			}
		}
	}
}

func TestStreams(t *testing.T) {
	t.Parallel()
	for name, text := range streams {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkStream(t, text)
		})
	}
}

// TestStreamError: the first error in the stream is reported, with its line,
// whichever batch is decoded first.
func TestStreamError(t *testing.T) {
	t.Parallel()
	good := strings.Repeat("---\na: 1\n", 1000)
	text := good + "---\na: 1\na: 2\n" + good + "---\nb: [\n" + good
	for range 20 {
		_, err := decodeBatches(strings.NewReader(text), 100, anyShare())
		if err == nil || err.Error() != `package.yaml line 2003: duplicate key "a"` {
			t.Fatalf("error %v", err)
		}
	}
	broken := errors.New("the registry went away")
	_, err := decode(io.MultiReader(strings.NewReader(good), iotest.ErrReader(broken)), anyShare())
	if !errors.Is(err, broken) {
		t.Errorf("error %v, want that of the reader", err)
	}
}

func TestStreamLimits(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		before splitter // what came before
		text   string
		want   string
	}{
		"bytes":           {splitter{total: maxPackageBytes - 3}, "a: 1", "more than 268435456 bytes"},
		"values":          {splitter{values: maxPackageValues - 3}, "a: [1, 2, 3]", "more than 10000000 values so far"},
		"empty documents": {splitter{values: maxPackageValues - 10}, "---\n---\n---\n", "line 3: more than 10000000 values so far"},
	} {
		err := test.before.split(strings.NewReader(test.text), batchBytes, func(batch) bool { return true })
		if err == nil || !strings.Contains(err.Error(), test.want) || !errors.Is(named("", err), sources.ErrLimit) {
			t.Errorf("%s: error %v, want %q", name, err, test.want)
		}
	}
	// A batch that is within its own bounds, after others.
	var aliased atomic.Int64
	aliased.Store(maxPackageValues - 10)
	b := batch{line: 1, bytes: []byte("a: &a [1, 2, 3]\nb: [*a, *a, *a, *a]\n")}
	_, err := b.decode(new(sources.Decoder), &aliased, anyShare())
	if err == nil || !strings.Contains(err.Error(), "aliases stand for more than 10000000 values") {
		t.Errorf("aliases: %v", err)
	}
	_, err = decode(strings.NewReader(strings.Repeat("--- {a: 1}\n", maxDocuments+1)), anyShare())
	if err == nil || !strings.Contains(err.Error(), "more than 20000 documents") {
		t.Errorf("documents: %v", err)
	}
}

func FuzzStream(f *testing.F) {
	for _, text := range streams {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		// YAML knows line breaks that editors do not count; lines are counted
		// here as editors do, and only that would differ.
		if strings.ContainsAny(strings.ReplaceAll(text, "\r\n", "\n"), "\r\u0085\u2028\u2029") {
			return
		}
		checkStream(t, text)
	})
}

func TestHasAlias(t *testing.T) {
	for text, want := range map[string]bool{
		"*a": true, "a: *a": true, "a: [*b,*c]": true, "- *_": true, "a:\n  *-x": true, "{*1: 2}": true, "a:\t*a": true,
		"": false, "*": false, "a: '*'": false, "a*b": false, "a: * b": false, "5*5": false, "a: **": false, "é*a": false,
	} {
		if have := hasAlias([]byte(text)); have != want {
			t.Errorf("%q: %t", text, have)
		}
	}
}
