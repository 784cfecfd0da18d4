package apply

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/render/manifest"
)

// Namespace is where gitopsd keeps its own objects in each cluster.
const Namespace = "gitopsd-system"

// The labels and annotations of an ApplySet's parent, from KEP-3659 ("ApplySet
// specification"). Members carry plan.PartOfLabel.
const (
	idLabel              = "applyset.kubernetes.io/id"
	toolingAnnotation    = "applyset.kubernetes.io/tooling"
	kindsAnnotation      = "applyset.kubernetes.io/contains-group-kinds"
	namespacesAnnotation = "applyset.kubernetes.io/additional-namespaces"

	// tooling is this tool, as "name/semver". The version is the inventory's format,
	// not the program's; since v2 it records the fleet, since v3 the digest of the kinds.
	tooling     = "gitopsd/v3"
	toolingV1   = "gitopsd/v1"
	toolingV2   = "gitopsd/v2"
	toolingName = "gitopsd"
)

// Fleet tells which inventories may be used. The objects in another fleet's
// inventory would be pruned, since this fleet does not declare them.
type Fleet struct {
	// Name identifies the fleet, as git.Repository.Fleet returns it. It is recorded
	// in the inventory; without it only Plan can be used.
	Name string
	// Accepts reports whether an inventory with another name is used too; nil
	// accepts none.
	Accepts func(name string) bool
	// Compared says in errors what Accepts compares names with; may be empty.
	Compared string
	// Supersedes returns nil if a commit may be applied after another one that another
	// process of this fleet applied, and otherwise an error with the reason. Nil
	// applies every commit.
	Supersedes func(ctx context.Context, commit, applied string) error
}

// applySet identifies an inventory: a ConfigMap in Namespace, one for each unit of work.
// Two fleets that register one cluster under different names do not prune each other's
// objects. Under the same name, the inventory belongs to the first fleet.
type applySet struct {
	parent manifest.ID
	id     string
}

func newApplySet(name string) applySet {
	p := manifest.ConfigMap.ID(Namespace, manifest.InventoryPrefix+name)
	sum := sha256.Sum256([]byte(p.Name + "." + p.Namespace + "." + p.Kind + "." + p.Group))
	return applySet{parent: p, id: "applyset-" + base64.RawURLEncoding.EncodeToString(sum[:]) + "-v1"}
}

// SetID returns the ID of the ApplySet of an inventory: the value of [plan.PartOfLabel] on its
// members. The inventory of a cluster has the cluster's name.
func SetID(inventory string) string { return newApplySet(inventory).id }

// selector selects the members.
func (s applySet) selector() string { return plan.PartOfLabel + "=" + s.id }

// parent is the content of the parent object: the kinds that members may have, and
// the namespaces that they may be in.
type parent struct {
	exists bool
	kinds  map[schema.GroupKind]bool
	// partial: members may have other kinds too, since somebody edited the list.
	partial bool
	// listed is the list of kinds in the cluster.
	listed     kindList
	namespaces map[string]bool // none if they are too many
	// fleet and commit are recorded in it; uid and version are the object's own,
	// since it is written only if it has not changed since it was read.
	fleet, commit string
	// finished is the value of manifest.FinishedAnnotation.
	finished string
	// successors is the value of manifest.SuccessorsAnnotation.
	successors   string
	uid, version string
}

// These two kinds need no discovery: every API server has them.
var (
	configMaps = kube.Type{Version: "v1", Kind: manifest.ConfigMap.Kind, Resource: "configmaps", Namespaced: true}
	namespaces = kube.Type{Version: "v1", Kind: manifest.Namespace.Kind, Resource: "namespaces", HasStatus: true}
)

// readParent reads the parent, unless this process knows it. A parent of another
// tool is an error, as the specification requires.
func (a *Applier) readParent(ctx context.Context) (*parent, error) {
	a.mu.Lock()
	if a.rewound {
		a.rewound, a.parent, a.claimed = false, nil, ""
	}
	a.mu.Unlock()
	if a.parent != nil {
		return a.parent, nil
	}
	p := &parent{kinds: make(map[schema.GroupKind]bool), namespaces: make(map[string]bool)}
	meta, err := a.cluster.GetMetadata(ctx, configMaps, a.set.parent)
	if kube.IsMissing(err) {
		a.parent = p
		return p, nil
	}
	if err != nil {
		return nil, err
	}
	if err := a.checkParent(meta); err != nil {
		return nil, err
	}
	p.exists = true
	p.fleet, p.commit = meta.Annotations[manifest.FleetAnnotation], meta.Annotations[manifest.CommitAnnotation]
	p.finished = meta.Annotations[manifest.FinishedAnnotation]
	p.successors = meta.Annotations[manifest.SuccessorsAnnotation]
	a.readFinished(p.finished)
	p.uid, p.version = string(meta.UID), meta.ResourceVersion
	p.listed = kindList{meta.Annotations[kindsAnnotation], meta.Annotations[manifest.KindsAnnotation]}
	for _, gk := range splitList(p.listed.text) {
		p.kinds[schema.ParseGroupKind(gk)] = true
	}
	if tool := meta.Annotations[toolingAnnotation]; tool != toolingV1 && tool != toolingV2 && p.listed != listOf(p.kinds, false) {
		p.partial = true
		a.log.Warn("somebody edited the kinds in the inventory's parent object, so that all kinds in the cluster are looked at",
			"parent", a.set.parent.String(), "annotation", kindsAnnotation)
	}
	for _, ns := range splitList(meta.Annotations[namespacesAnnotation]) {
		p.namespaces[ns] = true
	}
	a.parent = p
	return p, nil
}

// Check returns an error if the cluster's inventory is not this fleet's. Call it before
// any write to the cluster that precedes its plan.
func (a *Applier) Check(ctx context.Context) error {
	_, err := a.readParent(ctx)
	return err
}

// ParentUID returns the UID of the inventory's parent object; empty if there is none.
func (a *Applier) ParentUID(ctx context.Context) (string, error) {
	meta, err := a.cluster.GetMetadata(ctx, configMaps, a.set.parent)
	switch {
	case kube.IsMissing(err):
		return "", nil
	case err != nil:
		return "", err
	}
	return string(meta.UID), nil
}

// Owns reports whether a live object is in the inventory; see [plan.Inventory.Owns].
func (a *Applier) Owns(id manifest.ID, meta *metav1.ObjectMeta, adopt []string) bool {
	return a.inv.Owns(id, meta, adopt)
}

// Lists reports whether the inventory may have members of a kind. It sends nothing; before
// [Applier.Check] it may have any.
func (a *Applier) Lists(kind manifest.GroupKind) bool {
	return a.parent == nil || a.parent.partial || a.parent.kinds[schema.GroupKind(kind)]
}

func (a *Applier) checkParent(meta *metav1.PartialObjectMetadata) error {
	fail := func(format string, args ...any) error {
		return problem.Problem{
			Cluster: a.cluster.Name(), Reason: fmt.Sprintf("the inventory %s %s", a.set.parent, fmt.Sprintf(format, args...)),
			Advice: "until then gitopsd changes nothing", Lasting: true,
		}
	}
	tool, _, _ := strings.Cut(meta.Annotations[toolingAnnotation], "/")
	fleet := meta.Annotations[manifest.FleetAnnotation]
	switch {
	case tool == "":
		return fail("has no annotation %s, so that it is not gitopsd's: delete it, or rename the cluster", toolingAnnotation)
	case tool != toolingName:
		return fail("belongs to %s: delete it with that tool, or rename the cluster", tool)
	case meta.Labels[idLabel] != a.set.id:
		return fail("has label %s: %q where %q belongs: somebody changed it; restore the label", idLabel, meta.Labels[idLabel], a.set.id)
	case fleet == "" && meta.Annotations[toolingAnnotation] == toolingV1:
		return nil // written by a gitopsd that did not record it
	case fleet == "":
		return fail("has no annotation %s, which says whose it is: somebody removed it; if it is this fleet's, restore %[1]s: %[2]s", manifest.FleetAnnotation, a.fleet.Name)
	case fleet != a.fleet.Name && (a.fleet.Accepts == nil || !a.fleet.Accepts(fleet)):
		compared := ""
		if a.fleet.Compared != "" {
			compared = " (compared with " + a.fleet.Compared + ")"
		}
		return fail("belongs to another fleet, %s%s, and objects that this one does not declare would be pruned: register the cluster under another name here; or, if it is this fleet's from now on, start gitopsd with --take-over-from=%s", fleet, compared, fleet)
	}
	return nil
}

// claimTries bounds how often the write of the parent is repeated because somebody
// else wrote it meanwhile.
const claimTries = 3

// claim records the plan's kinds, namespaces and commit in the parent before the
// first object of the plan is written. It reads the parent again, since another
// process of this fleet, or another fleet, may have written it; a plan that only
// corrects drift does not need that.
func (x *execution) claim(ctx context.Context, kinds map[schema.GroupKind]bool, in map[string]bool) error {
	commit := x.plan.Commit
	corrects := !slices.ContainsFunc(x.plan.Steps, func(s plan.Step) bool { return s.Action.Writes() && !s.Drift })
	if !corrects {
		x.parent = nil
	}
	for try := 1; ; try++ {
		p, err := x.readParent(ctx)
		if err != nil {
			return err
		}
		wider := &parent{kinds: maps.Clone(p.kinds), namespaces: listable(p.namespaces, in), commit: commit, successors: x.plan.Successors.String()}
		maps.Copy(wider.kinds, kinds)
		if (p.partial || !p.exists) && x.looked != nil {
			maps.Copy(wider.kinds, x.looked.kinds)
			wider.partial = x.looked.partial
		}
		covers := p.exists && len(wider.kinds) == len(p.kinds) && len(wider.namespaces) == len(p.namespaces) && p.fleet == x.fleet.Name &&
			(wider.successors == "" || wider.successors == p.successors)
		if covers && corrects {
			return nil
		}
		if err := x.superseded(ctx, p); err != nil {
			return err
		}
		if covers && p.commit == commit {
			return nil
		}
		err = x.writeParent(ctx, p, wider)
		if err == nil || try == claimTries || kube.IsClusterWide(err) {
			return err
		}
		switch now, refused := x.readParent(ctx); {
		case refused != nil:
			return refused
		case now.version == p.version:
			return err // nobody else wrote it: the error has another cause
		}
	}
}

// admissionLag is how long an API server may ask a webhook after its configuration was
// deleted or changed.
const admissionLag = 5 * time.Second

// claimBlocked claims after a webhook without an answer refused the parent. If the plan
// removes webhook configurations, or makes them restrict less, it does that first: the
// webhook may be in one of them, and nothing else could end its refusals. The parent
// names their kind already, and claim has found that the commit may be applied.
func (x *execution) claimBlocked(ctx context.Context, kinds map[schema.GroupKind]bool, in map[string]bool, blocked error) error {
	var going, changing []*Result
	for i := range x.results {
		r := &x.results[i]
		switch s := r.Step; {
		case !s.ID.Is(manifest.Webhooks...):
		case s.Action == plan.Prune:
			going = append(going, r)
		case s.Action == plan.Configure && s.Force && len(s.Object.Unknown()) == 0:
			if registers, err := x.registers(ctx, s); err != nil || registers {
				continue // it waits for its server, or fails, in its stage
			}
			changing = append(changing, r)
		}
	}
	if len(going)+len(changing) == 0 {
		return blocked
	}
	if err := x.each(ctx, going, x.delete); err != nil {
		return err
	}
	if err := x.each(ctx, changing, x.apply); err != nil {
		return err
	}
	over := time.Now().Add(admissionLag)
	for wait := pollFirst; kube.ClassOf(blocked) == kube.WebhookFailed && time.Now().Before(over); wait = min(2*wait, pollLongest) {
		if err := kube.Sleep(ctx, wait); err != nil {
			return err
		}
		blocked = x.claim(ctx, kinds, in)
	}
	return blocked
}

// reclaim verifies that the inventory is still the claimed one before objects are
// deleted: applying may have taken long.
func (x *execution) reclaim(ctx context.Context) error {
	wrote, prunes := false, false
	for i := range x.plan.Steps {
		s := &x.plan.Steps[i]
		prunes = prunes || s.Action == plan.Prune
		wrote = wrote || s.Object != nil && s.Action.Writes()
	}
	if !wrote || !prunes {
		return nil
	}
	x.parent = nil
	p, err := x.readParent(ctx)
	if err != nil {
		return err
	}
	return x.superseded(ctx, p)
}

// superseded returns an error if the plan's commit does not come after the commit in the
// inventory, which may have added objects that look superfluous.
func (x *execution) superseded(ctx context.Context, p *parent) error {
	if x.plan.Commit == "" || p.commit == "" || p.commit == x.plan.Commit || x.fleet.Supersedes == nil {
		return nil
	}
	if p.version == x.claimed { // this process goes through its commits in their order
		return nil
	}
	if err := x.fleet.Supersedes(ctx, x.plan.Commit, p.commit); err != nil {
		return problem.In(x.cluster.Name(), err)
	}
	return nil
}

// narrow removes all other kinds and namespaces from the parent, after their objects are
// gone. If another process has written it meanwhile, or for a newer commit, a later pass
// narrows it: that process may be about to apply objects of these kinds.
func (x *execution) narrow(ctx context.Context, kinds map[schema.GroupKind]bool, in map[string]bool) error {
	in = listable(in)
	p, successors := x.parent, x.successors().String()
	if p.exists && p.listed == listOf(kinds, p.partial) && maps.Equal(p.namespaces, in) && p.fleet == x.fleet.Name && p.finished == x.finishedRecord() && p.successors == successors {
		return nil
	}
	if x.superseded(ctx, p) != nil {
		return nil
	}
	err := x.writeParent(ctx, p, &parent{kinds: kinds, partial: p.partial, namespaces: in, commit: cmp.Or(p.commit, x.plan.Commit), successors: successors})
	if class := kube.ClassOf(err); class == kube.Changed || class == kube.Exists {
		return nil
	}
	return err
}

// removeParent deletes the parent of an empty inventory, unless another process has
// written to it.
func (x *execution) removeParent(ctx context.Context) error {
	p := x.parent
	if !p.exists || x.superseded(ctx, p) != nil {
		return nil
	}
	x.parent = nil
	_, _, err := x.cluster.DeleteUnchanged(ctx, configMaps, x.set.parent, p.uid, p.version)
	if kube.IsStale(err) {
		return nil
	}
	return err
}

// writeParent replaces the parent that was read, and creates its namespace if that
// is missing. It fails if the parent has changed since it was read.
func (a *Applier) writeParent(ctx context.Context, read, p *parent) error {
	p.listed = listOf(p.kinds, p.partial)
	annotations := map[string]any{
		toolingAnnotation: tooling, manifest.FleetAnnotation: a.fleet.Name,
		kindsAnnotation: p.listed.text, manifest.KindsAnnotation: p.listed.digest,
		namespacesAnnotation: strings.Join(slices.Sorted(maps.Keys(p.namespaces)), ","),
	}
	if p.commit != "" {
		annotations[manifest.CommitAnnotation] = p.commit
	}
	// An apply without it would leave it there, since the create owns it too.
	if p.finished = a.finishedRecord(); p.finished != "" || read.finished != "" {
		annotations[manifest.FinishedAnnotation] = p.finished
	}
	if p.successors != "" || read.successors != "" {
		annotations[manifest.SuccessorsAnnotation] = p.successors
	}
	metadata := map[string]any{
		"name": a.set.parent.Name, "namespace": a.set.parent.Namespace,
		"labels": map[string]any{idLabel: a.set.id}, "annotations": annotations,
	}
	if read.exists {
		metadata["resourceVersion"] = read.version
	}
	body := manifest.AppendJSON(nil, map[string]any{"apiVersion": "v1", "kind": manifest.ConfigMap.Kind, "metadata": metadata})
	meta, err := a.putParent(ctx, read.exists, body)
	if kube.ClassOf(err) == kube.NoNamespace {
		id := manifest.Namespace.ID("", Namespace)
		ns := manifest.AppendJSON(nil, map[string]any{
			"apiVersion": "v1", "kind": manifest.Namespace.Kind, "metadata": map[string]any{"name": Namespace},
		})
		if _, err = a.cluster.Apply(ctx, namespaces, id, ns, kube.ApplyOptions{Force: true}); err == nil {
			meta, err = a.putParent(ctx, read.exists, body)
		}
	}
	if err != nil {
		// Its current content is not known.
		a.parent = nil
		return fmt.Errorf("the inventory could not be written, so nothing was applied: %w", err)
	}
	p.exists, p.fleet, p.uid, p.version = true, a.fleet.Name, string(meta.UID), meta.ResourceVersion
	a.parent, a.claimed = p, p.version
	return nil
}

// putParent applies the parent if it exists. Otherwise it creates it, since an apply
// would overwrite one that somebody else made meanwhile.
func (a *Applier) putParent(ctx context.Context, exists bool, body []byte) (*metav1.PartialObjectMetadata, error) {
	if !exists {
		return a.cluster.Create(ctx, configMaps, a.set.parent, body)
	}
	answer, err := a.cluster.Apply(ctx, configMaps, a.set.parent, body, kube.ApplyOptions{Force: true})
	if err != nil {
		return nil, err
	}
	return answer.Meta, nil
}

// kindList is the list of kinds in a parent, and its digest. Members of a kind that is not
// listed would never be looked at, so an edited list must not be taken for complete.
type kindList struct{ text, digest string }

// listOf lists kinds. A partial list has no digest, so that nobody takes it for complete.
func listOf(kinds map[schema.GroupKind]bool, partial bool) kindList {
	var names []string
	for gk := range kinds {
		names = append(names, gk.String())
	}
	slices.Sort(names)
	l := kindList{text: strings.Join(names, ",")}
	if !partial {
		sum := sha256.Sum256([]byte(l.text))
		l.digest = base64.RawURLEncoding.EncodeToString(sum[:])
	}
	return l
}

// mostNamespaces bounds the list of namespaces in a parent, in bytes: Kubernetes allows 256
// KiB for all annotations of an object. Tests change it.
var mostNamespaces = 128 << 10

// listable returns the namespaces that a parent lists; none if they are too many. They are
// for other tools: gitopsd looks for members in all namespaces.
func listable(sets ...map[string]bool) map[string]bool {
	all, size := make(map[string]bool), 0
	for _, set := range sets {
		maps.Copy(all, set)
	}
	delete(all, Namespace)
	for ns := range all {
		size += len(ns) + 1
	}
	if size > mostNamespaces {
		clear(all)
	}
	return all
}

func splitList(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}
