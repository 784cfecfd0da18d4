package manifest

import (
	"slices"
	"strings"
)

// GroupKind is a kind in any version. GroupKinds are comparable, and convert to
// apimachinery's type of the same name.
type GroupKind struct{ Group, Kind string }

// String returns "Deployment.apps", and the kind alone for the core group.
func (gk GroupKind) String() string {
	if gk.Group == "" {
		return gk.Kind
	}
	return gk.Kind + "." + gk.Group
}

// API groups that gitopsd treats specially.
const (
	GroupCoordination = "coordination.k8s.io"
	GroupRBAC         = "rbac.authorization.k8s.io"
	GroupAdmission    = "admissionregistration.k8s.io"
	GroupCertificates = "certificates.k8s.io"
	GroupAggregator   = "apiregistration.k8s.io"
	GroupDiscovery    = "discovery.k8s.io"
	GroupEvents       = "events.k8s.io"
	GroupAuthn        = "authentication.k8s.io"
	GroupAuthz        = "authorization.k8s.io"
	GroupNetworking   = "networking.k8s.io"
	GroupStorage      = "storage.k8s.io"
	GroupScheduling   = "scheduling.k8s.io"
	// GroupPackages, GroupComposites and GroupOperations are Crossplane's: for
	// packages and their settings, for definitions and compositions, and for
	// operations.
	GroupPackages   = "pkg.crossplane.io"
	GroupComposites = "apiextensions.crossplane.io"
	GroupOperations = "ops.crossplane.io"

	// GroupStorageMigration is for Kubernetes' built-in migration of stored objects.
	GroupStorageMigration = "storagemigration.k8s.io"

	// kcp's, in older and newer releases.
	groupKCP   = "apis.kcp.dev"
	groupKCPIO = "apis.kcp.io"

	// GroupWorkload is for targets and applications, as Crossplane had them.
	GroupWorkload = "workload.crossplane.io"
	// GroupMulticluster is for the inventory of clusters and for placements.
	GroupMulticluster = "multicluster.x-k8s.io"

	groupApps  = "apps"
	groupBatch = "batch"
	groupCRD   = "apiextensions.k8s.io"
)

// Labels of the Secret with the connection to a ClusterProfile's cluster (KEP-4322): the
// profile's name, and perhaps its namespace.
const (
	ClusterProfileLabel          = "x-k8s.io/cluster-profile"
	ClusterProfileNamespaceLabel = "x-k8s.io/cluster-profile-namespace"
)

// Kinds that gitopsd treats specially.
var (
	Namespace      = GroupKind{Kind: "Namespace"}
	Secret         = GroupKind{Kind: "Secret"}
	ConfigMap      = GroupKind{Kind: "ConfigMap"}
	Service        = GroupKind{Kind: "Service"}
	ServiceAccount = GroupKind{Kind: "ServiceAccount"}
	Pod            = GroupKind{Kind: "Pod"}
	Lease          = GroupKind{GroupCoordination, "Lease"}

	Deployment  = GroupKind{groupApps, "Deployment"}
	StatefulSet = GroupKind{groupApps, "StatefulSet"}
	DaemonSet   = GroupKind{groupApps, "DaemonSet"}

	ReplicaSet = GroupKind{groupApps, "ReplicaSet"}
	Job        = GroupKind{groupBatch, "Job"}
	CronJob    = GroupKind{groupBatch, "CronJob"}

	Role               = GroupKind{GroupRBAC, "Role"}
	RoleBinding        = GroupKind{GroupRBAC, "RoleBinding"}
	ClusterRole        = GroupKind{GroupRBAC, "ClusterRole"}
	ClusterRoleBinding = GroupKind{GroupRBAC, "ClusterRoleBinding"}

	ValidatingWebhooks      = GroupKind{GroupAdmission, "ValidatingWebhookConfiguration"}
	MutatingWebhooks        = GroupKind{GroupAdmission, "MutatingWebhookConfiguration"}
	ValidatingPolicy        = GroupKind{GroupAdmission, "ValidatingAdmissionPolicy"}
	ValidatingPolicyBinding = GroupKind{GroupAdmission, "ValidatingAdmissionPolicyBinding"}
	MutatingPolicy          = GroupKind{GroupAdmission, "MutatingAdmissionPolicy"}
	MutatingPolicyBinding   = GroupKind{GroupAdmission, "MutatingAdmissionPolicyBinding"}

	APIService = GroupKind{GroupAggregator, "APIService"}

	DisruptionBudget = GroupKind{"policy", "PodDisruptionBudget"}

	CRD = GroupKind{groupCRD, "CustomResourceDefinition"}
	XRD = GroupKind{GroupComposites, "CompositeResourceDefinition"}
	// MRD defines a CRD that is not installed until it is activated.
	MRD              = GroupKind{GroupComposites, "ManagedResourceDefinition"}
	ActivationPolicy = GroupKind{GroupComposites, "ManagedResourceActivationPolicy"}
	Composition      = GroupKind{GroupComposites, "Composition"}

	StorageVersionMigration = GroupKind{GroupStorageMigration, "StorageVersionMigration"}

	Target            = GroupKind{GroupWorkload, "KubernetesTarget"}
	Application       = GroupKind{GroupWorkload, "KubernetesApplication"}
	ClusterProfile    = GroupKind{GroupMulticluster, "ClusterProfile"}
	PlacementDecision = GroupKind{GroupMulticluster, "PlacementDecision"}

	EtcdNamespace = GroupKind{Group, "EtcdNamespace"}

	Provider      = GroupKind{GroupPackages, "Provider"}
	Configuration = GroupKind{GroupPackages, "Configuration"}
	Function      = GroupKind{GroupPackages, "Function"}
	ImageConfig   = GroupKind{GroupPackages, "ImageConfig"}
	RuntimeConfig = GroupKind{GroupPackages, "DeploymentRuntimeConfig"}

	// ResourceSchema describes a CRD; the other two have conversion rules.
	ResourceSchema     = GroupKind{groupKCP, "APIResourceSchema"}
	APIConversionRules = GroupKind{groupKCP, "APIConversionRules"}
	APIConversion      = GroupKind{groupKCPIO, "APIConversion"}
)

// Sets of kinds that are treated alike; see [ID.Is].
var (
	// Definitions define types.
	Definitions = []GroupKind{CRD, XRD}
	// Packages make Crossplane install a package.
	Packages = []GroupKind{Provider, Configuration, Function}
	// Workloads may run a controller.
	Workloads = []GroupKind{Deployment, StatefulSet, DaemonSet}
	// Webhooks configure webhooks of API servers.
	Webhooks = []GroupKind{ValidatingWebhooks, MutatingWebhooks}
	// ConversionRules convert objects between versions of a CRD. The last two mix up the
	// groups, and are an error.
	ConversionRules = []GroupKind{APIConversionRules, APIConversion, {groupKCPIO, APIConversionRules.Kind}, {groupKCP, APIConversion.Kind}}
	// APIExports publish the types of APIResourceSchemas in kcp.
	APIExports = []GroupKind{{groupKCP, "APIExport"}, {groupKCPIO, "APIExport"}}
	// AdmissionPolicies are policies of API servers, and their bindings.
	AdmissionPolicies = []GroupKind{ValidatingPolicy, ValidatingPolicyBinding, MutatingPolicy, MutatingPolicyBinding}
)

// ID returns the ID of an object of the kind. The namespace is empty for cluster-scoped
// objects.
func (k GroupKind) ID(namespace, name string) ID {
	return ID{Group: k.Group, Kind: k.Kind, Namespace: namespace, Name: name}
}

// APIVersion returns the apiVersion of the kind in a version: "apps/v1", or "v1" for the
// core group.
func (k GroupKind) APIVersion(version string) string {
	if k.Group == "" {
		return version
	}
	return k.Group + "/" + version
}

// KindOf returns the kind of a decoded object; the zero GroupKind if it has none.
func KindOf(tree map[string]any) GroupKind {
	group, _ := GroupVersion(Text(tree, "apiVersion"))
	return GroupKind{group, Text(tree, "kind")}
}

// GroupKind returns the kind of the object.
func (id ID) GroupKind() GroupKind { return GroupKind{id.Group, id.Kind} }

// Is reports whether the object is of one of the kinds.
func (id ID) Is(kinds ...GroupKind) bool { return slices.Contains(kinds, id.GroupKind()) }

// ProviderLabel is on the pods of a Provider's controller, with the Provider's
// name, as Crossplane sets it.
const ProviderLabel = GroupPackages + "/provider"

// RevisionLabel is on the pods of a Provider's controller, with the name of the
// package's revision.
const RevisionLabel = GroupPackages + "/revision"

// PackageRevisionLabel is on the revisions of Crossplane's packages, with the package's name.
const PackageRevisionLabel = GroupPackages + "/package"

// builtIn are the groups with a dot that kube-apiserver itself serves. Other groups under
// k8s.io have CRDs (gateways, snapshots).
var builtIn = []string{
	GroupAdmission, groupCRD, GroupAggregator, GroupAuthn, GroupAuthz, GroupCertificates,
	GroupCoordination, GroupDiscovery, GroupEvents, "flowcontrol.apiserver.k8s.io", "internal.apiserver.k8s.io",
	GroupNetworking, "node.k8s.io", GroupRBAC, "resource.k8s.io", GroupScheduling, GroupStorage, GroupStorageMigration,
}

// BuiltIn reports whether kube-apiserver itself serves a group: every group without
// a dot, and some with one.
func BuiltIn(group string) bool {
	return !strings.Contains(group, ".") || slices.Contains(builtIn, group)
}
