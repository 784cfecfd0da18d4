package behaviour

import (
	"fmt"
	"strings"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/runtime"
	"gitopsd.dev/render/types"
	"gitopsd.dev/sources"
)

// Index finds the identities of one cluster's types among its rendered objects. It
// is immutable and safe for concurrent use.
type Index struct {
	workloads    map[string][]*manifest.Object // by namespace/name
	packages     map[string]*manifest.Object   // by the package's name
	compositions map[manifest.GroupKind][]*manifest.Object
	functions    map[string]sources.Digest
}

// NewIndex makes the index of a cluster's objects and packages.
func NewIndex(objects *manifest.Set, packages []sources.Selected) *Index {
	x := &Index{
		workloads:    make(map[string][]*manifest.Object),
		packages:     make(map[string]*manifest.Object),
		compositions: make(map[manifest.GroupKind][]*manifest.Object),
		functions:    make(map[string]sources.Digest),
	}
	for _, o := range objects.All() {
		id := o.ID()
		switch {
		case id.Is(manifest.Workloads...):
			key := id.Namespace + "/" + id.Name
			x.workloads[key] = append(x.workloads[key], o)
			if pkg := o.Label(manifest.PackageLabel); pkg != "" && id.Namespace == runtime.Namespace {
				x.packages[pkg] = o
			}
		case id.Is(manifest.Composition):
			key := CompositeOf(o.Tree())
			x.compositions[key] = append(x.compositions[key], o)
		}
	}
	for _, p := range packages {
		if p.Declaration.Kind == sources.Function {
			x.functions[p.Declaration.Name] = p.Pin.Digest
		}
	}
	return x
}

// Of returns the identity of the types that an object defines, nil if none is known.
// It fails if the object names a controller that is not rendered.
func (x *Index) Of(definition *manifest.Object) (*Identity, error) {
	if where := definition.Annotation(manifest.ControllerAnnotation); where != "" {
		found := x.workloads[where]
		switch {
		case strings.Count(where, "/") != 1:
			return nil, fmt.Errorf("%s: annotation %s: %q: want <namespace>/<name> of a Deployment, StatefulSet or DaemonSet", definition.Origin(), manifest.ControllerAnnotation, where)
		case len(found) == 0:
			return nil, fmt.Errorf("%s: annotation %s: there is no Deployment, StatefulSet or DaemonSet %s among what is rendered for the cluster", definition.Origin(), manifest.ControllerAnnotation, where)
		case len(found) > 1:
			return nil, fmt.Errorf("%s: annotation %s: %s is both a %s and a %s; give them different names", definition.Origin(), manifest.ControllerAnnotation, where, found[0].ID().Kind, found[1].ID().Kind)
		}
		return Workload(found[0]), nil
	}
	if definition.ID().Is(manifest.XRD) {
		return x.composed(definition), nil
	}
	if o := x.packages[definition.Label(manifest.PackageLabel)]; o != nil {
		return Workload(o), nil
	}
	return nil, nil
}

// Workload returns the identity of a rendered workload.
func Workload(o *manifest.Object) *Identity {
	t := FromWorkload(o.Tree())
	i := &Identity{Workload: o.ID(), Settings: t.Settings}
	for _, p := range t.Images {
		if d, ok := ImageDigest(p.Value); ok {
			p.Value = string(d)
		}
		i.Images = append(i.Images, p)
	}
	return i
}

func (x *Index) composed(definition *manifest.Object) *Identity {
	d := types.Read(definition.Tree())
	var trees []map[string]any
	for _, o := range x.compositions[manifest.GroupKind{Group: d.Group, Kind: d.Names.Kind}] {
		trees = append(trees, o.Tree())
	}
	return Composed(trees, func(function string) string { return string(x.functions[function]) })
}

// CompositeOf returns the kind of the composites that a Composition is for.
func CompositeOf(composition map[string]any) manifest.GroupKind {
	return manifest.KindOf(manifest.Mapping(composition, "spec", "compositeTypeRef"))
}

// Composed returns the identity of Compositions and the Functions they name; digest
// returns a Function's digest.
func Composed(compositions []map[string]any, digest func(function string) string) *Identity {
	i := new(Identity)
	functions := make(map[string]bool)
	for _, tree := range compositions {
		spec := manifest.Mapping(tree, "spec")
		i.Compositions = append(i.Compositions, Part{manifest.Text(tree, "metadata", "name"), hash(manifest.AppendJSON(nil, plainComposition(spec)))})
		for _, s := range manifest.List(spec, "pipeline") {
			step, _ := s.(map[string]any)
			if f := manifest.Text(step, "functionRef", "name"); f != "" && !functions[f] {
				functions[f] = true
				i.Functions = append(i.Functions, Part{f, digest(f)})
			}
		}
	}
	sorted(i.Compositions)
	sorted(i.Functions)
	return i
}

// plainComposition returns a Composition's spec without the API server's defaults.
func plainComposition(spec map[string]any) map[string]any {
	mode, pipeline := "Resources", false
	if list, _ := spec["pipeline"].([]any); len(list) > 0 {
		mode, pipeline = "Pipeline", true
	}
	plain := make(map[string]any, len(spec))
	for k, v := range spec {
		switch k {
		case "mode":
			if v == mode {
				continue
			}
		case "publishConnectionDetailsWithStoreConfigRef":
			if ref, _ := v.(map[string]any); len(ref) == 1 && ref["name"] == "default" {
				continue
			}
		case "resources":
			if list, _ := v.([]any); pipeline && len(list) == 0 {
				continue
			}
		}
		plain[k] = v
	}
	return plain
}
