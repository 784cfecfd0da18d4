package convert

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gitopsd.dev/render/conversion"
	"gitopsd.dev/render/manifest/manifesttest"
)

const definition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.io}
spec:
  group: example.io
  names: {kind: Widget, plural: widgets}
  versions:
  - name: v1
    schema:
      openAPIV3Schema:
        type: object
        properties: {spec: {type: object, properties: {size: {type: string}, note: {type: string, maxLength: 100}}}}
  - name: v2
    schema:
      openAPIV3Schema:
        type: object
        properties: {spec: {type: object, properties: {$COUNT: {type: integer}}}}
`

const rules = `
apiVersion: apis.kcp.dev/v1alpha1
kind: APIConversionRules
metadata: {name: widgets.example.io}
spec:
  conversions:
  - from: v1
    to: v2
    rules: [{from: 'int(v1.spec.size)', to: spec.$COUNT}]
    preserve: [spec.note]
  - from: v2
    to: v1
    rules: [{from: 'string(v2.spec.$COUNT)', to: spec.size}]
`

// widgets are rules by which a size becomes a number of another name.
func widgets(t testing.TB, count string) *conversion.Set {
	t.Helper()
	named := func(text string) map[string]any {
		return manifesttest.Tree(t, strings.ReplaceAll(text, "$COUNT", count))
	}
	set, err := conversion.Compile(named(definition), []conversion.Document{{Tree: named(rules)}})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// server serves a table over TLS, with HTTP/2 and HTTP/1.1.
type server struct {
	*testing.T
	table   *Table
	handler *Handler
	log     bytes.Buffer
	url     string
	client  *http.Client
}

func newServer(t *testing.T, http2 bool) *server {
	t.Helper()
	s := &server{T: t, table: &Table{}}
	var err error
	s.handler, err = New(Config{Table: s.table, Log: slog.New(slog.NewTextHandler(&s.log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ts := httptest.NewUnstartedServer(s.handler)
	ts.EnableHTTP2 = http2
	ts.StartTLS()
	t.Cleanup(ts.Close)
	s.url, s.client = ts.URL, ts.Client()
	return s
}

// path is where API servers ask for a set.
func path(set *conversion.Set) string { return conversion.Path("dev", set.Name(), set.Digest()) }

func (s *server) post(path, contentType, body string) (status int, answer string, protocol string) {
	s.Helper()
	resp, err := s.client.Post(s.url+path, contentType, strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.Fatal(err)
	}
	return resp.StatusCode, string(text), resp.Proto
}

func reviewOf(uid, to string, objects ...string) string {
	return fmt.Sprintf(`{"kind":"ConversionReview","apiVersion":"apiextensions.k8s.io/v1","request":{"uid":%q,"desiredAPIVersion":%q,"objects":[%s]}}`,
		uid, to, strings.Join(objects, ","))
}

// answer is the response of a review.
type answer struct {
	Response struct {
		UID              string
		ConvertedObjects []map[string]any
		Result           struct{ Status, Message string }
	}
}

func (s *server) review(set *conversion.Set, to string, objects ...string) answer {
	s.Helper()
	status, text, _ := s.post(path(set), "application/json", reviewOf("u1", to, objects...))
	if status != http.StatusOK {
		s.Fatalf("%d %s", status, text)
	}
	var a answer
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		s.Fatalf("%v in %s", err, text)
	}
	if a.Response.UID != "u1" {
		s.Errorf("uid %q", a.Response.UID)
	}
	return a
}

func v1(name, size string) string {
	return fmt.Sprintf(`{"apiVersion":"example.io/v1","kind":"Widget","metadata":{"name":%q,"uid":"9007199254740993"},"spec":{"size":%q,"note":"n"}}`, name, size)
}

// Objects are converted in the order in which they came, over both protocols; one that
// is in the version already stays as it is.
func TestReview(t *testing.T) {
	t.Parallel()
	for _, http2 := range []bool{true, false} {
		s := newServer(t, http2)
		set := widgets(t, "count")
		s.table.Hold("test", []*conversion.Set{set})
		want := map[bool]string{true: "HTTP/2.0", false: "HTTP/1.1"}[http2]
		if _, _, protocol := s.post(path(set), "application/json", reviewOf("a", "example.io/v2")); protocol != want {
			t.Errorf("%s, want %s", protocol, want)
		}
		a := s.review(set, "example.io/v2", v1("a", "3"), `{"apiVersion":"example.io/v2","kind":"Widget","metadata":{"name":"b"},"spec":{"count":9007199254740993}}`, v1("c", "5"))
		if a.Response.Result.Status != "Success" || len(a.Response.ConvertedObjects) != 3 {
			t.Fatalf("%+v", a)
		}
		var have []string
		for _, o := range a.Response.ConvertedObjects {
			have = append(have, fmt.Sprint(o["apiVersion"], " ", o["metadata"].(map[string]any)["name"]))
		}
		if want := []string{"example.io/v2 a", "example.io/v2 b", "example.io/v2 c"}; !slices.Equal(have, want) {
			t.Errorf("%q, want %q", have, want)
		}
		if a := s.review(set, "example.io/v2"); a.Response.Result.Status != "Success" || a.Response.ConvertedObjects == nil {
			t.Errorf("no objects: %+v", a)
		}
		// Below the prefix of a URL.
		if status, text, _ := s.post("/some/prefix"+path(set), "application/json", reviewOf("a", "example.io/v2")); status != http.StatusOK {
			t.Errorf("below a prefix: %d %s", status, text)
		}
	}
}

// A rule that fails fails no object. Its field is left out and its value kept, what
// happened is counted, and no value is logged.
func TestRuleThatFails(t *testing.T) {
	t.Parallel()
	s := newServer(t, true)
	set := widgets(t, "count")
	s.table.Hold("test", []*conversion.Set{set})
	for range 3 {
		a := s.review(set, "example.io/v2", v1("a", "topsecret"))
		if a.Response.Result.Status != "Success" {
			t.Fatalf("%+v", a)
		}
		back, err := json.Marshal(a.Response.ConvertedObjects[0])
		if err != nil {
			t.Fatal(err)
		}
		again := s.review(set, "example.io/v1", string(back)).Response.ConvertedObjects[0]["spec"].(map[string]any)
		if again["size"] != "topsecret" || again["note"] != "n" {
			t.Errorf("came back as %v", again)
		}
	}
	if log := s.log.String(); strings.Count(log, "a conversion rule failed") != 1 || strings.Contains(log, "topsecret") {
		t.Errorf("the log is %q", log)
	}
	counts := s.handler.Conversions()
	if len(counts) != 2 || counts[0].From != "v1" || counts[0].To != "v2" || counts[0].Objects != 3 || counts[0].FailedRules != 3 || counts[0].Stashed == 0 ||
		counts[1].Restored == 0 || counts[1].Seconds <= 0 {
		t.Errorf("%+v", counts)
	}
}

// What cannot be converted fails its review, with a reason, and no other.
func TestFailures(t *testing.T) {
	t.Parallel()
	s := newServer(t, true)
	set := widgets(t, "count")
	s.table.Hold("test", []*conversion.Set{set})
	for _, tt := range []struct {
		name, to string
		objects  []string
		want     string
	}{
		{"a version that is none", "example.io/v3", []string{v1("a", "1")}, "has no version v3"},
		{"another kind", "example.io/v2", []string{v1("a", "1"), `{"apiVersion":"example.io/v1","kind":"Gadget"}`}, "object 1 of the review: the object is a Gadget"},
		{"another group", "example.org/v2", []string{v1("a", "1")}, "asks for a version of the group example.org"},
		{"no object", "example.io/v2", []string{`"topsecret"`}, "object 0 of the review"},
		{"no JSON", "example.io/v2", []string{`{"a":tru}`}, "object 0 of the review"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := s.review(set, tt.to, tt.objects...)
			if r := a.Response.Result; r.Status != "Failure" || !strings.Contains(r.Message, tt.want) || strings.Contains(r.Message, "topsecret") || len(a.Response.ConvertedObjects) > 0 {
				t.Errorf("%+v; want %q", r, tt.want)
			}
		})
	}
	other := widgets(t, "number")
	if r := s.review(other, "example.io/v2", v1("a", "1")).Response.Result; r.Status != "Failure" || !strings.Contains(r.Message, "does not serve the conversion rules of widgets.example.io") {
		t.Errorf("rules that are not served: %+v", r)
	}
	for _, c := range s.handler.Conversions() {
		if c.From != unknown && c.From != "v1" && c.From != "v2" || c.To != unknown && c.To != "v2" {
			t.Errorf("counts have a label that a client made up: %+v", c)
		}
	}
}

func TestNoReview(t *testing.T) {
	t.Parallel()
	s := newServer(t, true)
	set := widgets(t, "count")
	s.table.Hold("test", []*conversion.Set{set})
	for _, tt := range []struct {
		name, path, contentType, body string
		status                        int
	}{
		{"another path", "/healthz", "application/json", "{}", http.StatusNotFound},
		{"a short path", "/convert/dev/widgets.example.io", "application/json", "{}", http.StatusNotFound},
		{"another type", path(set), "text/plain", "{}", http.StatusUnsupportedMediaType},
		{"garbage", path(set), "application/json", "garbage", http.StatusBadRequest},
		{"nothing", path(set), "application/json", "", http.StatusBadRequest},
		{"too large", path(set), "application/json; charset=utf-8", strings.Repeat(" ", maxBody+1), http.StatusRequestEntityTooLarge},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if status, text, _ := s.post(tt.path, tt.contentType, tt.body); status != tt.status {
				t.Errorf("%d %s, want %d", status, text, tt.status)
			}
		})
	}
	resp, err := s.client.Get(s.url + path(set))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d", resp.StatusCode)
	}
	// A body of unknown length is bounded as well.
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+path(set), io.LimitReader(zeros{}, maxBody+1))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err = s.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("too large, of unknown length: %d", resp.StatusCode)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = ' '
	}
	return len(b), nil
}

// A client that is refused is told so, whether its body comes or not.
func TestRefusedAtOnce(t *testing.T) {
	t.Parallel()
	address, _ := strings.CutPrefix(newServer(t, false).url, "https://")
	c, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(text), "HTTP/1.1 404 ") {
		t.Errorf("%q, %v", text, err)
	}
}

// Rules are replaced while reviews come in, and none of them fails: new rules are there
// before anybody asks for them, and old ones some time after.
func TestSwap(t *testing.T) {
	t.Parallel()
	s := newServer(t, true)
	sets := []*conversion.Set{widgets(t, "count"), widgets(t, "number"), widgets(t, "total")}
	s.table.Hold("test", sets[:1])
	var mu sync.Mutex
	named, made := sets[0], 0
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				mu.Lock()
				set := named
				mu.Unlock()
				status, text, _ := s.post(path(set), "application/json", reviewOf("u1", "example.io/v2", v1("a", "3")))
				if status != http.StatusOK || !strings.Contains(text, `"Success"`) {
					t.Errorf("%d %s", status, text)
					return
				}
				mu.Lock()
				made++
				mu.Unlock()
			}
		})
	}
	for i := range 300 {
		next := sets[i%len(sets)]
		s.table.Hold("test", []*conversion.Set{next})
		mu.Lock()
		named = next
		mu.Unlock()
	}
	close(stop)
	clients.Wait()
	t.Logf("%d reviews", made)
}

// What nothing holds is served for some time, and no longer.
func TestLinger(t *testing.T) {
	t.Parallel()
	now := time.Now()
	table := &Table{now: func() time.Time { return now }}
	a, b := widgets(t, "count"), widgets(t, "number")
	name := func(set *conversion.Set) string {
		n, ok := nameOf(path(set))
		if !ok {
			t.Fatal(path(set))
		}
		return n
	}
	served := func(want ...*conversion.Set) {
		t.Helper()
		for _, set := range []*conversion.Set{a, b} {
			if have := table.Find(name(set)) != nil; have != slices.Contains(want, set) {
				t.Errorf("%s: served %v", name(set), have)
			}
		}
	}
	served()
	table.Hold("one", []*conversion.Set{a})
	table.Hold("two", []*conversion.Set{a, b})
	served(a, b)
	table.Hold("two", nil)
	now = now.Add(linger - 1)
	served(a, b)
	before := table.served.Load()
	table.Hold("one", []*conversion.Set{a}) // renews nothing
	if table.served.Load() != before {
		t.Error("all sets are gone through although nothing changed")
	}
	now = now.Add(1)
	served(a)
	table.Hold("two", []*conversion.Set{b})
	served(a, b)
	table.Hold("one", nil)
	now = now.Add(linger)
	served(b)
	table.Hold("two", nil)
	table.Hold("two", []*conversion.Set{b}) // in time
	now = now.Add(2 * linger)
	served(b)
	if len(table.all()) != 1 {
		t.Errorf("%d sets are remembered", len(table.all()))
	}
}
