// Package plan decides what has to happen in one cluster: for every object that
// is wanted, and every object of ours that is not, one step with an action and
// the reason for it. `gitopsd plan` prints a plan, `gitopsd run` executes it; it
// is the same value.
//
// It owns
//   - the decision (compute.go), a pure function of what is wanted, what is
//     there and what the inventory says is ours;
//   - what is ours (member.go), whose anything else is (owner.go), what must not be
//     pruned (guard.go), and what would go with it (contents.go);
//   - what a change of types refuses: what breaks (types.go), and objects that
//     are pinned to another type (pins.go);
//   - the order of things (stage.go), and what must be ready before what
//     (depends.go);
//   - the difference between two objects, field by field (diff.go), where no
//     value of a Secret survives;
//   - the plan between two renderings of a cluster that is not looked at
//     (between.go).
//
// It talks to no cluster: reconcile/apply looks at the cluster, has Compute
// decide, and executes the steps. It prints nothing either: cmd/gitopsd/preview
// shows plans to people and programs.
package plan

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/render/types/compat"
)

// PartOfLabel is on every object of an ApplySet (KEP-3659); its value is the
// set's ID.
const PartOfLabel = "applyset.kubernetes.io/part-of"

// Action is what happens to an object.
type Action string

// The actions. Create, Configure and Prune write; the others leave the object
// as it is.
const (
	// Create: the object is not there.
	Create Action = "create"
	// Configure: the object is there and differs.
	Configure Action = "configure"
	// Unchanged: the object is there as wanted.
	Unchanged Action = "unchanged"
	// Prune: the object is ours and no longer wanted.
	Prune Action = "prune"
	// Wait: the object is being deleted, and what holds it up is not ours; or
	// something that is pruned has to be gone before it.
	Wait Action = "wait"
	// Conflict: the object is somebody else's.
	Conflict Action = "conflict"
	// Refused: the object cannot be applied to this cluster.
	Refused Action = "refused"
	// Held: the step would do harm now, so that it is not done.
	Held Action = "held"
)

// Actions are all of them in the order in which they are shown.
var Actions = []Action{Refused, Conflict, Held, Wait, Create, Configure, Prune, Unchanged}

// Writes reports whether the action changes the cluster.
func (a Action) Writes() bool { return a == Create || a == Configure || a == Prune }

// Step is what happens to one object, and why.
type Step struct {
	Action Action
	ID     manifest.ID
	// Reason is one line for people; empty where the action says it all.
	Reason string
	Stage  Stage
	// Object is what is wanted; nil for an object that is not.
	Object *manifest.Object
	// Package is the one the object belongs to, "" for a plain manifest.
	Package string
	// After names what must be applied and healthy before, as
	// manifest.DependsOnAnnotation has it.
	After []string
	// Round orders what is pruned: an object goes when all of earlier rounds are
	// gone.
	Round int
	// WithContents says that a Namespace, CRD, XRD or package is annotated to be
	// pruned with what others put into it.
	WithContents bool
	// Awaits says what makes the object's type, which is not there yet and comes
	// by itself; empty for all other objects.
	Awaits string
	// UID of the live object; empty when there is none. A prune deletes that
	// object and no later one of the same name.
	UID string
	// Adopt says that the object was somebody else's and is taken over, with the
	// fields, labels and owner references that the former owner put there.
	Adopt bool
	// Reclaim says what is taken over of what people own of an object of ours,
	// so that it goes where the repository does not have it.
	Reclaim Reclaim
	// Force takes over fields that other managers own: only where the object is
	// ours, or adopted.
	Force bool
	// Drift says that the object is as the repository wants it but for what
	// somebody else did to it.
	Drift bool
	// Compatibility is what replacing or removing the types of a CRD means to
	// those who use them, and Findings say why; Identical for other objects.
	Compatibility compat.Severity
	Findings      []compat.Finding
	// Allowed are the reasons for which the package's declaration allows
	// breaking findings, by their names.
	Allowed map[string]string
	// Before are the types that the live definition of a CRD or XRD has. They
	// are known where the step would change or remove them.
	Before []types.Type
	// Unpinned are the objects whose pins a definition's change would break.
	Unpinned []manifest.ID
	// Pin is why a pinned object is refused; nil where that is not the reason.
	Pin *Mismatch
	// Changes are the fields that differ. They are known only where a dry run
	// was asked for.
	Changes []Change
	// NotValidated says why no dry run could tell whether the API server would
	// accept the step; empty when one did or none was asked for.
	NotValidated string
	// Premature says that NotValidated is because this plan makes first what the
	// object needs, and nothing to worry about.
	Premature bool
	// Rejected says what the API server has against the step, from a dry run;
	// empty when it would accept it or was not asked.
	Rejected string
}

// Reclaim is what is taken over of what people own of an object.
type Reclaim int

// What is taken over.
const (
	// ReclaimNothing: there is nothing.
	ReclaimNothing Reclaim = iota
	// ReclaimShared: the fields that we own as well; what people added stays.
	ReclaimShared
	// ReclaimAll: what people added as well.
	ReclaimAll
)

// Plan is what has to happen in one cluster.
type Plan struct {
	// Cluster is the registered name.
	Cluster string
	// Commit is the one that the plan brings the cluster to; empty for a working
	// tree.
	Commit string
	// Steps in the order they are executed: by stage, prunes last and in
	// reverse. Unchanged objects are among them.
	Steps []Step
	// Unreadable says of kinds why nothing is known about their objects: what
	// is there of ours stays.
	Unreadable map[schema.GroupKind]string

	// behind are the steps behind each name in an After.
	behind map[string][]int
	// contents are those of what was looked into.
	contents []Content
}

// Behind returns the indexes of the steps that a name in a step's After stands
// for.
func (p *Plan) Behind(name string) []int { return p.behind[name] }

// Count is the number of steps with the action.
func (p *Plan) Count(a Action) int {
	n := 0
	for i := range p.Steps {
		if p.Steps[i].Action == a {
			n++
		}
	}
	return n
}

// Failing is the number of steps that executing the plan would fail at, as far as
// is known: those refused or in conflict, and those that a dry run was rejected
// for. A plan that there is none of has none.
func (p *Plan) Failing() int {
	if p == nil {
		return 0
	}
	n := 0
	for i := range p.Steps {
		if s := &p.Steps[i]; s.Action == Refused || s.Action == Conflict || s.Rejected != "" {
			n++
		}
	}
	return n
}

// HasChanges reports whether executing the plan would change the cluster.
func (p *Plan) HasChanges() bool {
	for i := range p.Steps {
		if p.Steps[i].Action.Writes() {
			return true
		}
	}
	return false
}
