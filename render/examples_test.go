package render

import (
	"os"
	"testing"

	"gitopsd.dev/render/etcd"
	"gitopsd.dev/render/manifest"
)

// The example fleet builds without an error, and says of every package who must
// have signed it, with the key at hand.
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
