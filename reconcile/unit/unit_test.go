package unit

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/checkpoint"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/migrate"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/sources/clusters"
	"gitopsd.dev/testscripts/devcluster"
)

func TestMain(m *testing.M) { os.Exit(devcluster.Main(m)) }

// filler fills in the ConfigMap settings and creates the Secret connection, with given
// contents.
type filler struct {
	bundle  string // "" if nothing is filled in, "?" if it is not known
	token   string
	again   time.Time
	serving bool
	err     error
	// steals has it make an object that the repository has.
	steals bool
	// preview is what it was asked last.
	preview bool
}

func (f *filler) Complete(_ context.Context, r Request) (Completion, error) {
	f.preview = r.Preview
	if f.err != nil {
		return Completion{}, f.err
	}
	var made []*manifest.Object
	for _, o := range r.Objects.All() {
		if o.ID().Name != "settings" || f.bundle == "" {
			continue
		}
		tree := maps.Clone(o.Tree())
		data := maps.Clone(tree["data"].(map[string]any))
		tree["data"] = data
		var unknown []string
		if f.bundle == "?" {
			unknown = append(unknown, "data.bundle")
		} else {
			data["bundle"] = f.bundle
		}
		completed, err := o.Complete(tree, unknown...)
		if err != nil {
			return Completion{}, err
		}
		made = append(made, completed)
	}
	if f.token != "" || f.steals {
		kind := "Secret"
		id := map[string]any{"name": "connection", "namespace": r.Unit.Name}
		if f.steals {
			kind, id["name"] = "ConfigMap", "settings"
		}
		base, err := manifest.New(map[string]any{"apiVersion": "v1", "kind": kind, "metadata": id}, manifest.Origin{})
		if err != nil {
			return Completion{}, err
		}
		tree := maps.Clone(base.Tree())
		tree["data"] = map[string]any{"token": base64.StdEncoding.EncodeToString([]byte(f.token))}
		o, err := base.Complete(tree)
		if err != nil {
			return Completion{}, err
		}
		made = append(made, o)
	}
	return Completion{Objects: made, Again: f.again, Serving: f.serving}, nil
}

// bed is a unit of a test's own, in a control plane that all tests share.
type bed struct {
	t    *testing.T
	name string
	log  bytes.Buffer
	conn *Connection
	want *desired.Unit
	// migrations are for the next connection.
	migrations *migrate.KeeperConfig
}

func newBed(t *testing.T, completers ...Completer) *bed {
	t.Helper()
	t.Parallel()
	b := &bed{t: t, name: strings.ToLower(t.Name())}
	b.connect(completers...)
	b.wants(settings)
	return b
}

// connect connects anew, as another process does.
func (b *bed) connect(completers ...Completer) {
	b.t.Helper()
	planes := devcluster.Start(b.t, "unit")
	kubeconfig, err := os.ReadFile(planes.Kubeconfig("unit"))
	if err != nil {
		b.t.Fatal(err)
	}
	client, err := kube.New(kube.Config{Name: b.name, Kubeconfig: kubeconfig})
	if err != nil {
		b.t.Fatal(err)
	}
	b.conn, err = New(Config{
		Unit: desired.ID{Cluster: b.name}, Client: client, Fleet: apply.Fleet{Name: "fleet"}, Completers: completers,
		Migrations: b.migrations, Log: slog.New(slog.NewTextHandler(&b.log, nil)),
	})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(b.conn.Close)
}

const settings = `
apiVersion: v1
kind: Namespace
metadata: {name: $NAME}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: $NAME}
data: {mood: good}
`

// wants has the unit have these objects; $NAME in them is the bed's name.
func (b *bed) wants(text string) {
	b.t.Helper()
	b.want = desired.Registered(clusters.Cluster{Name: b.name}, "c1")
	b.want.Objects = manifesttest.Set(b.t, strings.ReplaceAll(text, "$NAME", b.name))
}

// plan returns the steps of a preview that change something, with their changes.
func (b *bed) plan() []string {
	b.t.Helper()
	p, err := b.conn.Plan(b.t.Context(), b.want)
	if err != nil {
		b.t.Fatal(err)
	}
	var lines []string
	for _, s := range p.Steps {
		if s.Action == plan.Unchanged {
			continue
		}
		line := fmt.Sprintf("%s %s %s", s.Action, s.ID.Name, s.Reason)
		for _, c := range s.Changes {
			line += "; " + c.String()
		}
		lines = append(lines, strings.TrimSpace(line))
	}
	return lines
}

func (b *bed) expect(want ...string) {
	b.t.Helper()
	if have := b.plan(); !slices.Equal(have, want) {
		b.t.Errorf("plan:\n  %s\nwant:\n  %s", strings.Join(have, "\n  "), strings.Join(want, "\n  "))
	}
}

// apply applies, and checks the phase.
func (b *bed) apply(phase status.Phase) Outcome {
	b.t.Helper()
	o := b.conn.Apply(b.t.Context(), b.want)
	if o.Phase != phase {
		b.t.Fatalf("%s: %s %v; want %s", o.Phase, o.Message, o.Problems, phase)
	}
	return o
}

// Filled-in values are in the plan and are applied. A later change of them does not look
// like a change in the repository.
func TestComplete(t *testing.T) {
	f := &filler{bundle: "one"}
	b := newBed(t, f)
	b.expect("create "+b.name, "create settings")
	if !f.preview {
		t.Error("a plan was not asked for as a preview")
	}
	if o := b.apply(status.Ready); o.Changed != 2 || o.Checkpoint == nil || f.preview {
		t.Errorf("outcome %+v, preview %v", o, f.preview)
	}
	b.expect()
	f.bundle = "two"
	b.expect(`configure settings filled in anew: data.bundle; data.bundle: "one" -> "two"`)
	b.apply(status.Ready)
	b.connect(f) // another process finds what this one recorded
	b.expect()

	b.wants(strings.ReplaceAll(settings, "good", "better"))
	b.expect(`configure settings changed in the repository; data.mood: "good" -> "better"`)
	b.apply(status.Ready)
	f.bundle = ""
	b.expect(`configure settings no longer filled in; data.bundle: - "two"`)
	if o := b.apply(status.Ready); o.Changed != 1 {
		t.Errorf("outcome %+v", o)
	}
	f.bundle = "three"
	b.expect(`configure settings filled in anew: data.bundle; data.bundle: + "three"`)
}

// A value that is not known yet is said to be, is no change by itself, and is never
// applied without.
func TestUnknown(t *testing.T) {
	f := &filler{bundle: "?"}
	b := newBed(t, f)
	b.expect("create "+b.name, "create settings ; data.bundle: (known after apply)")
	o := b.apply(status.Progressing)
	if o.Message != "1 object is not ready yet" || len(o.Problems) != 1 || o.Problems[0].Reason != "not known yet: data.bundle" {
		t.Errorf("outcome %+v", o)
	}
	f.bundle = "one"
	b.apply(status.Ready)
	f.bundle = "?"
	b.expect()
	b.apply(status.Ready)
	b.wants(strings.ReplaceAll(settings, "good", "better"))
	b.expect(`configure settings changed in the repository; data.bundle: (known after apply); data.mood: "good" -> "better"`)
	b.apply(status.Progressing)
	f.bundle = "one"
	b.expect(`configure settings changed in the repository; data.mood: "good" -> "better"`)
}

// unknowing leaves fields of objects unknown, by their names.
type unknowing map[string]string

func (u unknowing) Complete(_ context.Context, r Request) (Completion, error) {
	var c Completion
	for _, o := range r.Objects.All() {
		if path := u[o.ID().Name]; path != "" {
			left, err := o.Complete(o.Tree(), path)
			if err != nil {
				return c, err
			}
			c.Objects = append(c.Objects, left)
		}
	}
	return c, nil
}

// An object that waits for a field keeps the objects that it replaces, and its dependents
// do not count as faults.
func TestUnknownHoldsBack(t *testing.T) {
	u := unknowing{}
	b := newBed(t, u)
	of := func(name string) string {
		return "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + ", namespace: $NAME, labels: {gitopsd.dev/package: web}}\n"
	}
	b.wants(settings + of("old"))
	b.apply(status.Ready)
	b.wants(settings + of("new"))
	u["new"] = "data.bundle"
	b.apply(status.Progressing)
	if have := b.plan(); !slices.Contains(have, "prune old") {
		t.Errorf("what is replaced is gone before its replacement: %q", have)
	}
	delete(u, "new")
	b.apply(status.Ready)
	b.expect()

	w := "---\napiVersion: unit.example.org/v1\nkind: Widget\nmetadata: {name: w, namespace: $NAME}\n"
	b.wants(settings + of("new") + widgets + w)
	u["widgets.unit.example.org"] = "spec.conversion.webhook.clientConfig.caBundle"
	if o := b.apply(status.Progressing); o.Message != "2 objects are not ready yet" {
		t.Errorf("outcome %+v", o)
	}
	delete(u, "widgets.unit.example.org")
	b.apply(status.Ready)
	b.wants(settings + of("new") + strings.ReplaceAll(widgets, "kind: Widget}", "kind: Widget, categories: [all]}") + w + strings.Replace(w, "name: w", "name: v", 1))
	u["widgets.unit.example.org"] = "spec.conversion.webhook.clientConfig.caBundle"
	b.apply(status.Progressing)
	if have := b.plan(); slices.Contains(have, "create v") {
		t.Errorf("a type that is there was not used: %q", have)
	}
}

const widgets = `
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.unit.example.org}
spec:
  group: unit.example.org
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object}}
`

// refusing refuses objects, by their names.
type refusing map[string]string

func (r refusing) Complete(_ context.Context, q Request) (Completion, error) {
	c := Completion{Refused: make(map[manifest.ID]string)}
	for _, o := range q.Objects.All() {
		if why := r[o.ID().Name]; why != "" {
			c.Refused[o.ID()] = why
		}
	}
	return c, nil
}

// A new controller does not meet the old types, whoever refuses the new ones. Renewed values
// do not wait.
func TestRefusedDefinition(t *testing.T) {
	f, r := &filler{bundle: "one"}, refusing{}
	b := newBed(t, f, r)
	const of = ", labels: {gitopsd.dev/package: web}}"
	objects := strings.Replace(settings, "namespace: $NAME}", "namespace: $NAME"+of, 1) + `
---
apiVersion: v1
kind: ConfigMap
metadata: {name: controller, namespace: $NAME` + of + `
data: {version: v1}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: other, namespace: $NAME}
data: {version: v1}
` + strings.NewReplacer("unit.example.org}", "refused.example.org"+of, "unit.example.org", "refused.example.org").Replace(widgets)
	b.wants(objects)
	b.apply(status.Ready)

	f.bundle = "two"
	r["widgets.refused.example.org"] = "nobody serves it"
	r["other"] = "no reason"
	b.wants(strings.NewReplacer("kind: Widget}", "kind: Widget, categories: [all]}", "version: v1", "version: v2").Replace(objects))
	b.expect("refused widgets.refused.example.org nobody serves it",
		"refused controller its package has a definition that is refused: widgets.refused.example.org",
		"refused other no reason",
		`configure settings filled in anew: data.bundle; data.bundle: "one" -> "two"`)
	b.apply(status.Failed)

	// The definition is as before: its package has not changed its types.
	b.wants(strings.ReplaceAll(objects, "version: v1", "version: v2"))
	b.expect("refused widgets.refused.example.org nobody serves it", `configure controller changed in the repository; data.version: "v1" -> "v2"`, "refused other no reason")
}

// A field that is not known yet may be one that the API server requires.
func TestUnknownRequired(t *testing.T) {
	u := unknowing{"tls": `data["tls.crt"]`}
	b := newBed(t, u)
	b.apply(status.Ready)
	b.wants(settings + `
---
apiVersion: v1
kind: Secret
metadata: {name: tls, namespace: $NAME}
type: kubernetes.io/tls
data: {tls.key: aHVudGVy}
`)
	p, err := b.conn.Plan(t.Context(), b.want)
	if err != nil {
		t.Fatal(err)
	}
	if p.Failing() != 0 {
		t.Errorf("a plan fails at what it does not know: %+v", p.Steps)
	}
	b.apply(status.Progressing)
}

// An unknown value may become known although nothing changes in the cluster, so there is
// no checkpoint.
func TestUnknownHasNoCheckpoint(t *testing.T) {
	f := &filler{bundle: "one"}
	b := newBed(t, f)
	b.apply(status.Ready)
	f.bundle = "?"
	if o := b.apply(status.Ready); o.Checkpoint != nil {
		t.Error("a unit with an unknown field has a checkpoint")
	}
}

// The form in which an object is applied is no change in the repository.
func TestNormalizedIsRendered(t *testing.T) {
	u := unknowing{}
	b := newBed(t, u)
	b.wants(settings + `
---
apiVersion: v1
kind: Secret
metadata: {name: password, namespace: $NAME}
stringData: {password: hunter}
`)
	b.apply(status.Ready)
	u["password"] = "data.other"
	b.expect()
	b.apply(status.Ready)
}

// Added objects are like all others of the unit: hidden in a Secret, corrected, and
// pruned when they are no longer added. They never replace an object of the repository.
func TestAdded(t *testing.T) {
	f := &filler{token: "s3cret"}
	b := newBed(t, f)
	b.apply(status.Ready)
	f.token = "s4cret"
	b.expect("configure connection filled in anew: data.token; data.token: (changed)")
	b.apply(status.Ready)
	f.token = ""
	b.expect("prune connection")
	f.steals = true
	_, err := b.conn.Plan(t.Context(), b.want)
	if err == nil || !strings.Contains(err.Error(), "settings is in the repository (test.yaml:6) and made by gitopsd as well") {
		t.Errorf("error: %v", err)
	}
	f.err = errors.New("the signer is away")
	if o := b.apply(status.Failed); o.Message != "the signer is away" {
		t.Errorf("outcome %+v", o)
	}
	if strings.Contains(b.log.String(), "cret\"") {
		t.Errorf("the log has the token: %s", b.log.String())
	}
}

// A unit that this process serves has no checkpoint, and one that expires is moved
// when it does.
func TestCheckpoint(t *testing.T) {
	f := &filler{bundle: "one", serving: true}
	b := newBed(t, f)
	if o := b.apply(status.Ready); o.Checkpoint != nil {
		t.Errorf("a unit that is served has a checkpoint: %+v", o)
	}
	f.serving, f.again = false, time.Now().Add(time.Hour)
	o := b.apply(status.Ready)
	if o.Checkpoint == nil || !o.Again.Equal(f.again) {
		t.Fatalf("outcome %+v", o)
	}
	b.connect(f)
	at := &checkpoint.Record{Cluster: o.Checkpoint, Objects: 2, Again: o.Again}
	if o := b.conn.Resume(t.Context(), at); o.Phase != status.Ready || o.Moved || !o.Again.Equal(f.again) {
		t.Errorf("outcome %+v", o)
	}
	at.Again = time.Now().Add(-time.Hour)
	if o := b.conn.Resume(t.Context(), at); !o.Moved {
		t.Errorf("outcome %+v", o)
	}
}

// Problems name the object and the reason apart from each other.
func TestProblems(t *testing.T) {
	b := newBed(t)
	b.wants(settings + `
---
apiVersion: v1
kind: Service
metadata: {name: bad, namespace: $NAME, labels: {gitopsd.dev/package: web}}
spec: {ports: [{port: 80000}]}
---
apiVersion: example.org/v1
kind: Missing
metadata: {name: m, namespace: $NAME}
`)
	o := b.apply(status.Failed)
	if o.Message != "2 of 4 objects failed to apply" || len(o.Problems) != 2 || o.Packages["web"] != "Failed" {
		t.Fatalf("outcome %+v", o)
	}
	slices.SortFunc(o.Problems, func(x, y problem.Problem) int { return strings.Compare(x.Object, y.Object) })
	for i, want := range []struct{ object, reason string }{
		{"missing.example.org/" + b.name + "/m", "refused: the cluster serves no kind Missing"},
		{"service/" + b.name + "/bad", "apply: spec.ports[0].port"},
	} {
		p := o.Problems[i]
		if p.Cluster != b.name || p.Object != want.object || !strings.HasPrefix(p.Reason, want.reason) {
			t.Errorf("problem %+v, want %+v", p, want)
		}
	}
}

// The options of a plan that annotations of the registration set are checked.
func TestOptions(t *testing.T) {
	for annotation, want := range map[string]string{
		manifest.AllowPruneAnnotation: `clusters.yaml: gitopsd.dev/allow-prune on cluster dev: "x y" is not a number of objects`,
		manifest.AdoptAnnotation:      `clusters.yaml: gitopsd.dev/adopt on cluster dev: `,
	} {
		u := desired.Registered(clusters.Cluster{Name: "dev", Annotations: map[string]string{annotation: "x y"}}, "")
		if _, err := options(u); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("error: %v\nwant:  %s", err, want)
		}
	}
}
