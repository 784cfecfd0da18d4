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
// What a live CRD names is not pruned: the ConfigMap with its rules, and the workload.
// It goes once the CRD names others or none, which is at the end of the pass that
// changes the CRD.

// rulesOf returns the digest of the conversion rules that a live object names; "" if it
// names none.
func rulesOf(id manifest.ID, meta *metav1.ObjectMeta) string {
	if !id.Is(manifest.CRD) {
		return ""
	}
	return meta.Annotations[manifest.ConversionAnnotation]
}

// converts reports whether a definition names conversion rules that the live one does
// not, and that a workload in the cluster serves.
func converts(o *manifest.Object, live string) bool {
	if !o.ID().Is(manifest.CRD) {
		return false
	}
	rules := o.Annotation(manifest.ConversionAnnotation)
	return rules != "" && rules != live && inCluster(o)
}

// inCluster reports whether a definition has the workload in the cluster convert.
func inCluster(o *manifest.Object) bool {
	return slices.Contains(webhook.Services(o.Tree()), converter.Service())
}

// converted returns when a definition is applied that waits for what serves its
// conversion rules; "" for others.
func converted(s *Step) string {
	if !s.Converts {
		return ""
	}
	return fmt.Sprintf("applied once %s is ready, which converts its objects", converter.Workload())
}

// KeepConverters keeps what serves the conversion rules that a definition names and
// goes on naming. It is called again when definitions were refused.
func KeepConverters(p *Plan) {
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.Action != Prune || !converter.Part(s.ID) {
			continue
		}
		for j := range p.Steps {
			if d := &p.Steps[j]; !d.Action.Writes() && d.NeedsConverter(s.ID) {
				hold(s, "kept: %s names conversion rules that need it", d.ID)
				break
			}
		}
	}
}

// NeedsConverter reports whether the live definition names conversion rules that need
// an object for which [converter.Part] is true.
func (s *Step) NeedsConverter(part manifest.ID) bool {
	switch {
	case s.Rules == "":
		return false
	case part.Is(manifest.ConfigMap):
		return part == bundle.ID(s.ID.Name, s.Rules)
	}
	return s.Action != Unchanged || inCluster(s.Object)
}
