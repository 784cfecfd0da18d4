package hub

import (
	"context"
	"fmt"
	"path"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/oci"
)

// Keys of pull secrets.
const (
	dockerConfigJSON = ".dockerconfigjson"
	dockerConfig     = ".dockercfg"
)

// secretsAge is how long a Secret of the hub is used before it is read again: long
// enough for the requests of one pass to share it.
const secretsAge = 5 * time.Second

// readTimeout bounds one read of a Secret, which several callers may share.
const readTimeout = 30 * time.Second

// Secrets reads the Secrets that packages and ImageConfigs name. It is safe for
// concurrent use.
type Secrets struct {
	// Dir has a directory for each Secret, with a file for each of its keys, as
	// Kubernetes mounts Secrets. It comes before Hub; empty means none.
	Dir string
	// Hub has the other Secrets; nil means none.
	Hub *Hub

	flights singleflight.Group
	mu      sync.Mutex
	read    map[string]secret
}

// Pull returns the credentials in the named pull secrets. For a Secret that is neither in
// Dir nor in a Hub, as on a developer's machine, it returns empty credentials, so that
// Docker's own are used. Errors name the Secret and what it lacks.
func (r *Secrets) Pull(ctx context.Context, names []string) ([]*oci.Credentials, error) {
	var found []*oci.Credentials
	for _, name := range names {
		creds, err := r.pullFromDir(name)
		if err == nil && creds == nil && r.Hub != nil {
			creds, err = r.pullFromHub(ctx, name)
		}
		if err != nil {
			return nil, err
		}
		if creds == nil {
			creds = oci.NoCredentials(r.unread(name))
		}
		found = append(found, creds)
	}
	return found, nil
}

// unread says for errors where a pull secret was not found.
func (r *Secrets) unread(name string) string {
	if r.Dir == "" {
		return fmt.Sprintf("pull secret %s (which was not read, since neither --secrets-dir nor a hub, --kubeconfig, is named)", name)
	}
	return fmt.Sprintf("pull secret %s (which is not in %s)", name, r.Dir)
}

func (r *Secrets) pullFromDir(name string) (*oci.Credentials, error) {
	for _, key := range []string{dockerConfigJSON, dockerConfig} {
		text, exists, err := r.file(name, key)
		if err != nil {
			return nil, err
		}
		if exists {
			return oci.ParseCredentials(path.Join(r.Dir, name, key), text)
		}
	}
	return nil, nil
}

func (r *Secrets) pullFromHub(ctx context.Context, name string) (*oci.Credentials, error) {
	s, err := r.secret(ctx, name, manifest.PullSecretLabel, "a pull secret")
	if err != nil {
		return nil, err
	}
	var key string
	switch s.typ {
	case "kubernetes.io/dockerconfigjson":
		key = dockerConfigJSON
	case "kubernetes.io/dockercfg":
		key = dockerConfig
	default:
		return nil, fmt.Errorf("%s has type %q; a pull secret has type kubernetes.io/dockerconfigjson, as `kubectl create secret docker-registry` makes it", s.where, s.typ)
	}
	text, err := s.entry(key)
	if err != nil {
		return nil, err
	}
	return oci.ParseCredentials(fmt.Sprintf("%s, key %s", s.where, key), text)
}

// Key returns a public key that the cluster's manifests do not have. Errors name the
// Secret or file and what it lacks.
func (r *Secrets) Key(ctx context.Context, k *sources.VerificationKey) ([]byte, error) {
	text, exists, err := r.file(k.Secret, k.Entry)
	switch {
	case err != nil || exists:
		return text, err
	case r.Hub == nil && r.Dir != "":
		return nil, fmt.Errorf("the public key is neither in a Secret %s of the cluster's manifests nor in %s", k.Secret, path.Join(r.Dir, k.Secret, k.Entry))
	case r.Hub == nil:
		return nil, fmt.Errorf("the cluster's manifests have no Secret %s with the public key, and there is no hub to look for it: put it there (a public key is no secret), or into the file %s below --secrets-dir",
			k.Secret, path.Join(k.Secret, k.Entry))
	}
	s, err := r.secret(ctx, k.Secret, manifest.VerificationKeyLabel, "a public key to verify signatures with")
	if err != nil {
		return nil, err
	}
	return s.entry(k.Entry)
}

// file reads a key of a Secret below the directory, and reports whether it exists.
func (r *Secrets) file(name, key string) (text []byte, exists bool, err error) {
	if r.Dir == "" {
		return nil, false, nil
	}
	text, exists, err = readBelow(r.Dir, path.Join(name, key))
	if err != nil {
		return nil, false, fmt.Errorf("--secrets-dir: %w", err)
	}
	return text, exists, nil
}

// secret returns a Secret of the hub if it has the label. use is the purpose that the
// label allows, for errors.
func (r *Secrets) secret(ctx context.Context, name, label, use string) (secret, error) {
	r.mu.Lock()
	s, ok := r.read[name]
	r.mu.Unlock()
	if !ok || time.Since(s.at) > secretsAge {
		result := r.flights.DoChan(name, func() (_ any, err error) {
			defer recovered(&err)
			// The first caller may leave; others wait for the answer too.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
			defer cancel()
			return r.Hub.secret(ctx, name)
		})
		select {
		case <-ctx.Done():
			return secret{}, context.Cause(ctx)
		case res := <-result:
			if kube.ClassOf(res.Err) == kube.NotFound {
				return secret{}, fmt.Errorf("%s is not in the hub; make it there, labelled %s: \"true\"", r.Hub.where(name), label)
			}
			if res.Err != nil {
				return secret{}, res.Err
			}
			s = res.Val.(secret)
		}
		r.mu.Lock()
		if r.read == nil {
			r.read = make(map[string]secret)
		}
		r.read[name] = s
		r.mu.Unlock()
	}
	if s.labels[label] != "true" {
		return secret{}, fmt.Errorf("%s does not carry the label %s: \"true\", which allows to use it as %s", s.where, label, use)
	}
	return s, nil
}
