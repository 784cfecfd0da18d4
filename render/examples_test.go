package render

import (
	"os"
	"testing"
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
