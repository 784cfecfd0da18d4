// Package pins makes ValidatingAdmissionPolicies for a cluster's API server. They refuse
// objects that are pinned to another type or controller than the cluster has, no matter
// who creates them. Their parameters are the digests of the cluster's types and
// controllers. No server of gitopsd takes part in a request.
//
// Each package has one policy, one binding and one ConfigMap, with the package's label:
// if the package is refused, they stay unchanged, like its types. The definitions of
// plain manifests share a policy and a binding; each of them has its own ConfigMap, since
// each is refused alone. A ConfigMap has
//
//	type.<plural>.<group>        the digests of the type's versions, separated by spaces
//	controller.<plural>.<group>  the digest of the type's controller as rendered, if known
//
// A policy applies only to objects with a pin, and only to requests that set or change
// the pin or anything but metadata and status. So finalizers can be removed, status
// reported, and objects deleted regardless of pins. Requests for subresources, such as
// scale, are not checked, since their objects have no annotations. The API version of a
// request does not matter: a pin to any version of the type is valid. Types without a
// ConfigMap are not checked. If a ConfigMap is missing, its types are not checked until
// gitopsd restores it, since the API server cannot refuse pinned objects alone in that
// case. An API server that has just started delays requests for these types until it has
// read its ConfigMaps, and refuses them after a second.
//
// The parameters are applied after the types, including those of XRDs, and before custom
// resources. In between, the API server accepts objects with the old pin; plan and run
// check pins in any case (reconcile/plan).
//
// pins.go makes the objects, policy.go has the expressions in CEL.
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

// Name is the name of the policy for plain manifests. The names of the other objects are
// Name, a dash and the package, except for ConfigMaps of plain definitions.
const Name = "gitopsd-pins"

// Origin is the origin of the objects that [Objects] makes.
var Origin = manifest.Origin{For: "spec.pins of the Cluster"}

// Of reports whether [Objects] made an object. Labels do not matter.
func Of(o *manifest.Object) bool { return o.Origin() == Origin }

// Policy reports whether a name is the name of a policy that [Objects] makes.
func Policy(name string) bool { return name == Name || strings.HasPrefix(name, Name+"-") }

// Parameters returns the ConfigMap for a plain definition, and its policy and binding.
func Parameters(definition string) []manifest.ID {
	return []manifest.ID{
		manifest.ConfigMap.ID(runtime.Namespace, Name+"."+definition),
		manifest.ValidatingPolicy.ID("", Name), manifest.ValidatingPolicyBinding.ID("", Name),
	}
}

// Parameter reports whether [Parameters] returns the object for some definition.
func Parameter(id manifest.ID) bool {
	if id.Is(manifest.ConfigMap) {
		return id.Namespace == runtime.Namespace && strings.HasPrefix(id.Name, Name+".")
	}
	return id.Name == Name && id.Is(manifest.ValidatingPolicy, manifest.ValidatingPolicyBinding)
}

// maxResource bounds "<plural>.<group>", which is a part of names of objects and keys of
// ConfigMaps. These have at most 253 characters.
const maxResource = 253 - len(Name+".")

// TooLong reports whether a definition's names are too long for a ConfigMap. Then pins to
// its types are not enforced.
func TooLong(definition *manifest.Object) bool {
	d := types.Read(definition.Tree())
	return max(len(definition.ID().Name), max(len(d.Names.Plural), len(d.Claims.Plural))+1+len(d.Group)) > maxResource
}

// maxData bounds the data of a ConfigMap; the API server's own limit is 1 MiB.
const maxData = 512 << 10

// Objects returns the objects that enforce pins to the types of a cluster's objects. of
// returns the identity of a definition's controller. Definitions that are [TooLong] are
// left out.
func Objects(objects *manifest.Set, of func(definition *manifest.Object) (*behaviour.Identity, error)) ([]*manifest.Object, error) {
	owners := make(map[string]*owner)
	for _, o := range objects.All() {
		if !o.ID().Is(manifest.Definitions...) {
			continue
		}
		d := types.Read(o.Tree())
		// On definitions the annotation names a controller and is not a pin.
		if d.Group == "" || d.Defines(manifest.XRD) || d.Defines(manifest.MRD) || TooLong(o) {
			continue
		}
		data := digests(o, d, of)
		if len(data) == 0 {
			continue // the API server reports the error
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
	// Errors in the name of a controller are reported by plan.
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

// Resources returns the keys for a definition's types in a ConfigMap.
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
		manifest.NewTree(manifest.ValidatingPolicy.ID("", w.name()), map[string]any{"spec": policySpec(w.groups)}),
		manifest.NewTree(manifest.ValidatingPolicyBinding.ID("", w.name()), map[string]any{"spec": map[string]any{
			"policyName": w.name(), "validationActions": []any{"Deny"},
			"paramRef": map[string]any{
				"namespace": runtime.Namespace, "parameterNotFoundAction": "Allow",
				"selector": map[string]any{"matchLabels": map[string]any{manifest.PinsLabel: w.pkg}},
			},
		}}),
	}
	for name, data := range w.maps() {
		trees = append(trees, manifest.NewTree(manifest.ConfigMap.ID(runtime.Namespace, name), map[string]any{"data": manifest.FromTextMap(data)}))
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
func (w *owner) maps() map[string]map[string]string {
	all := make(map[string]map[string]string)
	if w.pkg == "" {
		for _, p := range w.parts {
			all[Name+"."+p.definition] = p.data
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
		if all[name] == nil {
			all[name] = make(map[string]string)
		}
		maps.Copy(all[name], p.data)
	}
	return all
}
