package migrate

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/sources/errgroup"
	"gitopsd.dev/testscripts/await"
	"gitopsd.dev/testscripts/devcluster"
)

var all = flag.Bool("all", false, "try Kubernetes' own migrator too, which takes minutes to see a new CRD")

func TestMain(m *testing.M) { os.Exit(devcluster.Main(m)) }

// batch is how many objects are written between two looks at the CRD: few, so that tests
// with a few dozen objects have several.
const batch = 20

// bench is a kind of objects in a control plane, and a look into its etcd.
type bench struct {
	*testing.T
	planes  *devcluster.ControlPlanes
	plane   string
	cluster *kube.Client
	group   string // of the kind
}

func newBench(t *testing.T, planes *devcluster.ControlPlanes, plane, group string) *bench {
	t.Helper()
	text, err := os.ReadFile(planes.Kubeconfig(plane))
	if err != nil {
		t.Fatal(err)
	}
	cluster, err := kube.New(kube.Config{Name: "prod", Kubeconfig: text})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	b := &bench{t, planes, plane, cluster, group}
	b.define("v1alpha1")
	return b
}

func shared(t *testing.T, group string) *bench {
	t.Helper()
	return newBench(t, devcluster.Start(t, "migrate"), "migrate", group)
}

// crd is the CRD's name.
func (b *bench) crd() string { return "widgets." + b.group }

func (b *bench) apply(text string) {
	b.Helper()
	tree := manifesttest.Tree(b, text)
	body, err := json.Marshal(tree)
	if err != nil {
		b.Fatal(err)
	}
	kind := manifest.KindOf(tree)
	typ, err := b.cluster.Kind(b.Context(), kind.Group, kind.Kind)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := b.cluster.Apply(b.Context(), typ, kind.ID("", manifest.Text(tree, "metadata", "name")), body, kube.ApplyOptions{Force: true}); err != nil {
		b.Fatal(err)
	}
}

// define makes a version the storage version, and waits until the API server stores in
// it.
func (b *bench) define(storage string) {
	b.Helper()
	b.defineAs(storage, true, "{size: {type: integer}}")
}

// defineAs is like define. alpha are the properties of v1alpha1's spec, and served says
// whether that version is served.
func (b *bench) defineAs(storage string, served bool, alpha string) {
	b.Helper()
	b.apply(fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %s}
spec:
  group: %s
  scope: Namespaced
  names: {kind: Widget, plural: widgets, singular: widget, listKind: WidgetList}
  versions:
  - {name: v1, served: true, storage: %t, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer}}}}}}}
  - {name: v1alpha1, served: %t, storage: %t, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: %s}}}}}
`, b.crd(), b.group, storage == "v1", served, storage == "v1alpha1", alpha))
	probe := b.widgets().ID("default", "probe")
	await.True(b, "the API server stores in "+storage, func() bool {
		body := []byte(`{"apiVersion":"` + b.group + `/v1","kind":"Widget","metadata":{"name":"probe"}}`)
		if _, err := b.cluster.Create(b.Context(), b.widgets(), probe, body); err != nil {
			return false
		}
		as := b.stored()["default/probe"]
		b.delete("probe")
		return as == storage
	})
}

func (b *bench) widgets() kube.Type {
	return kube.Type{Group: b.group, Version: "v1", Kind: "Widget", Resource: "widgets", Namespaced: true}
}

// create creates n objects.
func (b *bench) create(n int) {
	b.Helper()
	var g errgroup.Group
	g.SetLimit(8)
	for i := range n {
		g.Go(func() error {
			id := b.widgets().ID("default", fmt.Sprintf("w%05d", i))
			body := fmt.Sprintf(`{"apiVersion":"%s/v1","kind":"Widget","metadata":{"name":"%s"},"spec":{"size":%d}}`, b.group, id.Name, i)
			_, err := b.cluster.Create(b.Context(), b.widgets(), id, []byte(body))
			return err
		})
	}
	if err := g.Wait(); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) delete(name string) {
	b.Helper()
	id := b.widgets().ID("default", name)
	meta, err := b.cluster.GetMetadata(b.Context(), b.widgets(), id)
	if err == nil {
		_, _, err = b.cluster.Delete(b.Context(), b.widgets(), id, string(meta.UID))
	}
	if err != nil {
		b.Error(err)
	}
}

// stored returns the versions in which etcd has the objects.
func (b *bench) stored() map[string]string {
	b.Helper()
	objects, err := b.planes.Stored(context.WithoutCancel(b.Context()), b.plane, b.group+"/widgets")
	if err != nil {
		b.Fatal(err)
	}
	versions := make(map[string]string)
	for name, text := range objects {
		var o struct {
			APIVersion string `json:"apiVersion"`
		}
		if err := json.Unmarshal(text, &o); err != nil {
			b.Fatalf("%s: %v", text, err)
		}
		versions[name] = strings.TrimPrefix(o.APIVersion, b.group+"/")
	}
	return versions
}

// count returns how many objects etcd has in each version.
func (b *bench) count() map[string]int {
	b.Helper()
	n := make(map[string]int)
	for _, v := range b.stored() {
		n[v]++
	}
	return n
}

// migrator returns a migrator in a hurry. progress is called once objects are written.
func (b *bench) migrator(progress func(Progress)) *Migrator {
	b.Helper()
	if written := progress; written != nil {
		progress = func(p Progress) {
			if p.Wait == 0 {
				written(p)
			}
		}
	}
	m, err := New(Config{
		Cluster: b.cluster, Rate: 1e4, Settle: time.Second, Progress: progress, Log: slog.New(slog.DiscardHandler),
		batch: batch, page: 3 * batch / 2,
		pause: func(ctx context.Context, d time.Duration) error { return kube.Sleep(ctx, min(d, 200*time.Millisecond)) },
	})
	if err != nil {
		b.Fatal(err)
	}
	return m
}

// want compares status.storedVersions and what etcd has with what they should be.
func (b *bench) want(listed []string, etcd map[string]int) {
	b.Helper()
	s, err := b.migrator(nil).read(b.Context(), b.crd())
	if err != nil {
		b.Fatal(err)
	}
	if !slices.Equal(s.Stored, listed) {
		b.Errorf("status.storedVersions is %q, want %q", s.Stored, listed)
	}
	if have := b.count(); !maps.Equal(have, etcd) {
		b.Errorf("etcd has %v, want %v", have, etcd)
	}
}

// A migration that is killed in the middle has done no harm, and the next one does the
// rest. Objects that are stored in the new version already are not written again.
func TestKilledInTheMiddle(t *testing.T) {
	t.Parallel()
	b := shared(t, "killed.example")
	const n = 4*batch + 7 // three pages
	b.create(n)
	b.define("v1")
	b.want([]string{"v1alpha1", "v1"}, map[string]int{"v1alpha1": n})

	ctx, cancel := context.WithCancel(t.Context())
	_, err := b.migrator(func(p Progress) {
		if p.Done >= 2*batch {
			cancel()
		}
	}).Run(ctx, b.crd())
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v", err)
	}
	middle := b.stored()
	have := b.count()
	if have["v1"] < 2*batch || have["v1alpha1"] == 0 {
		t.Fatalf("in the middle etcd has %v", have)
	}
	b.want([]string{"v1alpha1", "v1"}, have)

	before := b.versions()
	var last Progress
	r, err := b.migrator(func(p Progress) { last = p }).Run(t.Context(), b.crd())
	if err != nil {
		t.Fatal(err)
	}
	b.want([]string{"v1"}, map[string]int{"v1": n})
	if r.Objects != n || r.Migrated != n || !slices.Equal(r.Removed, []string{"v1alpha1"}) || len(r.Failures) > 0 || r.Kubernetes {
		t.Errorf("result %+v", r)
	}
	if want := (Progress{Name: b.crd(), Done: n, All: n}); last != want {
		t.Errorf("progress ends with %+v", last)
	}
	after := b.versions()
	for object, v := range middle {
		if written := after[object] != before[object]; written != (v == "v1alpha1") {
			t.Errorf("%s was stored in %s; written again: %t", object, v, written)
			break
		}
	}

	// There is nothing left to do.
	if r, err := b.migrator(nil).Run(t.Context(), b.crd()); err != nil || r.Objects != 0 || r.Removed != nil {
		t.Errorf("again: %+v, %v", r, err)
	}
}

// versions returns the resourceVersions of all objects. Listing fails if an object has
// managed fields of more than one manager.
func (b *bench) versions() map[string]string {
	b.Helper()
	versions := make(map[string]string)
	err := b.cluster.ListFull(b.Context(), b.widgets(), kube.ListOptions{}, func(tree map[string]any) bool {
		versions[manifest.Text(tree, "metadata", "namespace")+"/"+manifest.Text(tree, "metadata", "name")] = manifest.Text(tree, "metadata", "resourceVersion")
		if fields := manifest.List(manifest.Mapping(tree, "metadata"), "managedFields"); len(fields) != 1 {
			b.Errorf("%v has %d managers", manifest.Text(tree, "metadata", "name"), len(fields))
			return false
		}
		return true
	})
	if err != nil {
		b.Fatal(err)
	}
	return versions
}

// An object that a policy refuses is named, the rest is stored again, and the old version
// stays listed until that one can be stored, too.
func TestRefused(t *testing.T) {
	t.Parallel()
	b := shared(t, "refused.example")
	b.create(20)
	b.define("v1")
	seven := b.widgets().ID("default", "w00007")
	b.refuse(seven.Name)
	r, err := b.migrator(nil).Run(t.Context(), b.crd())
	if err != nil {
		t.Fatal(err)
	}
	b.want([]string{"v1alpha1", "v1"}, map[string]int{"v1": 19, "v1alpha1": 1})
	if len(r.Failures) != 1 || r.Failures[0].Object != seven.String() || !strings.Contains(r.Failures[0].Reason, "it is not to be touched") ||
		r.Removed != nil || r.Objects != 20 || r.Migrated != 19 {
		t.Errorf("result %+v", r)
	}

	b.remove(manifest.ValidatingPolicyBinding, "refused.example")
	await.True(b, "the policy is gone", func() bool {
		return b.cluster.Rewrite(t.Context(), b.widgets(), seven) == nil
	})
	if r, err := b.migrator(nil).Run(t.Context(), b.crd()); err != nil || len(r.Failures) > 0 {
		t.Errorf("result %+v, %v", r, err)
	}
	b.want([]string{"v1"}, map[string]int{"v1": 20})
}

// refuse has a policy refuse updates of an object, and waits until it does.
func (b *bench) refuse(name string) {
	b.Helper()
	canary := b.widgets().ID("default", "canary")
	body := []byte(`{"apiVersion":"` + b.group + `/v1","kind":"Widget","metadata":{"name":"canary"}}`)
	if _, err := b.cluster.Create(b.Context(), b.widgets(), canary, body); err != nil {
		b.Fatal(err)
	}
	b.apply(fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: %[1]s}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [%[1]s], apiVersions: ["*"], operations: [UPDATE], resources: [widgets]}]}
  validations: [{expression: "!(object.metadata.name in ['canary', '%[2]s'])", message: it is not to be touched}]
`, b.group, name))
	b.apply(fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: %[1]s}
spec: {policyName: %[1]s, validationActions: [Deny]}
`, b.group))
	await.True(b, "the policy is enforced", func() bool {
		return kube.ClassOf(b.cluster.Rewrite(b.Context(), b.widgets(), canary)) == kube.Refused
	})
	b.delete(canary.Name)
}

func (b *bench) remove(kind manifest.GroupKind, name string) {
	b.Helper()
	typ, err := b.cluster.Kind(b.Context(), kind.Group, kind.Kind)
	if err != nil {
		b.Fatal(err)
	}
	meta, err := b.cluster.GetMetadata(b.Context(), typ, kind.ID("", name))
	if err == nil {
		_, _, err = b.cluster.Delete(b.Context(), typ, kind.ID("", name), string(meta.UID))
	}
	if err != nil {
		b.Fatal(err)
	}
}

// If the storage version changes during the migration, it starts over, and what is listed
// at the end is where everything is.
func TestStorageVersionChanges(t *testing.T) {
	t.Parallel()
	const n = batch + 5 // two looks at the CRD
	for _, tt := range []struct {
		name   string
		change []string // of the storage version, after the first batch
		listed []string
	}{
		{"back", []string{"v1alpha1"}, []string{"v1alpha1"}},
		{"there and back", []string{"v1alpha1", "v1"}, []string{"v1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := shared(t, strings.ReplaceAll(tt.name, " ", "-")+".example")
			b.create(n)
			b.define("v1")
			changed := false
			r, err := b.migrator(func(Progress) {
				if changed {
					return
				}
				changed = true
				for i, v := range tt.change {
					b.define(v)
					if i == 0 { // somebody writes in the version of the moment
						b.write("w00000", 4711)
					}
				}
			}).Run(t.Context(), b.crd())
			if err != nil || len(r.Failures) > 0 {
				t.Fatalf("result %+v, %v", r, err)
			}
			b.want(tt.listed, map[string]int{tt.listed[0]: n})
		})
	}
}

// write changes an object.
func (b *bench) write(name string, size int) {
	b.Helper()
	body := fmt.Sprintf(`{"apiVersion":"%s/v1","kind":"Widget","spec":{"size":%d}}`, b.group, size)
	if _, err := b.cluster.Apply(b.Context(), b.widgets(), b.widgets().ID("default", name), []byte(body), kube.ApplyOptions{Force: true}); err != nil {
		b.Error(err)
	}
}

// Objects that are deleted meanwhile are no failures.
func TestVanished(t *testing.T) {
	t.Parallel()
	b := shared(t, "vanished.example")
	b.create(batch + 2)
	b.define("v1")
	deleted := false
	r, err := b.migrator(func(Progress) {
		if !deleted {
			deleted = true
			b.delete(fmt.Sprintf("w%05d", batch+1))
		}
	}).Run(t.Context(), b.crd())
	if err != nil || len(r.Failures) > 0 || r.Objects != batch+2 || r.Migrated != batch+1 {
		t.Errorf("result %+v, %v", r, err)
	}
	b.want([]string{"v1"}, map[string]int{"v1": batch + 1})
}

// There is one deadline for the whole. When it has passed, nothing claims to be done.
func TestDeadline(t *testing.T) {
	t.Parallel()
	b := shared(t, "deadline.example")
	b.create(30)
	b.define("v1")
	m, err := New(Config{Cluster: b.cluster, Rate: 0.001, Log: slog.New(slog.DiscardHandler), pause: func(context.Context, time.Duration) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // which 22 waiting objects would exceed
	defer cancel()
	if _, err := m.Run(ctx, b.crd()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	if have := b.count(); have["v1alpha1"] == 0 {
		t.Errorf("etcd has %v", have)
	}
	b.want([]string{"v1alpha1", "v1"}, b.count())
}

// A request that began before the storage version changed stores in the old one, however
// late it ends. The list waits for it.
func TestRequestUnderWay(t *testing.T) {
	t.Parallel()
	b := shared(t, "underway.example")
	b.create(3)
	arrived, release := make(chan struct{}), make(chan struct{})
	arrive := sync.OnceFunc(func() { close(arrived) }) // an API server may try again
	webhook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review struct {
			Request struct{ UID string }
		}
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		arrive()
		select {
		case <-release:
		case <-r.Context().Done():
		}
		fmt.Fprintf(w, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"%s","allowed":true}}`, review.Request.UID)
	}))
	defer webhook.Close()
	b.apply(fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: %[1]s}
webhooks:
- name: slow.%[1]s
  admissionReviewVersions: [v1]
  sideEffects: None
  timeoutSeconds: 30
  rules: [{apiGroups: [%[1]s], apiVersions: ["*"], operations: [CREATE], resources: [widgets]}]
  matchConditions: [{name: slow, expression: "object.metadata.name.startsWith('slow')"}]
  clientConfig: {url: %[2]s, caBundle: %[3]s}
`, b.group, webhook.URL, base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: webhook.Certificate().Raw}))))
	defer b.remove(manifest.ValidatingWebhooks, b.group)
	created := make(chan error, 1)
	go func() {
		// The webhook is not called at once. An object for each attempt, so that only the last is held.
		for i := 0; ; i++ {
			id := b.widgets().ID("default", fmt.Sprintf("slow%d", i))
			body := fmt.Sprintf(`{"apiVersion":"%s/v1","kind":"Widget","metadata":{"name":"%s"}}`, b.group, id.Name)
			_, err := b.cluster.Create(t.Context(), b.widgets(), id, []byte(body))
			select {
			case <-arrived:
				created <- err
				return
			default:
			}
			if err != nil {
				created <- err
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	select {
	case <-arrived:
	case err := <-created:
		t.Fatal("the webhook was not called: ", err)
	}
	b.define("v1")

	m := b.migrator(nil)
	waited := false
	m.cfg.pause = func(ctx context.Context, d time.Duration) error {
		if waited {
			return kube.Sleep(ctx, d)
		}
		waited = true
		close(release)
		err := <-created
		if have := b.count(); have["v1"] > 0 {
			t.Errorf("after the wait etcd has %v; what is this test about?", have)
		}
		return err
	}
	if r, err := m.Run(t.Context(), b.crd()); err != nil || !waited || len(r.Failures) > 0 {
		t.Errorf("result %+v, waited: %t, %v", r, waited, err)
	}
	if have := b.count(); have["v1alpha1"] > 0 || have["v1"] < 4 {
		t.Errorf("etcd has %v", have)
	}
}

// Where an aggregated API server answers in the place of the CRD, its objects are out of
// sight: neither a list nor a write says anything about them.
func TestAggregated(t *testing.T) {
	t.Parallel()
	b := shared(t, "aggregated.example")
	b.create(3)
	b.define("v1")
	b.apply(fmt.Sprintf(`
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.%[1]s, labels: {kube-aggregator.kubernetes.io/automanaged: "false"}}
spec: {group: %[1]s, version: v1, groupPriorityMinimum: 1000, versionPriority: 100, insecureSkipTLSVerify: true, service: {namespace: default, name: nobody}}
`, b.group))
	defer b.remove(manifest.APIService, "v1."+b.group)
	_, err := b.migrator(nil).Run(t.Context(), b.crd())
	if err == nil || !strings.Contains(err.Error(), "version v1 is served by another API server") {
		t.Errorf("error %v", err)
	}
	b.want([]string{"v1alpha1", "v1"}, map[string]int{"v1alpha1": 3})
}

// A CRD without objects has its list of versions shortened.
func TestNoObjects(t *testing.T) {
	t.Parallel()
	b := shared(t, "empty.example")
	b.define("v1")
	m := b.migrator(nil)
	list, err := m.List(t.Context())
	i := slices.IndexFunc(list, func(s Storage) bool { return s.Name == b.crd() })
	if err != nil || i < 0 || !slices.Equal(list[i].Old(), []string{"v1alpha1"}) || list[i].Ours {
		t.Fatalf("list %+v, %v", list, err)
	}
	if n, err := m.Count(t.Context(), list[i]); err != nil || n != 0 {
		t.Errorf("%d objects, %v", n, err)
	}
	// Whoever looked at another state of the CRD does not shorten the list.
	if err := b.cluster.SetStoredVersions(t.Context(), b.crd(), []string{"v1"}, "1"); kube.ClassOf(err) != kube.Changed {
		t.Errorf("stored versions set with an old resourceVersion: %v", err)
	}
	if r, err := m.Run(t.Context(), b.crd()); err != nil || !slices.Equal(r.Removed, []string{"v1alpha1"}) {
		t.Errorf("result %+v, %v", r, err)
	}
	b.want([]string{"v1"}, map[string]int{})

	if some, err := m.List(t.Context(), "gadgets.empty.example", b.crd()); kube.ClassOf(err) != kube.NotFound || len(some) != 1 {
		t.Errorf("a name that does not exist: %+v, %v", some, err)
	}
}

// Where the cluster offers Kubernetes' own migrator, that one does it. If it fails, gitopsd
// goes through the objects, and names those that cannot be stored.
func TestKubernetes(t *testing.T) {
	if !*all {
		t.Skip("takes minutes: see make conformance")
	}
	t.Parallel()
	planes, err := devcluster.Up(t.Context(), devcluster.Config{Dir: t.TempDir(), StorageMigration: true}, "native")
	if err != nil {
		t.Fatal(err)
	}
	defer planes.Close()
	b := newBench(t, planes, "native", "native.example")
	b.create(300)
	b.define("v1")
	asked := false
	r, err := b.migrator(func(p Progress) { asked = asked || p.Kubernetes }).Run(t.Context(), b.crd())
	if err != nil {
		t.Fatal(err)
	}
	if !r.Kubernetes || !asked || !slices.Equal(r.Removed, []string{"v1alpha1"}) || len(r.Failures) > 0 {
		t.Errorf("result %+v, asked: %t", r, asked)
	}
	b.want([]string{"v1"}, map[string]int{"v1": 300})
	b.noRequests()

	// The migrator of Kubernetes gives up at the first object that is refused.
	b.define("v1alpha1")
	seven := b.widgets().ID("default", "w00007")
	b.refuse(seven.Name)
	r, err = b.migrator(nil).Run(t.Context(), b.crd())
	if err != nil || r.Kubernetes || len(r.Failures) != 1 || r.Failures[0].Object != seven.String() || r.Removed != nil || r.Migrated != 299 {
		t.Errorf("result %+v, %v", r, err)
	}
	b.noRequests()

	// It is not asked if objects would lose a field.
	b.defineAs("v1alpha1", true, noted)
	b.note("w00008", "precious")
	b.defineAs("v1", true, noted)
	if r, err := b.migrator(nil).Run(t.Context(), b.crd()); err == nil || r.Kubernetes || len(r.Drops) != 1 {
		t.Errorf("result %+v, %v", r, err)
	}
	b.noRequests()
}

// noRequests checks that no request to Kubernetes' own migrator is left.
func (b *bench) noRequests() {
	b.Helper()
	typ, offered, err := b.migrator(nil).nativeType(b.Context())
	if err != nil || !offered {
		b.Fatalf("offered: %t, %v", offered, err)
	}
	if n, err := b.cluster.Count(b.Context(), typ); err != nil || n != 0 {
		b.Errorf("%d requests are left, %v", n, err)
	}
}
