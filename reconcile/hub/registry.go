package hub

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// Registry keeps the last registry of clusters without errors in a Secret of the hub, for
// daemons that have not read one: those that wait for the Lease, and those in a new pod. It
// holds no secret, but whoever can write it decides what is served while the repository cannot
// be used, like whoever can replace a kubeconfig.
type Registry struct {
	Hub *Hub
	// Name is the Secret's. Daemons of one fleet alone write it.
	Name string
	// Fleet is the fleet whose registry it is, and Accepts reports whether a name is another
	// one of that.
	Fleet   string
	Accepts func(fleet string) bool
	// MayWrite is asked before it is written, as that of [kube.Config]; may be nil.
	MayWrite func(ctx context.Context) error
}

const (
	// registryTimeout bounds the requests for one call.
	registryTimeout = 5 * time.Second
	// maxRegistry is the largest registry that is read, in bytes.
	maxRegistry = 64 << 20
	// registryManager writes the Secret. It is not gitopsd's other one, since a fleet may
	// declare the Secret without these fields.
	registryManager = kube.FieldManager + "-registry"
)

// Keys of the Secret: the text, compressed since a Secret can have 1 MiB; the fleet; and when
// it was saved.
const (
	registryKey = sources.RegistryFile + ".gz"
	fleetKey    = "fleet"
	savedKey    = "saved"
)

// LoadRegistry returns the text of the registry, and when it was saved; empty if there is none of
// this fleet.
func (r *Registry) LoadRegistry(ctx context.Context) (text []byte, saved time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, registryTimeout)
	defer cancel()
	s, err := r.Hub.secret(ctx, r.Name)
	switch {
	case err != nil && kube.ClassOf(err) == kube.NotFound, err == nil && s.data[registryKey] == nil:
		return nil, saved, nil
	case err != nil:
		return nil, saved, err
	}
	var entries [3][]byte
	for i, key := range []string{registryKey, fleetKey, savedKey} {
		if entries[i], err = s.entry(key); err != nil {
			return nil, saved, err
		}
	}
	if fleet := string(entries[1]); fleet != r.Fleet && !r.Accepts(fleet) {
		return nil, saved, nil
	}
	if saved, err = time.Parse(time.RFC3339, string(entries[2])); err != nil {
		return nil, saved, fmt.Errorf("key %q of %s is not a time", savedKey, s.where)
	}
	unpacked, err := gzip.NewReader(bytes.NewReader(entries[0]))
	if err == nil {
		text, err = io.ReadAll(io.LimitReader(unpacked, maxRegistry+1))
	}
	if err != nil {
		return nil, saved, fmt.Errorf("key %q of %s: %w", registryKey, s.where, err)
	}
	if len(text) > maxRegistry {
		return nil, saved, fmt.Errorf("key %q of %s has more than %d bytes", registryKey, s.where, maxRegistry)
	}
	return text, saved, nil
}

// SaveRegistry replaces the text of the registry, also one of another fleet: this one has the
// Lease.
func (r *Registry) SaveRegistry(ctx context.Context, text []byte) error {
	ctx, cancel := context.WithTimeout(ctx, registryTimeout)
	defer cancel()
	if r.MayWrite != nil {
		if err := r.MayWrite(ctx); err != nil {
			return err
		}
	}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, _ = w.Write(text) // a Buffer never fails
	_ = w.Close()
	id := manifest.Secret.ID(r.Hub.Namespace(), r.Name)
	data := make(map[string]any)
	for key, value := range map[string][]byte{registryKey: packed.Bytes(), fleetKey: []byte(r.Fleet), savedKey: []byte(time.Now().UTC().Format(time.RFC3339))} {
		data[key] = base64.StdEncoding.EncodeToString(value)
	}
	body, err := json.Marshal(manifest.NewTree(id, map[string]any{"data": data}))
	if err != nil {
		return err
	}
	cluster, err := r.Hub.Client()
	if err != nil {
		return err
	}
	typ, err := cluster.Type(ctx, "v1", manifest.Secret.Kind)
	if err != nil {
		return err
	}
	_, err = cluster.Apply(ctx, typ, id, body, kube.ApplyOptions{Force: true, Manager: registryManager})
	return err
}
