package plan

import (
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

// builtIn says that a group is served by kube-apiserver itself. Groups without a
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

// IsCRD says that an object is a CustomResourceDefinition.
func IsCRD(id manifest.ID) bool { return id.Group == crdGroup && id.Kind == crdKind }

// IsXRD says that an object is a CompositeResourceDefinition of Crossplane's.
func IsXRD(id manifest.ID) bool { return id.Group == xrdGroup && id.Kind == xrdKind }

// IsDefinition says that an object defines types: a CustomResourceDefinition or
// a CompositeResourceDefinition.
func IsDefinition(id manifest.ID) bool {
	return IsCRD(id) || IsXRD(id)
}

// IsNamespace says that an object is a Namespace.
func IsNamespace(id manifest.ID) bool { return id.Group == "" && id.Kind == "Namespace" }

// IsWebhookConfiguration says that an object is a Validating- or
// MutatingWebhookConfiguration.
func IsWebhookConfiguration(id manifest.ID) bool {
	return id.Group == admission && strings.HasSuffix(id.Kind, "WebhookConfiguration")
}

// First says that an object comes before the rest of its stage: Namespaces
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

// sortPruned puts steps into the order in which objects are pruned, the reverse.
func sortPruned(steps []Step) {
	slices.SortFunc(steps, func(a, b Step) int {
		if a.Stage != b.Stage {
			return int(b.Stage - a.Stage)
		}
		if a, b := rank(a.ID), rank(b.ID); a != b {
			return b - a
		}
		return a.ID.Compare(b.ID)
	})
}
