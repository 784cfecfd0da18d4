package types

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/sources"
)

// needs fails a test if a program of the recipe is not installed; `make test` installs
// missing programs.
func needs(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Fatalf("the recipe needs %s, which is not installed", p)
		}
	}
}

// asJSON returns the documents as a stream of JSON for jq.
func asJSON(t *testing.T, docs []sources.Document) []byte {
	t.Helper()
	var b bytes.Buffer
	for _, d := range docs {
		if err := json.NewEncoder(&b).Encode(d.Tree); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

// The commands in TYPES.md give the same digests as the package.
func TestRecipe(t *testing.T) {
	needs(t, "jq", "sha256sum", "basenc", "base64")
	text, err := os.ReadFile("TYPES.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(blocks) != 2 {
		t.Fatalf("TYPES.md has %d blocks of shell, want one for a type and one for a package", len(blocks))
	}
	docs := manifesttest.Documents(t, xrd+"---"+strings.ReplaceAll(managed, "example.org", "managed.example.org")+"---"+crd(`
type: object
properties:
  a: {type: string, default: "\u007f\u2028\\ \t\"ü", enum: [b, null, a, 1.5], maximum: 9223372036854775807, minimum: -0.001}
  b: {anyOf: [{required: [x, b]}, {not: {}}], additionalProperties: false, maxLength: 1000, default: {z: [1e300, 12345e-9, 0, -120]}}
  description: {type: array, items: {x-kubernetes-validations: [{rule: a > 1, reason: FieldValueInvalid}, {message: m}]}, description: d}
`))
	input := filepath.Join(t.TempDir(), "input.json")
	if err := os.WriteFile(input, asJSON(t, docs), 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := All(docs)
	if err != nil {
		t.Fatal(err)
	}
	var lines strings.Builder
	for _, d := range docs {
		of, err := Of(d.Tree)
		if err != nil {
			t.Fatal(err)
		}
		for _, typ := range of {
			lines.WriteString(typ.String() + "\n")
		}
	}
	for i, want := range []string{lines.String(), Sum(all) + "\n"} {
		// Commands that read the cluster or YAML are replaced by reading a file.
		_, rest, _ := strings.Cut(blocks[i][1], "|")
		have, err := exec.Command("sh", "-c", "cat "+input+" | "+rest).CombinedOutput()
		if err != nil || string(have) != want {
			t.Errorf("%s\ngives\n%s%v\nwant\n%s", blocks[i][1], have, err, want)
		}
	}
}

// recipeForms runs types.jq.
func recipeForms(t *testing.T, docs []sources.Document) string {
	t.Helper()
	cmd := exec.Command("jq", "-r", "-f", "types.jq")
	cmd.Stdin = bytes.NewReader(asJSON(t, docs))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("jq: %v: %.500s", err, out)
	}
	return string(out)
}

// Every case of TestSame and TestDifferent has the same form in jq. jq runs once for all.
func TestRecipeForms(t *testing.T) {
	t.Parallel()
	needs(t, "jq")
	var names, want []string
	var docs []sources.Document
	for _, tt := range append(slices.Clone(same), different...) {
		if strings.Contains(tt.name, "large integers") {
			continue // jq before 1.7 rounds them
		}
		for _, schema := range []string{tt.a, tt.b} {
			doc := manifesttest.Documents(t, crd(schema))[0]
			names = append(names, tt.name)
			docs = append(docs, doc)
			want = append(want, "example.org/v1 Bucket "+forms(t, doc.Tree)[0])
		}
	}
	have := strings.Split(strings.TrimSuffix(recipeForms(t, docs), "\n"), "\n")
	if len(have) != len(want) {
		t.Fatalf("jq gives %d forms of %d definitions", len(have), len(want))
	}
	for i := range want {
		if have[i] != want[i] {
			t.Errorf("%s: jq says\n%s\nwant\n%s", names[i], have[i], want[i])
		}
	}
}

// Every definition of the smaller corpora has the same form in jq, and so have some of
// the largest.
func TestRecipeCorpora(t *testing.T) {
	t.Parallel()
	needs(t, "jq")
	for _, r := range corpora {
		t.Run(r.project+" "+r.version, func(t *testing.T) {
			t.Parallel()
			docs := r.crds(t)
			if len(docs) > 100 {
				docs = docs[:50]
			}
			var want strings.Builder
			f := former{each: func(typ Type, form []byte) {
				want.WriteString(typ.Group + "/" + typ.Version + " " + typ.Kind + " " + string(form) + "\n")
			}}
			for _, d := range docs {
				if err := f.object(d.Tree); err != nil {
					t.Fatal(err)
				}
			}
			if recipeForms(t, docs) != want.String() {
				t.Error("types.jq gives other forms")
			}
		})
	}
}
