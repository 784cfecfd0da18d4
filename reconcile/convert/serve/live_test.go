package serve

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"gitopsd.dev/reconcile/convert"
	"gitopsd.dev/render/conversion"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/testscripts/await"
	"gitopsd.dev/testscripts/devcluster"
)

func TestMain(m *testing.M) { os.Exit(devcluster.Main(m)) }

// The semantics of conversion rules, tried through an API server: it stores v1, and asks
// the server of this process for v2 and back.

const liveDefinition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: $NAME}
spec:
  group: $GROUP
  scope: Namespaced
  names: {kind: Person, plural: people, singular: person, listKind: PersonList}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              firstName: {type: string}
              lastName: {type: string}
              born: {type: string, format: date-time}
              number: {type: integer, format: int64}
              age: {type: string}
              note: {type: string, maxLength: 1000}
              colours: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [name], items: {type: object, required: [name], properties: {name: {type: string}, shade: {type: string}}}}
  - name: v2
    served: true
    storage: false
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              name: {type: object, properties: {first: {type: string}, last: {type: string}}}
              born: {type: string, format: date-time}
              number: {type: integer, format: int64}
              years: {type: integer}
              title: {type: string, maxLength: 100}
              palette: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [label], items: {type: object, required: [label], properties: {label: {type: string}, tone: {type: string}}}}
`

const liveRules = `
apiVersion: apis.kcp.dev/v1alpha1
kind: APIConversionRules
metadata: {name: $NAME}
spec:
  conversions:
  - from: v1
    to: v2
    rules:
    - {from: v1.spec.firstName, to: spec.name.first}
    - {from: v1.spec.lastName, to: spec.name.last}
    - {from: int(v1.spec.age), to: spec.years}
    - from: v1.spec.colours
      to: spec.palette
      itemRules: [{from: self.name, to: item.label}, {from: self.shade, to: item.tone}]
    preserve: [spec.note]
  - from: v2
    to: v1
    rules:
    - {from: v2.spec.name.first, to: spec.firstName}
    - {from: v2.spec.name.last, to: spec.lastName}
    - {from: string(v2.spec.years), to: spec.age}
    - from: v2.spec.palette
      to: spec.colours
      itemRules: [{from: self.label, to: item.name}, {from: self.tone, to: item.shade}]
    preserve: [spec.title]
`

// bed is a type of a test's own in a shared control plane, and a server that converts
// its objects.
type bed struct {
	*testing.T
	group string
	// definition is the type's, as YAML; liveDefinition if empty.
	definition string
	tree       map[string]any
	set        *conversion.Set
	table      *convert.Table
	// dir has the server's certificate, and address is where it listens.
	dir, address string
	ca           *authority
	handler      *convert.Handler
	certificates *Certificates
	log          await.Log
	logger       *slog.Logger
	leave, end   func()
	api          *http.Client
	host         string
}

func newBed(t *testing.T) *bed {
	t.Helper()
	return newBedOf(t, liveDefinition, liveRules)
}

// newBedOf returns a bed of another type, whose names are written $NAME and $GROUP.
func newBedOf(t *testing.T, definition, rules string) *bed {
	t.Helper()
	t.Parallel()
	group := strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-")) + ".example.io"
	b := &bed{T: t, group: group, definition: definition, table: &convert.Table{}, dir: t.TempDir(), ca: newAuthority(t)}
	b.logger = newLogger(b)
	b.connect()
	writeCertificate(t, b.dir, b.ca, "127.0.0.1")
	b.tree, b.set = b.compile(rules)
	var err error
	if b.certificates, err = LoadCertificates(b.dir, b.logger); err != nil {
		t.Fatal(err)
	}
	if b.handler, err = convert.New(convert.Config{Table: b.table, Log: b.logger}); err != nil {
		t.Fatal(err)
	}
	b.table.Hold("test", []*conversion.Set{b.set})
	b.listen("127.0.0.1:0")
	t.Cleanup(func() { b.end() })
	b.define(b.set)
	return b
}

func newLogger(b *bed) *slog.Logger { return slog.New(slog.NewTextHandler(&b.log, nil)) }

func (b *bed) connect() {
	b.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", devcluster.Start(b, "convert").Kubeconfig("convert"))
	if err != nil {
		b.Fatal(err)
	}
	cfg.QPS = -1
	if b.api, err = rest.HTTPClientFor(cfg); err != nil {
		b.Fatal(err)
	}
	b.host = strings.TrimSuffix(cfg.Host, "/")
}

// compile compiles rules against the definition.
func (b *bed) compile(rules string) (map[string]any, *conversion.Set) {
	b.Helper()
	named := strings.NewReplacer("$NAME", "people."+b.group, "$GROUP", b.group)
	tree := manifesttest.Tree(b, named.Replace(cmp.Or(b.definition, liveDefinition)))
	set, err := conversion.Compile(tree, []conversion.Document{{Tree: manifesttest.Tree(b, named.Replace(rules))}})
	if err != nil {
		b.Fatal(err)
	}
	return tree, set
}

// listen serves until b.end is called.
func (b *bed) listen(address string) {
	b.Helper()
	server, err := Listen(address, b.handler, b.certificates, b.logger, func(err error) { b.Errorf("serving: %v", err) })
	if err != nil {
		b.Fatal(err)
	}
	b.address, b.leave, b.end = server.Address.String(), server.Leave, sync.OnceFunc(server.End)
}

// define has the definition name a set, and waits until the API server converts by it.
func (b *bed) define(set *conversion.Set) {
	b.Helper()
	b.tree["spec"].(map[string]any)["conversion"] = map[string]any{"strategy": "Webhook", "webhook": map[string]any{
		"conversionReviewVersions": []any{"v1"},
		"clientConfig": map[string]any{
			"url":      "https://" + b.address + conversion.Path("dev", set.Name(), set.Digest()),
			"caBundle": base64.StdEncoding.EncodeToString(b.certificates.Authority()),
		},
	}}
	b.must(b.apply("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/people."+b.group, "test", true, b.tree))
	await.True(b, "both versions are served", func() bool {
		for _, version := range []string{"v1", "v2"} {
			if status, _ := b.send(http.MethodGet, b.people(version, ""), "", nil); status != http.StatusOK {
				return false
			}
		}
		return true
	})
}

func (b *bed) people(version, name string) string {
	return strings.TrimSuffix("/apis/"+b.group+"/"+version+"/namespaces/default/people/"+name, "/")
}

// person is an object of the type.
func (b *bed) person(version, name, spec string) map[string]any {
	b.Helper()
	tree := manifesttest.Tree(b, "apiVersion: "+b.group+"/"+version+"\nkind: Person\nmetadata: {name: "+name+", namespace: default}\n")
	if spec != "" {
		tree["spec"] = manifesttest.Tree(b, "a: "+spec)["a"]
	}
	return tree
}

func (b *bed) send(method, path, contentType string, body any) (int, map[string]any) {
	b.Helper()
	status, tree, err := b.try(method, path, contentType, body)
	if err != nil {
		b.Fatal(err)
	}
	return status, tree
}

func (b *bed) try(method, path, contentType string, body any) (int, map[string]any, error) {
	var text []byte
	switch body := body.(type) {
	case nil:
	case string:
		text = []byte(body)
	default:
		var err error
		if text, err = json.Marshal(body); err != nil {
			return 0, nil, err
		}
	}
	req, err := http.NewRequestWithContext(b.Context(), method, b.host+path, bytes.NewReader(text))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Content-Type", contentType)
	resp, err := b.api.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, nil, err
	}
	tree, err := conversion.Decode(answer)
	if err != nil {
		tree = map[string]any{"message": string(answer)}
	}
	return resp.StatusCode, tree, nil
}

func (b *bed) must(status int, tree map[string]any) map[string]any {
	b.Helper()
	if status >= 300 {
		b.Fatalf("%d %v", status, tree["message"])
	}
	return tree
}

func (b *bed) apply(path, manager string, force bool, tree map[string]any) (int, map[string]any) {
	b.Helper()
	return b.send(http.MethodPatch, fmt.Sprintf("%s?fieldManager=%s&force=%t", path, manager, force), "application/apply-patch+yaml", tree)
}

func (b *bed) create(o map[string]any) map[string]any {
	b.Helper()
	_, version := manifest.GroupVersion(manifest.Text(o, "apiVersion"))
	return b.must(b.send(http.MethodPost, b.people(version, ""), "application/json", o))
}

func (b *bed) get(version, name string) map[string]any {
	b.Helper()
	return b.must(b.send(http.MethodGet, b.people(version, name), "", nil))
}

// spec compares an object's spec, written as YAML.
func (b *bed) spec(o map[string]any, want string) {
	b.Helper()
	have, err := json.Marshal(o["spec"])
	if err != nil {
		b.Fatal(err)
	}
	wanted, err := json.Marshal(manifesttest.Tree(b, "a: "+want)["a"])
	if err != nil {
		b.Fatal(err)
	}
	if !bytes.Equal(have, wanted) {
		b.Errorf("%s\n%s\nwant\n%s", manifest.Text(o, "apiVersion"), have, wanted)
	}
}

// stash is the annotation of an object.
func stash(o map[string]any) string {
	text, _ := manifest.Mapping(o, "metadata", "annotations")[manifest.ConversionStashAnnotation].(string)
	return text
}

// Objects are created, read, listed, watched, updated, patched and deleted in both
// versions, and come back as they were.
func TestLiveVerbs(t *testing.T) {
	b := newBed(t)
	const (
		inV1 = `{age: "42", born: "2020-01-02T03:04:05.000Z", colours: [{name: red, shade: dark}, {name: blue}], firstName: Ada, lastName: Lovelace, note: kept, number: 9007199254740993}`
		inV2 = `{born: "2020-01-02T03:04:05.000Z", name: {first: Ada, last: Lovelace}, number: 9007199254740993, palette: [{label: red, tone: dark}, {label: blue}], years: 42}`
	)
	b.spec(b.create(b.person("v1", "ada", inV1)), inV1)
	b.spec(b.get("v2", "ada"), inV2)
	b.spec(b.get("v1", "ada"), inV1)
	if o := b.get("v1", "ada"); stash(o) != "" {
		t.Errorf("the stored version has a stash: %s", stash(o))
	}
	// Created in the version that is not stored, with a field that the other lacks.
	b.spec(b.create(b.person("v2", "bob", `{name: {first: Bob}, title: Dr}`)), `{name: {first: Bob}, title: Dr}`)
	b.spec(b.get("v1", "bob"), `{firstName: Bob}`)
	b.spec(b.get("v2", "bob"), `{name: {first: Bob}, title: Dr}`)

	list := b.get("v2", "")
	var names []string
	for _, item := range manifest.List(list, "items") {
		names = append(names, manifest.Text(item.(map[string]any), "metadata", "name")+" "+manifest.Text(item.(map[string]any), "spec", "name", "first"))
	}
	if want := []string{"ada Ada", "bob Bob"}; !slices.Equal(names, want) {
		t.Errorf("the list has %q, want %q", names, want)
	}

	// Update in the other version: an edit there wins, and what it cannot hold stays.
	events := b.watch("v1", manifest.Text(list, "metadata", "resourceVersion"))
	o := b.get("v2", "ada")
	o["spec"].(map[string]any)["name"] = map[string]any{"first": "Augusta", "last": "King"}
	o["spec"].(map[string]any)["palette"] = []any{map[string]any{"label": "blue"}, map[string]any{"label": "red", "tone": "light"}}
	b.must(b.send(http.MethodPut, b.people("v2", "ada"), "application/json", o))
	const edited = `{age: "42", born: "2020-01-02T03:04:05.000Z", colours: [{name: blue}, {name: red, shade: light}], firstName: Augusta, lastName: King, note: kept, number: 9007199254740993}`
	b.spec(b.get("v1", "ada"), edited)
	e := events()
	b.spec(e["object"].(map[string]any), edited)
	if e["type"] != "MODIFIED" {
		t.Errorf("the event is %v", e["type"])
	}

	b.must(b.send(http.MethodPatch, b.people("v2", "ada"), "application/merge-patch+json", `{"spec":{"years":43,"name":{"last":null}}}`))
	b.spec(b.get("v1", "ada"), strings.NewReplacer(`"42"`, `"43"`, "lastName: King, ", "").Replace(edited))
	b.must(b.send(http.MethodPatch, b.people("v1", "ada"), "application/json-patch+json", `[{"op":"remove","path":"/spec/note"},{"op":"replace","path":"/spec/firstName","value":"A"}]`))
	b.spec(b.get("v2", "ada"), `{born: "2020-01-02T03:04:05.000Z", name: {first: A}, number: 9007199254740993, palette: [{label: blue}, {label: red, tone: light}], years: 43}`)

	b.must(b.send(http.MethodDelete, b.people("v2", "ada"), "", nil))
	if status, _ := b.send(http.MethodGet, b.people("v1", "ada"), "", nil); status != http.StatusNotFound {
		t.Errorf("deleted, and there: %d", status)
	}
}

// watch follows the type in a version, and returns a function that waits for the next
// event.
func (b *bed) watch(version, from string) func() map[string]any {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	b.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.host+b.people(version, "")+"?watch=true&resourceVersion="+from, nil)
	if err != nil {
		b.Fatal(err)
	}
	resp, err := b.api.Do(req)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { resp.Body.Close() })
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	return func() map[string]any {
		b.Helper()
		if !lines.Scan() {
			b.Fatalf("the watch ended: %v", lines.Err())
		}
		event, err := conversion.Decode(lines.Bytes())
		if err != nil {
			b.Fatal(err)
		}
		return event
	}
}

// Two managers apply in different versions, each a part of the object: each has its
// fields, conflicts are found across versions, and what one leaves out goes.
func TestLiveApply(t *testing.T) {
	b := newBed(t)
	path := func(version string) string { return b.people(version, "eve") }
	b.must(b.apply(path("v1"), "one", false, b.person("v1", "eve", `{firstName: Eve, note: kept}`)))
	b.must(b.apply(path("v2"), "two", false, b.person("v2", "eve", `{name: {last: Doe}, palette: [{label: red, tone: dark}], title: Dr}`)))
	b.spec(b.get("v1", "eve"), `{colours: [{name: red, shade: dark}], firstName: Eve, lastName: Doe, note: kept}`)
	b.spec(b.get("v2", "eve"), `{name: {first: Eve, last: Doe}, palette: [{label: red, tone: dark}], title: Dr}`)

	// An empty object of a third manager, and one with labels alone.
	b.must(b.apply(path("v2"), "three", false, b.person("v2", "eve", "")))
	b.must(b.apply(path("v2"), "four", false, b.person("v2", "eve", "{}")))
	labelled := b.person("v1", "eve", "")
	labelled["metadata"].(map[string]any)["labels"] = map[string]any{"a.example.io/team": "x"}
	b.must(b.apply(path("v1"), "five", false, labelled))
	if have := manifest.Mapping(b.get("v2", "eve"), "metadata", "labels")["a.example.io/team"]; have != "x" {
		t.Errorf("the label is %v", have)
	}

	if status, answer := b.apply(path("v2"), "two", false, b.person("v2", "eve", `{name: {first: Eva, last: Doe}, title: Dr}`)); status != http.StatusConflict || !strings.Contains(fmt.Sprint(answer["message"]), `conflict with "one"`) {
		t.Errorf("two managers set one field: %d %v", status, answer["message"])
	}
	b.must(b.apply(path("v2"), "two", true, b.person("v2", "eve", `{name: {first: Eva, last: Doe}, title: Dr}`)))
	b.spec(b.get("v1", "eve"), `{firstName: Eva, lastName: Doe, note: kept}`)
	b.must(b.apply(path("v1"), "one", false, b.person("v1", "eve", `{note: changed}`)))
	b.must(b.apply(path("v2"), "two", false, b.person("v2", "eve", `{name: {last: Doe}}`)))
	b.spec(b.get("v1", "eve"), `{lastName: Doe, note: changed}`)
	b.spec(b.get("v2", "eve"), `{name: {last: Doe}}`)
}

// An object that a rule fails on is listed with all others, without the one field, and
// loses nothing.
func TestLiveFailingObject(t *testing.T) {
	b := newBed(t)
	b.create(b.person("v1", "good", `{age: "7", firstName: Good}`))
	b.create(b.person("v1", "odd", `{age: mystery, firstName: Odd}`))
	items := manifest.List(b.get("v2", ""), "items")
	if len(items) != 2 {
		t.Fatalf("%d objects", len(items))
	}
	b.spec(items[0].(map[string]any), `{name: {first: Good}, years: 7}`)
	b.spec(items[1].(map[string]any), `{name: {first: Odd}}`)
	b.must(b.send(http.MethodPatch, b.people("v2", "odd"), "application/merge-patch+json", `{"spec":{"name":{"last":"One"}}}`))
	b.spec(b.get("v1", "odd"), `{age: mystery, firstName: Odd, lastName: One}`)
	if !strings.Contains(b.log.String(), "a conversion rule failed") || strings.Contains(b.log.String(), "mystery") {
		t.Errorf("the log is %s", b.log.String())
	}
}

// While nothing serves, the stored version can be read and written, the other cannot,
// and nothing is lost; then all is as before.
func TestLiveDownAndBack(t *testing.T) {
	b := newBed(t)
	b.create(b.person("v2", "kim", `{name: {first: Kim}, title: Dr}`))
	b.end()
	b.get("v1", "kim")
	if status, answer := b.send(http.MethodGet, b.people("v2", "kim"), "", nil); status < 500 || !strings.Contains(fmt.Sprint(answer["message"]), "conversion webhook") {
		t.Errorf("nothing serves: %d %v", status, answer["message"])
	}
	b.must(b.send(http.MethodPatch, b.people("v1", "kim"), "application/merge-patch+json", `{"spec":{"note":"while down"}}`))
	b.listen(b.address)
	await.True(b, "v2 is back", func() bool {
		status, _ := b.send(http.MethodGet, b.people("v2", "kim"), "", nil)
		return status == http.StatusOK
	})
	b.spec(b.get("v2", "kim"), `{name: {first: Kim}, title: Dr}`)
	b.spec(b.get("v1", "kim"), `{firstName: Kim, note: while down}`)
}

// A review for rules that are not served says so in the API server's error.
func TestLiveUnknownRules(t *testing.T) {
	b := newBed(t)
	b.create(b.person("v1", "lea", `{firstName: Lea}`))
	_, other := b.compile(strings.Replace(liveRules, "preserve: [spec.note]", "drop: [spec.note]", 1))
	b.tree["spec"].(map[string]any)["versions"].([]any)[1].(map[string]any)["served"] = true
	client := manifest.Mapping(b.tree, "spec", "conversion", "webhook", "clientConfig")
	client["url"] = "https://" + b.address + conversion.Path("dev", other.Name(), other.Digest())
	b.must(b.apply("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/people."+b.group, "test", true, b.tree))
	await.True(b, "the error says what is missing", func() bool {
		_, answer := b.send(http.MethodGet, b.people("v2", "lea"), "", nil)
		return strings.Contains(fmt.Sprint(answer["message"]), "gitopsd does not serve the conversion rules of people."+b.group)
	})
}

// Rules and certificate are replaced while objects are read and written in a
// loop, and no request fails.
func TestLiveSwap(t *testing.T) {
	b := newBed(t)
	b.create(b.person("v1", "max", `{firstName: Max, note: text}`))
	sets := []*conversion.Set{b.set}
	_, other := b.compile(strings.Replace(liveRules, "{from: int(v1.spec.age), to: spec.years}", "{from: int(v1.spec.age + ''), to: spec.years}", 1))
	sets = append(sets, other)
	stop := make(chan struct{})
	var made atomic.Int64
	var loop sync.WaitGroup
	loop.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			for _, request := range []struct{ method, contentType, body string }{
				{http.MethodGet, "", ""}, {http.MethodPatch, "application/merge-patch+json", fmt.Sprintf(`{"spec":{"years":%d}}`, made.Load())},
			} {
				status, answer, err := b.try(request.method, b.people("v2", "max"), request.contentType, request.body)
				if n := made.Add(1); err != nil || status != http.StatusOK {
					b.Errorf("request %d: %d %v %v", n, status, answer["message"], err)
					return
				}
			}
		}
	})
	for i := range 6 {
		writeCertificate(t, b.dir, b.ca, "127.0.0.1")
		if changed, err := b.certificates.reload(); !changed || err != nil {
			t.Errorf("the certificate: %t %v", changed, err)
		}
		next := sets[(i+1)%2]
		b.table.Hold("test", []*conversion.Set{next}) // compiled before the definition names it
		b.define(next)
		before := made.Load()
		await.True(b, "requests by the new rules", func() bool { return made.Load() > before+10 || b.Failed() })
	}
	close(stop)
	loop.Wait()
	t.Logf("%d requests", made.Load())
}
