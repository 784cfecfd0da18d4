package etcd

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/render/validate"
	"gitopsd.dev/sources"
)

const head = "apiVersion: gitopsd.dev/v1alpha1\nkind: EtcdNamespace\nmetadata: {name: sample-apiserver, namespace: default}\n"

func TestRead(t *testing.T) {
	t.Parallel()
	d, err := Read(manifesttest.Object(t, head+`
spec:
  prefix: /team/widgets
  quota: {storage: 512Mi, keys: 1000000, writeBytesPerSecond: 2M}
  throttle: {requestsPerSecond: 500, concurrent: 32, watches: 200, weight: 10}
  clientCertificates:
  - {secretRef: {name: sample-etcd-client}, validity: 30d}
  - {secretRef: {name: other}}
  caConfigMaps: [{name: sample-etcd-ca}]
  deletion: Delete
status: {address: somewhere}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := &Declaration{
		Namespace: "default", Name: "sample-apiserver", Prefix: "/team/widgets/",
		Quota:        Quota{Storage: 512 << 20, Keys: 1000000, WriteBytesPerSecond: 2000000},
		Throttle:     Throttle{RequestsPerSecond: 500, Concurrent: 32, Watches: 200, Weight: 10},
		Certificates: []Certificate{{"sample-etcd-client", 30 * 24 * time.Hour}, {"other", DefaultValidity}},
		CAConfigMaps: []string{"sample-etcd-ca"}, Delete: true, Origin: manifest.Origin{File: "test.yaml", Line: 1},
	}
	if !reflect.DeepEqual(d, want) {
		t.Errorf("read  %+v\nwant %+v", d, want)
	}
	if d, err := Read(manifesttest.Object(t, head)); err != nil || d.Delete || d.Prefix != "" || d.Quota != (Quota{}) {
		t.Errorf("without a spec: %+v, %v", d, err)
	}
}

func TestReadFaults(t *testing.T) {
	t.Parallel()
	spec := func(text string) string { return head + "spec: " + text }
	for _, tt := range []struct {
		text string
		want string // of the error, all of it
	}{
		{strings.Replace(head, "v1alpha1", "v1", 1), "apiVersion: gitopsd.dev/v1 is not known; write gitopsd.dev/v1alpha1"},
		{strings.Replace(head, ", namespace: default", "", 1), "metadata.namespace: is missing; name the namespace of the API server that the keys are for"},
		{strings.Replace(head, "sample-apiserver", "9.a", 1), "metadata.name: the proxy's Service is named 9.a-etcd, so that the name must have at most 58 lower-case letters, digits and '-', and begin with a letter"},
		{head + "sepc: {}", "sepc: is not a field here; did you mean spec?"},
		{spec("7"), "spec: want a mapping, have 7"},
		{spec("{qouta: {}}"), "spec.qouta: is not a field here; did you mean quota?"},
		{spec("{xyzzy: {}}"), "spec.xyzzy: is not a field here; there are prefix, quota, throttle, clientCertificates, caConfigMaps, deletion"},
		{spec("{quota: {storage: 512MB}}"), "spec.quota.storage: want a number of bytes that is more than 0, such as 512Mi, have 512MB"},
		{spec("{quota: {storage: 0}}"), "spec.quota.storage: want a number of bytes that is more than 0, such as 512Mi, have 0"},
		{spec("{quota: {storage: 9999999999Ti}}"), "spec.quota.storage: 9999999999Ti is more bytes than anything has"},
		{spec("{quota: {keys: -1}}"), "spec.quota.keys: want a whole number that is more than 0, have -1; leave the field out for no limit of your own"},
		{spec("{throttle: {wieght: 1}}"), "spec.throttle.wieght: is not a field here; did you mean weight?"},
		{spec("{clientCertificates: {}}"), "spec.clientCertificates: want a list, have map[]"},
		{spec("{clientCertificates: [a]}"), "spec.clientCertificates[0]: want a mapping, have a\nspec.clientCertificates[0].secretRef.name: is missing"},
		{spec("{clientCertificates: [{secretRef: {name: A}}]}"), `spec.clientCertificates[0].secretRef.name: "A" is not a name: lower-case letters, digits, '-' and '.'`},
		{spec("{clientCertificates: [{secretRef: {name: a}}, {secretRef: {name: a}}]}"), "spec.clientCertificates[1].secretRef.name: Secret a has something else already; name another"},
		{spec("{clientCertificates: [{secretRef: {name: sample-apiserver-etcd-proxy}}]}"), "spec.clientCertificates[0].secretRef.name: Secret sample-apiserver-etcd-proxy has something else already; name another"},
		{spec("{clientCertificates: [{secretRef: {name: a}, validity: 3 months}]}"), `spec.clientCertificates[0].validity: "3 months" is not a duration such as 90d or 36h`},
		{spec("{clientCertificates: [{secretRef: {name: a}, validity: 400d}]}"), "spec.clientCertificates[0].validity: 400d; want 10s at least and 366d at most"},
		{spec("{caConfigMaps: [{name: a}, {name: a}]}"), "spec.caConfigMaps[1].name: ConfigMap a is in the list already"},
		{spec("{deletion: Orphan}"), `spec.deletion: "Orphan"; use Retain or Delete`},
		{spec("{prefix: team}"), `spec.prefix: "team"; want a path such as /team/widgets, of fewer than 256 letters, digits, '-', '_' and '.'`},
		{spec("{prefix: /a//b}"), `spec.prefix: "/a//b"; want a path such as /team/widgets, of fewer than 256 letters, digits, '-', '_' and '.'`},
		{spec("{prefix: /gitopsd.dev/registry}"), "spec.prefix: keys under /gitopsd.dev/ are gitopsd's own; leave the field out for a prefix there, or choose another"},
		{spec("{prefix: /gitopsd.dev}"), "spec.prefix: keys under /gitopsd.dev/ are gitopsd's own; leave the field out for a prefix there, or choose another"},
		{spec("{prefix: 5}"), "spec.prefix: want a string, have 5; quote it"},
	} {
		if _, err := Read(manifesttest.Object(t, tt.text)); err == nil || err.Error() != tt.want {
			t.Errorf("%s\n%v\nwant\n%s", tt.text, err, tt.want)
		}
	}
}

// The definition accepts every declaration that Read accepts, and refuses declarations with
// errors of their own.
func TestDefinition(t *testing.T) {
	t.Parallel()
	crd, err := Definition()
	if err != nil {
		t.Fatal(err)
	}
	if !Defines(crd.ID()) {
		t.Errorf("%s is not known", crd.ID())
	}
	schema, err := validate.Compile(crd.Tree(), "EtcdNamespace", Version)
	if err != nil {
		t.Fatal(err)
	}
	for text, valid := range map[string]bool{
		head: true,
		head + "spec: {prefix: /team/widgets, quota: {storage: 512Mi, keys: 5, writeBytesPerSecond: 7}, deletion: Delete}":            true,
		head + "spec: {clientCertificates: [{secretRef: {name: a}, validity: 1h30m}, {secretRef: {name: b}}], throttle: {weight: 1}}": true,
		head + "spec: {clientCertificates: [{secretRef: {name: a}}, {secretRef: {name: a}}]}":                                         false,
		head + "spec: {prefix: /gitopsd.dev/registry}":                                                                                false,
		head + "spec: {prefix: team}":                      false,
		head + "spec: {quota: {storage: 512MB}}":           false,
		head + "spec: {quota: {storage: 0}}":               false,
		head + "spec: {deletion: Orphan}":                  false,
		strings.Replace(head, "sample-apiserver", "9a", 1): false,
	} {
		o := manifesttest.Object(t, text)
		_, err := Read(o)
		if (err == nil) != valid {
			t.Errorf("%s\nis read with %v", text, err)
		}
		if err := schema.Create(t.Context(), o.Tree()); (err == nil) != valid {
			t.Errorf("%s\nthe API server says %v", text, err)
		}
	}
}

// No declaration causes a panic, and a prefix always ends with "/" and is not gitopsd's
// own.
func FuzzRead(f *testing.F) {
	f.Add(head + "spec: {prefix: /a, quota: {storage: 1Ki}, clientCertificates: [{secretRef: {name: a}, validity: 1d}]}")
	f.Add(head + "spec: {caConfigMaps: [{name: a}, 3], throttle: [1]}")
	f.Fuzz(func(t *testing.T, text string) {
		docs, err := sources.DecodeYAML(strings.NewReader(text), sources.Limits{Bytes: 1 << 16})
		if err != nil {
			return
		}
		for _, doc := range docs {
			o, err := manifest.New(doc.Tree, manifest.Origin{})
			if err != nil || !o.ID().Is(manifest.EtcdNamespace) {
				continue
			}
			d, err := Read(o)
			if err != nil {
				continue
			}
			if p := d.Prefix; p != "" && (!strings.HasSuffix(p, "/") || !strings.HasPrefix(p, "/") || strings.HasPrefix(p, OwnPrefix) || strings.Contains(p, "//")) {
				t.Errorf("prefix %q", p)
			}
			if q := d.Quota; q.Storage < 0 || q.Keys < 0 || q.WriteBytesPerSecond < 0 {
				t.Errorf("quota %+v", q)
			}
		}
	})
}

// The Service selects the pods, and Beside returns every object that Objects makes.
func TestObjects(t *testing.T) {
	t.Parallel()
	d, err := Read(manifesttest.Object(t, head))
	if err != nil {
		t.Fatal(err)
	}
	objects, err := Objects(d, Proxy{Image: "registry.example.org/gitopsd:v1"})
	if err != nil {
		t.Fatal(err)
	}
	beside := d.Beside()
	for i, o := range objects {
		if o.ID() != beside[i] {
			t.Errorf("%s is not %s", o.ID(), beside[i])
		}
	}
	service, deployment := objects[1].Tree(), objects[3].Tree()
	if selector, labels := manifest.Mapping(service, "spec", "selector"), manifest.Mapping(deployment, "spec", "template", "metadata", "labels"); !reflect.DeepEqual(selector, labels) || len(labels) < 2 {
		t.Errorf("the Service selects %v, the pods have %v", selector, labels)
	}
	for _, grpcGo := range []bool{false, true} {
		objects, err := Objects(d, Proxy{Image: "registry.example.org/gitopsd:v1", GRPCGo: grpcGo})
		if err != nil {
			t.Fatal(err)
		}
		if text := fmt.Sprint(objects[3].Tree()); strings.Contains(text, "--grpc-go") != grpcGo {
			t.Errorf("grpcGo is %t: %s", grpcGo, text)
		}
	}
	if d.Address() != "https://sample-apiserver-etcd.default.svc:2379" {
		t.Errorf("address %s", d.Address())
	}
	if n := manifest.Mapping(deployment, "spec")["replicas"]; n != int64(DefaultReplicas) {
		t.Errorf("%v replicas", n)
	}
}

// No default prefix is inside another one.
func TestDefaultPrefix(t *testing.T) {
	t.Parallel()
	ids := []ID{{Cluster: "a"}, {Cluster: "ab"}, {Cluster: "ns"}, {"a", "b", "c"}, {"a", "b", "cd"}, {"ab", "b", "c"}}
	for _, a := range ids {
		for _, b := range ids {
			if a != b && strings.HasPrefix(a.DefaultPrefix(), b.DefaultPrefix()) {
				t.Errorf("%s is inside %s", a.DefaultPrefix(), b.DefaultPrefix())
			}
		}
	}
}
