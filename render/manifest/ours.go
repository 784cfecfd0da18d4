package manifest

import (
	"slices"
	"strings"

	"gitopsd.dev/sources"
)

// Group is gitopsd's own API group. The labels and annotations below are all that gitopsd
// reads and writes of this group on objects. Package clusters lists those of the
// registry's documents.
const Group = "gitopsd.dev"

// Labels.
const (
	// PackageLabel is the name of a package's declaration, on every object that
	// comes from the package.
	PackageLabel = Group + "/package"
	// PinsLabel is on the objects that enforce pins in a cluster. Its value is the package
	// that defines the types; empty for types of plain manifests. See render/pins.
	PinsLabel = Group + "/pins"
	// ClusterLabel, on a Secret beside the daemon that holds a kubeconfig, names the
	// cluster that may use it. So nobody who can write to the repository can use
	// another Secret.
	ClusterLabel = Group + "/cluster"
	// ConnectionLabel, "true", is on the Secrets that hold connections of
	// KubernetesTargets. The annotation of the same name identifies the connection; see
	// reconcile/target.
	ConnectionLabel = Group + "/connection"
	// ConversionLabel, "true", is on the ConfigMaps in gitopsd's namespace of a cluster
	// that hold conversion rules; see render/conversion/bundle.
	ConversionLabel = Group + "/conversion"
	// EtcdLabel is on the Secrets and ConfigMaps that gitopsd writes for an EtcdNamespace.
	// Its value is the EtcdNamespace's name.
	EtcdLabel = Group + "/etcd-namespace"
	// LeaderLabel, on the pod of the daemon that works, is the name of the Lease by which it
	// does. It is on no pod that waits.
	LeaderLabel = Group + "/leader"
	// PullSecretLabel, "true" on a Secret beside the daemon, allows packages to be
	// pulled with it.
	PullSecretLabel = Group + "/pull-secret"
	// VerificationKeyLabel, "true" on a Secret beside the daemon, allows signatures
	// to be verified with it.
	VerificationKeyLabel = Group + "/verification-key"
)

// Prefixes of the names of objects that gitopsd keeps for itself in its namespace of a
// cluster.
const (
	// InventoryPrefix is for the ConfigMaps that record which objects are gitopsd's.
	InventoryPrefix = "inventory-"
	// ServingCAPrefix is for the Secrets with the CAs of serving certificates.
	ServingCAPrefix = "serving-ca."
	// EtcdCAPrefix is for the Secrets with the CAs of EtcdNamespaces.
	EtcdCAPrefix = "etcd-ca."
)

// RemoteObjectsFinalizer, on a KubernetesApplication, keeps it until its objects in the
// clusters of its targets are gone.
const RemoteObjectsFinalizer = Group + "/remote-objects"

// EtcdKeysFinalizer, on an EtcdNamespace, keeps it until its keys, user and role in etcd
// are deleted, or are left there on purpose.
const EtcdKeysFinalizer = Group + "/etcd-keys"

// Annotations that people write.
const (
	// ActorsAnnotation, on a Cluster in the registry, names ServiceAccounts:
	// "<namespace>/<name>, …". Workloads that run as one of them may write objects of any
	// type, besides the type's controller, although the repository does not declare them.
	ActorsAnnotation = Group + "/actors"
	// AdoptAnnotation, "true" on an object in the repository, takes the object over
	// from its owner. On a Cluster in the registry it names owners; all their objects in
	// the cluster are taken over; see plan.ParseAdopt.
	AdoptAnnotation = Group + "/adopt"
	// AllowBreakingAnnotation, on a package's declaration or on a definition that
	// belongs to no package, allows breaking changes; see
	// compat.ParseAllowances.
	AllowBreakingAnnotation = Group + "/allow-breaking"
	// AllowPruneAnnotation, "true" on a Namespace, CRD, XRD or Crossplane package,
	// allows it to be pruned with everything in it, and on any object with
	// [AdoptedAnnotation], to be pruned. On a Cluster in the registry it is the number of
	// objects that one pass may prune.
	AllowPruneAnnotation = Group + "/allow-prune"
	// AuthorityAnnotation, on a package's declaration or on a Service with
	// [ServingCertAnnotation], names the Secret in the Service's namespace with the CA
	// that signs its certificate. Without it gitopsd makes one.
	AuthorityAnnotation = Group + "/certificate-authority"
	// ControllerAnnotation, "<namespace>/<name>" on a definition that belongs to
	// no package, names the Deployment, StatefulSet or DaemonSet that acts on its
	// types. It must be rendered for the same cluster. On any other object it is the
	// digest of the behaviour behind the object's type, "h1:…": the object is
	// refused if the digest differs. A definition is never pinned.
	ControllerAnnotation = Group + "/controller"
	// DependsOnAnnotation, on an object or a package's declaration, names what must
	// be applied and healthy before it, separated by commas: package/NAME,
	// path/DIRECTORY (everything written there in the repository), or an object as
	// [ID.String] prints it.
	DependsOnAnnotation = Group + "/depends-on"
	// GatesAnnotation, on a package's declaration, names the objects of the package to
	// wait for, separated by commas: kinds and objects as [ID.String] prints them, or
	// "none". The default is all of them.
	GatesAnnotation = Group + "/gates"
	// HealthAnnotation, on a CRD or XRD, has expressions that judge the objects of
	// its types; see health.Expressions.
	HealthAnnotation = Group + "/health"
	// InjectCAAnnotation, on a webhook configuration, an APIService or a CRD that
	// converts by webhook, names the source of its CA: "Service/<namespace>/<name>", a
	// Service with [ServingCertAnnotation], or "Secret/<namespace>/<name>". gitopsd
	// fills in caBundle and nothing else.
	InjectCAAnnotation = Group + "/inject-ca"
	// ImmutableAnnotation, on a package's declaration, names fields of its types that
	// cannot be changed once set: "<definition>:<path>, …". On a
	// CustomResourceDefinition that belongs to no package it has the paths alone. See
	// immutable.Parse.
	ImmutableAnnotation = Group + "/immutable"
	// InstallAnnotation, "by-type" on a Provider's declaration, installs only those
	// of its types that the cluster's ManagedResourceActivationPolicies name.
	// Without it a cluster gets all types, whatever the policies: a policy for one
	// package removes no type of another.
	InstallAnnotation = Group + "/install"
	// KeepEditsAnnotation, "true" on an object in the repository, keeps fields that
	// people add with kubectl, also when the object is adopted.
	KeepEditsAnnotation = Group + "/keep-edits"
	// MigrateStorageAnnotation, "true" on a CRD, makes the daemon store its objects again
	// whenever its storage version changes, and shorten its status.storedVersions; see
	// reconcile/migrate.
	MigrateStorageAnnotation = Group + "/migrate-storage"
	// PerClusterAnnotation, on a workload that runs a controller, names settings and
	// contents that differ between clusters without changing the controller's behaviour,
	// separated by commas. See behaviour.Identity.
	PerClusterAnnotation = Group + "/per-cluster"
	// ReplaceAnnotation, "true" on an object in the repository, allows it to be
	// deleted and recreated when an immutable field differs.
	ReplaceAnnotation = Group + "/replace"
	// RescheduleAnnotation, on a KubernetesApplication, moves it to another target that
	// its selector selects. Each new value moves it once.
	RescheduleAnnotation = Group + "/reschedule"
	// ServingCertAnnotation, on a Service, names the Secret in the Service's namespace
	// where gitopsd keeps a certificate for the Service's DNS names.
	ServingCertAnnotation = Group + "/serving-cert"
	// PinAnnotation, on an object in the repository, is the digest of its type. The
	// object is refused if its type has another digest.
	PinAnnotation = Group + "/type"
)

// Annotations that gitopsd writes in clusters.
const (
	// AppliedAnnotation records what was last applied, as which object of which
	// inventory; see plan.Inventory. An object is not applied again while its rendering
	// has this value.
	AppliedAnnotation = Group + "/applied"
	// AdoptedAnnotation is on an object that was there before gitopsd added it to an
	// inventory, which then does not prune it unasked. It is lost, and the object pruned as
	// any other, if somebody replaces all annotations, or deletes the object, so that gitopsd
	// creates it again.
	AdoptedAnnotation = Group + "/adopted"
	// ApplicationAnnotation, on an object of a KubernetesApplication in its target's
	// cluster, names the application: "<namespace>/<name>". It is for people; gitopsd does
	// not read it.
	ApplicationAnnotation = Group + "/application"
	// PlacedAnnotation, on a KubernetesApplication, is a second record of the target where it
	// runs, since its status may be lost: "<target>/<UID>". By its UID a copy is not taken for it.
	PlacedAnnotation = Group + "/placed"
	// EtcdAnnotation, on an object with [EtcdLabel], names the object and the
	// EtcdNamespace that it was written for. So a copy is not taken for gitopsd's.
	EtcdAnnotation = EtcdLabel
	// RollbackAnnotation, on the Deployment of a package's controller, records which
	// pod template was ready before, and whether it was put back; see
	// rollback.Record.
	RollbackAnnotation = Group + "/rollback"
	// ConversionStashAnnotation, on an object that conversion rules converted, holds the
	// fields that its version cannot hold; see render/conversion.
	ConversionStashAnnotation = Group + "/conversion-stash"
	// ConversionAnnotation, on a CRD, is the digest of its conversion rules.
	ConversionAnnotation = Group + "/conversion"
	// TypesAnnotation, on a CRD or XRD, is the digest of the types that it defines, at the
	// time of the apply.
	TypesAnnotation = Group + "/types"
	// HistoryAnnotation, on a CRD or XRD, has the earlier values of TypesAnnotation, the
	// latest first; see apply.history.
	HistoryAnnotation = Group + "/types-before"
	// FleetAnnotation and CommitAnnotation, on a cluster's inventory, are the fleet and the
	// commit that was last applied. The fleet is on the Lease of its daemon, too.
	FleetAnnotation  = Group + "/fleet"
	CommitAnnotation = Group + "/commit"
	// KindsAnnotation, on a cluster's inventory, is the digest of the list of kinds in it. It
	// shows whether somebody else edited the list.
	KindsAnnotation = Group + "/kinds"
	// FinishedAnnotation, on a cluster's inventory, has the Jobs that finished and that
	// Kubernetes deletes after their time to live; see apply.Applier.Record.
	FinishedAnnotation = Group + "/finished-jobs"
	// SuccessorsAnnotation, on a cluster's inventory, has the packages that took over
	// definitions from others, while these still have objects that are to go, or may be
	// before the successor is ready.
	SuccessorsAnnotation = Group + "/successors"
)

// annotations are all of the above. A manifest that was taken from a cluster may have those
// that gitopsd writes.
var annotations = []string{
	ActorsAnnotation, AdoptAnnotation, AllowBreakingAnnotation, AllowPruneAnnotation, AuthorityAnnotation, ControllerAnnotation,
	DependsOnAnnotation, GatesAnnotation, HealthAnnotation, InjectCAAnnotation, ImmutableAnnotation, InstallAnnotation, KeepEditsAnnotation,
	MigrateStorageAnnotation, PerClusterAnnotation, ReplaceAnnotation, RescheduleAnnotation, ServingCertAnnotation, PinAnnotation,

	AppliedAnnotation, AdoptedAnnotation, ApplicationAnnotation, ConnectionLabel, PlacedAnnotation, EtcdAnnotation, RollbackAnnotation, ConversionStashAnnotation,
	ConversionAnnotation, TypesAnnotation, HistoryAnnotation, FleetAnnotation, CommitAnnotation,
}

// UnknownAnnotations returns a text for each unknown annotation of gitopsd's group, or of
// a likely misspelling of the group: "gitopsd.dev/adpot: there is no such annotation; did
// you mean gitopsd.dev/adopt?".
func (o *Object) UnknownAnnotations() []string {
	var unknown []string
	for key := range Mapping(o.tree, "metadata", "annotations") {
		group, name, _ := strings.Cut(key, "/")
		switch {
		case len(group) < len(Group)-2 || len(group) > len(Group)+2 || slices.Contains(annotations, key):
		case group == Group:
			unknown = append(unknown, key+": there is no such annotation"+sources.Meant(key, annotations))
		case slices.Contains(annotations, Group+"/"+name) && sources.Distance(group, Group) <= 2:
			unknown = append(unknown, key+": there is no such annotation; did you mean "+Group+"/"+name+"?")
		}
	}
	slices.Sort(unknown)
	return unknown
}
