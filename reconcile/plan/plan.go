// Package plan decides what to do in one cluster. Every desired object, and every
// object of ours that is no longer desired, gets one step: an action and the reason
// for it. `gitopsd plan` prints a plan, and `gitopsd run` executes it; it is the same
// value.
//
// It owns
//   - the decision (compute.go), a pure function of the desired objects, the live
//     objects and the inventory;
//   - which objects are ours (member.go), the owners of the others (owner.go), objects
//     that must not be pruned (guard.go), and objects that a prune would delete with it
//     (contents.go);
//   - the annotation that would allow a step that is held back (allow.go);
//   - when webhooks are registered (webhooks.go), when definitions name conversion
//     rules (converters.go), and which objects must be ready (gates.go);
//   - refusals: breaking changes of types (types.go), conversion rules with a
//     counterexample (prove.go), objects that are pinned to another type (pins.go) or
//     behaviour (controllers.go), objects that their new types would not accept
//     (validate.go) or not keep whole (kept.go), and controllers that would run as an
//     account of others (accounts.go);
//   - the order of steps (stage.go), and dependencies between them (depends.go);
//   - the difference between two objects, field by field (diff.go), without any
//     value of a Secret;
//   - the plan between two renderings of a cluster (between.go), with kinds that may be
//     misspelt (kinds.go).
//
// It talks to no cluster: reconcile/apply reads the live objects, calls [Compute], and
// executes the steps. It prints nothing either: cmd/gitopsd/preview shows plans to
// people and programs.
package plan

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/reconcile/prove"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/render/types/compat"
	"gitopsd.dev/render/types/harm"
)

// PartOfLabel is on every object of an ApplySet (KEP-3659); its value is the
// set's ID.
const PartOfLabel = "applyset.kubernetes.io/part-of"

// Action is the action of a step.
type Action string

// The actions. Create, Configure and Prune write; the others leave the object
// as it is.
const (
	// Create: the object does not exist.
	Create Action = "create"
	// Configure: the object exists and differs.
	Configure Action = "configure"
	// Unchanged: the object is as desired.
	Unchanged Action = "unchanged"
	// Prune: the object is ours and no longer desired.
	Prune Action = "prune"
	// Wait: the object is being deleted, and something not ours holds it up; or a pruned
	// object must be gone first.
	Wait Action = "wait"
	// Conflict: the object belongs to another owner.
	Conflict Action = "conflict"
	// Refused: the object cannot be applied to this cluster.
	Refused Action = "refused"
	// Held: the step would do harm now, and is not done.
	Held Action = "held"
)

// Actions are all actions, in the order in which they are shown.
var Actions = []Action{Create, Configure, Prune, Wait, Held, Conflict, Refused, Unchanged}

// Writes reports whether the action changes the cluster.
func (a Action) Writes() bool { return a == Create || a == Configure || a == Prune }

// Step is the action for one object, with its reason.
type Step struct {
	Action Action
	ID     manifest.ID
	// Reason is one line for people; empty if the action needs none.
	Reason string
	// Allow is the annotation that would allow the step; nil if none would.
	Allow *Allow
	// Lasting: the step is held until somebody changes the repository or the object, so
	// that waiting does not end it. See [Step.Lasts].
	Lasting bool
	// Follows: the step is refused because another step of its package is, or held until an
	// error in the repository or a package is mended, which is told elsewhere.
	Follows bool
	Stage   Stage
	// Object is the desired object; nil for an object that is not desired.
	Object *manifest.Object
	// Package is the object's package; empty for a plain manifest.
	Package string
	// After names the objects that must be applied and healthy before, as
	// manifest.DependsOnAnnotation does.
	After []string
	// Needs are the names in the manifest.DependsOnAnnotation of an object that is not
	// desired, and in its package's: the object goes before these.
	Needs []string
	// Accounts are the namespaces of the ServiceAccounts that a pruned RoleBinding or
	// ClusterRoleBinding of plain manifests gives rights to; AnyAccount if they are not known.
	Accounts []string
	// Round orders prunes: an object is deleted when the objects of earlier rounds
	// that may need it are gone.
	Round int
	// Early: the prune comes before Services and workloads are applied, since these stop
	// serving the object.
	Early bool
	// WithContents: a Namespace, CRD, XRD or package is annotated to be pruned together
	// with the objects of others in it.
	WithContents bool
	// Rules is the digest of the conversion rules that the live definition names; empty
	// if it names none.
	Rules string
	// Converts: the definition names conversion rules that a workload in the cluster
	// serves. It is applied when the workload is ready.
	Converts bool
	// Awaits says what will create the object's type, if that does not exist yet; empty
	// for all other objects.
	Awaits string
	// UID of the live object; empty if there is none. A prune deletes that object
	// and no later one of the same name.
	UID string
	// Member: the live object is in the inventory, whatever becomes of the step.
	Member bool
	// Adopt: the object was somebody else's and is taken over, with the fields,
	// labels and owner references of the former owner.
	Adopt bool
	// Found: the object was there before any gitopsd applied it, and does not have
	// manifest.AdoptedAnnotation yet.
	Found bool
	// Reclaim selects the fields that are taken over from people in an object of ours, so
	// that fields which the repository does not have are removed.
	Reclaim Reclaim
	// Force takes over fields that other managers own; only if the object is ours or
	// adopted.
	Force bool
	// Rollback is the rollback of a package's controller that did not get ready.
	Rollback Rollback
	// Drift: the object differs from the repository only by changes of others.
	Drift bool
	// Refilled: the object is as it was rendered when it was applied, and is completed
	// differently. A rollback does not count.
	Refilled bool
	// Finished is how a Job finished that Kubernetes deleted afterwards, and that is not
	// created again; nil for all other objects.
	Finished *Finished
	// Recreated: somebody deleted the object.
	Recreated bool
	// Compatibility is the effect of replacing or removing the types of a CRD on their
	// users, with the reasons in Findings; Identical for other objects.
	Compatibility compat.Severity
	Findings      []compat.Finding
	// Allowed are the package's declared reasons for allowed breaking findings, by
	// finding.
	Allowed map[string]string
	// Survey is the effect of a breaking change of a CRD on the existing objects; nil if
	// they were not looked at.
	Survey *harm.Survey
	// Back: the step goes back to types that the CRD had before, by its own record.
	Back bool
	// LetThrough are the names of breaking findings without an allowance that harm no
	// object.
	LetThrough []string
	// Proof is the result of trying a CRD's conversion rules, if the step would change
	// them or the CRD. Tried is the result of trying them on the cluster's objects, if
	// that was asked for. Both are nil for other objects.
	Proof *prove.Proof
	Tried *prove.Live
	// Before are the types of the live definition of a CRD or XRD. They are known
	// if the step would change or remove them.
	Before []types.Type
	// Unpinned are the objects with pins that the change of a definition would break.
	Unpinned []manifest.ID
	// Outgrown are the objects that stay as they are, and that a definition's new types
	// would not accept if they were created again.
	Outgrown []Outgrown
	// Checked: the object would be accepted by its type as it is after the plan.
	Checked bool
	// Pin is why a pinned object is refused; nil if that is not the reason.
	Pin *Mismatch
	// Controller is why an object that is pinned to a behaviour is refused; nil if
	// that is not the reason.
	Controller *ControllerMismatch
	// Changes are the fields that differ. They are known only with a dry run.
	Changes []Change
	// NotValidated is why no dry run could show whether the API server would accept the
	// step; empty if one could, or none was made.
	NotValidated string
	// Premature: NotValidated is no problem, since this plan first creates something that
	// the object needs.
	Premature bool
	// Rejected is the API server's error for the step in a dry run; empty if it would
	// accept the step or was not asked.
	Rejected string
	// Wrong are the paths of the fields that Rejected, or the reason of a refusal, is
	// about, as the API server writes them. At is the file and line of the first. Either
	// is empty if it is not known.
	Wrong []string
	At    string
}

// Lasts reports whether a step that is held, refused or in conflict stays so until somebody
// changes the repository or the object. It is false if it may pass by itself, or if that is
// not known.
func (s *Step) Lasts() bool {
	switch s.Action {
	case Held:
		return s.Lasting
	case Refused, Conflict:
		return s.Allow != nil && (s.Survey == nil || s.Survey.Unknown == "")
	}
	return false
}

// Place returns the place in the repository of a step's object, or of the wrong field in
// it; empty for an object that is not in the repository.
func (s *Step) Place() string {
	if s.Object == nil || s.Object.Origin().Place() == "" {
		return ""
	}
	return cmp.Or(s.At, s.Object.Origin().Place())
}

// Locate sets At of the steps with wrong fields. line returns the line of a field in the
// object's file; 0 if it is not known.
func (p *Plan) Locate(line func(o *manifest.Object, path string) int) {
	for i := range p.Steps {
		s := &p.Steps[i]
		if len(s.Wrong) == 0 || s.Place() == "" {
			continue
		}
		if n := line(s.Object, s.Wrong[0]); n > 0 {
			s.At = fmt.Sprintf("%s:%d", s.Object.Origin().File, n)
		}
	}
}

// Migrates reports whether an object is a CRD that asks the daemon to store its objects
// again; see reconcile/migrate. The object may be nil.
func Migrates(o *manifest.Object) bool {
	return o != nil && o.ID().Is(manifest.CRD) && o.Annotation(manifest.MigrateStorageAnnotation) == "true"
}

// Replaceable reports whether the object may be deleted and created again because of an
// immutable field. One that holds others may not.
func (s *Step) Replaceable() bool {
	return !Holds(s.ID) && s.Object.Annotation(manifest.ReplaceAnnotation) == "true"
}

// CreatedAnew adds to the step's reason that the object is deleted and created again, and
// why.
func (s *Step) CreatedAnew(why string) {
	const anew = "deleted and created anew, since a field cannot be changed: "
	switch {
	case s.Reason == "":
		s.Reason = anew + why
	case !strings.Contains(s.Reason, anew):
		s.Reason += "; " + anew + why
	}
}

// Rollback is the rollback of a package's controller; see reconcile/rollback.
type Rollback struct {
	// Done: the previous pod template is back in place.
	Done bool
	// Why is the reason, for people: why the revision failed if Done, otherwise why it is
	// not rolled back when it fails. It is empty for other objects, and as long as a
	// rollback is possible.
	Why string
	// Refilled is why the object is completed differently than it was applied; empty if a
	// rollback is not the reason.
	Refilled string
	// Due is when a rollback may become necessary although nothing changes; zero for
	// never.
	Due time.Time
}

// Reclaim selects the fields that are taken over from people.
type Reclaim int

// The values of Reclaim.
const (
	// ReclaimNothing: no fields.
	ReclaimNothing Reclaim = iota
	// ReclaimShared: the fields that we own too; fields that people added stay.
	ReclaimShared
	// ReclaimAll: also the fields that people added.
	ReclaimAll
)

// Plan is the steps for one cluster.
type Plan struct {
	// Cluster is the registered name.
	Cluster string
	// Commit that the plan brings the cluster to; empty for a working tree.
	Commit string
	// Steps in the order they are executed: by stage, prunes last and in
	// reverse. Unchanged objects are among them.
	Steps []Step
	// Unreadable is why nothing is known about the objects of a kind. Our objects of
	// it stay.
	Unreadable map[schema.GroupKind]string
	// Notes are for a person to read, though no step fails. They need a dry run.
	Notes []string
	// Gating decides when the objects are ready.
	Gating Gating
	// Successors are the packages that take over from others, which have objects.
	Successors Successors

	// behind are the steps that each name in an After stands for.
	behind map[string][]int
	// contents are the contents of all objects that were looked into.
	contents []Content
}

// Behind returns the indexes of the steps that a name in a step's After stands for.
func (p *Plan) Behind(name string) []int { return p.behind[name] }

// Count returns the number of steps with the action.
func (p *Plan) Count(a Action) int {
	n := 0
	for i := range p.Steps {
		if p.Steps[i].Action == a {
			n++
		}
	}
	return n
}

// Failing returns the number of steps that would fail as far as is known: those refused
// or in conflict, and those rejected in a dry run. It is 0 for a nil plan.
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
