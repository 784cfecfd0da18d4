// Package histories compares conversion rules with the hand-written conversions of
// projects, for widely used types.
//
// The rules are in examples/conversion. Each project comes from its Go module at a pinned
// release, which is copied. In the copy, the methods ConvertTo and ConvertFrom ask this
// test, which converts by the rules:
//
//   - the project's own tests must pass as before (authors_test.go);
//   - objects generated from the schemas are converted by the rules and by the project's
//     code, and each difference must be explained here (compare_test.go);
//   - the laws of render/conversion/proof must hold.
//
// The tests run in `make conformance` only, since the modules are large.
package histories

import (
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"text/template"

	"gitopsd.dev/render/conversion"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/sources"
	"gitopsd.dev/testscripts/upstream"
)

var all = flag.Bool("all", false, "hold the rules to the projects' own conversions, which takes minutes")

// history is a project with two versions of its types, and conversions between these.
type history struct {
	name   string // the directory below examples/conversion
	module upstream.Module
	group  string
	// spoke and hub are the directories of the old version and of the new one, below the
	// module's.
	spoke, hub string
	kinds      []kind
	// setup is a statement that the project's code needs.
	setup string
	// keeps is the annotation in which the project keeps what a version cannot hold.
	keeps string
	// edits are made so that the project's tests begin with objects as JSON has them.
	edits []edit
	// tests are the project's tests of conversions, as go test -run has them, and passed
	// some that must be among them.
	tests  string
	passed []string
	// beyond are tests among these that must fail.
	beyond []beyond
	// explained are the differences between the rules and the project's code, and found
	// the laws that neither keeps.
	explained []difference
	found     []finding
}

type kind struct {
	name, plural string
	definition   string // the file, in the module
	untested     bool   // by the project
}

// difference is a field that the rules convert otherwise than the project's code.
type difference struct{ kind, to, path, why string }

// edit replaces the only occurrence of a text.
type edit struct{ file, old, new string }

// beyond is a test that asks for more than JSON can carry, and so for more than any
// webhook can do.
type beyond struct{ test, why string }

// finding is a law that the rules break, by the title of the proof's finding.
type finding struct{ kind, title, why string }

func (h history) versions() (spoke, hub string) { return filepath.Base(h.spoke), filepath.Base(h.hub) }

var histories = []history{kueue, externalSecrets, clusterAPI}

func TestHistories(t *testing.T) {
	if !*all {
		t.Skip("-all was not given: it fetches three modules and compiles parts of them")
	}
	for _, h := range histories {
		t.Run(h.name, func(t *testing.T) {
			c := h.copy(t)
			t.Run("tests", c.authors)
			for _, k := range h.kinds {
				t.Run(k.name, func(t *testing.T) { c.compare(t, k) })
			}
		})
	}
}

// project is a copy of a project's module, in which rules convert.
type project struct {
	history
	dir  string
	sets map[string]ruleSet // by kind
}

// ruleSet is a definition with its rules.
type ruleSet struct {
	definition map[string]any
	documents  []conversion.Document
	*conversion.Set
}

// copy copies the module and has the rules convert in the copy.
func (h history) copy(t *testing.T) *project {
	t.Helper()
	p := &project{history: h, dir: filepath.Join(t.TempDir(), h.name), sets: make(map[string]ruleSet)}
	if err := h.module.Copy(t.Context(), p.dir, os.Stderr); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, k := range h.kinds {
		names = append(names, k.name)
		p.sets[k.name] = p.compile(t, k)
	}
	p.rename(t, names)
	for _, e := range h.edits {
		p.edit(t, e)
	}
	spoke, hub := h.versions()
	data := map[string]any{"Module": h.module.Path, "Group": h.group, "Kinds": names,
		"Spoke": h.spoke, "Hub": h.hub, "SpokeVersion": spoke, "HubVersion": hub, "Setup": h.setup, "Keeps": h.keeps}
	p.write(t, "rules.go", "gitopsdrules/rules.go", nil)
	p.write(t, "methods.go.tmpl", h.spoke+"/gitopsd_conversion.go", data)
	p.write(t, "compare.go.tmpl", "gitopsdcompare/main.go", data)
	return p
}

// compile reads a definition from the module, and compiles its rules.
func (p *project) compile(t *testing.T, k kind) ruleSet {
	t.Helper()
	read := func(name string) []sources.Document {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return manifesttest.Documents(t, string(text))
	}
	s := ruleSet{definition: read(filepath.Join(p.dir, k.definition))[0].Tree}
	file := filepath.Join("../../../examples/conversion", p.name, k.plural+".yaml")
	for _, d := range read(file) {
		s.documents = append(s.documents, conversion.Document{Origin: manifest.Origin{File: filepath.Base(file), Line: d.Line}, Tree: d.Tree})
	}
	var err error
	if s.Set, err = conversion.Compile(s.definition, s.documents); err != nil {
		t.Fatal(err)
	}
	return s
}

// rename gives the project's conversions of some kinds other names.
func (p *project) rename(t *testing.T, kinds []string) {
	t.Helper()
	methods := regexp.MustCompile(`(?m)^(func \(\w+ \*(?:` + strings.Join(kinds, "|") + `)\) Convert(?:To|From))\(`)
	files, err := filepath.Glob(filepath.Join(p.dir, p.spoke, "*conversion.go"))
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found += len(methods.FindAll(text, -1))
		if err := os.WriteFile(file, methods.ReplaceAll(text, []byte("${1}ByHand(")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if found != 2*len(kinds) {
		t.Fatalf("%d methods convert %v; want two for each", found, kinds)
	}
}

func (p *project) edit(t *testing.T, e edit) {
	t.Helper()
	file := filepath.Join(p.dir, e.file)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), e.old); n != 1 {
		t.Fatalf("%s has %q %d times", e.file, e.old, n)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(string(text), e.old, e.new, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
}

// write writes a file of testdata to the copy, as a template if there are data.
func (p *project) write(t *testing.T, from, to string, data any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", from))
	if err != nil {
		t.Fatal(err)
	}
	if data != nil {
		var b strings.Builder
		if err := template.Must(template.New(from).Parse(string(text))).Execute(&b, data); err != nil {
			t.Fatal(err)
		}
		text = []byte(b.String())
	}
	to = filepath.Join(p.dir, to)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, text, 0o644); err != nil {
		t.Fatal(err)
	}
}

// served counts conversions, by kind and the version that was asked for.
type served struct {
	sync.Mutex
	conversions map[string]int
	failed      map[string]conversion.Note // a rule that failed, by its place
}

// serve converts by the rules for processes of the copy.
func (p *project) serve(t *testing.T) (url string, s *served) {
	t.Helper()
	s = &served{conversions: make(map[string]int), failed: make(map[string]conversion.Note)}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		converted, err := p.answer(s, r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Write(converted)
	}))
	t.Cleanup(server.Close)
	return server.URL, s
}

func (p *project) answer(s *served, r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	object, err := conversion.Decode(body)
	if err != nil {
		return nil, err
	}
	kind, to := manifest.Text(object, "kind"), r.FormValue("to")
	set, ok := p.sets[kind]
	if !ok {
		return nil, fmt.Errorf("there are no rules for %q", kind)
	}
	converted, report, err := set.ConvertJSON(body, to)
	s.Lock()
	defer s.Unlock()
	s.conversions[kind+" to "+to]++
	for _, n := range report.Failed {
		s.failed[n.Rule] = n
	}
	return converted, err
}
