package manifest

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"sigs.k8s.io/yaml"

	"gitopsd.dev/sources"
)

// Object is one Kubernetes object. It is immutable and safe for concurrent use:
// clusters that get the same object share the pointer.
type Object struct {
	id     ID
	origin Origin
	tree   map[string]any
	// rendered is the object before [Object.Complete]; nil if the object is not completed.
	rendered *Object
	unknown  []string

	once sync.Once
	hash sources.Digest
}

// New makes an object from a tree of the types that [sources.DecodeYAML] returns:
// map[string]any, []any, string, bool, int64, float64 and nil. The tree must not be
// changed afterwards. New checks apiVersion, kind, metadata.name and
// metadata.namespace, and that labels and annotations are strings. Errors name the
// origin and the field.
func New(tree map[string]any, origin Origin) (*Object, error) {
	id, err := identify(tree)
	if err != nil {
		if id.Kind != "" && id.Name != "" {
			return nil, fmt.Errorf("%s: %s: %w", origin, id, err)
		}
		return nil, fmt.Errorf("%s: %w", origin, err)
	}
	return &Object{id: id, origin: origin, tree: tree}, nil
}

// FromDocument returns the objects of a document: one, or the items of a List, which is
// any kind that ends in List and has items. Each object has the document's line.
func FromDocument(doc sources.Document, origin Origin) ([]*Object, error) {
	origin.Line = doc.Line
	kind := Text(doc.Tree, "kind")
	items, isList := doc.Tree["items"].([]any)
	if !isList || !strings.HasSuffix(kind, "List") {
		o, err := New(doc.Tree, origin)
		if err != nil {
			return nil, err
		}
		return []*Object{o}, nil
	}
	objects := make([]*Object, 0, len(items))
	for i, item := range items {
		tree, ok := item.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("%s: %s: items.%d: want a mapping", origin, kind, i)
		}
		o, err := New(tree, origin)
		if err != nil {
			return nil, err
		}
		objects = append(objects, o)
	}
	return objects, nil
}

// Complete returns the object with fields that were not known when it was rendered.
// tree is the whole object with these fields. Fields that are still unknown are absent
// from tree and listed in unknown, as paths in the form of plan.Change. Complete fails
// as [New] does, and if tree has another ID.
func (o *Object) Complete(tree map[string]any, unknown ...string) (*Object, error) {
	id, err := identify(tree)
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", o.origin, o.id, err)
	}
	if id != o.id {
		return nil, fmt.Errorf("%s: %s cannot be completed to %s", o.origin, o.id, id)
	}
	return &Object{id: id, origin: o.origin, tree: tree, rendered: o.Rendered(), unknown: append(slices.Clip(o.unknown), unknown...)}, nil
}

// Rewrite returns the object in another form, with the same unknown fields. It calls
// form for the object and for its rendered form. It fails as [New] does.
func (o *Object) Rewrite(form func(o *Object) (tree map[string]any)) (*Object, error) {
	other := &Object{origin: o.origin, tree: form(o), unknown: o.unknown}
	var err error
	if other.id, err = identify(other.tree); err != nil {
		return nil, fmt.Errorf("%s: %s: %w", o.origin, o.id, err)
	}
	if o.rendered != nil {
		other.rendered, err = o.rendered.Rewrite(form)
	}
	return other, err
}

// Rendered returns the object without the fields that [Object.Complete] added.
func (o *Object) Rendered() *Object {
	if o.rendered == nil {
		return o
	}
	return o.rendered
}

// Unknown returns the fields with values that are not known yet, as paths in the form
// of plan.Change.
func (o *Object) Unknown() []string { return o.unknown }

// ID returns the object's identity in a cluster.
func (o *Object) ID() ID { return o.id }

// Origin returns where the object was written.
func (o *Object) Origin() Origin { return o.origin }

// APIVersion returns "group/version", or "version" in the core group.
func (o *Object) APIVersion() string { return Text(o.tree, "apiVersion") }

// Version returns the version part of the apiVersion.
func (o *Object) Version() string {
	_, version := GroupVersion(o.APIVersion())
	return version
}

// Tree returns the whole object, read-only.
func (o *Object) Tree() map[string]any { return o.tree }

// Label returns the value of a label, or "".
func (o *Object) Label(key string) string { return o.metadata("labels", key) }

// Annotation returns the value of an annotation, or "".
func (o *Object) Annotation(key string) string { return o.metadata("annotations", key) }

func (o *Object) metadata(field, key string) string { return Text(o.tree, "metadata", field, key) }

// Labels returns a copy of the object's labels.
func (o *Object) Labels() map[string]string { return o.stringMap("labels") }

// Annotations returns a copy of the object's annotations.
func (o *Object) Annotations() map[string]string { return o.stringMap("annotations") }

func (o *Object) stringMap(field string) map[string]string {
	values := Mapping(o.tree, "metadata", field)
	m := make(map[string]string, len(values))
	for k, v := range values {
		m[k], _ = v.(string)
	}
	return m
}

// WithMetadata returns the object with labels and annotations added. They replace
// existing keys. The two objects share everything but the root, metadata, and the labels
// and annotations.
func (o *Object) WithMetadata(labels, annotations map[string]string) *Object {
	if len(labels) == 0 && len(annotations) == 0 {
		return o
	}
	meta := maps.Clone(Mapping(o.tree, "metadata"))
	merge := func(field string, values map[string]string) {
		if len(values) == 0 {
			return
		}
		old := Mapping(meta, field)
		merged := make(map[string]any, len(old)+len(values))
		maps.Copy(merged, old)
		for k, v := range values {
			merged[k] = v
		}
		meta[field] = merged
	}
	merge("labels", labels)
	merge("annotations", annotations)
	tree := maps.Clone(o.tree)
	tree["metadata"] = meta
	return &Object{id: o.id, origin: o.origin, tree: tree, rendered: o.rendered, unknown: o.unknown}
}

// WithOrigin returns the object with another origin. The two share their tree.
func (o *Object) WithOrigin(origin Origin) *Object {
	return &Object{id: o.id, origin: origin, tree: o.tree, rendered: o.rendered, unknown: o.unknown}
}

// CheckOwners returns an error if the object has owners. Kubernetes deletes an object whose
// owners are not in the cluster: a definition with all its objects.
func (o *Object) CheckOwners() error {
	if len(List(o.tree, "metadata", "ownerReferences")) == 0 {
		return nil
	}
	return errors.New("metadata.ownerReferences: Kubernetes deletes an object if these are not in the cluster; remove the field")
}

// Find returns the object with an ID, or nil.
func Find(objects []*Object, id ID) *Object {
	for _, o := range objects {
		if o.id == id {
			return o
		}
	}
	return nil
}

// Hash returns the digest of the object's canonical JSON, computed on the first
// call. Objects with equal hashes differ at most in their origin.
func (o *Object) Hash() sources.Digest {
	o.once.Do(func() { o.hash = o.digest() })
	if o.hash == "" {
		return o.digest() // the first call panicked, and so does this one
	}
	return o.hash
}

func (o *Object) digest() sources.Digest {
	buf := buffers.Get().(*[]byte)
	*buf = o.AppendJSON((*buf)[:0])
	sum := sha256.Sum256(*buf)
	buffers.Put(buf)
	return sources.Digest("sha256:" + hex.EncodeToString(sum[:]))
}

var buffers = sync.Pool{New: func() any { return new([]byte) }}

// YAML returns the object as `kustomize build` prints it: keys sorted, two spaces.
func (o *Object) YAML() ([]byte, error) {
	out, err := yaml.JSONToYAML(o.AppendJSON(nil))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.id, err)
	}
	return out, nil
}
