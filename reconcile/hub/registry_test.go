package hub

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"gitopsd.dev/render/manifest"
)

// The registry of clusters is kept for another pod, with the rights and the Secret of
// examples/deploy alone.
func TestRegistry(t *testing.T) {
	t.Parallel()
	nobody := func(string) bool { return false }
	r := &Registry{Hub: open(t), Name: "gitopsd-registry", Fleet: "git.example.org/fleet main", Accepts: nobody}
	if text, _, err := r.LoadRegistry(t.Context()); text != nil || err != nil {
		t.Fatalf("at first there is %q, %v", text, err)
	}
	large := make([]byte, 700<<10) // incompressible, base64 is nearly what a Secret can have
	random := rand.NewChaCha8([32]byte{})
	_, _ = random.Read(large)
	for _, text := range [][]byte{[]byte("kind: Cluster\n"), bytes.Repeat([]byte("kind: Cluster\n"), 1<<18), large, nil, []byte("kind: Cluster\n")} {
		if err := r.SaveRegistry(t.Context(), text); err != nil {
			t.Fatal(err)
		}
		have, saved, err := r.LoadRegistry(t.Context())
		if !bytes.Equal(have, text) || err != nil || time.Since(saved).Abs() > time.Minute {
			t.Fatalf("%d bytes were saved, and %d of %s were read: %v", len(text), len(have), saved, err)
		}
	}

	// It is no kubeconfig and no pull secret.
	_, err := (&Connector{Hub: r.Hub}).Connect(t.Context(), registered(ref(r.Name, "")))
	expect(t, err, "does not carry the label")
	_, err = (&Secrets{Hub: r.Hub}).Pull(t.Context(), []string{r.Name})
	expect(t, err, "does not carry the label")

	// The fleet has moved, or the Lease is another one's now.
	moved := &Registry{Hub: r.Hub, Name: r.Name, Fleet: "git.example.org/moved main", Accepts: func(name string) bool { return name == r.Fleet }}
	if text, _, err := moved.LoadRegistry(t.Context()); string(text) != "kind: Cluster\n" || err != nil {
		t.Errorf("after the fleet has moved there is %q, %v", text, err)
	}
	other := &Registry{Hub: r.Hub, Name: r.Name, Fleet: "git.example.org/other main", Accepts: nobody}
	if text, _, err := other.LoadRegistry(t.Context()); text != nil || err != nil {
		t.Errorf("for another fleet there is %q, %v", text, err)
	}
	expect(t, other.SaveRegistry(t.Context(), []byte("kind: Other\n")), "")
	if text, _, err := r.LoadRegistry(t.Context()); text != nil || err != nil {
		t.Errorf("of another fleet there is %q, %v", text, err)
	}
	expect(t, r.SaveRegistry(t.Context(), []byte("kind: Cluster\n")), "")

	// The fleet itself may declare the Secret, as examples/deploy does.
	if err := apply(t.Context(), admin(t), manifest.NewTree(manifest.Secret.ID(DefaultNamespace, r.Name), nil)); err != nil {
		t.Fatal(err)
	}

	fenced := *r
	fenced.MayWrite = func(context.Context) error { return errors.New("another daemon is the leader") }
	expect(t, fenced.SaveRegistry(t.Context(), []byte("x")), "another daemon is the leader")
	if have, _, err := r.LoadRegistry(t.Context()); string(have) != "kind: Cluster\n" || err != nil {
		t.Errorf("it is %q now, %v", have, err)
	}

	// Without the Secret there is no right to make one, and a damaged one is an error.
	none := &Registry{Hub: r.Hub, Name: "others-registry", Fleet: r.Fleet, Accepts: nobody}
	if text, _, err := none.LoadRegistry(t.Context()); text != nil || err != nil {
		t.Errorf("a Secret that is not there has %q, %v", text, err)
	}
	expect(t, none.SaveRegistry(t.Context(), []byte("x")), "secret/gitopsd-system/others-registry")
	put(t, DefaultNamespace, none.Name, "Opaque", map[string]string{manifest.ClusterLabel: "none"}, map[string]string{registryKey: hidden + " is not compressed", fleetKey: r.Fleet, savedKey: "2026-01-01T00:00:00Z"})
	_, _, err = none.LoadRegistry(t.Context())
	expect(t, err, `key "clusters.yaml.gz" of Secret gitopsd-system/others-registry: gzip: invalid header`)
}
