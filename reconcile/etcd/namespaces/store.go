package namespaces

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"

	"gitopsd.dev/reconcile/etcd/identity"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/etcd"
	"gitopsd.dev/render/manifest"
)

// mark returns the value of manifest.EtcdAnnotation for an object of an EtcdNamespace. It names both, so
// that a copy under another name or in another namespace is not gitopsd's.
func mark(id, of manifest.ID) string {
	return fmt.Sprintf("%s for %s/%s", id, of.Namespace, of.Name)
}

// store reads and writes the Secrets and ConfigMaps of one EtcdNamespace. It is an [identity.Store]. The
// proxy's Secret also has files other than certificates, which Get hides and Put adds.
type store struct {
	client *kube.Client
	of     manifest.ID
	proxy  manifest.ID
	// files are the existing files of the proxy's Secret, and want the wanted ones; nil to keep
	// the existing ones.
	files, want map[string][]byte
	keys        map[manifest.ID]map[string]bool // of the objects that were read
}

// store returns the store of an object.
func (p *pass) store(t *task) *store {
	id := t.object()
	return &store{client: p.Client, of: id, proxy: manifest.Secret.ID(id.Namespace, etcd.ProxySecret(id.Name)), keys: make(map[manifest.ID]map[string]bool)}
}

func typeOf(id manifest.ID) kube.Type {
	if id.Is(manifest.ConfigMap) {
		return configMapType
	}
	return secretType
}

// Get implements [identity.Store].
func (s *store) Get(ctx context.Context, id manifest.ID) (identity.Stored, error) {
	tree, meta, err := s.client.Get(ctx, typeOf(id), id)
	if kube.IsMissing(err) {
		delete(s.keys, id)
		return identity.Stored{}, nil
	}
	if err != nil {
		return identity.Stored{}, err
	}
	stored := identity.Stored{Data: make(map[string][]byte), Version: meta.ResourceVersion}
	if meta.Annotations[manifest.EtcdAnnotation] != mark(id, s.of) {
		stored.Foreign = fmt.Sprintf("%s exists and is not gitopsd's: delete it, or name another in the EtcdNamespace", id)
		return stored, nil
	}
	keys := make(map[string]bool)
	for key, value := range manifest.Mapping(tree, "data") {
		text, _ := value.(string)
		keys[key] = true
		if id.Is(manifest.ConfigMap) {
			stored.Data[key] = []byte(text)
		} else if data, err := base64.StdEncoding.DecodeString(text); err == nil {
			stored.Data[key] = data
		}
	}
	for key := range manifest.Mapping(tree, "binaryData") {
		keys[key] = true
	}
	s.keys[id] = keys
	if id == s.proxy {
		s.files = make(map[string][]byte)
		for _, name := range []string{etcd.NamespaceFile, etcd.EndpointsFile} {
			if data, ok := stored.Data[name]; ok {
				s.files[name] = data
				delete(stored.Data, name)
			}
		}
	}
	return stored, nil
}

// Put implements [identity.Store].
func (s *store) Put(ctx context.Context, id manifest.ID, data map[string][]byte, version string) error {
	if id == s.proxy {
		data = maps.Clone(data)
		files := s.files
		if s.want != nil {
			files = s.want
		}
		maps.Copy(data, files)
	}
	values := make(map[string]any, len(data))
	for key, value := range data {
		if id.Is(manifest.ConfigMap) {
			values[key] = string(value)
		} else {
			values[key] = base64.StdEncoding.EncodeToString(value)
		}
	}
	if version == "" {
		return s.create(ctx, id, values)
	}
	for key := range s.keys[id] {
		if _, stays := values[key]; !stays {
			values[key] = nil
		}
	}
	err := s.client.Patch(ctx, typeOf(id), id, map[string]any{"data": values}, version)
	if kube.IsStale(err) {
		return identity.ErrChanged
	}
	return refused(err)
}

// refused returns an error as an [identity.Store] does.
func refused(err error) error {
	if err == nil || kube.IsClusterWide(err) {
		return err
	}
	return identity.Refused{Err: err}
}

func (s *store) create(ctx context.Context, id manifest.ID, values map[string]any) error {
	tree := map[string]any{
		"apiVersion": "v1", "kind": id.Kind, "data": values,
		"metadata": map[string]any{
			"name": id.Name, "namespace": id.Namespace,
			"labels":      map[string]any{manifest.EtcdLabel: s.of.Name},
			"annotations": map[string]any{manifest.EtcdAnnotation: mark(id, s.of)},
		},
	}
	if id.Is(manifest.Secret) {
		tree["type"] = "Opaque"
	}
	body, err := json.Marshal(tree)
	if err != nil {
		return err
	}
	_, err = s.client.Create(ctx, typeOf(id), id, body)
	if kube.ClassOf(err) == kube.Exists {
		return identity.ErrChanged
	}
	return refused(err)
}

// finish writes the files of the proxy's Secret if they differ, and are known.
func (s *store) finish(ctx context.Context) error {
	if s.want == nil {
		return nil
	}
	now, err := s.Get(ctx, s.proxy)
	if err != nil || now.Version == "" || now.Foreign != "" || maps.EqualFunc(s.files, s.want, bytes.Equal) {
		return err
	}
	return s.Put(ctx, s.proxy, now.Data, now.Version)
}
