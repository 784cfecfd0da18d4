// Package pins makes ValidatingAdmissionPolicies for a cluster's API server. They refuse
// objects that are pinned to another type or controller than the cluster has, no matter
// who creates them. They hold the digests of the cluster's types and controllers. No server
// of gitopsd takes part in a request.
//
// Each package has a policy and a binding, or several if it has very many types, with the
// package's label: if the package is refused, they stay unchanged, like its types. Of plain
// manifests each definition has a policy and a binding, since each is refused alone. A policy
// maps
//
//	type.<plural>.<group>        to the digests of the type's versions, separated by spaces
//	controller.<plural>.<group>  to the digest of the type's controller as rendered, if known
//
// A policy applies only to objects with a pin, and only to requests that set or change
// the pin or anything but metadata and status. So finalizers can be removed, status
// reported, and objects deleted regardless of pins. Requests for subresources, such as
// scale, are not checked, since their objects have no annotations. The API version of a
// request does not matter: a pin to any version of the type is valid. Types without a
// policy are not checked.
//
// The digests are in expressions, not in a ConfigMap as the policy's parameter: an API server
// reads no ConfigMap any more, until it is restarted, once no binding of the cluster has had
// one for a moment (kubernetes/kubernetes#130887).
//
// The policies are applied after the types, including those of XRDs, and before custom
// resources. In between, the API server accepts objects with the old pin; plan and run
// check pins in any case (reconcile/plan).
//
// pins.go makes the objects, policy.go has the expressions in CEL.
package pins

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
)

// name begins the names of all policies and bindings: "gitopsd-pins.<definition>" for a
// plain one, "gitopsd-pins-<package>" for a package's, and "gitopsd-pins2-<package>" if it has
// a second one. The name alone was that of a policy for all plain ones.
const name = "gitopsd-pins"

// names matches the names of policies.
var names = regexp.MustCompile(`^` + name + `($|\.|[0-9]*-)`)

// Origin is the origin of the objects that [Objects] makes.
var Origin = manifest.Origin{For: "spec.pins of the Cluster"}

// Of reports whether [Objects] made an object. Labels do not matter.
func Of(o *manifest.Object) bool { return o.Origin() == Origin }

// Policy reports whether a name is the name of a policy that [Objects] makes.
func Policy(name string) bool { return names.MatchString(name) }

// OfDefinition returns the policy and the binding for a plain definition.
func OfDefinition(definition string) []manifest.ID {
	return []manifest.ID{
		manifest.ValidatingPolicy.ID("", name+"."+definition), manifest.ValidatingPolicyBinding.ID("", name+"."+definition),
	}
}

// OfSomeDefinition reports whether [OfDefinition] returns the object for some definition.
func OfSomeDefinition(id manifest.ID) bool {
	return strings.HasPrefix(id.Name, name+".") && id.Is(manifest.ValidatingPolicy, manifest.ValidatingPolicyBinding)
}

// maxName bounds the names of policies, in characters.
const maxName = 253

// TooLong reports whether the name of a definition, or of its package, is too long for a policy.
// Then pins to its types are not enforced.
func TooLong(definition *manifest.Object) bool {
	of := definition.Label(manifest.PackageLabel)
	if of == "" {
		of = definition.ID().Name
	}
	return len(name+"99-")+len(of) > maxName
}

// maxData bounds the digests in a policy, in bytes; an expression has at most 100,000
// characters (cel-go).
const maxData = 64 << 10

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
		w := owner{pkg: o.Label(manifest.PackageLabel)}
		if w.pkg == "" {
			w.definition = o.ID().Name
		}
		of := w.pkg + "." + w.definition
		if owners[of] == nil {
			owners[of] = &w
		}
		owners[of].parts = append(owners[of].parts, part{o.ID().Name, d.Group, data})
	}
	var all []*manifest.Object
	for _, of := range slices.Sorted(maps.Keys(owners)) {
		made, err := owners[of].objects()
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

// Has reports whether an object that [Objects] made has digests of a definition's types.
func Has(o, definition *manifest.Object) bool {
	if !Of(o) || !o.ID().Is(manifest.ValidatingPolicy) {
		return false
	}
	data := dataOf(o)
	d := types.Read(definition.Tree())
	return slices.ContainsFunc([]types.Names{d.Names, d.Claims}, func(names types.Names) bool {
		return names.Plural != "" && strings.Contains(data, entry("type."+names.Plural+"."+d.Group))
	})
}

// owner is a package, or a plain definition, with the types that it defines.
type owner struct {
	pkg, definition string
	parts           []part
}

// part is the data of one definition.
type part struct {
	definition, group string
	data              map[string]string
}

func (w *owner) objects() ([]*manifest.Object, error) {
	slices.SortFunc(w.parts, func(a, b part) int { return cmp.Compare(a.definition, b.definition) })
	labels := map[string]string{manifest.PinsLabel: w.pkg}
	if w.pkg != "" {
		labels[manifest.PackageLabel] = w.pkg
	}
	var all []*manifest.Object
	for n, parts := range chunks(w.parts) {
		of := name + "." + w.definition
		switch {
		case w.pkg != "" && n == 0:
			of = name + "-" + w.pkg
		case w.pkg != "":
			of = fmt.Sprintf("%s%d-%s", name, n+1, w.pkg)
		}
		for _, tree := range []map[string]any{
			manifest.NewTree(manifest.ValidatingPolicy.ID("", of), map[string]any{"spec": policySpec(parts)}),
			manifest.NewTree(manifest.ValidatingPolicyBinding.ID("", of), map[string]any{"spec": map[string]any{
				"policyName": of, "validationActions": []any{"Deny"},
			}}),
		} {
			o, err := manifest.New(tree, Origin)
			if err != nil {
				return nil, fmt.Errorf("the policy for pins: %w", err)
			}
			all = append(all, o.WithMetadata(labels, nil))
		}
	}
	slices.SortFunc(all, func(a, b *manifest.Object) int { return a.ID().Compare(b.ID()) })
	return all, nil
}

// chunks divides parts so that the data of each chunk fits into a policy.
func chunks(parts []part) [][]part {
	var all [][]part
	size := maxData
	for _, p := range parts {
		own := 0
		for k, v := range p.data {
			own += len(entry(k)) + len(v) + len("\"\",\n")
		}
		if size += own; size > maxData {
			all, size = append(all, nil), own
		}
		all[len(all)-1] = append(all[len(all)-1], p)
	}
	return all
}
