package namespaces

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/certs/rotation"
	admin "gitopsd.dev/reconcile/etcd"
	"gitopsd.dev/reconcile/etcd/identity"
	"gitopsd.dev/reconcile/etcd/registry"
	"gitopsd.dev/reconcile/home"
	"gitopsd.dev/render/etcd"
	"gitopsd.dev/render/manifest"
)

// recorded is an etcd with one namespace, or with an error.
type recorded struct {
	Admin
	record  registry.Record
	damaged error
	err     error
}

func (r *recorded) Overview(context.Context) (admin.Overview, error) {
	if r.damaged != nil {
		return admin.Overview{Damaged: map[etcd.ID]error{r.record.ID: r.damaged}, Problems: []string{r.damaged.Error()}}, nil
	}
	return admin.Overview{Namespaces: []admin.Status{{Record: r.record}}}, r.err
}

// taken is a Proxy that keeps the files and CAs it gets.
type taken struct {
	Proxy
	has      bool
	files    map[string][]byte
	err      error // of Serve
	admitted []string
}

func (p *taken) Has(etcd.ID) bool { return p.has }

func (p *taken) Serve(_ etcd.ID, files map[string][]byte) error {
	p.files = files
	return p.err
}

func (p *taken) Admit(_ etcd.ID, cas []byte) error {
	p.admitted = append(p.admitted, string(cas))
	return nil
}

func (p *taken) Serves(string) error { return nil }

func (p *taken) Trust() []byte { return nil }

func (p *taken) Bytes(etcd.ID) (int64, bool) { return 0, false }

// While a namespace cannot be served as it should be, the daemon serves it as before, but to no clients
// other than those that may connect now.
func TestAdmit(t *testing.T) {
	t.Parallel()
	more := map[string][]byte{"namespace.json": []byte("{}")}
	all := map[string][]byte{"client-ca.crt": []byte("cas"), "server.crt": []byte("server")}
	for name, tt := range map[string]struct {
		kept     identity.Kept
		more     map[string][]byte
		err      error
		admitted []string
		served   string // the condition
	}{
		"everything is known":       {kept: identity.Kept{Proxy: all, Ready: true}, more: more, served: "true "},
		"nothing is known":          {},
		"the etcd is down":          {kept: identity.Kept{Proxy: all, Ready: true}, admitted: []string{"cas"}},
		"a certificate is missing":  {kept: identity.Kept{Proxy: all}, more: more, admitted: []string{"cas"}},
		"nobody may connect":        {kept: identity.Kept{Proxy: map[string][]byte{"client-ca.crt": nil}}, admitted: []string{""}},
		"it has a number of others": {kept: identity.Kept{Proxy: all, Ready: true}, more: more, err: errors.New("its number"), admitted: []string{"cas"}, served: "false its number"},
	} {
		proxy := &taken{err: tt.err}
		p := &pass{Controller: New(Config{Etcd: &Etcd{Proxy: proxy}}), View: &home.View{Cluster: "dev"}, url: "https://gitopsd:2379"}
		s := new(state)
		p.serve(&task{known: &known{meta: new(metav1.PartialObjectMetadata)}}, tt.kept, tt.more, s)
		served := ""
		for _, c := range s.conditions {
			served = fmt.Sprint(c.ok, " ", c.message)
		}
		if !slices.Equal(proxy.admitted, tt.admitted) || served != tt.served {
			t.Errorf("%s: admitted %q, served %q", name, proxy.admitted, served)
		}
	}
}

// decided is a Keeper with a result.
type decided identity.Kept

func (d decided) Keep(context.Context, identity.Store, identity.Wanted) (identity.Kept, error) {
	return identity.Kept(d), nil
}

// A withdrawn client loses its access, and the status is written, while the etcd cannot be used, or a Secret cannot
// be written. The latter is tried again.
func TestWithdrawn(t *testing.T) {
	t.Parallel()
	all := map[string][]byte{"client-ca.crt": []byte("those who are left")}
	for name, tt := range map[string]struct {
		etcd      answers
		kept      identity.Kept
		condition string // after the second time
		problem   string
	}{
		"the etcd is down":             {answers{err: errors.New("no etcd answers")}, identity.Kept{Proxy: all, Written: true, Ready: true}, "no etcd answers", ""},
		"a Secret cannot be written":   {answers{err: errors.New("no etcd answers")}, identity.Kept{Proxy: all, Ready: true, Refused: []error{errors.New("it is immutable")}}, "it is immutable", "it is immutable"},
		"another fleet took the keys":  {answers{all: []admin.Provisioned{{ID: etcd.ID{Cluster: "dev", Namespace: "default", Name: "sample"}, Err: errors.New("another fleet's")}}}, identity.Kept{Proxy: all, Ready: true}, "another fleet's", ""},
		"the CA that signs is missing": {answers{err: errors.New("no etcd answers")}, identity.Kept{Proxy: all, Problems: []string{"no such file"}}, "no such file", ""},
	} {
		sample := newSample(t, http.NotFound)
		proxy := new(taken)
		c := New(Config{Etcd: &Etcd{
			Admin: &tt.etcd, Keeper: decided(tt.kept), Proxy: proxy,
			Upstream: func() (u identity.Upstream, err error) { return u, nil },
		}})
		k := newKnown(manifest.EtcdKeysFinalizer)
		k.shown = new(shown) // a failure that passes is not to make it unready
		for n := range 2 {
			p := sample.pass(c, time.Now())
			s := subject{declared: true, declaration: new(etcd.Declaration), etcd: true, finalized: true}
			if err := p.work(t.Context(), []*task{{known: k, key: "key", subject: s}}); err != nil {
				t.Fatal(err)
			}
			if !slices.Contains(proxy.admitted, "those who are left") || proxy.files != nil {
				t.Errorf("%s: admitted %q, served %q", name, proxy.admitted, proxy.files)
			}
			if n == 0 && tt.problem != "" && strings.Contains(sample.status, tt.condition) {
				t.Errorf("%s: at once, the status is %s", name, sample.status)
			}
		}
		if !strings.Contains(sample.status, tt.condition) || k.failure != tt.problem {
			t.Errorf("%s: the status is %s, and the problem %q", name, sample.status, k.failure)
		}
	}
}

// unseen is an etcd that provisions a namespace, but not all that are wanted, or cannot be looked at.
type unseen struct {
	Admin
	made                       []admin.Provisioned
	provision, overview, count error
}

func (u unseen) Provision(context.Context, []admin.Wanted) ([]admin.Provisioned, error) {
	return u.made, u.provision
}

func (u unseen) Overview(context.Context) (admin.Overview, error) {
	return admin.Overview{Namespaces: []admin.Status{{Record: registry.Record{ID: u.made[0].ID}, Err: u.count}}}, u.overview
}

// A namespace that was provisioned is served whatever there is with others, or with the look at all of them.
// A count that could not be made leaves the one before.
func TestProvisionedIsKept(t *testing.T) {
	t.Parallel()
	made := []admin.Provisioned{{ID: etcd.ID{Cluster: "dev", Namespace: "default", Name: "sample"}, Number: 7, Prefix: "/p/"}}
	late := errors.New("context deadline exceeded")
	for name, tt := range map[string]struct {
		etcd    unseen
		problem []string
	}{
		"others were not reached":  {unseen{made: made, provision: late}, nil},
		"its keys are not counted": {unseen{made: made, count: late}, nil},
		"there is no overview":     {unseen{made: made, overview: late}, []string{late.Error()}},
	} {
		sample := newSample(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNotFound)
			io.WriteString(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404, "details": {"name": "sample-etcd-proxy", "kind": "secrets"}}`)
		})
		c := New(Config{Etcd: &Etcd{
			Admin: tt.etcd, Keeper: decided{Ready: true, Proxy: make(map[string][]byte)}, Proxy: new(taken),
			Upstream: func() (u identity.Upstream, err error) { return u, nil },
		}})
		k := newKnown(manifest.EtcdKeysFinalizer)
		k.shown = &shown{state: state{counted: true, keys: 5}}
		p := sample.pass(c, time.Now())
		s := subject{declared: true, declaration: new(etcd.Declaration), etcd: true, finalized: true}
		if err := p.work(t.Context(), []*task{{known: k, key: "key", subject: s}}); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(sample.status, etcdUnavailable) || !strings.Contains(sample.status, `"keys":5`) || !slices.Equal(c.etcdProblems, tt.problem) {
			t.Errorf("%s: the status is %s, and the etcd's problems %q", name, sample.status, c.etcdProblems)
		}
	}
}

// A process that does not know whether a namespace is declared serves it as the process before did, if
// the record in etcd says the same as the proxy's Secret. It changes nothing.
func TestResume(t *testing.T) {
	t.Parallel()
	id := etcd.ID{Cluster: "dev", Namespace: "default", Name: "sample"}
	record := registry.Record{ID: id, Number: 7, Prefix: id.DefaultPrefix(), Owner: registry.Owner{Fleet: "fleet", UID: "uid"}, State: registry.Active}
	for name, tt := range map[string]struct {
		change func(r *recorded, k *known, n *etcd.Namespace)
		mark   string // instead of the right one
		has    bool   // the process serves it already
		served bool   // by this pass
		want   string // in the problem
	}{
		"as it was":                    {served: true},
		"deleted, perhaps declared":    {change: func(_ *recorded, k *known, _ *etcd.Namespace) { k.meta.DeletionTimestamp = new(metav1.Now()) }, served: true},
		"served already":               {has: true},
		"the record is damaged":        {change: func(r *recorded, _ *known, _ *etcd.Namespace) { r.damaged = errors.New("it is damaged") }, want: "it is damaged"},
		"without the finalizer":        {change: func(_ *recorded, k *known, _ *etcd.Namespace) { k.meta.Finalizers = nil }},
		"the etcd is down":             {change: func(r *recorded, _ *known, _ *etcd.Namespace) { r.err = errors.New("etcd is down") }, want: "etcd is down"},
		"no record":                    {change: func(r *recorded, _ *known, _ *etcd.Namespace) { r.record.ID.Name = "other" }},
		"retained":                     {change: func(r *recorded, _ *known, _ *etcd.Namespace) { r.record.State = registry.Retained }},
		"of another cluster":           {change: func(r *recorded, _ *known, _ *etcd.Namespace) { r.record.Owner.UID = "before" }, want: "another cluster of this name"},
		"with the number of another":   {change: func(_ *recorded, _ *known, n *etcd.Namespace) { n.Number = 8 }, want: "not as gitopsd wrote it"},
		"with the prefix of another":   {change: func(_ *recorded, _ *known, n *etcd.Namespace) { n.Prefix = "/registry/" }, want: "not as gitopsd wrote it"},
		"with the identity of another": {change: func(_ *recorded, _ *known, n *etcd.Namespace) { n.ID.Name = "other" }, want: "not as gitopsd wrote it"},
		"a Secret of somebody":         {mark: "theirs", want: "is not gitopsd's"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKnown(manifest.EtcdKeysFinalizer)
			r := &recorded{record: record}
			n := etcd.Namespace{ID: record.ID, Number: record.Number, Prefix: record.Prefix}
			if tt.change != nil {
				tt.change(r, k, &n)
			}
			text, err := json.Marshal(n)
			if err != nil {
				t.Fatal(err)
			}
			whose := mark(secretType.ID("default", "sample-etcd-proxy"), namespaces.ID("default", "sample"))
			if tt.mark != "" {
				whose = tt.mark
			}
			secret, err := json.Marshal(map[string]any{
				"apiVersion": "v1", "kind": "Secret",
				"metadata": map[string]any{"name": "sample-etcd-proxy", "namespace": "default", "resourceVersion": "5", "annotations": map[string]any{manifest.EtcdAnnotation: whose}},
				"data":     map[string][]byte{"namespace.json": text, "endpoints": []byte("https://theirs:2379\n"), "upstream.key": []byte("key")},
			})
			if err != nil {
				t.Fatal(err)
			}
			sample := newSample(t, func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.Method != http.MethodGet:
					t.Errorf("%s %s", r.Method, r.URL)
				case r.URL.Path == "/api/v1/namespaces/default/secrets/sample-etcd-proxy":
					w.Write(secret)
				default:
					w.WriteHeader(http.StatusNotFound)
				}
			})
			proxy := &taken{has: tt.has}
			c := New(Config{Etcd: &Etcd{Admin: r, Proxy: proxy, Endpoints: []string{"https://ours:2379"}}})
			p := sample.pass(c, time.Now())
			s := subject{unclear: true, etcd: true, finalized: len(k.meta.Finalizers) > 0, deleting: k.meta.DeletionTimestamp != nil}
			if err := p.work(t.Context(), []*task{{known: k, key: "key", subject: s}}); err != nil {
				t.Fatal(err)
			}
			if told := len(c.etcdProblems) > 0; told != (r.damaged != nil) {
				t.Errorf("problems of the etcd: %q", c.etcdProblems)
			}
			if sample.status != "" {
				t.Errorf("it writes the status %s", sample.status)
			}
			if served := proxy.files != nil; served != tt.served {
				t.Errorf("served is %v", served)
			}
			if tt.served && (!bytes.Equal(proxy.files["namespace.json"], text) || string(proxy.files["endpoints"]) != "https://ours:2379\n" || string(proxy.files["upstream/tls.key"]) != "key") {
				t.Errorf("served from %q", proxy.files)
			}
			if later := !tt.served && !tt.has && s.finalized; tt.want == "" && later == k.next.IsZero() {
				t.Errorf("it is looked at again at %s", k.next)
			}
			if failed := k.failures > 0; failed != (tt.want != "") || !strings.Contains(k.failure, tt.want) {
				t.Errorf("the problem is %q after %d failures", k.failure, k.failures)
			}
		})
	}
}

// While it is not known whether a namespace is declared, nothing renews its certificates: it is served all the same,
// and people are told from a month before one expires.
func TestNotRenewed(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	now := time.Now().Truncate(time.Second)
	text := func(at time.Duration) string { return now.Add(at).UTC().Format(time.RFC3339) }
	proxy, client := secretType.ID("default", "sample-etcd-proxy"), secretType.ID("default", "one")
	for name, tt := range map[string]struct {
		server, upstream, client time.Duration // until they expire
		want                     string        // the problem, up to its reason
		next                     time.Duration // until it is looked at again; 0 for never
	}{
		"none expires soon": {server: 70 * day, upstream: 80 * day, client: 60 * day, next: 30 * day},
		"the client's does": {server: 70 * day, upstream: 80 * day, client: 20 * day, want: "tls.crt of " + client.String() + " expires on " + text(20*day), next: 20 * day},
		"the proxy's has":   {server: 70 * day, upstream: -day, client: 60 * day, want: "upstream.crt of " + proxy.String() + " expired on " + text(-day), next: 30 * day},
		"all have": {server: -day, upstream: -2 * day, client: -3 * day,
			want: "server.crt of " + proxy.String() + " expired on " + text(-day) + ", upstream.crt of " + proxy.String() + " expired on " + text(-2*day) + ", tls.crt of " + client.String() + " expired on " + text(-3*day)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			issue := func(left time.Duration) []byte {
				ca, err := rotation.Profile{Name: "x"}.Mint(now.Add(-300*day), now.Add(300*day))
				if err != nil {
					t.Fatal(err)
				}
				crt, _, err := rotation.Profile{Name: "x"}.Issue(ca, now.Add(left-90*day), now.Add(left))
				if err != nil {
					t.Fatal(err)
				}
				return crt
			}
			bodies := make(map[string][]byte)
			for id, data := range map[manifest.ID]map[string][]byte{
				proxy:  {"server.crt": issue(tt.server), "upstream.crt": issue(tt.upstream)},
				client: {"tls.crt": issue(tt.client)},
			} {
				body, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Secret", "data": data, "metadata": map[string]any{
					"name": id.Name, "namespace": id.Namespace, "resourceVersion": "5", "annotations": map[string]any{manifest.EtcdAnnotation: mark(id, namespaces.ID("default", "sample"))}}})
				if err != nil {
					t.Fatal(err)
				}
				bodies["/api/v1/namespaces/default/secrets/"+id.Name] = body
			}
			sample := newSample(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodGet {
					t.Errorf("%s %s", r.Method, r.URL)
				}
				w.Write(bodies[r.URL.Path])
			})
			k := newKnown(manifest.EtcdKeysFinalizer)
			p := sample.pass(New(Config{Etcd: &Etcd{Proxy: &taken{has: true}}}), now)
			due := &task{known: k, key: "key", subject: subject{unclear: true, etcd: true, finalized: true}, written: []manifest.ID{client, proxy}}
			if err := p.work(t.Context(), []*task{due}); err != nil {
				t.Fatal(err)
			}
			told, _, more := strings.Cut(k.failure, "; nothing is renewed while ")
			if told != tt.want || more != (tt.want != "") || k.failures > 0 || sample.status != "" {
				t.Errorf("the problem is %q, %d failures, status %q; want %q", k.failure, k.failures, sample.status, tt.want)
			}
			if again := k.next.Sub(now); k.next.IsZero() != (tt.next == 0) || tt.next > 0 && again != tt.next {
				t.Errorf("it is looked at again after %s, want %s", again, tt.next)
			}
		})
	}
}
