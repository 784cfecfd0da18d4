package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/target"
	"gitopsd.dev/render/types"
	"gitopsd.dev/sources"
)

// Live is the state of a cluster.
type Live struct {
	// Objects are the metadata of all members of the inventory, and of every other
	// object that has the name of a desired one.
	Objects map[manifest.ID]*metav1.ObjectMeta
	// Drifted describes how members differ from their applied state, and who changed
	// them; so it does for objects that only lost their label.
	Drifted map[manifest.ID]string
	// Disputed is why objects must not be corrected, created or pruned now: somebody
	// undoes it again and again.
	Disputed map[manifest.ID]string
	// Vanished are members that somebody else deleted.
	Vanished map[manifest.ID]bool
	// Unserved is why the cluster does not serve a desired kind in the desired version.
	Unserved map[schema.GroupVersionKind]string
	// Namespaced are the desired kinds that live in namespaces.
	Namespaced map[schema.GroupVersionKind]bool
	// Ambiguous is why it is not known which of several definitions of a desired object
	// is meant.
	Ambiguous map[manifest.ID]string
	// Unreadable is why nothing is known about the objects of a kind.
	Unreadable map[schema.GroupKind]string
	// Rollbacks are the rollbacks of packages' controllers.
	Rollbacks map[manifest.ID]Rollback
	// Contents are the objects in our Namespaces, CRDs, XRDs and Crossplane packages
	// that are no longer desired. A few are enough of those that stay in any case.
	Contents map[manifest.ID][]Content
	// ContentsUnknown is why an object's contents could not be read, or not all of them.
	ContentsUnknown map[manifest.ID]string
	// Accounts are [AccountsOf] the bindings that steps want them of; [AnyAccount] of those
	// that could not be read.
	Accounts map[manifest.ID][]string
	// Finished are Jobs that finished, and that Kubernetes has deleted since because of their
	// spec.ttlSecondsAfterFinished.
	Finished map[manifest.ID]Finished
	// Successors are those that the inventory records.
	Successors Successors
	// Beside are the inventories of the fleet's other clusters in this cluster, by ID. If one
	// is registered, most likely two kubeconfigs lead to one cluster, so no annotation adopts
	// its objects.
	Beside map[string]Beside
}

// Finished is how a Job finished that has a time to live.
type Finished struct {
	// Applied is the Job's manifest.AppliedAnnotation.
	Applied string `json:"applied"`
	// Due is when the time to live is over.
	Due time.Time `json:"due"`
	// Failed: it did not complete.
	Failed bool `json:"failed,omitempty"`
}

// Text says how the Job finished, and what became of it.
func (f Finished) Text() string {
	how := "completed"
	if f.Failed {
		how = "failed"
	}
	return "it " + how + ", and Kubernetes deleted it after spec.ttlSecondsAfterFinished; it runs again once its manifest changes"
}

// Beside is the inventory of another cluster of the fleet.
type Beside struct {
	Cluster string
	// Left means that the cluster is not registered any more.
	Left bool
	// Inventory is its object.
	Inventory manifest.ID
}

// Options are the inputs of a plan beside the objects.
type Options struct {
	// RenderFailed is why not all desired objects are known; empty if they are. If it is
	// set, nothing is pruned.
	RenderFailed string
	// Keeps reports whether an object of ours that is not desired must stay: its package
	// has errors, or it is defined more than once, so that it may still be desired. pkg
	// is the value of its manifest.PackageLabel. Nil keeps nothing.
	Keeps func(id manifest.ID, pkg string) bool
	// Inactive are types in packages that no activation policy activates.
	Inactive []PackageType
	// Delegated are types of the packages that Crossplane installs.
	Delegated []PackageType
	// RemoveAll: the Cluster's document asks to remove everything. Objects of others in
	// our Namespaces and types stay.
	RemoveAll bool
	// Bare: the cluster's directory renders no objects; the desired ones are made from the
	// registry.
	Bare bool
	// Broken are the names of the packages with errors, whose objects are not desired.
	Broken []string
	// ReportDrift: drift is reported and not corrected.
	ReportDrift bool
	// Adopt are the sources whose objects are taken over, from the
	// manifest.AdoptAnnotation of the unit's declaration; see ParseAdopt.
	Adopt []string
	// Order is the declared order of packages, by name.
	Order map[string]Order
	// Declaration is where people annotate the unit, for advice; empty means the Cluster
	// in the registry.
	Declaration string
	// AllowPrune is how many objects may be pruned whatever their share of the
	// inventory, from the manifest.AllowPruneAnnotation of the unit's declaration.
	AllowPrune int
	// Gating decides when objects are ready.
	Gating Gating
}

// PackageType is a type in a package that gitopsd does not install.
type PackageType struct {
	// Definition is the CRD, MRD or XRD.
	Definition manifest.ID
	Kind       schema.GroupKind
	// Package is its name in the cluster.
	Package string
}

// Compute returns the plan. It is pure: equal arguments give equal plans.
func Compute(cluster string, desired *manifest.Set, live Live, inv Inventory, opts Options) *Plan {
	c := computation{
		desired: desired,
		live:    live, inv: inv, opts: opts, defined: definitions(desired),
		inactive: byKind(opts.Inactive), delegated: byKind(opts.Delegated),
		dormant: make(map[manifest.ID]bool, len(opts.Inactive)),
	}
	for _, t := range opts.Inactive {
		c.dormant[t.Definition] = true
	}
	c.findUnregistered()
	p := &Plan{Cluster: cluster, Steps: make([]Step, 0, desired.Len()), Unreadable: live.Unreadable, Gating: opts.Gating}
	for _, o := range desired.All() {
		if !c.withdrawn(o.ID()) {
			p.Steps = append(p.Steps, c.wanted(o))
		}
	}
	sortApplied(p.Steps)
	c.successors = c.takeovers(p.Steps)
	p.Steps = append(p.Steps, c.unwanted()...)
	c.keepServers(p.Steps)
	KeepConverters(p)
	p.Successors = c.successors.of(p.Steps)
	p.behind, p.contents = c.order(p.Steps), c.contents()
	return p
}

type computation struct {
	desired *manifest.Set
	live    Live
	inv     Inventory
	opts    Options
	defined map[schema.GroupVersionKind]manifest.ID
	// inactive and delegated are the options' by kind.
	inactive, delegated map[schema.GroupKind]PackageType
	// dormant are the definitions of inactive types.
	dormant map[manifest.ID]bool
	// installed are the packages that are desired; known while contents are kept.
	installed map[string]bool
	// successors are those of all packages.
	successors Successors
	// awaited are names that others may depend on, of objects that a cluster has and the
	// rendering has not, or not under that name.
	awaited map[string]bool
	// unregistered are the webhook configurations that nothing is going to serve, with
	// the reason, and without are their packages.
	unregistered map[manifest.ID]string
	without      map[string]bool
}

func byKind(types []PackageType) map[schema.GroupKind]PackageType {
	m := make(map[schema.GroupKind]PackageType, len(types))
	for _, t := range types {
		m[t.Kind] = t
	}
	return m
}

// wanted returns the step for a desired object.
func (c *computation) wanted(o *manifest.Object) Step {
	id := o.ID()
	s := Step{ID: id, Stage: stageOf(o), Object: o, Package: o.Label(manifest.PackageLabel), Rollback: c.live.Rollbacks[id]}
	meta := c.live.Objects[id]
	if meta != nil {
		s.UID, s.Rules, s.Member = string(meta.UID), rulesOf(id, meta), c.inv.Membership(id, meta) == Member
	}
	if why, ok := c.live.Ambiguous[id]; ok {
		s.Action, s.Reason = Refused, why
		return s
	}
	gvk := schema.FromAPIVersionAndKind(o.APIVersion(), id.Kind)
	var coming, awaits string
	if why, unserved := c.live.Unserved[gvk]; unserved {
		// An object that exists in another version may be somebody else's.
		if coming, awaits = c.coming(gvk); coming == "" || meta == nil {
			return c.unserved(s, gvk, why)
		}
	}
	decide := func(a Action, format string, args ...any) Step {
		s.Action, s.Reason = a, fmt.Sprintf(format, args...)
		if coming != "" && a.Writes() {
			s.NotValidated = fmt.Sprintf("its changes are not known before %s is served: %s", gvk.Version, coming)
			s.Premature, s.Awaits = true, awaits
		}
		return s
	}
	if why, ok := c.live.Unreadable[gvk.GroupKind()]; ok {
		return decide(Refused, "cannot tell what is there: %s", why)
	}
	if c.live.Namespaced[gvk] && id.Namespace == "" {
		return decide(Refused, "its kind is namespaced, and it has no namespace; set metadata.namespace%s", o.Origin().InPackage())
	}
	s.Converts = converts(o)
	if why := c.misuse(o); why != "" {
		return decide(Refused, "%s", why)
	}
	if why := c.unregistered[id]; why != "" {
		s.Lasting = true
		return decide(Held, "nothing would serve it: %s", why)
	}
	if why := Unready(o); why != "" {
		return decide(Held, "%s", why)
	}
	if f, ok := c.live.Finished[id]; ok && meta == nil && f.Applied == c.inv.Applied(o) {
		s.Finished = &f
		return decide(Unchanged, "%s", f.Text())
	}
	if meta == nil {
		if why, ok := c.live.Disputed[id]; ok {
			return decide(Held, "%s", why)
		}
		deleted := ""
		if s.Recreated = c.live.Vanished[id]; s.Recreated {
			deleted = "drift: somebody deleted it"
		}
		return decide(Create, "%s", joined(deleted, cmp.Or(c.served(o), c.guarded(o), converted(&s))))
	}
	if meta.DeletionTimestamp != nil {
		return decide(Wait, "%s; it is created again when it is gone", deleting(meta))
	}
	unlabelled := c.inv.Unlabelled(id, meta)
	if !s.Member && unlabelled == "" {
		owner, other := claimant(meta, c.inv), c.live.Beside[meta.Labels[PartOfLabel]]
		former := other.Left && slices.Equal(owner.sources, []string{applySetSource + "/" + meta.Labels[PartOfLabel]})
		if former {
			owner.text = fmt.Sprintf("cluster %s's, which left %s", other.Cluster, sources.RegistryFile)
		}
		s.Found = meta.Annotations[manifest.AdoptedAnnotation] == "" && !c.inv.made(id, meta)
		switch {
		case other.Cluster != "" && !other.Left:
			return decide(Conflict, "it is cluster %s's, whose inventory %s is in this cluster: do both kubeconfigs lead to the same cluster? Correct spec.kubeconfig or spec.context of one of them; or, if this cluster was restored from a backup of %[1]s, delete that inventory here", other.Cluster, other.Inventory)
		case owner.text == "":
			s.Force = c.inv.applied(meta)
			return decide(Configure, "exists without an owner; adding it to the inventory")
		case o.Annotation(manifest.AdoptAnnotation) == "true", owner.adoptable(c.opts.Adopt):
			s.Force, s.Adopt = true, true
			return decide(Configure, "adopted: until now it was %s", owner.text)
		}
		s.Allow = owner.adopt(s.Package)
		how := "annotate it"
		if s.Package != "" {
			how = "have one of the Cluster's spec.patches annotate it"
		}
		all := ""
		if len(owner.sources) > 0 {
			all = fmt.Sprintf(", or %s with %s: %s for all that is", cmp.Or(c.opts.Declaration, "the Cluster"), manifest.AdoptAnnotation, strings.Join(owner.sources, ","))
		}
		if former {
			const renamed = "; if it was renamed to this one, "
			s.Allow = s.Allow.ForAlike()
			s.Allow.Cause += renamed + "take over all that it has"
			return decide(Conflict, "it is %s%sannotate the Cluster with %s: %s to take over all that it has", owner.text, renamed, manifest.AdoptAnnotation, strings.Join(owner.sources, ","))
		}
		if o.Label(target.AutomaticLabel) == "true" && meta.Labels[target.AutomaticLabel] == "" && meta.Labels[PartOfLabel] == "" {
			// A team may make one of the name in its namespace, and must not stop the home by it.
			s.Allow, s.Lasting = nil, true
			return decide(Held, "it is %s, and stays: delete it there, or do not publish the cluster to this namespace", owner.text)
		}
		return decide(Conflict, "it is %s; %s with %s: \"true\" to take it over%s", owner.text, how, manifest.AdoptAnnotation, all)
	}
	s.Force = true
	was, now := parseRecord(meta.Annotations[manifest.AppliedAnnotation]), parseRecord(c.inv.Applied(o))
	switch {
	case was == now:
	case was.binding == "" && was.applied == now.applied:
		return decide(Configure, "unchanged in the repository; renewing the record of an older gitopsd, which copies share")
	case was.rendered != now.rendered:
		return decide(Configure, "%s", joined("changed in the repository", converted(&s)))
	case len(o.Unknown()) == 0:
		s.Refilled = s.Rollback.Refilled == ""
		return decide(Configure, "%s", cmp.Or(s.Rollback.Refilled, refilled(o)))
	}
	if why := cmp.Or(c.live.Drifted[id], unlabelled); why != "" {
		s.Drift = true
		if why, ok := c.live.Disputed[id]; ok {
			return decide(Held, "%s", why)
		}
		if unlabelled != "" && c.opts.ReportDrift {
			// Once it is not desired, nothing finds it, and it counts as released.
			why += "; without the label, the object stays in the cluster when it leaves the repository: put the label back, or delete the object yourself then"
		}
		return decide(Configure, "drift: %s", why)
	}
	return decide(Unchanged, "")
}

// unserved returns the step for an object whose version the cluster does not serve, unless
// the object exists and the version is coming.
func (c *computation) unserved(s Step, gvk schema.GroupVersionKind, why string) Step {
	if coming, awaits := c.coming(gvk); coming != "" {
		s.Action, s.Reason = Create, c.guarded(s.Object)
		s.NotValidated, s.Premature, s.Awaits = coming, true, awaits
		return s
	}
	s.Action, s.Reason = Refused, cmp.Or(notServed(s.Object.APIVersion(), s.ID), c.otherVersion(gvk), why)
	if t, ok := c.inactive[gvk.GroupKind()]; ok {
		s.Reason = fmt.Sprintf("its type is not activated: package %s is installed by type; name %s in spec.activate of a ManagedResourceActivationPolicy", t.Package, t.Definition.Name)
	}
	return s
}

// coming returns what brings a version that the cluster does not serve; "" if nothing does.
// awaits is for Step.Awaits.
func (c *computation) coming(gvk schema.GroupVersionKind) (what, awaits string) {
	by, isDefined := c.defined[gvk]
	pkg := c.delegated[gvk.GroupKind()].Package
	switch {
	case isDefined && by.Is(manifest.CRD):
		return fmt.Sprintf("its type is installed by %s", by), ""
	case isDefined:
		return fmt.Sprintf("its type is installed by %s", by), fmt.Sprintf("Crossplane makes it from %s", by)
	case pkg != "":
		awaits = fmt.Sprintf("Crossplane installs it with package %s", pkg)
		return "its type is not there yet: " + awaits, awaits
	}
	return "", ""
}

// otherVersion returns the versions in which the desired objects define a kind, as the
// reason why they do not serve this one; "" if they do not define the kind.
func (c *computation) otherVersion(gvk schema.GroupVersionKind) string {
	var versions []string
	var by manifest.ID
	for other, id := range c.defined {
		if other.GroupKind() == gvk.GroupKind() {
			versions, by = append(versions, other.GroupVersion().String()), id
		}
	}
	if len(versions) == 0 {
		return ""
	}
	slices.Sort(versions)
	return fmt.Sprintf("%s serves %s in %s, not in %s: write apiVersion: %s", by, gvk.Kind, strings.Join(versions, " and "), gvk.GroupVersion(), versions[len(versions)-1])
}

// notServed returns why an object of a Crossplane kind cannot be applied; "" for all
// other kinds.
func notServed(apiVersion string, id manifest.ID) string {
	const install = "install Crossplane in the cluster (https://docs.crossplane.io/latest/get-started/install)"
	lacks := fmt.Sprintf("the cluster serves no %s in %s", id.Kind, apiVersion)
	switch {
	case id.Is(manifest.Function):
		return lacks + ", and only Crossplane can run one; " + install + ", or remove the Function and what depends on it"
	case id.Group == manifest.GroupPackages:
		return lacks + ", though its packages are delegated to Crossplane; " + install + ", or set spec.packages: expand on the Cluster"
	case id.Group == manifest.GroupComposites || id.Group == manifest.GroupOperations:
		return lacks + ", which means nothing without Crossplane; " + install
	}
	return ""
}

// refilled describes the filled-in fields of an object that is otherwise as it was applied.
func refilled(o *manifest.Object) string {
	var fields []string
	for _, c := range Diff(o.Rendered().Tree(), o.Tree()) {
		fields = append(fields, c.Path)
	}
	if len(fields) == 0 {
		return "no longer filled in"
	}
	return "filled in anew: " + prose.Some(fields, 3)
}

func deleting(meta *metav1.ObjectMeta) string {
	s := "it is being deleted"
	if len(meta.Finalizers) > 0 {
		s += ", held by finalizer " + strings.Join(meta.Finalizers, ", ")
	}
	return s
}

// definitions returns the kinds that the desired objects define.
func definitions(desired *manifest.Set) map[schema.GroupVersionKind]manifest.ID {
	defined := make(map[schema.GroupVersionKind]manifest.ID)
	for _, o := range desired.All() {
		for _, gvk := range Defines(o) {
			defined[gvk] = o.ID()
		}
	}
	return defined
}

// Defines returns the served kinds that a CRD or XRD defines; none for any other object.
func Defines(o *manifest.Object) []schema.GroupVersionKind {
	if !o.ID().Is(manifest.Definitions...) {
		return nil
	}
	d := types.Read(o.Tree())
	versions := d.Versions()
	var list []schema.GroupVersionKind
	for _, kind := range d.Kinds() {
		for _, v := range versions {
			if v.Served {
				list = append(list, schema.GroupVersionKind{Group: d.Group, Version: v.Name, Kind: kind})
			}
		}
	}
	return list
}
