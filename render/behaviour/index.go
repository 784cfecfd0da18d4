package behaviour

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"

	"gitopsd.dev/render/conversion"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/runtime"
	"gitopsd.dev/render/types"
	"gitopsd.dev/sources"
)

// Index finds the identities of one cluster's types among its rendered objects. It
// is safe for concurrent use.
type Index struct {
	workloads    map[string][]*manifest.Object // by namespace/name
	packages     map[string]*manifest.Object   // by the package's name
	compositions map[manifest.GroupKind][]*manifest.Object
	functions    map[string]sources.Digest
	runtimes     map[string]*manifest.Object      // DeploymentRuntimeConfigs that are applied
	runsBy       map[string]string                // Function to DeploymentRuntimeConfig, by name
	settings     map[manifest.ID]*manifest.Object // ConfigMaps and Secrets
	roles        map[manifest.ID]*manifest.Object
	bindings     []Binding
	definitions  map[manifest.GroupKind]*manifest.Object
	digests      sync.Map // types by definition, filled by digest

	mu         sync.Mutex
	identities map[manifest.ID]*Identity // of workloads
}

// NewIndex makes the index of a cluster's objects and packages.
func NewIndex(objects *manifest.Set, packages []sources.Selected) *Index {
	x := &Index{
		workloads:    make(map[string][]*manifest.Object),
		packages:     make(map[string]*manifest.Object),
		compositions: make(map[manifest.GroupKind][]*manifest.Object),
		functions:    make(map[string]sources.Digest),
		runtimes:     make(map[string]*manifest.Object),
		runsBy:       make(map[string]string),
		settings:     make(map[manifest.ID]*manifest.Object),
		roles:        make(map[manifest.ID]*manifest.Object),
		identities:   make(map[manifest.ID]*Identity),
		definitions:  make(map[manifest.GroupKind]*manifest.Object),
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
		case id.Is(manifest.Definitions...):
			d := types.Read(o.Tree())
			for _, kind := range d.Kinds() {
				x.definitions[manifest.GroupKind{Group: d.Group, Kind: kind}] = o
			}
		case id.Is(manifest.Composition):
			key := CompositeOf(o.Tree())
			x.compositions[key] = append(x.compositions[key], o)
		case id.Is(manifest.RuntimeConfig):
			x.runtimes[id.Name] = o
		case id.Is(manifest.ConfigMap, manifest.Secret):
			x.settings[id] = o
		case id.Is(manifest.Role, manifest.ClusterRole):
			x.roles[id] = o
		case id.Is(manifest.RoleBinding, manifest.ClusterRoleBinding):
			x.bindings = append(x.bindings, ReadBinding(o.Tree()))
		}
	}
	for _, p := range packages {
		if p.Declaration.Kind == sources.Function {
			x.functions[p.Declaration.Name] = p.Pin.Digest
			x.runsBy[p.Declaration.Name] = cmp.Or(p.Declaration.RuntimeConfig, "default")
		}
	}
	return x
}

// Of returns the identity of the types that an object defines; nil if none is known. It
// fails if the object names a controller that is not rendered.
func (x *Index) Of(definition *manifest.Object) (*Identity, error) {
	i, err := x.actor(definition)
	digest := conversion.Rules(definition.Tree())
	if err != nil || digest == "" {
		return i, err
	}
	with := new(Identity)
	if i != nil {
		*with = *i // other types may share the workload
	}
	with.Conversion = []Part{{definition.ID().Name, digest}}
	return with, nil
}

// actor returns the identity of a definition's types without conversion rules.
func (x *Index) actor(definition *manifest.Object) (*Identity, error) {
	if where := definition.Annotation(manifest.ControllerAnnotation); where != "" {
		found := x.workloads[where]
		switch {
		case strings.Count(where, "/") != 1:
			return nil, fmt.Errorf("%s: annotation %s: %q: want <namespace>/<name> of a Deployment, StatefulSet or DaemonSet", definition.Origin(), manifest.ControllerAnnotation, where)
		case len(found) == 0:
			return nil, fmt.Errorf("%s: annotation %s: there is no Deployment, StatefulSet or DaemonSet %s among the objects rendered for the cluster", definition.Origin(), manifest.ControllerAnnotation, where)
		case len(found) > 1:
			return nil, fmt.Errorf("%s: annotation %s: %s is both a %s and a %s; give them different names", definition.Origin(), manifest.ControllerAnnotation, where, found[0].ID().Kind, found[1].ID().Kind)
		}
		return x.checked(found[0])
	}
	if definition.ID().Is(manifest.XRD) {
		return x.composed(definition), nil
	}
	if o := x.packages[definition.Label(manifest.PackageLabel)]; o != nil {
		return x.checked(o)
	}
	return nil, nil
}

// checked returns the identity of a workload. It fails if the workload's annotation names
// a setting or content that the workload lacks.
func (x *Index) checked(o *manifest.Object) (*Identity, error) {
	i, t := x.Workload(o), FromWorkload(o.Tree())
	for _, name := range i.PerCluster {
		if !slices.ContainsFunc(t.Settings, func(p Part) bool { return p.Name == name }) &&
			!slices.ContainsFunc(t.References, func(r Reference) bool { return r.named(name) }) {
			return nil, fmt.Errorf("%s: annotation %s: %q is no setting, ConfigMap or Secret of %s; want \"<container> variable <NAME>\", \"<container> argument <--FLAG>\", \"ConfigMap <name>\" or \"Secret <name> key <key>\"", o.Origin(), manifest.PerClusterAnnotation, name, i)
		}
	}
	return i, nil
}

// Workload returns the identity of one of the cluster's workloads.
func (x *Index) Workload(o *manifest.Object) *Identity {
	x.mu.Lock()
	defer x.mu.Unlock()
	if i := x.identities[o.ID()]; i != nil {
		return i
	}
	i := Workload(o)
	t := FromWorkload(o.Tree())
	namespace := o.ID().Namespace
	i.Config = Config(t.References, func(kind manifest.GroupKind, name string) map[string]any {
		if found := x.settings[kind.ID(namespace, name)]; found != nil {
			return found.Tree()
		}
		return nil
	}, func(value []byte) string { return hash(value) })
	for n, p := range i.Config {
		if strings.HasPrefix(p.Name, manifest.Secret.Kind+" ") && p.Value != Elsewhere && p.Value != Certificates {
			i.Config[n].Value = Withheld
		}
	}
	// Providers of one family have the rights of all others in the cluster. Those are left
	// out.
	pkg := o.Label(manifest.PackageLabel)
	own := slices.DeleteFunc(slices.Clone(x.bindings), func(b Binding) bool { return b.Package != "" && b.Package != pkg })
	i.Rights = Rights(Account{namespace, t.Account}, own, x.rules)
	x.identities[o.ID()] = i
	return i
}

// rules returns the rules of a role, as rulesOf does.
func (x *Index) rules(role manifest.ID) (rules []any, ok bool) { return rulesOf(x.roles[role]) }

// rulesOf returns the rules of a rendered role; ok is false if it is nil, or aggregated.
func rulesOf(role *manifest.Object) (rules []any, ok bool) {
	if role == nil || manifest.Mapping(role.Tree(), "aggregationRule") != nil {
		return nil, false
	}
	return manifest.List(role.Tree(), "rules"), true
}

// Workload returns the identity of a rendered workload from its own fields, without
// Config and Rights.
func Workload(o *manifest.Object) *Identity {
	t := FromWorkload(o.Tree())
	i := &Identity{Workload: o.ID(), Settings: t.Settings, PerCluster: perCluster(o)}
	for _, p := range t.Images {
		if d, ok := ImageDigest(p.Value); ok {
			p.Value = string(d)
		}
		i.Images = append(i.Images, p)
	}
	return i
}

// perCluster returns the names in a workload's annotation.
func perCluster(o *manifest.Object) []string {
	var names []string
	for _, name := range strings.FieldsFunc(o.Annotation(manifest.PerClusterAnnotation), func(r rune) bool { return r == ',' || r == '\n' }) {
		if name = strings.Join(strings.Fields(name), " "); name != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (x *Index) composed(definition *manifest.Object) *Identity {
	trees := x.compositionsOf(definition)
	i := x.identityOf(trees)
	i.Composes = x.composes(trees)
	return i
}

func (x *Index) compositionsOf(definition *manifest.Object) []map[string]any {
	d := types.Read(definition.Tree())
	var trees []map[string]any
	for _, o := range x.compositions[manifest.GroupKind{Group: d.Group, Kind: d.Names.Kind}] {
		trees = append(trees, o.Tree())
	}
	return trees
}

func (x *Index) identityOf(compositions []map[string]any) *Identity {
	i := Composed(compositions, func(function string) string { return string(x.functions[function]) })
	for _, f := range i.Functions {
		i.Settings = append(i.Settings, x.runtime(f.Name)...)
	}
	sorted(i.Settings)
	return i
}

// runtime returns the settings that a DeploymentRuntimeConfig gives the pods of a
// Function.
func (x *Index) runtime(function string) []Part {
	o := x.runtimes[x.runsBy[function]]
	if o == nil {
		return nil
	}
	t := FromPodSpec(manifest.Mapping(o.Tree(), "spec", "deploymentTemplate", "spec", "template", "spec"))
	var parts []Part
	for _, p := range t.Settings {
		parts = append(parts, Part{"function " + function + " " + p.Name, p.Value})
	}
	for _, p := range t.Images {
		if p.Value != "" {
			parts = append(parts, Part{"function " + function + " " + p.Name + " image", hash([]byte(p.Value))})
		}
	}
	return parts
}

// CompositeOf returns the kind of the composites that a Composition applies to.
func CompositeOf(composition map[string]any) manifest.GroupKind {
	return manifest.KindOf(manifest.Mapping(composition, "spec", "compositeTypeRef"))
}

// Composed returns the identity of Compositions and the Functions that they name, without
// composed types. digest returns a Function's digest.
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
