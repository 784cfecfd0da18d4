package render

import (
	"os"
	"path"
	"strings"
	"testing"

	"gitopsd.dev/render/etcd"
	"gitopsd.dev/render/manifest"
)

// The example fleet builds without an error, and requires a signature for every package,
// with a key from the fleet.
func TestExampleFleet(t *testing.T) {
	var renderer Renderer
	for _, name := range []string{"hub", "dev", "prod"} {
		w, err := renderer.Want(t.Context(), Input{Cluster: name, Files: os.DirFS(".."), Path: "examples/fleet/" + name})
		if err != nil {
			t.Fatal(err)
		}
		if faults := w.Faults(); len(faults) > 0 || len(w.Packages) != 2 {
			t.Errorf("%s: %d packages, %v", name, len(w.Packages), faults)
		}
		for _, p := range w.Packages {
			origin, err := w.Images.Origin(p.Ref, p.PullSecrets)
			if err != nil {
				t.Fatal(err)
			}
			policy, err := w.Images.Verification(p.Ref, origin)
			if err != nil || policy == nil {
				t.Errorf("%s: %s need not be signed: %v", name, p.Ref, err)
			} else if key := policy.Authorities[0].Key; key == nil || key.PEM == "" {
				t.Errorf("%s: no key for %s", name, p.Ref)
			}
		}
	}
}

// The API server of examples/etcd connects to the namespace that is declared beside it,
// with the right certificate, and its APIService names its Service.
func TestExampleEtcd(t *testing.T) {
	in := Input{Cluster: "dev", Files: os.DirFS(".."), Path: "examples/etcd", Etcd: etcd.Proxy{Image: "example.org/gitopsd:v1"}}
	r, err := expand(t, new(Renderer), in, nil)
	if err != nil {
		t.Fatal(err)
	}
	get := func(kind manifest.GroupKind, namespace, name string) *manifest.Object {
		t.Helper()
		o := r.Objects.Get(kind.ID(namespace, name))
		if o == nil {
			t.Fatalf("there is no %s", kind.ID(namespace, name))
		}
		return o
	}
	d, err := etcd.Read(get(manifest.EtcdNamespace, "wardle", "wardle"))
	if err != nil {
		t.Fatal(err)
	}
	get(manifest.Deployment, "wardle", "wardle-etcd")
	pod := manifest.Mapping(get(manifest.Deployment, "wardle", "wardle").Tree(), "spec", "template", "spec")
	container, _ := manifest.List(pod, "containers")[0].(map[string]any)
	secretAt := make(map[string]string) // by the path that it is mounted at
	for _, m := range manifest.List(container, "volumeMounts") {
		for _, v := range manifest.List(pod, "volumes") {
			mount, volume := m.(map[string]any), v.(map[string]any)
			if mount["name"] == volume["name"] {
				secretAt[manifest.Text(mount, "mountPath")] = manifest.Text(volume, "secret", "secretName")
			}
		}
	}
	flags := make(map[string]string)
	for _, arg := range manifest.List(container, "args") {
		name, value, _ := strings.Cut(strings.TrimPrefix(arg.(string), "--"), "=")
		flags[name] = value
	}
	if flags["etcd-servers"] != d.Address() {
		t.Errorf("--etcd-servers is %s, want %s", flags["etcd-servers"], d.Address())
	}
	service := get(manifest.Service, "wardle", "wardle")
	for flag, want := range map[string][2]string{
		"etcd-cafile": {d.Certificates[0].Secret, "ca.crt"}, "etcd-certfile": {d.Certificates[0].Secret, "tls.crt"}, "etcd-keyfile": {d.Certificates[0].Secret, "tls.key"},
		"tls-cert-file": {service.Annotation(manifest.ServingCertAnnotation), "tls.crt"}, "tls-private-key-file": {service.Annotation(manifest.ServingCertAnnotation), "tls.key"},
	} {
		if dir, file := path.Split(flags[flag]); secretAt[path.Clean(dir)] != want[0] || file != want[1] {
			t.Errorf("--%s is %s, want %s of Secret %s", flag, flags[flag], want[1], want[0])
		}
	}
	api := get(manifest.APIService, "", "v1alpha1.wardle.example.com")
	if to := manifest.Mapping(api.Tree(), "spec", "service"); to["name"] != service.ID().Name || to["namespace"] != service.ID().Namespace {
		t.Errorf("the APIService leads to %v", to)
	}
}

// Each control plane of examples/control-planes has a namespace and a certificate.
func TestExampleControlPlanes(t *testing.T) {
	in := Input{Cluster: "hub", Files: os.DirFS(".."), Path: "examples/control-planes", Etcd: etcd.Proxy{URL: "https://127.0.0.1:2379"}}
	r, err := expand(t, new(Renderer), in, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"red", "green", "blue"} {
		o := r.Objects.Get(manifest.EtcdNamespace.ID("control-planes", name))
		if o == nil {
			t.Fatalf("%s has no namespace", name)
		}
		if d, err := etcd.Read(o); err != nil || len(d.Certificates) != 1 || d.Certificates[0].Secret != name+"-etcd-client" {
			t.Errorf("%s: %+v, %v", name, d, err)
		}
	}
}
