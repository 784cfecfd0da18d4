package plan

import (
	"cmp"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/pins"
	"gitopsd.dev/render/target"
	"gitopsd.dev/render/webhook"
	"gitopsd.dev/sources/clusters"
)

// One pass prunes at most this share of the inventory, unless that is no more than
// massPruneFloor objects: if half of a cluster's objects leave a repository, a
// person should confirm it.
const (
	massPruneShare = 0.5
	massPruneFloor = 20
)

// unwanted returns the steps for members that left the repository, in the order of
// pruning.
func (c *computation) unwanted() []Step {
	var steps []Step
	members := 0
	for id, meta := range c.live.Objects {
		wanted := c.desired.Get(id) != nil && !c.withdrawn(id)
		membership := c.inv.Membership(id, meta)
		// Controllers copy labels to what they make (a Service's to its EndpointSlices), and
		// delete that themselves.
		if membership == Foreign || !wanted && metav1.GetControllerOfNoCopy(meta) != nil {
			continue
		}
		if membership == Member {
			members++
		}
		if wanted || id.Is(manifest.Namespace) && id.Name == c.inv.Namespace {
			continue
		}
		s := Step{ID: id, Action: Prune, Stage: StageOf(id), Package: meta.Labels[manifest.PackageLabel], UID: string(meta.UID), Member: membership == Member, Rules: rulesOf(id, meta)}
		s.Needs = dependencies(meta.Annotations[manifest.DependsOnAnnotation], c.opts.Order[s.Package])
		if accounts, known := c.live.Accounts[id]; known {
			s.Accounts = accounts
		} else if s.WantsAccounts() {
			s.Accounts = []string{AnyAccount}
		}
		if c.dormant[id] {
			s.Reason = "no activation policy names it any more"
		}
		if why := c.leaves(id); why != "" {
			s.Reason = why
		}
		s.Early = c.early(&s)
		s.WithContents = Holds(id) && meta.Annotations[manifest.AllowPruneAnnotation] == "true"
		if meta.DeletionTimestamp != nil {
			s.Action, s.Reason = Wait, deleting(meta)
		}
		if membership == Unsure {
			holdFor(&s, "kept: it has gitopsd's label and an older gitopsd's record, but its metadata.managedFields do not show that gitopsd applied it: it may be a copy; delete it, or remove its label %s to keep it", PartOfLabel)
		}
		if why, ok := c.live.Disputed[id]; ok {
			hold(&s, "%s", why)
		}
		steps = append(steps, s)
	}
	sortPruned(steps)
	label := func(id manifest.ID, key string) string { return c.live.Objects[id].Labels[key] }
	c.keepUnrendered(steps, label)
	c.keepReplaced(steps, label)
	c.keepDelegated(steps)
	c.keepUsed(steps)
	c.keepAdopted(steps)
	c.keepContents(steps)
	c.keepMost(steps, members)
	c.besideSuccessors(steps)
	return steps
}

func hold(s *Step, format string, args ...any) {
	if s.Action == Prune {
		s.Action, s.Reason = Held, fmt.Sprintf(format, args...)
	}
}

// holdFor is like hold, for a reason that only people can remove.
func holdFor(s *Step, format string, args ...any) {
	if s.Action == Prune {
		hold(s, format, args...)
		s.Lasting = true
	}
}

// holdBehind is like hold, for a reason that ends with an error that is told elsewhere.
func holdBehind(s *Step, format string, args ...any) {
	if s.Action == Prune {
		hold(s, format, args...)
		s.Follows = true
	}
}

// maybeWanted returns the reason for keeping an object that Keeps reports. It names the
// object's own package, or all packages with errors: one of these may want it.
func (c *computation) maybeWanted(s *Step) string {
	where, broken := "the repository", c.opts.Broken
	if slices.Contains(broken, s.Package) {
		broken = []string{s.Package}
	}
	if len(broken) > 0 {
		where += " or in " + packagesNamed(broken)
	}
	return fmt.Sprintf("kept: errors in %s leave open whether it is wanted", where)
}

func packagesNamed(names []string) string {
	if len(names) == 1 {
		return "package " + names[0]
	}
	return "packages " + prose.Some(names, 3)
}

// HoldIncomplete holds the prunes that `gitopsd run` would leave to a later pass because
// an object that may replace theirs cannot be applied: the replacement of an object must
// exist before the object goes. It is for plans that are
// shown; executing a plan decides by what really failed.
func HoldIncomplete(p *Plan) {
	var desired []*manifest.Object
	for i := range p.Steps {
		if o := p.Steps[i].Object; o != nil {
			desired = append(desired, o)
		}
	}
	missing := make(map[string][]*Step)
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.Object == nil {
			continue
		}
		awaited := s.Action == Held && s.UID == "" && webhook.Unserved(desired, s.Object) == ""
		if s.Action == Conflict || s.Action == Refused || s.Rejected != "" || awaited {
			missing[s.Package] = append(missing[s.Package], s)
		}
	}
	needs := NewNeeds(p.Steps, p.Successors)
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.Object != nil || s.Early {
			continue
		}
		for _, pkg := range needs.Replacers(s.Package) {
			if j := slices.IndexFunc(missing[pkg], func(m *Step) bool { return needs.Replaced(m, s) }); j >= 0 {
				m := missing[pkg][j]
				cause := cmp.Or(m.Rejected, m.Reason)
				if m.Allow != nil {
					cause = m.Allow.Cause
				}
				hold(s, "kept until the rest is applied: %s: %s", m.ID, cause)
			}
		}
	}
}

// keepUnrendered keeps objects that may still be desired, because rendering had errors, or
// the directory is empty. label returns the value of an object's label.
func (c *computation) keepUnrendered(steps []Step, label func(id manifest.ID, key string) string) {
	for i := range steps {
		s := &steps[i]
		switch {
		case c.opts.RenderFailed != "":
			holdBehind(s, "kept: the cluster could not be rendered: %s", c.opts.RenderFailed)
		case c.opts.Keeps != nil && c.opts.Keeps(s.ID, s.Package):
			holdBehind(s, "%s", c.maybeWanted(s))
		case (c.opts.Bare || c.desired.Len() == 0) && !c.opts.RemoveAll && !target.Made(s.ID, label(s.ID, target.AutomaticLabel)):
			if len(c.opts.Broken) > 0 {
				holdBehind(s, "kept: packages of the cluster have errors, and its directory renders no other objects")
				continue
			}
			holdFor(s, "kept: the cluster's directory renders no objects, which may be a mistake; if not, declare another object there, such as a Namespace; to remove everything for good, annotate the Cluster in the registry with %s and its name", clusters.RemoveAnnotation)
		}
	}
}

// keepReplaced keeps what packages with errors may replace: what their former packages had and,
// while the errors keep a plain definition, all that leaves the plain manifests, since any of
// them may take it over. No record of that is needed: the definition has its former label until
// the errors end. People's rights go all the same, as in [Needs].
func (c *computation) keepReplaced(steps []Step, label func(id manifest.ID, key string) string) {
	moves := slices.ContainsFunc(steps, func(s Step) bool { return s.Follows && s.Package == "" && s.ID.Is(manifest.Definitions...) })
	for i := range steps {
		s := &steps[i]
		var broken []string
		for _, pkg := range c.opts.Broken {
			if moves && s.Package == "" || slices.Contains(c.successors[s.Package], pkg) {
				broken = append(broken, pkg)
			}
		}
		revoked := s.Package == "" && binds(s.ID) && len(c.live.Accounts[s.ID]) == 0
		if len(broken) == 0 || revoked || target.Made(s.ID, label(s.ID, target.AutomaticLabel)) {
			continue
		}
		holdBehind(s, "kept: errors in %s leave open what replaces it", packagesNamed(broken))
	}
}

// keepDelegated keeps the objects of packages that gitopsd installed until now and
// Crossplane installs from now on: Crossplane takes them over, so that no objects are
// lost.
func (c *computation) keepDelegated(steps []Step) {
	delegated := make(map[string]bool)
	for _, o := range c.desired.All() {
		if o.ID().Group == manifest.GroupPackages {
			delegated[o.Label(manifest.PackageLabel)] = true
		}
	}
	for i := range steps {
		s := &steps[i]
		if s.Package != "" && delegated[s.Package] && (s.ID.Is(manifest.CRD) || s.ID.Group == manifest.GroupComposites || s.ID.Group == manifest.GroupOperations) {
			hold(s, "kept: Crossplane installs package %s from now on and takes this over", s.Package)
		}
	}
}

// keepUsed keeps types that are no longer activated as long as the repository has
// objects of them.
func (c *computation) keepUsed(steps []Step) {
	if len(c.opts.Inactive) == 0 {
		return
	}
	used := make(map[manifest.ID][]string)
	for _, o := range c.desired.All() {
		if t, ok := c.inactive[kindOf(o.ID())]; ok {
			used[t.Definition] = append(used[t.Definition], o.ID().String())
		}
	}
	for i := range steps {
		if by := used[steps[i].ID]; len(by) > 0 {
			holdFor(&steps[i], "kept: no activation policy names it any more, but the repository has %s; name it in one, or remove these", prose.Some(by, 3))
		}
	}
}

// keepAdopted keeps objects that were there before gitopsd adopted them: undoing the commit
// that adopted an object must not delete it. A person who empties the cluster names it.
func (c *computation) keepAdopted(steps []Step) {
	const before = "it was there before gitopsd adopted it"
	for i := range steps {
		s := &steps[i]
		annotations := c.live.Objects[s.ID].Annotations
		switch {
		case s.Action != Prune || annotations[manifest.AdoptedAnnotation] == "": // any value marks it
		case c.opts.RemoveAll || annotations[manifest.AllowPruneAnnotation] == "true":
			s.Reason = joined(before, s.Reason)
		default:
			without, with := "", ""
			if s.Package != "" && s.ID.Is(manifest.Definitions...) {
				without = " without its package"
			}
			if Holds(s.ID) {
				with = " with everything in it"
			}
			holdFor(s, "kept: %s; to keep it for good%s, release it: kubectl label KIND NAME %s-; to have it deleted%s, annotate it with %s: \"true\"",
				before, without, PartOfLabel, with, manifest.AllowPruneAnnotation)
		}
	}
}

// keepMost holds all prunes if too many objects would go at once. Policies for pins, which come
// and go with a setting, do not count.
func (c *computation) keepMost(steps []Step, members int) {
	prunes := 0
	for i := range steps {
		if steps[i].Action == Prune && !(steps[i].ID.Is(manifest.ValidatingPolicy, manifest.ValidatingPolicyBinding) && pins.Policy(steps[i].ID.Name)) {
			prunes++
		}
	}
	if prunes <= massPruneFloor || float64(prunes) <= massPruneShare*float64(members) || prunes <= c.opts.AllowPrune || c.opts.RemoveAll {
		return
	}
	cause := fmt.Sprintf("kept: this would prune %d of the %d objects in this cluster", prunes, members)
	for i := range steps {
		if steps[i].Action == Prune {
			steps[i].Allow = allowPrune(prunes, cause)
		}
		holdFor(&steps[i], "%s; to allow that, annotate %s with %s: \"%d\"",
			cause, cmp.Or(c.opts.Declaration, "the Cluster in the registry"), manifest.AllowPruneAnnotation, prunes)
	}
}
