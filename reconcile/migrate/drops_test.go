package migrate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/render/types/harm"
	"gitopsd.dev/testscripts/await"
)

// noted are properties of v1alpha1, of which v1 only has the size.
const noted = "{size: {type: integer}, note: {type: string}}"

// note writes a note into an object in v1alpha1.
func (b *bench) note(name, text string) {
	b.Helper()
	alpha := b.widgets()
	alpha.Version = "v1alpha1"
	await.True(b, "the note is stored", func() bool {
		meta, err := b.cluster.GetMetadata(b.Context(), alpha, alpha.ID("default", name))
		if err == nil {
			err = b.cluster.Patch(b.Context(), alpha, alpha.ID("default", name), map[string]any{"spec": map[string]any{"note": text}}, meta.ResourceVersion)
		}
		return err == nil && slices.Contains(b.notes(), name+" "+text)
	})
}

// notes returns the notes that objects have.
func (b *bench) notes() (all []string) {
	b.Helper()
	alpha := b.widgets()
	alpha.Version = "v1alpha1"
	err := b.cluster.ListFull(b.Context(), alpha, kube.ListOptions{}, func(tree map[string]any) bool {
		if text := manifest.Text(tree, "spec", "note"); text != "" {
			all = append(all, manifest.Text(tree, "metadata", "name")+" "+text)
		}
		return true
	})
	if err != nil {
		b.Fatal(err)
	}
	return all
}

// Objects with a field that the storage version lacks are not stored again, unless that is
// permitted. A field that no object has is not lost.
func TestDrops(t *testing.T) {
	t.Parallel()
	b := shared(t, "drops.example")
	b.defineAs("v1alpha1", true, noted)
	b.create(5)
	b.note("w00003", "precious")
	b.defineAs("v1", true, noted)
	b.write("w00001", 7) // in v1
	old := []string{"v1alpha1", "v1"}
	m := b.migrator(nil)
	run := func() (Result, error) { return m.Run(t.Context(), b.crd()) }

	const lost = "v1 does not keep .spec.note of v1alpha1, which harms 1 of 5 objects: default/w00003 .spec.note would be dropped"
	r, err := run()
	if err == nil || !strings.Contains(err.Error(), "storing the objects again would drop fields: "+lost) || !strings.Contains(err.Error(), "`gitopsd migrate --yes --drop-fields "+b.crd()+"`") {
		t.Errorf("error %v", err)
	}
	if len(r.Drops) != 1 || r.Drops[0].Version != "v1alpha1" || !slices.Equal(r.Drops[0].Fields, []string{".spec.note"}) || r.Migrated != 0 {
		t.Errorf("result %+v", r)
	}
	b.want(old, map[string]int{"v1alpha1": 4, "v1": 1})

	// Nobody can see the fields of a version that is not served.
	b.defineAs("v1", false, noted)
	r, err = run()
	if err == nil || !strings.Contains(err.Error(), "v1 does not keep all that v1alpha1 allows in .spec.note, and which objects have values there is not known: v1alpha1 is not served") || len(r.Drops) != 1 {
		t.Errorf("result %+v, %v", r, err)
	}
	b.want(old, map[string]int{"v1alpha1": 4, "v1": 1})
	b.defineAs("v1", true, noted)

	// Whoever knows it drops the field.
	m.cfg.DropFields = true
	r, err = run()
	if err != nil || len(r.Drops) != 1 || r.Migrated != 5 {
		t.Errorf("result %+v, %v", r, err)
	}
	if left := b.notes(); len(left) > 0 {
		t.Errorf("notes %q", left)
	}

	// No object has a note any more.
	m.cfg.DropFields = false
	b.defineAs("v1alpha1", true, noted)
	b.defineAs("v1", true, noted)
	r, err = run()
	if err != nil || len(r.Drops) > 0 || !slices.Equal(r.Removed, []string{"v1alpha1"}) {
		t.Errorf("result %+v, %v", r, err)
	}

	// Without objects there is nothing to lose, whether or not the version is served.
	for i := range 5 {
		b.delete(fmt.Sprintf("w%05d", i))
	}
	b.defineAs("v1alpha1", true, noted)
	b.defineAs("v1", false, noted)
	r, err = run()
	if err != nil || len(r.Drops) > 0 || !slices.Equal(r.Removed, []string{"v1alpha1"}) {
		t.Errorf("result %+v, %v", r, err)
	}
}

// An old version that keeps whatever it is given shows what objects have beyond any schema.
func TestDropsUnknown(t *testing.T) {
	t.Parallel()
	b := shared(t, "unknowns.example")
	const open = "{size: {type: integer}}, x-kubernetes-preserve-unknown-fields: true"
	b.defineAs("v1alpha1", true, open)
	b.create(2)
	b.note("w00001", "precious")
	b.defineAs("v1", true, open)
	_, err := b.migrator(nil).Run(t.Context(), b.crd())
	if err == nil || !strings.Contains(err.Error(), "v1 does not keep .spec.note of v1alpha1, which harms 1 of 2 objects: default/w00001 .spec.note would be dropped") {
		t.Errorf("error %v", err)
	}
	if left := b.notes(); !slices.Equal(left, []string{"w00001 precious"}) {
		t.Errorf("notes %q", left)
	}
}

// A migration in the background drops no field either, and says the same. Once a
// person has dropped it, nothing is left to do.
func TestKeeperDrops(t *testing.T) {
	t.Parallel()
	b := shared(t, "keptnotes.example")
	b.defineAs("v1alpha1", true, noted)
	b.create(3)
	b.note("w00001", "precious")
	b.defineAs("v1", true, noted)
	k := keep(t, b, -1)
	k.Keep([]Wanted{{Name: b.crd()}})
	await.True(b, "the migration fails", func() bool {
		shown, _ := k.status()
		return len(shown) == 1 && shown[0].State == status.MigrationFailed
	})
	shown, _ := k.status()
	if f := shown[0]; !strings.HasPrefix(f.Message, "storing the objects again would drop fields: v1 does not keep .spec.note of v1alpha1, which harms 1 of 3 objects: default/w00001 .spec.note would be dropped") {
		t.Errorf("the status is %+v", f)
	}
	if left := b.notes(); !slices.Equal(left, []string{"w00001 precious"}) {
		t.Errorf("notes %q", left)
	}

	m := b.migrator(nil)
	m.cfg.DropFields = true
	if _, err := m.Run(t.Context(), b.crd()); err != nil {
		t.Fatal(err)
	}
	await.True(b, "nothing is left to do", k.Settled)
}

// A default of the old version is lost like any other value: the API server fills in
// those of the version that an object is stored in.
func TestDropsDefaults(t *testing.T) {
	t.Parallel()
	b := shared(t, "defaults.example")
	const coloured = "{size: {type: integer}, colour: {type: string, default: red}}"
	b.defineAs("v1alpha1", true, coloured)
	b.create(2)
	b.defineAs("v1", true, coloured)
	const lost = "v1 does not keep .spec.colour of v1alpha1, which harms 2 of 2 objects: default/w00000 .spec.colour would be dropped"
	if _, err := b.migrator(nil).Run(t.Context(), b.crd()); err == nil || !strings.Contains(err.Error(), lost) {
		t.Errorf("error %v", err)
	}
	m := b.migrator(nil)
	m.cfg.DropFields = true
	if r, err := m.Run(t.Context(), b.crd()); err != nil || r.Migrated != 2 {
		t.Errorf("result %+v, %v", r, err)
	}
	alpha := b.widgets()
	alpha.Version = "v1alpha1"
	if err := b.cluster.ListFull(t.Context(), alpha, kube.ListOptions{}, func(tree map[string]any) bool {
		if colour := manifest.Text(tree, "spec", "colour"); colour != "" {
			t.Errorf("%s is %s", manifest.Text(tree, "metadata", "name"), colour)
		}
		return true
	}); err != nil {
		t.Error(err)
	}
}

// Objects that cannot be listed may hold anything.
func TestDropsHidden(t *testing.T) {
	t.Parallel()
	b := shared(t, "hidden.example")
	b.defineAs("v1alpha1", true, noted)
	b.create(3)
	b.defineAs("v1", true, noted)
	old := []string{"v1alpha1", "v1"}
	const unknown = "storing the objects again may drop fields: v1 does not keep all that v1alpha1 allows in .spec.note, and which objects have values there is not known: "
	refused := func(m *Migrator, why string) {
		t.Helper()
		r, err := m.Run(t.Context(), b.crd())
		if err == nil || !strings.Contains(err.Error(), unknown+why) || r.Migrated != 0 {
			t.Errorf("result %+v, %v", r, err)
		}
		b.want(old, map[string]int{"v1alpha1": 3})
	}

	m := b.migrator(nil)
	m.cfg.Cluster = b.through(func(r *http.Request) *http.Response {
		if !strings.HasSuffix(r.URL.Path, "/v1alpha1/widgets") {
			return nil
		}
		return &http.Response{
			StatusCode: http.StatusForbidden, Header: http.Header{"Content-Type": {"application/json"}}, Request: r,
			Body: io.NopCloser(strings.NewReader(`{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403, "reason": "Forbidden", "message": "no"}`)),
		}
	})
	refused(m, "the account may not list the objects (")

	// What another API server lists is not in etcd.
	b.apply(fmt.Sprintf(`
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1alpha1.%[1]s, labels: {kube-aggregator.kubernetes.io/automanaged: "false"}}
spec: {group: %[1]s, version: v1alpha1, groupPriorityMinimum: 1000, versionPriority: 100, insecureSkipTLSVerify: true, service: {namespace: default, name: nobody}}
`, b.group))
	defer b.remove(manifest.APIService, "v1alpha1."+b.group)
	refused(b.migrator(nil), "v1alpha1 is served by another API server (apiservice.apiregistration.k8s.io/v1alpha1."+b.group+"); have all objects readable in v1alpha1, or add the fields to v1, or ")
}

// through returns a client for the control plane. An answer that is not nil replaces the API
// server's.
func (b *bench) through(answer func(*http.Request) *http.Response) *kube.Client {
	b.Helper()
	text, err := os.ReadFile(b.planes.Kubeconfig(b.plane))
	if err != nil {
		b.Fatal(err)
	}
	cluster, err := kube.New(kube.Config{Name: "prod", Kubeconfig: text, WrapTransport: func(rt http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if made := answer(r); made != nil {
				return made, nil
			}
			return rt.RoundTrip(r)
		})
	}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(cluster.Close)
	return cluster
}

// After the look, others delete objects, move the storage version and move it back: what
// they wrote in between is looked at before anything is stored again.
func TestDropsMoved(t *testing.T) {
	t.Parallel()
	b := shared(t, "movednotes.example")
	b.defineAs("v1alpha1", true, noted)
	b.create(3)
	b.defineAs("v1", true, noted)
	m := b.migrator(nil)
	looks, moved := 0, false
	m.cfg.Cluster = b.through(func(r *http.Request) *http.Response {
		switch {
		case r.Method != http.MethodGet:
		case strings.HasSuffix(r.URL.Path, "/v1alpha1/widgets"):
			looks++
		case looks == 1 && !moved && strings.HasSuffix(r.URL.Path, "/customresourcedefinitions/"+b.crd()):
			moved = true
			b.delete("w00001")
			b.defineAs("v1alpha1", true, noted)
			b.note("w00000", "precious")
			b.defineAs("v1", true, noted)
		}
		return nil
	})
	r, err := m.Run(t.Context(), b.crd())
	if err == nil || !strings.Contains(err.Error(), "which harms 1 of 2 objects: default/w00000 .spec.note would be dropped") || r.Migrated != 0 || looks != 2 {
		t.Errorf("%d looks, result %+v, %v", looks, r, err)
	}
	b.want([]string{"v1alpha1", "v1"}, map[string]int{"v1alpha1": 2})
	if left := b.notes(); !slices.Equal(left, []string{"w00000 precious"}) {
		t.Errorf("notes %q", left)
	}
}

// Whoever drops fields may be interrupted. The next run looks again, and goes on.
func TestDropsKilled(t *testing.T) {
	t.Parallel()
	b := shared(t, "killednotes.example")
	const n = 2*batch + 1
	b.defineAs("v1alpha1", true, noted)
	b.create(n)
	b.note("w00000", "precious")
	last := fmt.Sprintf("w%05d", n-1)
	b.note(last, "precious")
	b.defineAs("v1", true, noted)
	ctx, cancel := context.WithCancel(t.Context())
	m := b.migrator(func(Progress) { cancel() })
	m.cfg.DropFields = true
	if r, err := m.Run(ctx, b.crd()); !errors.Is(err, context.Canceled) || len(r.Drops) != 1 || r.Drops[0].Survey.Harmed != 2 {
		t.Fatalf("result %+v, %v", r, err)
	}
	if left := b.notes(); !slices.Equal(left, []string{last + " precious"}) {
		t.Errorf("notes %q", left)
	}
	// Without the permission the rest stays.
	_, err := b.migrator(nil).Run(t.Context(), b.crd())
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("which harms 1 of %d objects: default/%s .spec.note would be dropped", n, last)) {
		t.Errorf("error %v", err)
	}
	m.cfg.Progress = func(Progress) {}
	if r, err := m.Run(t.Context(), b.crd()); err != nil || r.Migrated != n || len(r.Drops) != 1 {
		t.Errorf("result %+v, %v", r, err)
	}
	b.want([]string{"v1"}, map[string]int{"v1": n})
}

// Where the definition shows that nothing can be lost, nobody looks at objects.
func TestNothingDrops(t *testing.T) {
	t.Parallel()
	const webhook = "  conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1], clientConfig: {url: 'https://example.org'}}}\n"
	for _, tt := range []struct {
		name, version, more, storage string
	}{
		{"a webhook converts", "v1alpha1", webhook, "{type: object}"},
		{"the storage version keeps every field", "v1alpha1", "", "{type: object, x-kubernetes-preserve-unknown-fields: true}"},
		{"the storage version has the field", "v1alpha1", "", "{type: object, properties: {b: {type: string}, a: {type: string, maxLength: 3}}}"},
		{"another old version has the field", "v1beta1", "", "{type: object}"},
		{"the definition lacks the version", "v1alpha2", "", "{type: object}"},
	} {
		tree := manifesttest.Tree(t, `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.acme.example}
spec:
  group: acme.example
  scope: Namespaced
  names: {kind: Widget, plural: widgets}
`+tt.more+`
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: `+tt.storage+`}}}}
  - {name: v1beta1, served: true, storage: false, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object}}}}}
  - {name: v1alpha1, served: true, storage: false, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {a: {type: string}}}}}}}
`)
		if d, err := new(Migrator).drop(t.Context(), read(tree), tree, tt.version); err != nil || len(d.Fields) > 0 {
			t.Errorf("%s: %+v, %v", tt.name, d, err)
		}
	}
}

// What is lost is said once for each old version, with what to do.
func TestRefusal(t *testing.T) {
	t.Parallel()
	drop := func(version string, survey *harm.Survey) Drop {
		d := Drop{Version: version, Survey: survey}
		d.name([]string{".spec.a", "any field"})
		return d
	}
	lost := func(paths ...string) *harm.Survey {
		o := harm.Object{Name: "x"}
		for _, p := range paths {
			o.Harms = append(o.Harms, harm.Harm{Kind: harm.Lost, Path: p})
		}
		return &harm.Survey{Looked: 2, Harmed: 1, Objects: []harm.Object{o}}
	}
	const advice = "add the fields to v1, or move the values to others, or drop them with `gitopsd migrate --yes --drop-fields widgets.acme.example`"
	const hidden = "v1 does not keep all that v1beta1 allows in .spec.a, any field, and which objects have values there is not known: it is hidden"
	for _, tt := range []struct {
		name  string
		drops []Drop
		want  string
	}{
		{"nothing", nil, ""},
		{
			"elements of a list", []Drop{drop("v1alpha1", lost(".spec.a[0].b", ".spec.a[12].b"))},
			"storing the objects again would drop fields: v1 does not keep .spec.a[*].b of v1alpha1, which harms 1 of 2 objects: x .spec.a[0].b would be dropped, and 1 more; " + advice,
		},
		{"not seen", []Drop{drop("v1beta1", &harm.Survey{Unknown: "it is hidden"})}, "storing the objects again may drop fields: " + hidden + "; have all objects readable in v1beta1, or " + advice},
		{
			"two versions", []Drop{drop("v1alpha1", lost(".spec.a")), drop("v1beta1", &harm.Survey{Unknown: "it is hidden"})},
			"storing the objects again would drop fields: v1 does not keep .spec.a of v1alpha1, which harms 1 of 2 objects: x .spec.a would be dropped; " + hidden + "; have all objects readable in v1beta1, or " + advice,
		},
	} {
		have := ""
		if err := (Storage{Name: "widgets.acme.example", Version: "v1"}).Refusal(tt.drops); err != nil {
			have = err.Error()
		}
		if have != tt.want {
			t.Errorf("%s:\n%s, want\n%s", tt.name, have, tt.want)
		}
	}
}
