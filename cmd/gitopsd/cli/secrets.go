package cli

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/oci"
)

const (
	dockerConfigJSON = ".dockerconfigjson"
	dockerConfig     = ".dockercfg"
	// maxSecretFile bounds a file in --secrets-dir, in bytes; a Secret can hold
	// no more.
	maxSecretFile = 1 << 20
	// secretsAge is how long a Secret of the hub is used before it is read
	// again: long enough for the requests of one pass to share it.
	secretsAge = 5 * time.Second
)

// secretReader finds the Secrets that ImageConfigs and packages name: below a
// directory, as Kubernetes mounts them, or in the hub. Nothing of what is in
// them gets into an error.
type secretReader struct {
	// dir has a directory for each Secret with a file for each of its keys;
	// empty for none.
	dir string
	// hub is where Secrets are otherwise; nil without one.
	hub *hub

	flights singleflight.Group
	mu      sync.Mutex
	read    map[string]hubSecret
}

// hubSecret is a Secret as it was read, and when.
type hubSecret struct {
	at     time.Time
	typ    string
	data   map[string]any // base64
	labels map[string]string
}

// pull returns the credentials in some pull secrets. Without a place to look for
// them, as on a developer's machine, there are none, and Docker's own are used.
func (r *secretReader) pull(ctx context.Context, names []string) ([]*oci.Credentials, error) {
	var found []*oci.Credentials
	for _, name := range names {
		creds, err := r.pullFromDir(name)
		if err == nil && creds == nil && r.hub != nil {
			creds, err = r.pullFromHub(ctx, name)
		}
		if err != nil {
			return nil, err
		}
		if creds != nil {
			found = append(found, creds)
		}
	}
	return found, nil
}

func (r *secretReader) pullFromDir(name string) (*oci.Credentials, error) {
	for _, key := range []string{dockerConfigJSON, dockerConfig} {
		text, err := r.file(name, key)
		if err != nil {
			return nil, err
		}
		if text != nil {
			return oci.ParseCredentials(path.Join(r.dir, name, key), text)
		}
	}
	return nil, nil
}

func (r *secretReader) pullFromHub(ctx context.Context, name string) (*oci.Credentials, error) {
	secret, where, err := r.secret(ctx, name, manifest.PullSecretLabel, "a pull secret")
	if err != nil {
		return nil, err
	}
	var key string
	switch secret.typ {
	case "kubernetes.io/dockerconfigjson":
		key = dockerConfigJSON
	case "kubernetes.io/dockercfg":
		key = dockerConfig
	default:
		return nil, fmt.Errorf("%s has type %q; a pull secret has type kubernetes.io/dockerconfigjson, as `kubectl create secret docker-registry` makes it", where, secret.typ)
	}
	text, err := secret.entry(where, key)
	if err != nil {
		return nil, err
	}
	return oci.ParseCredentials(fmt.Sprintf("%s, key %s", where, key), text)
}

// key returns a public key that the cluster's manifests do not have.
func (r *secretReader) key(ctx context.Context, k *sources.VerificationKey) ([]byte, error) {
	text, err := r.file(k.Secret, k.Entry)
	switch {
	case err != nil || text != nil:
		return text, err
	case r.hub == nil && r.dir != "":
		return nil, fmt.Errorf("the public key is neither in a Secret %s of the cluster's manifests nor in %s", k.Secret, path.Join(r.dir, k.Secret, k.Entry))
	case r.hub == nil:
		return nil, fmt.Errorf("the cluster's manifests have no Secret %s with the public key, and there is no hub to look for it: put it there (a public key is no secret), or into the file %s below --secrets-dir",
			k.Secret, path.Join(k.Secret, k.Entry))
	}
	secret, where, err := r.secret(ctx, k.Secret, manifest.VerificationKeyLabel, "a public key to verify signatures with")
	if err != nil {
		return nil, err
	}
	return secret.entry(where, k.Entry)
}

// file reads a key of a Secret below the directory, nil if it is not there.
// os.Root keeps names and links from leading out of it.
func (r *secretReader) file(name, key string) ([]byte, error) {
	if r.dir == "" {
		return nil, nil
	}
	root, err := os.OpenRoot(r.dir)
	if err != nil {
		return nil, fmt.Errorf("--secrets-dir: %w", err)
	}
	defer root.Close()
	f, err := root.Open(path.Join(name, key))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("--secrets-dir: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxSecretFile+1))
	if err == nil && len(text) > maxSecretFile {
		err = fmt.Errorf("more than %d bytes", maxSecretFile)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path.Join(r.dir, name, key), err)
	}
	return text, nil
}

// secret reads a labelled Secret in the daemon's own namespace of the hub, and
// says how to call it.
func (r *secretReader) secret(ctx context.Context, name, label, what string) (hubSecret, string, error) {
	where := fmt.Sprintf("Secret %s/%s", r.hub.namespace, name)
	r.mu.Lock()
	s, ok := r.read[name]
	r.mu.Unlock()
	if !ok || time.Since(s.at) > secretsAge {
		result := r.flights.DoChan(name, func() (_ any, err error) {
			defer recovered(&err)
			// Whoever waits for it may go away; what is read is there for all.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
			defer cancel()
			return r.hub.secret(ctx, name)
		})
		select {
		case <-ctx.Done():
			return s, where, context.Cause(ctx)
		case res := <-result:
			var missing *kube.Error
			if errors.As(res.Err, &missing) && missing.Class == kube.NotFound {
				return s, where, fmt.Errorf("%s is not in the hub; make it there, labelled %s: \"true\"", where, label)
			} else if res.Err != nil {
				return s, where, res.Err
			}
			s = res.Val.(hubSecret)
		}
		r.mu.Lock()
		if r.read == nil {
			r.read = make(map[string]hubSecret)
		}
		r.read[name] = s
		r.mu.Unlock()
	}
	if s.labels[label] != "true" {
		return s, where, fmt.Errorf("%s does not carry the label %s: \"true\", which allows to use it as %s", where, label, what)
	}
	return s, where, nil
}

// entry decodes one key.
func (s hubSecret) entry(where, key string) ([]byte, error) {
	encoded, ok := s.data[key].(string)
	if !ok {
		return nil, fmt.Errorf("%s has no key %q", where, key)
	}
	text, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return nil, fmt.Errorf("key %q of %s is not base64", key, where)
	}
	return text, nil
}
