package unit

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/clusters"
)

// Outcome is the result of an attempt at a unit.
type Outcome struct {
	// Phase is the state of the unit after the attempt.
	Phase status.Phase
	// Message is one line on why the unit is not Ready.
	Message string
	// Ended reports whether an error about the unit as a whole ended the attempt. Message is
	// that error, and the reason of steps that were not tried.
	Ended bool
	// Actions counts the plan's steps by action.
	Actions map[string]int
	// Changed counts the objects that were written or deleted.
	Changed int
	// Problems are the objects with errors, at most fifty.
	Problems []problem.Problem
	// Unsettled are the desired objects that are not applied or not ready.
	Unsettled map[manifest.ID]Unsettled
	// Notes are for a person to read, though nothing is wrong.
	Notes []string
	// Packages has the reason for each package that is not ready, by name.
	Packages map[string]string
	// Behind are the packages with an object that is not applied as desired, or with a
	// controller that was rolled back.
	Behind map[string]bool
	// Corrected is the number of corrected objects that others had changed or deleted,
	// Drifted the number of objects that stay as others changed them.
	Corrected, Drifted int
	// Checkpoint is the observed state of the unit, if nothing is left to do and the
	// state is known to show it.
	Checkpoint *apply.Checkpoint
	// Moved reports whether the unit differs from a checkpoint.
	Moved bool
	// Certificates are the unit's certificates, issued by gitopsd or brought.
	Certificates []status.Certificate
	// Denied reports whether the cluster did not accept the credentials.
	Denied bool
	// Again is the time at which the unit must be reconciled again although nothing
	// changed; zero for never.
	Again time.Time
	// Home reports whether the definition of KubernetesTarget or EtcdNamespace is in the
	// unit, or was: controllers must remove what they made for objects of these kinds
	// before it goes.
	Home bool

	// Stuck reports whether the unit stays as it is until somebody changes the repository or
	// an object: something is held or refused for a reason that does not pass, and nothing
	// else is under way, or the unit does not render for such a reason.
	Stuck bool
	// WaitsFor is the cluster that a Waiting unit depends on and that is not Ready; empty if
	// it waits for something else.
	WaitsFor string
	// Elsewhere reports whether the unit is not Ready only because of its applications. They
	// run in other clusters, perhaps in those that depend on this one, which therefore go on.
	Elsewhere bool

	cluster string
	// lasting are the steps that only people can bring on, and passing the others that were
	// not done.
	lasting, passing int
	// faults failed to apply, and broken were applied but are failing.
	faults, broken int
	// waits are the objects that are not ready yet.
	waits map[manifest.ID]bool
	// elsewhere counts the applications among broken and waits that are applied.
	elsewhere int
	// unknown are the objects that no rule can judge, and that count as ready.
	unknown []string
}

// Unsettled is a desired object that is not applied or not ready.
type Unsettled struct {
	// Applied reports whether the object is in the cluster as it is desired.
	Applied bool
	// Failed reports whether waiting will not help.
	Failed bool
	Reason string
}

// mostProblems is the largest number of problems in an outcome; the counts in its
// message are complete.
const mostProblems = 50

func newOutcome(unit desired.ID, p *plan.Plan) Outcome {
	o := Outcome{Phase: status.Ready, Actions: make(map[string]int), Packages: make(map[string]string), Behind: make(map[string]bool), Unsettled: make(map[manifest.ID]Unsettled), cluster: unit.Cluster, waits: make(map[manifest.ID]bool)}
	for i := range p.Steps {
		o.Actions[string(p.Steps[i].Action)]++
	}
	return o
}

// failed returns the outcome of an error about a unit as a whole.
func failed(err error) Outcome { return Outcome{}.fail(err) }

func (o Outcome) fail(err error) Outcome {
	o.Phase, o.Message, o.Ended, o.Stuck = status.Failed, problem.Message(err), true, problem.Lasts(err)
	switch kube.ClassOf(err) {
	case kube.Unreachable, kube.Unauthorized:
		o.Phase, o.Denied = status.Unreachable, kube.ClassOf(err) == kube.Unauthorized
	case kube.Fenced: // the cluster is well, and the next pass may write again
		o.Phase = status.Waiting
	}
	return o
}

// take adds the results of a plan's steps.
func (c *Connection) take(want *desired.Unit, report *apply.Report, o *Outcome) {
	if report == nil {
		return
	}
	held := heldAlike(report.Results)
	for _, r := range report.Results {
		s := r.Step
		for _, w := range r.Warnings {
			c.log.Warn("the API server warns", "object", s.ID.String(), "warning", w)
		}
		o.count(&r)
		o.countLasting(&r)
		switch {
		case r.Outcome == apply.Done:
			if s.Action.Writes() {
				c.log.Info(string(s.Action), "object", s.ID.String(), "reason", reason(s))
			}
		case r.Outcome == apply.Failed:
			o.faults++
			o.unsettle(s, true, problem.Message(r.Err))
			for _, p := range problem.Of(r.Err) {
				if p.Object != "" && p.Object != s.ID.String() { // one that this one needs
					p.Reason = p.Object + ": " + p.Reason
				}
				p.Cluster, p.Package, p.Object, p.Origin = o.cluster, s.Package, s.ID.String(), written(want, s, r.Err)
				o.note(p, status.Failed)
			}
		case r.Outcome == apply.Skipped:
			o.faults++
			o.unsettle(s, true, r.Reason)
			o.problem(s, r.Reason, status.Failed)
		case r.Outcome == apply.Pending:
			o.waits[s.ID] = true
			o.unsettle(s, false, r.Reason)
			o.problem(s, r.Reason, status.Progressing)
		case s.Action == plan.Conflict || s.Action == plan.Refused:
			o.faults++
			o.unsettle(s, true, decided(s))
			o.problem(s, decided(s), status.Failed)
		case s.Action == plan.Wait && s.Object != nil:
			o.waits[s.ID] = true
			o.unsettle(s, false, decided(s))
			o.problem(s, decided(s), status.Progressing)
		case s.Action == plan.Held:
			o.unsettle(s, false, decided(s))
			if alike := held[s.Reason]; alike != nil {
				o.note(problem.Problem{Cluster: o.cluster, Package: s.Package, Object: prose.Some(alike.objects, mostAlike), Origin: strings.Join(alike.places, ", "), Reason: decided(s)}, "")
				held[s.Reason] = nil
			}
		case s.Action == plan.Wait:
			o.problem(s, decided(s), "")
		}
	}
}

// written returns the file and line of an object that failed to apply, or of its field that
// the API server does not accept; empty for an object that is not in the repository.
func written(want *desired.Unit, s *plan.Step, err error) string {
	e, ok := errors.AsType[*kube.Error](err)
	if ok && e.Class == kube.Invalid && e.ID == s.ID && len(e.Fields) > 0 && s.Place() != "" && want.LineOf != nil {
		if n := want.LineOf(s.Object, e.Fields[0].Path); n > 0 {
			return fmt.Sprintf("%s:%d", s.Object.Origin().File, n)
		}
	}
	return s.Place()
}

// count counts the result of a step, and notes whether its package is behind.
func (o *Outcome) count(r *apply.Result) {
	s := r.Step
	switch done := r.Outcome == apply.Done; {
	case done && s.Action.Writes():
		o.Changed++
		if s.Drift || s.Recreated {
			o.Corrected++
		}
	case s.Action == plan.Held && s.Drift:
		o.Drifted++
	case !done && s.Action != plan.Unchanged && s.Object != nil && s.Package != "":
		o.Behind[s.Package] = true
	}
	if s.Rollback.Done && s.Package != "" {
		o.Behind[s.Package] = true
	}
}

// countLasting counts a step that was not done, by whether only people can bring it on. A step
// that follows another one is not counted.
func (o *Outcome) countLasting(r *apply.Result) {
	switch s := r.Step; {
	case r.Outcome == apply.Done, r.Outcome == apply.Skipped, s.Follows, s.Action == plan.Unchanged:
	case r.Outcome != apply.Failed && s.Lasts():
		o.lasting++
	default:
		o.passing++
	}
}

// reason returns why a step was taken, for the log. The plan has no reason if the action
// says it all.
func reason(s *plan.Step) string {
	if s.Reason != "" {
		return s.Reason
	}
	switch s.Action {
	case plan.Create:
		return "it was not there"
	case plan.Prune:
		return "it is not desired any more"
	}
	return "it is not as desired"
}

// unsettle notes that a desired object is not as it should be.
func (o *Outcome) unsettle(s *plan.Step, failed bool, reason string) {
	if s.Object != nil {
		o.Unsettled[s.ID] = Unsettled{Failed: failed, Reason: reason}
	}
}

func decided(s *plan.Step) string { return fmt.Sprintf("%s: %s", s.Action, s.Reason) }

// mostAlike is how many objects are named that are held for the same reason.
const mostAlike = 3

// heldAlike returns the held objects by reason, so that a guard that stops a prune of
// hundreds is reported once.
func heldAlike(results []apply.Result) map[string]*alike {
	held := make(map[string]*alike)
	for _, r := range results {
		s := r.Step
		if s.Action != plan.Held {
			continue
		}
		a := held[s.Reason]
		if a == nil {
			a = new(alike)
			held[s.Reason] = a
		}
		a.objects = append(a.objects, s.ID.String())
		if place := s.Place(); place != "" && len(a.objects) <= mostAlike && !slices.Contains(a.places, place) {
			a.places = append(a.places, place)
		}
	}
	return held
}

// alike are the objects that are held for one reason, and the places of the first ones.
type alike struct{ objects, places []string }

// unhealthy adds an object that is not healthy, unless it is known to wait.
func (o *Outcome) unhealthy(want *desired.Unit, h apply.Health) {
	if h.State == apply.Missing && o.Unsettled[h.ID].Failed {
		return // that it failed to apply says why
	}
	state := status.Progressing
	switch {
	case h.Passes && h.State == apply.UnknownState:
		o.unknown = append(o.unknown, h.ID.String())
		return
	case h.Passes:
		state = ""
		o.passing++
	case h.State == apply.FailedState:
		state = status.Failed
		o.broken++
	case o.waits[h.ID]:
		return
	default:
		o.waits[h.ID] = true
	}
	if !h.Passes && h.ID.Is(manifest.Application) {
		o.elsewhere++
	}
	if _, known := o.Unsettled[h.ID]; !known && !h.Passes {
		o.Unsettled[h.ID] = Unsettled{Applied: true, Failed: h.State == apply.FailedState, Reason: cmp.Or(h.Reason, string(h.State))}
	}
	o.note(problem.Problem{Cluster: o.cluster, Package: h.Package, Object: h.ID.String(), Origin: origin(want, h.ID), Reason: cmp.Or(h.Reason, string(h.State)), Advice: h.Advice}, state)
}

// origin returns where in the repository a desired object is written; empty if it is not
// there.
func origin(want *desired.Unit, id manifest.ID) string {
	if want.Objects == nil {
		return ""
	}
	if object := want.Objects.Get(id); object != nil {
		return object.Origin().Place()
	}
	return ""
}

// problem adds a problem of a step's object.
func (o *Outcome) problem(s *plan.Step, reason string, state status.Phase) {
	o.note(problem.Problem{Cluster: o.cluster, Package: s.Package, Object: s.ID.String(), Origin: s.Place(), Reason: reason}, state)
}

// note adds a problem and sets the state of its package, unless that is worse
// already.
func (o *Outcome) note(p problem.Problem, state status.Phase) {
	if len(o.Problems) < mostProblems {
		o.Problems = append(o.Problems, p)
	}
	if p.Package != "" && state != "" && o.Packages[p.Package] != string(status.Failed) {
		o.Packages[p.Package] = string(state)
	}
}

// noteUnknown adds a note about the objects that no rule can judge.
func (o *Outcome) noteUnknown() {
	if n := len(o.unknown); n > 0 {
		o.Notes = append(o.Notes, fmt.Sprintf("no rule can judge whether %s ready: %s; give the kind a rule (%s, spec.health), or set spec.unknownHealth: unready",
			prose.Agree(n, "object is ready, and it counts as", "objects are ready, and they count as"), prose.Some(o.unknown, mostAlike), manifest.HealthAnnotation))
	}
}

// noteUnread adds a problem for each kind that cannot be read and is in no step: the inventory
// names it, so that objects of it may have left the repository. It returns their number.
func (o *Outcome) noteUnread(p *plan.Plan) int {
	if len(p.Unreadable) == 0 {
		return 0
	}
	kinds := make(map[string]string)
	for gk, why := range p.Unreadable {
		kinds[gk.String()] = why
	}
	for i := range p.Steps {
		delete(kinds, schema.GroupKind(p.Steps[i].ID.GroupKind()).String())
	}
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		o.passing++
		o.note(problem.Problem{Cluster: o.cluster, Object: kind, Reason: "what left the repository may still be there: " + kinds[kind]}, "")
	}
	return len(kinds)
}

// conclude sets phase and message, and adds notes.
func (o *Outcome) conclude(want *desired.Unit, p *plan.Plan) {
	o.noteUnknown()
	if want.Remove {
		o.concludeRemoval(want, p)
		return
	}
	unread := o.noteUnread(p)
	passing := slices.ContainsFunc(want.Faults, func(p problem.Problem) bool { return !p.Lasting })
	o.Stuck = o.lasting+len(want.Faults) > 0 && o.passing+o.broken+len(o.waits) == 0 && !passing
	switch {
	case o.faults > 0:
		o.Phase, o.Message = status.Failed, fmt.Sprintf("%d of %s failed to apply", o.faults, prose.Count(len(p.Steps), "object"))
	case len(want.Incomplete) > 0:
		o.Phase, o.Message = status.Failed, prose.Agree(len(want.Incomplete), "package has errors", "packages have errors")
	case !want.Complete():
		o.Phase, o.Message = status.Failed, prose.Agree(len(want.Faults), "manifest has errors", "manifests have errors")
	case unread > 0:
		o.Phase, o.Message = status.Failed, prose.Agree(unread, "kind cannot be read, and objects that left the repository may still be there", "kinds cannot be read, and objects that left the repository may still be there")
	case o.broken > 0:
		o.Phase, o.Message = status.Failed, prose.Agree(o.broken, "object was applied and has failed", "objects were applied and have failed")
	case len(o.waits) > 0:
		o.Phase, o.Message = status.Progressing, prose.Agree(len(o.waits), "object is not ready yet", "objects are not ready yet")
	}
	o.Elsewhere = o.elsewhere > 0 && o.faults+unread+len(want.Incomplete) == 0 && want.Complete() && o.elsewhere == o.broken+len(o.waits)
}

// concludeRemoval sets phase and message of a unit that is to go.
func (o *Outcome) concludeRemoval(want *desired.Unit, p *plan.Plan) {
	registered, emptied := want.ID.Name == "", ""
	if registered {
		emptied = "it is being emptied (" + clusters.RemoveAnnotation + "); "
	}
	switch left, unknown := len(p.Steps), len(p.Unreadable); {
	case left > 0:
		o.Phase, o.Message = status.Leaving, emptied+prose.Agree(left, "object is not gone yet", "objects are not gone yet")
	case unknown > 0:
		o.Phase, o.Message = status.Leaving, emptied+prose.Agree(unknown, "kind that it may have objects of cannot be read", "kinds that it may have objects of cannot be read")
	case registered && len(want.Beside) == 1:
		o.Message = "nothing of gitopsd's is left in it; leave its document, the only one of a cluster, in " + sources.RegistryFile + ", and stop the daemon"
	case registered:
		o.Message = "nothing of gitopsd's is left in it; take its document out of " + sources.RegistryFile
	}
}
