package plan

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/render/conversion/bundle"
	"gitopsd.dev/render/converter"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/webhook"
)

// When definitions name conversion rules that a workload in the cluster serves
// (render/converter).
//
// The rules and the workload come before all CRDs, and a CRD that names new rules waits
// until the workload is ready in its newest generation, since it is ready when it has
// compiled them. A new CRD waits, too: objects of it could be stored, and not be read in
// another version. Until then the CRD stays as it is, with the rules that it names.
//
// The ConfigMap with the rules that a live CRD names, and the workload, are not pruned. They
// are pruned at the end of the pass that changes the CRD to name other rules or none.

// rulesOf returns the digest of the conversion rules that a live object names; "" if it
// names none.
func rulesOf(id manifest.ID, meta *metav1.ObjectMeta) string {
	if !id.Is(manifest.CRD) {
		return ""
	}
	return meta.Annotations[manifest.ConversionAnnotation]
}

// converts reports whether a definition names conversion rules that a workload in the
// cluster serves. The live one may name the same rules at an address outside of it.
func converts(o *manifest.Object) bool {
	return o.ID().Is(manifest.CRD) && o.Annotation(manifest.ConversionAnnotation) != "" && inCluster(o)
}

// inCluster reports whether the workload in the cluster converts a definition's objects.
func inCluster(o *manifest.Object) bool {
	return slices.Contains(webhook.Services(o.Tree()), converter.Service())
}

// converted returns when a definition with new conversion rules is applied; "" for
// others.
func converted(s *Step) string {
	if !s.Converts || s.Object.Annotation(manifest.ConversionAnnotation) == s.Rules {
		return ""
	}
	return fmt.Sprintf("applied once %s is ready, which converts its objects", converter.Workload())
}

// KeepConverters keeps the objects that serve conversion rules which a definition still
// names. Call it again after definitions were refused.
func KeepConverters(p *Plan) {
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.Action != Prune || !converter.Part(s.ID) {
			continue
		}
		for j := range p.Steps {
			if d := &p.Steps[j]; !d.Action.Writes() && d.NeedsConverter(s.ID) {
				hold(s, "kept: %s names conversion rules that need it", d.ID)
				s.Lasting = d.Lasts()
				break
			}
		}
	}
}

// NeedsConverter reports whether the live definition names conversion rules that need an
// object. [converter.Part] is true for the object.
func (s *Step) NeedsConverter(part manifest.ID) bool {
	switch {
	case s.Rules == "":
		return false
	case part.Is(manifest.ConfigMap):
		return part == bundle.ID(s.ID.Name, s.Rules)
	}
	return s.Action != Unchanged || inCluster(s.Object)
}
