package behaviour

import (
	"gitopsd.dev/render/composition"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
)

// composes returns the types that Compositions compose, directly or by way of other
// composites, each with a hash of its digest and of what acts on it. Types that nothing
// among the cluster's objects defines are not known, and left out. Each type counts
// once, so that types that compose each other end.
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

// direct returns what acts on a definition's types without what is composed, and the
// Compositions among it.
func (x *Index) direct(definition *manifest.Object) (*Identity, []map[string]any) {
	if definition.ID().Is(manifest.XRD) && definition.Annotation(manifest.ControllerAnnotation) == "" {
		trees := x.compositionsOf(definition)
		return x.identityOf(trees), trees
	}
	i, err := x.Of(definition)
	if err != nil {
		return nil, nil // reported where the type itself is looked at
	}
	return i, nil
}

// digest returns the digest of a type, "" if the definition does not have the version.
func (x *Index) digest(definition *manifest.Object, kind manifest.GroupKind, version string) string {
	all, ok := x.digests.Load(definition)
	if !ok {
		list, err := types.Of(definition.Tree())
		if err != nil {
			list = nil // reported where the type itself is looked at
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
