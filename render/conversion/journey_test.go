package conversion

import (
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"gitopsd.dev/render/cel"
	"gitopsd.dev/render/manifest"
)

// TestRoutes checks that the objects of the archives that need no stash take the route,
// except for a few kinds of rules without one.
func TestRoutes(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	without := map[string]bool{
		"express-field-as-json-in-annotation": true, // metadata
		"trap-names-and-formats":              true, // metadata
		"trap-rules-below-a-moved-field":      true,
	}
	for _, name := range files {
		archive, err := txtar.ParseFile(name)
		if err != nil {
			t.Fatal(err)
		}
		name = strings.TrimSuffix(filepath.Base(name), ".txtar")
		s := compile(t, archive)
		for _, f := range archive.Files {
			base, isCase := strings.CutSuffix(f.Name, ".in")
			if !isCase {
				continue
			}
			in, want := widget(t, string(f.Data)), widget(t, file(archive, base+".out"))
			_, to := manifest.GroupVersion(fmt.Sprint(want["apiVersion"]))
			_, report := convert(t, s, in, to)
			plain := without[name] || !reflect.DeepEqual(report, Report{})
			if _, ok := s.byRoute(new(cel.Budget), []byte(text(t, in)), to); ok == plain {
				t.Errorf("%s: %s takes the route: %t", name, base, ok)
			}
		}
	}
}

// TestConvertJSON converts unusual JSON texts.
func TestConvertJSON(t *testing.T) {
	s := compile(t, txtar.Parse([]byte(both)))
	const head = `"apiVersion":"example.io/v1","kind":"Widget",`
	for _, tt := range []struct{ in, want string }{
		{`{` + head + `"spec":{"title":"a","timeout":"5s"}}`, `{"apiVersion":"example.io/v2","kind":"Widget","spec":{"name":"a","seconds":5}}`},
		{" {\n\"spec\" : { \"title\" : \"a\\u00e9\\ud800\" } ,\t" + `"metadata":{"labels":{"b":"1","a":"2"},"creationTimestamp":null},` + head[:len(head)-1] + "}\r\n",
			`{"apiVersion":"example.io/v2","kind":"Widget","metadata":{"labels":{"b":"1","a":"2"},"creationTimestamp":null},"spec":{"name":"aé�"}}`},
		{`{` + head + `"spec":{"t\u0069tle":"a"}}`, `{"apiVersion":"example.io/v2","kind":"Widget","spec":{"name":"a"}}`},
		{`{` + head + `"spec":{"title":"a","title":"b"}}`, `{"apiVersion":"example.io/v2","kind":"Widget","spec":{"name":"b"}}`},
		{`{` + head + `"spec":{"title":"a","unknown":1},"other":2}`, `{"apiVersion":"example.io/v2","kind":"Widget","spec":{"name":"a"}}`},
		{`{` + head + `"spec":{"ports":[{"note":"n","id":1}, {"id":9007199254740993}]}}`,
			`{"apiVersion":"example.io/v2","kind":"Widget","spec":{"ports":[{"key":1,"note":"n"},{"key":9007199254740993}]}}`},
		{`{` + head + `"spec":{"title":null}}`, `{"apiVersion":"example.io/v2","kind":"Widget","spec":{}}`},
	} {
		have, report, err := s.ConvertJSON([]byte(tt.in), "v2")
		if err != nil || !reflect.DeepEqual(report, Report{}) {
			t.Errorf("%s: %v, %+v", tt.in, err, report)
			continue
		}
		object, err := Decode(have)
		want, _ := Decode([]byte(tt.want))
		if err != nil || text(t, object) != text(t, want) {
			t.Errorf("%s gives\n%s (%v)\nwant\n%s", tt.in, have, err, tt.want)
		}
	}
	for _, in := range []string{``, `{`, `[]`, `{"apiVersion":"example.io/v1","kind":"Gadget"}`, `{"apiVersion":"example.io/v3","kind":"Widget"}`, `{"kind":"Widget"}`} {
		_, _, err := s.ConvertJSON([]byte(in), "v2")
		if _, _, want := s.convertJSON(new(cel.Budget), []byte(in), "v2"); err == nil || err.Error() != want.Error() {
			t.Errorf("%s: %v", in, err)
		}
	}
}

// TestThroughHub converts by two routes, one after the other.
func TestThroughHub(t *testing.T) {
	archive, err := txtar.ParseFile("testdata/trap-third-version.txtar")
	if err != nil {
		t.Fatal(err)
	}
	s := compile(t, archive)
	taken := 0
	for _, from := range s.Versions() {
		for _, to := range s.Versions() {
			if from == to || s.pairs[[2]string{from, to}] != nil {
				continue
			}
			in := fmt.Sprintf(`{"apiVersion":"example.io/%s","kind":"Widget","metadata":{"name":"a"},"spec":{}}`, from)
			have, _, err := s.ConvertJSON([]byte(in), to)
			want, _, problem := s.convertJSON(new(cel.Budget), []byte(in), to)
			if err != nil || problem != nil {
				t.Fatal(err, problem)
			}
			a, _ := Decode(have)
			b, _ := Decode(want)
			if text(t, a) != text(t, b) {
				t.Errorf("%s gives\n%s\nwant\n%s", in, have, want)
			}
			if _, ok := s.byRoute(new(cel.Budget), []byte(in), to); ok {
				taken++
			}
		}
	}
	if taken == 0 {
		t.Error("no object takes the routes through the hub")
	}
}

// TestTogether converts several objects at the same time.
func TestTogether(t *testing.T) {
	s := compile(t, txtar.Parse([]byte(both)))
	var all sync.WaitGroup
	for worker := range 4 {
		all.Go(func() {
			for i := range 200 {
				title := strings.Repeat(fmt.Sprint(worker), i)
				in := fmt.Sprintf(`{"apiVersion":"example.io/v1","kind":"Widget","spec":{"timeout":"%ds","title":"%s","ports":[{"id":%d,"note":"%[2]s"}]}}`, i, title, worker)
				want := fmt.Sprintf(`{"apiVersion":"example.io/v2","kind":"Widget","spec":{"name":"%s","ports":[{"key":%d,"note":"%[1]s"}],"seconds":%[3]d}}`, title, worker, i)
				if have, ok := s.byRoute(new(cel.Budget), []byte(in), "v2"); string(have) != want || !ok {
					t.Errorf("%s gives\n%s (%t)\nwant\n%s", in, have, ok, want)
				}
			}
		})
	}
	all.Wait()
}
