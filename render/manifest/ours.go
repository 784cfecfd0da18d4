package manifest

// Group is gitopsd's own API group. Its labels and annotations below are all
// that it reads or writes on objects; those of the registry's documents are
// listed in package clusters.
const Group = "gitopsd.dev"

// Labels.
const (
	// PackageLabel is on every object that comes from a package, with the name
	// of the package's declaration.
	PackageLabel = Group + "/package"
	// ClusterLabel is on Secrets beside the daemon that hold kubeconfigs, with
	// the name of the cluster that may use it: nobody who can write to the
	// repository can name another Secret.
	ClusterLabel = Group + "/cluster"
	// PullSecretLabel, "true" on a Secret beside the daemon, lets packages be
	// pulled with it.
	PullSecretLabel = Group + "/pull-secret"
	// VerificationKeyLabel, "true" on a Secret beside the daemon, lets signatures
	// be verified with it.
	VerificationKeyLabel = Group + "/verification-key"
)

// Annotations that people write.
const (
	// AdoptAnnotation, "true" on an object in the repository, takes the object
	// over from its owner. On a Cluster in the registry it names sources from
	// which all that is wanted there is taken over; see plan.ParseAdopt.
	AdoptAnnotation = Group + "/adopt"
	// AllowBreakingAnnotation, on a package's declaration or on a definition that
	// belongs to no package, allows breaking changes; see
	// compat.ParseAllowances.
	AllowBreakingAnnotation = Group + "/allow-breaking"
	// AllowPruneAnnotation, "true" on a Namespace, CRD, XRD or package of
	// Crossplane's, allows it to be pruned with everything that it holds. On a
	// Cluster in the registry it is a number: how many objects one pass may
	// prune.
	AllowPruneAnnotation = Group + "/allow-prune"
	// ControllerAnnotation, "<namespace>/<name>" on a definition that belongs to
	// no package, names the Deployment, StatefulSet or DaemonSet that acts on its
	// types. It must be rendered for the same cluster.
	ControllerAnnotation = Group + "/controller"
	// DependsOnAnnotation, on an object or on a package's declaration, names what
	// must be applied and healthy before it, separated by commas: package/NAME,
	// path/DIRECTORY (what is written there in the repository), or an object as
	// manifest.ID prints it.
	DependsOnAnnotation = Group + "/depends-on"
	// InstallAnnotation, "by-type" on a Provider's declaration, installs those of
	// its types that the cluster's ManagedResourceActivationPolicies name.
	// Without it a cluster gets all of them, whatever policies there are: a
	// policy for one package takes no type of another's away.
	InstallAnnotation = Group + "/install"
	// KeepEditsAnnotation, "true" on an object in the repository, leaves what
	// people add to it with kubectl.
	KeepEditsAnnotation = Group + "/keep-edits"
	// ReplaceAnnotation, "true" on an object in the repository, has it deleted
	// and created anew where a field that cannot be changed differs.
	ReplaceAnnotation = Group + "/replace"
	// PinAnnotation, on an object in the repository, is the digest of the type
	// that it is for. The object is refused where its type has another digest.
	PinAnnotation = Group + "/type"
)

// Annotations that gitopsd writes in clusters.
const (
	// AppliedAnnotation records what was last applied, and as which object of
	// which inventory; see plan.Inventory. An object whose rendering has this
	// value is not applied again.
	AppliedAnnotation = Group + "/applied"
	// TypesAnnotation, on a CRD, is the digest of the types that it defines as
	// it was applied.
	TypesAnnotation = Group + "/types"
	// FleetAnnotation and CommitAnnotation, on a cluster's inventory, are the
	// fleet that it belongs to and the fleet's commit that was last applied.
	FleetAnnotation  = Group + "/fleet"
	CommitAnnotation = Group + "/commit"
)
