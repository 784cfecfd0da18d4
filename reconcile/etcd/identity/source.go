package identity

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"
	"slices"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/certs/rotation"
	"gitopsd.dev/render/manifest"
)

// Records returns the Secrets with the records of a namespace's CAs. They are deleted with it.
func Records(w Wanted) []manifest.ID {
	all := []manifest.ID{recordOf(w, "server"), recordOf(w, "upstream")}
	for _, c := range w.Clients {
		all = append(all, recordOfClient(w, c))
	}
	return all
}

// recordOf returns the Secret with the record of one CA. Its name has a hash: names of Secrets have at
// most 253 characters, and a client's Secret may use them all.
func recordOf(w Wanted, use string) manifest.ID {
	sum := sha256.Sum256([]byte(w.Proxy.Namespace + "/" + w.Proxy.Name + "/" + use))
	return manifest.Secret.ID(apply.Namespace, manifest.EtcdCAPrefix+hex.EncodeToString(sum[:16]))
}

// Recorded returns the CAs in a record, in PEM.
func Recorded(record map[string][]byte) (cas []byte) {
	for _, name := range slices.Sorted(maps.Keys(record)) {
		if certs, err := rotation.Parse(record[name]); err == nil {
			cas = append(cas, rotation.Encode(certs...)...)
		}
	}
	return cas
}

func recordOfClient(w Wanted, c Client) manifest.ID { return recordOf(w, "client/"+c.Secret.Name) }

// Keys of Secrets and ConfigMaps other than the proxy's.
const (
	keyCert   = "tls.crt"
	keyKey    = "tls.key"
	keyBundle = "ca.crt"
)

// foreign is the error for an object that is not gitopsd's.
type foreign string

func (f foreign) Error() string { return string(f) }

// source is the [rotation.Source] of one rotation.
type source struct {
	store  Store
	record manifest.ID
	// leaf is the existing certificate, and bundles are the bundles in use.
	leaf    map[string][]byte
	bundles []rotation.Held
	// version is the version of the record when it was last read.
	version string
}

// Leaf implements [rotation.Source]. The certificate is read once; it is replaced only if it has not
// changed since.
func (s *source) Leaf(context.Context) (map[string][]byte, error) { return s.leaf, nil }

// Journal implements [rotation.Source].
func (s *source) Journal(ctx context.Context) (map[string][]byte, error) {
	record, err := s.store.Get(ctx, s.record)
	if err != nil {
		return nil, err
	}
	if record.Foreign != "" {
		return nil, foreign(record.Foreign)
	}
	s.version = record.Version
	if record.Version == "" {
		return nil, nil
	}
	return record.Data, nil
}

// Bundles implements [rotation.Source].
func (s *source) Bundles(context.Context) ([]rotation.Held, error) { return s.bundles, nil }

// Record implements [rotation.Source].
func (s *source) Record(ctx context.Context, data map[string][]byte) error {
	err := s.store.Put(ctx, s.record, data, s.version)
	if errors.Is(err, ErrChanged) {
		return nil // the record is read again
	}
	return err
}
