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
// be used, which is nobody who cannot replace a kubeconfig.
type Registry struct {
	Hub *Hub
	// Name is the Secret's.
	Name string
	// Fleet is the fleet whose registry it is. The error for another one's says so.
	Fleet string
	// MayWrite is asked before it is written, as that of [kube.Config].
	MayWrite func(ctx context.Context) error
}

// registryTimeout bounds the requests for one call.
const registryTimeout = 5 * time.Second

// maxRegistry is the largest registry that is read, in bytes.
const maxRegistry = 64 << 20

// registryKey is the Secret's key with the text, which is compressed: a Secret can have 1 MiB.
const registryKey = sources.RegistryFile + ".gz"

// LoadRegistry returns the text of the registry; empty if there is none.
func (r *Registry) LoadRegistry(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, registryTimeout)
	defer cancel()
	s, err := r.Hub.secret(ctx, r.Name)
	if err != nil && kube.ClassOf(err) == kube.NotFound || err == nil && s.data[registryKey] == nil {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := r.owns(s); err != nil {
		return nil, err
	}
	text, err := s.entry(registryKey)
	if err != nil {
		return nil, err
	}
	unpacked, err := gzip.NewReader(bytes.NewReader(text))
	if err == nil {
		text, err = io.ReadAll(io.LimitReader(unpacked, maxRegistry+1))
	}
	if err != nil {
		return nil, fmt.Errorf("key %q of %s: %w", registryKey, s.where, err)
	}
	if len(text) > maxRegistry {
		return nil, fmt.Errorf("key %q of %s has more than %d bytes", registryKey, s.where, maxRegistry)
	}
	return text, nil
}

// owns returns an error if the Secret is another fleet's.
func (r *Registry) owns(s secret) error {
	if fleet := s.annotations[manifest.FleetAnnotation]; fleet != "" && fleet != r.Fleet {
		return fmt.Errorf("%s has the registry of another fleet, %s: give one of the two a --lease of its own", s.where, fleet)
	}
	return nil
}

// SaveRegistry replaces the text of the registry.
func (r *Registry) SaveRegistry(ctx context.Context, text []byte) error {
	ctx, cancel := context.WithTimeout(ctx, registryTimeout)
	defer cancel()
	s, err := r.Hub.secret(ctx, r.Name)
	if err == nil {
		err = r.owns(s)
	}
	if err != nil && kube.ClassOf(err) != kube.NotFound {
		return err
	}
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
	body, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": manifest.Secret.Kind,
		"metadata": map[string]any{"namespace": id.Namespace, "name": id.Name, "annotations": map[string]any{manifest.FleetAnnotation: r.Fleet}},
		"data":     map[string]any{registryKey: base64.StdEncoding.EncodeToString(packed.Bytes())},
	})
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
	_, err = cluster.Apply(ctx, typ, id, body, kube.ApplyOptions{Force: true})
	return err
}
