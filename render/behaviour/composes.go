package behaviour

import (
	"gitopsd.dev/render/composition"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
)

// composes returns the types that Compositions compose, directly or through other
// composites, each with a hash of its digest and its behaviour. Types that no object of
// the cluster defines are left out. Each type is visited once, since types may compose
// each other.
func (x *Index) composes(compositions []map[string]any) []Part {
	type versioned struct {
		manifest.GroupKind
		version string
	}
	seen := make(map[versioned]bool)
	var parts []Part
	for len(compositions) > 0 {
		var next []map[string]any
		for _, tree := range compositions {
			for _, t := range composition.Templates(tree) {
				_, version := manifest.GroupVersion(t.APIVersion)
				of := versioned{t.GroupKind(), version}
				definition := x.definitions[of.GroupKind]
				if definition == nil || seen[of] {
					continue
				}
				seen[of] = true
				acts, behind := "", []map[string]any(nil)
				if identity, direct := x.direct(definition); identity != nil {
					acts, behind = identity.Digest(), direct
				}
				next = append(next, behind...)
				parts = append(parts, Part{of.Kind + "." + of.Group + "/" + version, hash([]byte(x.digest(definition, of.GroupKind, version) + "\n" + acts + "\n"))})
			}
		}
		compositions = next
	}
	return sorted(parts)
}

// direct returns the identity of a definition's types without composed types, and the
// Compositions in it.
func (x *Index) direct(definition *manifest.Object) (*Identity, []map[string]any) {
	if definition.ID().Is(manifest.XRD) && definition.Annotation(manifest.ControllerAnnotation) == "" {
		trees := x.compositionsOf(definition)
		return x.identityOf(trees), trees
	}
	i, err := x.Of(definition)
	if err != nil {
		return nil, nil // reported for the type itself
	}
	return i, nil
}

// digest returns the digest of a type; "" if the definition lacks the version.
func (x *Index) digest(definition *manifest.Object, kind manifest.GroupKind, version string) string {
	all, ok := x.digests.Load(definition)
	if !ok {
		list, err := types.Of(definition.Tree())
		if err != nil {
			list = nil // reported for the type itself
		}
		all, _ = x.digests.LoadOrStore(definition, list)
	}
	for _, t := range all.([]types.Type) {
		if t.Version == version && t.Kind == kind.Kind {
			return t.Digest
		}
	}
	return ""
}
