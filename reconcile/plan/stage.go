package plan

import (
	"cmp"
	"slices"
	"strings"

	"gitopsd.dev/render/manifest"
)

// Stage is when an object is applied: after everything of earlier stages, and
// pruned before it.
type Stage int

// The stages, in order.
const (
	// Definitions: Namespaces and CRDs, which everything else needs.
	Definitions Stage = iota
	// Settings: what workloads need: RBAC, Secrets, ConfigMaps, Services.
	Settings
	// Workloads: what runs.
	Workloads
	// Admission: webhook configurations, admission policies and APIServices,
	// which break other requests while nothing serves them.
	Admission
	// Custom: objects of types that a CRD or an aggregated API server defines.
	Custom
)

var stageNames = [...]string{"definitions", "settings", "workloads", "admission", "custom resources"}

func (s Stage) String() string { return stageNames[s] }

const (
	crdGroup = "apiextensions.k8s.io"
	crdKind  = "CustomResourceDefinition"
	xrdGroup = "apiextensions.crossplane.io"
	xrdKind  = "CompositeResourceDefinition"
	// packageGroup is that of Crossplane's packages.
	packageGroup    = "pkg.crossplane.io"
	operationsGroup = "ops.crossplane.io"
	admission       = "admissionregistration.k8s.io"
	aggregator      = "apiregistration.k8s.io"
)

// Workload kinds by group. All other kinds of Kubernetes' own groups are
// settings.
var workloadGroups = map[string]bool{"apps": true, "batch": true, "autoscaling": true}

// StageOf is the stage of an object.
func StageOf(id manifest.ID) Stage {
	switch {
	case IsNamespace(id), IsCRD(id):
		return Definitions
	case id.Group == admission, id.Group == aggregator:
		return Admission
	case workloadGroups[id.Group], id.Group == "" && (id.Kind == "Pod" || id.Kind == "ReplicationController"):
		return Workloads
	case builtIn(id.Group):
		return Settings
	}
	return Custom
}

// builtIn reports whether a group is served by kube-apiserver itself. Groups without a
// dot are all Kubernetes' own; under k8s.io, where CRDs live too (gateways,
// snapshots), those are named that manifests hold.
func builtIn(group string) bool {
	if !strings.Contains(group, ".") {
		return true
	}
	switch group {
	case "rbac.authorization.k8s.io", "networking.k8s.io", "storage.k8s.io", "scheduling.k8s.io", "node.k8s.io",
		"coordination.k8s.io", "discovery.k8s.io", "flowcontrol.apiserver.k8s.io", "certificates.k8s.io",
		"events.k8s.io", "resource.k8s.io", "storagemigration.k8s.io", "internal.apiserver.k8s.io":
		return true
	}
	return false
}

// IsCRD reports whether an object is a CustomResourceDefinition.
func IsCRD(id manifest.ID) bool { return id.Group == crdGroup && id.Kind == crdKind }

// IsXRD reports whether an object is a CompositeResourceDefinition of Crossplane's.
func IsXRD(id manifest.ID) bool { return id.Group == xrdGroup && id.Kind == xrdKind }

// IsDefinition reports whether an object defines types: a CustomResourceDefinition or
// a CompositeResourceDefinition.
func IsDefinition(id manifest.ID) bool {
	return IsCRD(id) || IsXRD(id)
}

// IsPackage reports whether an object has Crossplane install a package.
func IsPackage(id manifest.ID) bool {
	return id.Group == packageGroup && (id.Kind == "Provider" || id.Kind == "Configuration" || id.Kind == "Function")
}

// IsNamespace reports whether an object is a Namespace.
func IsNamespace(id manifest.ID) bool { return id.Group == "" && id.Kind == "Namespace" }

// IsWebhookConfiguration reports whether an object is a Validating- or
// MutatingWebhookConfiguration.
func IsWebhookConfiguration(id manifest.ID) bool {
	return id.Group == admission && strings.HasSuffix(id.Kind, "WebhookConfiguration")
}

// First reports whether an object comes before the rest of its stage: Namespaces
// before CRDs, XRDs before what they define.
func First(id manifest.ID) bool {
	return IsNamespace(id) || IsXRD(id)
}

// rank orders steps within a stage.
func rank(id manifest.ID) int {
	if First(id) {
		return 0
	}
	return 1
}

// sortApplied puts steps into the order in which objects are applied; within a
// kind it stays as it is.
func sortApplied(steps []Step) {
	slices.SortStableFunc(steps, func(a, b Step) int {
		if a.Stage != b.Stage {
			return int(a.Stage - b.Stage)
		}
		return rank(a.ID) - rank(b.ID)
	})
}

// sortPruned puts steps into the order in which objects are pruned, the reverse,
// and numbers the rounds. What depends on another object that goes, by the names
// that after returns, goes before that; but what holds other objects stays where
// its stage puts it.
func sortPruned(steps []Step, after func(*Step) []string) {
	slices.SortFunc(steps, func(a, b Step) int { return a.ID.Compare(b.ID) })
	turns := turnsOf(steps, after)
	slices.SortStableFunc(steps, func(a, b Step) int { return turns[b.ID].compare(turns[a.ID]) })
	for i := 1; i < len(steps); i++ {
		steps[i].Round = steps[i-1].Round
		if turns[steps[i].ID] != turns[steps[i-1].ID] {
			steps[i].Round++
		}
	}
}

// turn is when an object is pruned: the latest stage first, and in a stage the
// longest chain of what depends on the next.
type turn struct{ stage, chain int }

func (t turn) compare(o turn) int { return cmp.Or(t.stage-o.stage, t.chain-o.chain) }

func turnsOf(steps []Step, after func(*Step) []string) map[manifest.ID]turn {
	named := make(map[string][]*Step)
	for i := range steps {
		s := &steps[i]
		named[s.ID.String()] = append(named[s.ID.String()], s)
		if s.Package != "" {
			named[packagePrefix+s.Package] = append(named[packagePrefix+s.Package], s)
		}
	}
	turns := make(map[manifest.ID]turn, len(steps))
	var turnOf func(s *Step) turn
	turnOf = func(s *Step) turn {
		if t, known := turns[s.ID]; known {
			return t // or as far as it is known, in a circle
		}
		t := turn{stage: 2*int(s.Stage) + rank(s.ID)}
		turns[s.ID] = t
		if First(s.ID) || IsCRD(s.ID) || s.ID.Group == packageGroup {
			return t
		}
		for _, name := range after(s) {
			for _, needed := range named[name] {
				if needed == s {
					continue
				}
				if n := turnOf(needed); t.compare(n) <= 0 {
					t = turn{n.stage, n.chain + 1}
				}
			}
		}
		turns[s.ID] = t
		return t
	}
	for i := range steps {
		turnOf(&steps[i])
	}
	return turns
}
