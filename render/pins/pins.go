// Package pins makes the objects by which a cluster's API server itself refuses an
// object that is pinned to another type or controller than the cluster has, whoever
// creates it: ValidatingAdmissionPolicies, with the digests of the cluster's types and
// of what acts on them as their parameters. Nothing of ours is in the way of a
// request.
//
// Each package has one policy, one binding and one ConfigMap, with the package's label:
// where the package is refused, they stay as they are, like its types. The
// definitions of plain manifests share a policy and a binding; each of them has its
// own ConfigMap, since each is refused alone. A ConfigMap has
//
//	type.<plural>.<group>        the digests of the versions of that type, with spaces
//	controller.<plural>.<group>  the digest of what acts on it as rendered, if that is known
//
// A policy judges only objects that carry a pin, and only requests that set or change
// the pin or anything but metadata and status: finalizers can be removed, status
// reported, and objects deleted, whatever they are pinned to. Requests for subresources,
// such as scale, are not judged: their objects have no annotations. Which version of its
// API a request uses does not matter, so that a pin to any version of the type is good.
// A type that no ConfigMap names is not judged. If a ConfigMap is missing, its types are
// not either, until gitopsd has it back: the API server has no way to refuse pinned
// objects then without refusing all others. An API server that has just started lets
// requests for these types wait until it has read its ConfigMaps, and refuses them if
// that takes more than a second.
//
// The parameters are applied after the types, those of XRDs too, and before custom
// resources. In between, objects with the old pin are accepted that gitopsd would
// refuse; plan and run check pins in any case (reconcile/plan).
package pins

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/runtime"
	"gitopsd.dev/render/types"
)

// Name is the name of the policy for plain manifests. The other objects' names, except
// for ConfigMaps of definitions, are Name, a dash and the package.
const Name = "gitopsd-pins"

// Origin is where the objects come from that Objects makes.
var Origin = manifest.Origin{For: "spec.pins of the Cluster"}

// Of reports whether an object is one that Objects makes. A label does not make a
// person's object one.
func Of(o *manifest.Object) bool { return o.Origin() == Origin }

// Policy reports whether the name is that of a policy which Objects makes.
func Policy(name string) bool { return name == Name || strings.HasPrefix(name, Name+"-") }

// Parameters returns the object that has the digests of a plain manifest's types, and
// the policy and binding without which it means nothing.
func Parameters(definition string) []manifest.ID {
	return []manifest.ID{
		manifest.ConfigMap.ID(runtime.Namespace, Name+"."+definition),
		manifest.ValidatingPolicy.ID("", Name), manifest.ValidatingPolicyBinding.ID("", Name),
	}
}

// maxResource bounds "<plural>.<group>": names of objects and keys of ConfigMaps, of
// which it is a part, have at most 253 characters.
const maxResource = 253 - len(Name+".")

// TooLong reports whether a definition's names are too long for its types to be in a
// ConfigMap: pins to them are not enforced.
func TooLong(definition *manifest.Object) bool {
	d := types.Read(definition.Tree())
	return max(len(definition.ID().Name), max(len(d.Names.Plural), len(d.Claims.Plural))+1+len(d.Group)) > maxResource
}

// maxData bounds the data of a ConfigMap; the API server's own limit is 1 MiB.
const maxData = 512 << 10

// Objects returns the objects that enforce pins to the types which a cluster's objects
// define; of returns what acts on the types of a definition. Definitions that
// are [TooLong] are left out.
func Objects(objects *manifest.Set, of func(definition *manifest.Object) (*behaviour.Identity, error)) ([]*manifest.Object, error) {
	owners := make(map[string]*owner)
	for _, o := range objects.All() {
		if !o.ID().Is(manifest.Definitions...) {
			continue
		}
		d := types.Read(o.Tree())
		// On XRDs the annotation names a controller, and is no pin.
		if d.Group == "" || d.Defines(manifest.XRD) || d.Defines(manifest.MRD) || TooLong(o) {
			continue
		}
		data := digests(o, d, of)
		if len(data) == 0 {
			continue // the API server says what is wrong with it
		}
		pkg := o.Label(manifest.PackageLabel)
		if owners[pkg] == nil {
			owners[pkg] = &owner{pkg: pkg}
		}
		owners[pkg].add(o.ID().Name, d.Group, data)
	}
	var all []*manifest.Object
	for _, pkg := range slices.Sorted(maps.Keys(owners)) {
		made, err := owners[pkg].objects()
		if err != nil {
			return nil, err
		}
		all = append(all, made...)
	}
	return all, nil
}

// digests returns the data for the types of one definition, by key.
func digests(o *manifest.Object, d types.Definition, of func(*manifest.Object) (*behaviour.Identity, error)) map[string]string {
	all, err := types.Of(o.Tree())
	if err != nil {
		return nil
	}
	controller := ""
	// What is wrong with the name of a controller is told where it is compared.
	if i, err := of(o); err == nil && i != nil {
		controller = i.Digest()
	}
	data := make(map[string]string)
	for _, names := range []types.Names{d.Names, d.Claims} {
		var list []string
		for _, t := range all {
			if t.Kind == names.Kind && names.Kind != "" {
				list = append(list, t.Digest)
			}
		}
		if len(list) == 0 || names.Plural == "" {
			continue
		}
		resource := names.Plural + "." + d.Group
		data["type."+resource] = strings.Join(list, " ")
		if controller != "" {
			data["controller."+resource] = controller
		}
	}
	return data
}

// Resources returns the keys that the ConfigMap of a definition's types has.
func Resources(definition *manifest.Object) []string {
	d := types.Read(definition.Tree())
	var keys []string
	for _, names := range []types.Names{d.Names, d.Claims} {
		if names.Plural != "" {
			keys = append(keys, "type."+names.Plural+"."+d.Group)
		}
	}
	return keys
}

// owner is a package, or all plain manifests, with the types that it defines.
type owner struct {
	pkg    string
	groups []string
	parts  []part
}

// part is the data of one definition.
type part struct {
	definition string
	data       map[string]string
}

func (w *owner) add(definition, group string, data map[string]string) {
	if !slices.Contains(w.groups, group) {
		w.groups = append(w.groups, group)
	}
	w.parts = append(w.parts, part{definition, data})
}

func (w *owner) name() string {
	if w.pkg == "" {
		return Name
	}
	return Name + "-" + w.pkg
}

func (w *owner) objects() ([]*manifest.Object, error) {
	slices.Sort(w.groups)
	slices.SortFunc(w.parts, func(a, b part) int { return cmp.Compare(a.definition, b.definition) })
	trees := []map[string]any{
		object(manifest.ValidatingPolicy, w.name(), "", "spec", policySpec(w.groups)),
		object(manifest.ValidatingPolicyBinding, w.name(), "", "spec", map[string]any{
			"policyName": w.name(), "validationActions": []any{"Deny"},
			"paramRef": map[string]any{
				"namespace": runtime.Namespace, "parameterNotFoundAction": "Allow",
				"selector": map[string]any{"matchLabels": map[string]any{manifest.PinsLabel: w.pkg}},
			},
		}),
	}
	for name, data := range w.maps() {
		trees = append(trees, object(manifest.ConfigMap, name, runtime.Namespace, "data", data))
	}
	labels := map[string]string{manifest.PinsLabel: w.pkg}
	if w.pkg != "" {
		labels[manifest.PackageLabel] = w.pkg
	}
	all := make([]*manifest.Object, len(trees))
	for i, tree := range trees {
		o, err := manifest.New(tree, Origin)
		if err != nil {
			return nil, fmt.Errorf("the policy for pins: %w", err)
		}
		all[i] = o.WithMetadata(labels, nil)
	}
	slices.SortFunc(all, func(a, b *manifest.Object) int { return a.ID().Compare(b.ID()) })
	return all, nil
}

// maps returns the data of the owner's ConfigMaps by their names.
func (w *owner) maps() map[string]map[string]any {
	all := make(map[string]map[string]any)
	if w.pkg == "" {
		for _, p := range w.parts {
			all[Name+"."+p.definition] = merged(nil, p.data)
		}
		return all
	}
	name, size := w.name(), 0
	for _, p := range w.parts {
		for k, v := range p.data {
			size += len(k) + len(v)
		}
		if size > maxData {
			name, size = fmt.Sprintf("%s.%d", w.name(), len(all)+1), 0
		}
		all[name] = merged(all[name], p.data)
	}
	return all
}

func merged(data map[string]any, more map[string]string) map[string]any {
	if data == nil {
		data = make(map[string]any, len(more))
	}
	for k, v := range more {
		data[k] = v
	}
	return data
}

func object(kind manifest.GroupKind, name, namespace, field string, value map[string]any) map[string]any {
	meta := map[string]any{"name": name}
	if namespace != "" {
		meta["namespace"] = namespace
	}
	return map[string]any{"apiVersion": kind.APIVersion("v1"), "kind": kind.Kind, "metadata": meta, field: value}
}
