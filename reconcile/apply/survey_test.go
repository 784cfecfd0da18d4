package apply_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types/compat"
	"gitopsd.dev/sources/errgroup"
)

var all = flag.Bool("all", false, "judge 10,000 objects of 40 types")

// harms are ways in which a new version of a type can harm objects: the schema of
// spec before and after, and an object that is harmed and one that is not.
var harms = []struct{ before, after, harmed, unharmed string }{
	{`colour: {type: string}, size: {type: integer}`, `size: {type: integer}`, `{colour: red}`, `{size: 1}`},
	{`size: {type: integer, maximum: 100}`, `size: {type: integer, maximum: 10}`, `{size: 50}`, `{size: 10}`},
	{`mode: {type: string, enum: [slow, fast]}`, `mode: {type: string, enum: [fast]}`, `{mode: slow}`, `{mode: fast}`},
	{`owner: {type: string}`, `owner: {type: string}`, `{}`, `{owner: me}`}, // required after
	{`weight: {type: integer}, size: {type: integer}`, `weight: {type: string}, size: {type: integer}`, `{weight: 3}`, `{size: 3}`},
	{`low: {type: integer}, high: {type: integer}`, `low: {type: integer}, high: {type: integer}`, `{low: 3, high: 2}`, `{low: 2, high: 3}`}, // a rule after
	{`tier: {type: string}`, `tier: {type: string, default: gold}`, `{}`, `{tier: silver}`},
	{`names: {type: array, items: {type: string}}`, `names: {type: array, items: {type: string}, x-kubernetes-list-type: set}`, `{names: [a, a]}`, `{names: [a, b]}`},
	{`ports: {type: array, items: {type: object, properties: {port: {type: integer}, name: {type: string}}}}`, `ports: {type: array, items: {type: object, properties: {port: {type: integer}}}}`, `{ports: [{port: 1}, {port: 2, name: web}]}`, `{ports: [{port: 1}]}`},
	{`tags: {type: object, additionalProperties: {type: string}}`, `tags: {type: object, additionalProperties: {type: string, maxLength: 3}}`, `{tags: {a: long}}`, `{tags: {a: abc}}`},
}

// surveyed are the types of the measured test, with their objects.
type population struct {
	*bed
	client     *http.Client
	host       string
	types      int
	perType    int
	harmedEach int
}

func (p *population) definitions(after bool) string {
	var b strings.Builder
	for i := range p.types {
		h := harms[i%len(harms)]
		properties, more := h.before, ""
		if after {
			properties = h.after + ", probe: {type: boolean}"
			switch i % len(harms) {
			case 3:
				more = ", required: [owner]"
			case 5:
				more = ", x-kubernetes-validations: [{rule: '!has(self.low) || self.low <= self.high', message: low is above high}]"
			}
		}
		fmt.Fprintf(&b, `
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things%[1]d.$NAME.example.org}
spec:
  group: $NAME.example.org
  scope: Namespaced
  names: {kind: Thing%[1]d, plural: things%[1]d}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {%[2]s}%[3]s}}}}}
`, i, properties, more)
	}
	return b.String()
}

func (p *population) path(kind int, name string) string {
	return fmt.Sprintf("%s/apis/%s.example.org/v1/namespaces/default/things%d%s", p.host, p.name, kind, name)
}

// send sends an object, and returns the answer's status and object. It sends it again while
// the API server asks for that, as it does just after a definition has changed.
func (p *population) send(method, url string, body []byte) (code int, tree map[string]any, err error) {
	for code = http.StatusTooManyRequests; code == http.StatusTooManyRequests && err == nil; {
		if code, tree, err = p.sendOnce(method, url, body); code == http.StatusTooManyRequests {
			err = cmp.Or(err, kube.Sleep(p.t.Context(), 100*time.Millisecond))
		}
	}
	return code, tree, err
}

func (p *population) sendOnce(method, url string, body []byte) (int, map[string]any, error) {
	req, err := http.NewRequestWithContext(p.t.Context(), method, url, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := p.client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, nil, err
	}
	var tree map[string]any
	return resp.StatusCode, tree, json.Unmarshal(text, &tree)
}

func (p *population) body(kind int, name, spec string) []byte {
	o := p.set(fmt.Sprintf("{apiVersion: $NAME.example.org/v1, kind: Thing%d, metadata: {namespace: default, name: %s}, spec: %s}", kind, name, spec)).All()[0]
	return o.AppendJSON(nil)
}

// each calls do for every object, several at a time.
func (p *population) each(do func(kind int, name string) error) {
	p.t.Helper()
	var g errgroup.Group
	g.SetLimit(8)
	for kind := range p.types {
		for i := range p.perType {
			g.Go(func() error { return do(kind, fmt.Sprintf("o%04d", i)) })
		}
	}
	if err := g.Wait(); err != nil {
		p.t.Fatal(err)
	}
}

// A plan names exactly the objects that the API server, asked after the change, shows
// otherwise, refuses to write as they are, or would not create again.
func TestSurveyAgainstServer(t *testing.T) {
	p := newPopulation(t)
	b := p.bed
	p.types, p.perType, p.harmedEach = len(harms), 8, 2
	if *all {
		p.types, p.perType, p.harmedEach = 40, 250, 5
	}
	b.apply(b.set(p.definitions(false)))
	random := rand.New(rand.NewPCG(1, 2))
	seeded := make(map[string]bool)
	for kind := range p.types {
		for _, i := range random.Perm(p.perType)[:p.harmedEach] {
			seeded[fmt.Sprintf("thing%d/o%04d", kind, i)] = true
		}
	}
	p.each(func(kind int, name string) error {
		spec := harms[kind%len(harms)].unharmed
		if seeded[fmt.Sprintf("thing%d/%s", kind, name)] {
			spec = harms[kind%len(harms)].harmed
		}
		code, answer, err := p.send(http.MethodPost, p.path(kind, "")+"?fieldManager=app", p.body(kind, name, spec))
		if err == nil && code != http.StatusCreated {
			err = fmt.Errorf("create: %v", answer["message"])
		}
		return err
	})
	before := p.read()

	b.requests.take()
	after := b.set(p.definitions(true))
	named := make(map[string]bool)
	for _, s := range b.plan(after, apply.PlanOptions{}).Steps {
		if s.Action != plan.Refused || s.Survey == nil || s.Survey.Unknown != "" || s.Survey.Looked != p.perType || s.Survey.Harmed != len(s.Survey.Objects) {
			t.Fatalf("%s %s: %s; %+v", s.Action, s.ID, s.Reason, s.Survey)
		}
		for _, o := range s.Survey.Objects {
			kind := strings.TrimPrefix(s.ID.Name[:strings.Index(s.ID.Name, ".")], "things")
			named["thing"+kind+"/"+o.Name] = true
			for _, h := range o.Harms {
				if h.Path == "" || h.Kind == "lost" && !slices.Equal(h.Owners, []string{"app"}) {
					t.Errorf("%s %s: %+v", s.ID, o.Name, h)
				}
			}
		}
	}
	lists := make(map[string]int)
	for _, r := range b.requests.take() {
		if strings.Contains(r, "example.org/v1/things") {
			lists[r]++
		}
	}
	if pages := (p.perType + 249) / 250; len(lists) != p.types || slices.ContainsFunc(slices.Collect(maps.Values(lists)), func(n int) bool { return n != pages }) {
		t.Errorf("requests for objects: %v; want %d for each of %d types", lists, pages, p.types)
	}

	// The change is made all the same, and the API server is asked.
	changed := b.plan(after, apply.PlanOptions{Allowed: func(string, compat.Finding) (string, bool) { return "tested", true }})
	for i := range changed.Steps {
		changed.Steps[i].Action = plan.Configure // plain manifests allow for themselves
	}
	report := b.execute(changed)
	b.wantNothing("results", b.results(report))
	p.served()
	harmed := p.judge(before)
	for name := range named {
		if !harmed[name] {
			t.Errorf("%s is named, and the API server has nothing against it", name)
		}
	}
	for name := range harmed {
		if !named[name] {
			t.Errorf("%s is harmed, and is not named", name)
		}
	}
	if !maps.Equal(named, seeded) {
		t.Errorf("%d objects are named, %d were made to be harmed", len(named), len(seeded))
	}
}

// read reads all objects.
func (p *population) read() map[string]map[string]any {
	objects := make(map[string]map[string]any)
	for kind := range p.types {
		code, list, err := p.send(http.MethodGet, p.path(kind, ""), nil)
		if err != nil || code != http.StatusOK {
			p.t.Fatalf("list: %d %v %v", code, list["message"], err)
		}
		for _, item := range manifest.List(list, "items") {
			o := item.(map[string]any)
			objects[fmt.Sprintf("thing%d/%s", kind, manifest.Text(o, "metadata", "name"))] = o
		}
	}
	return objects
}

// served waits until every new type is served: they have a field more.
func (p *population) served() {
	for kind := range p.types {
		spec := strings.Replace(harms[kind%len(harms)].unharmed, "{", "{probe: true, ", 1)
		eventually(p.t, "the new type is served", func(context.Context) bool {
			code, _, err := p.send(http.MethodPost, p.path(kind, "")+"?dryRun=All&fieldValidation=Strict", p.body(kind, "probe", spec))
			return err == nil && code == http.StatusCreated
		})
	}
}

// judge returns the objects that the API server shows otherwise than before, or would
// accept neither as they are nor anew.
func (p *population) judge(before map[string]map[string]any) map[string]bool {
	now := p.read()
	harmed := make(map[string]bool)
	verdicts := make(chan string, len(before))
	p.each(func(kind int, name string) error {
		key := fmt.Sprintf("thing%d/%s", kind, name)
		was, is := before[key], now[key]
		bad := !reflect.DeepEqual(was["spec"], is["spec"])
		update, err := json.Marshal(is)
		if err != nil {
			return err
		}
		code, answer, err := p.send(http.MethodPut, p.path(kind, "/"+name)+"?dryRun=All", update)
		if err != nil || code != http.StatusOK && code != http.StatusUnprocessableEntity {
			return fmt.Errorf("update %s: %d %v %w", key, code, answer["message"], err)
		}
		bad = bad || code != http.StatusOK
		is["metadata"] = map[string]any{"name": "copy-of-" + name, "namespace": "default"}
		anew, err := json.Marshal(is)
		if err != nil {
			return err
		}
		code, answer, err = p.send(http.MethodPost, p.path(kind, "")+"?dryRun=All", anew)
		if err != nil || code != http.StatusCreated && code != http.StatusUnprocessableEntity {
			return fmt.Errorf("create %s: %d %v %w", key, code, answer["message"], err)
		}
		if bad || code != http.StatusCreated {
			verdicts <- key
		}
		return nil
	})
	close(verdicts)
	for key := range verdicts {
		harmed[key] = true
	}
	return harmed
}
