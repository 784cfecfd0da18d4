package plan

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/render/types/compat"
	"gitopsd.dev/render/validate"
	"gitopsd.dev/render/webhook"
	"gitopsd.dev/sources/errgroup"
)

// Outgrown is an object that stays as it is while its type changes, and that the new
// type would not accept if the object were created again.
type Outgrown struct {
	ID manifest.ID
	// Why is the reason.
	Why string
}

// LiveObject is an object as the cluster has it.
type LiveObject struct {
	// Tree is nil if there is no such object.
	Tree map[string]any
	// Err is why it could not be read.
	Err error
}

// ObjectCheck is the input of [CheckObjects] beside the plan.
type ObjectCheck struct {
	// Types compiles types; nil for a cache of its own.
	Types *validate.Cache
	// ReportDrift: drift of definitions is not corrected.
	ReportDrift bool
	// Live reads the object that a step changes together with its type, with the
	// ownership of fields that the step begins with. It is called by several goroutines,
	// once for each such step. Nil for a plan that was made without a cluster.
	Live func(context.Context, *Step) LiveObject
	// Mutators lists the MutatingWebhookConfigurations and MutatingAdmissionPolicies of
	// the cluster. It is called only if an object would be refused. Nil for none but
	// those of the plan.
	Mutators func() ([]map[string]any, error)

	// before are the objects before the plan, if no cluster was looked at. Nothing else
	// checks objects then, so objects of unchanged types are checked too.
	before *manifest.Set
}

// mostLive is how many live objects are read and checked at a time.
const mostLive = 8

// CheckObjects refuses the objects that the API server would not accept once the plan
// has installed or changed their types. It reports what the API server would report for
// the step's request: everything that is wrong with a new object, but of a changed one
// only what was not wrong before. An unchanged object is not sent, so it is only noted
// with its definition ([Step.Outgrown]). Objects of types that the plan does not change
// are left to the API server, except in a namespace that the plan creates, where no dry
// run is possible.
//
// If a mutating webhook or policy may change an object before the API server checks it,
// only fields that its type does not have are refused.
//
// It also refuses the fields that the API server would accept and drop; see [refuseUnkept].
func CheckObjects(ctx context.Context, p *Plan, check ObjectCheck) {
	refuseUnkept(p, check.ReportDrift)
	spaces := newNamespaces(p)
	if check.before == nil && len(spaces) == 0 && !writesTypes(p) {
		return
	}
	c := objectCheck{ObjectCheck: check, definers: definers(p), spaces: spaces}
	if c.Types == nil {
		c.Types = new(validate.Cache)
	}
	var all []*verdict
	for i := range p.Steps {
		s := &p.Steps[i]
		if o, changes := c.definition(s); o != nil && (changes || s.Action != Unchanged) {
			all = append(all, &verdict{step: s, definition: o, changes: changes})
		}
	}
	var g errgroup.Group
	g.SetLimit(max(runtime.GOMAXPROCS(0), mostLive))
	for _, v := range all {
		g.Go(func() error {
			v.err = c.judge(ctx, v.step, v.definition)
			return nil
		})
	}
	_ = g.Wait() // each step has its own verdict
	for _, v := range all {
		c.settle(p, v)
	}
	holdPolicies(p)
}

// newNamespaces returns the names of the namespaces that a plan creates.
func newNamespaces(p *Plan) map[string]bool {
	spaces := make(map[string]bool)
	for i := range p.Steps {
		if s := &p.Steps[i]; s.Action == Create && s.ID.Is(manifest.Namespace) {
			spaces[s.ID.Name] = true
		}
	}
	return spaces
}

// writesTypes reports whether a plan changes definitions; most change none.
func writesTypes(p *Plan) bool {
	for i := range p.Steps {
		if s := &p.Steps[i]; s.Object != nil && s.Action.Writes() && s.ID.Is(manifest.Definitions...) {
			return true
		}
	}
	return false
}

// verdict is the result of checking a step.
type verdict struct {
	step       *Step
	definition *manifest.Object
	// changes reports whether the plan changes the definition.
	changes bool
	err     error
}

type objectCheck struct {
	ObjectCheck
	definers map[schema.GroupKind]*Step
	// spaces are the namespaces that the plan creates: no dry run is possible in them.
	spaces   map[string]bool
	mutators []map[string]any
	// unknown is why the cluster's mutators are not known; asked reports whether they
	// were asked for.
	unknown error
	asked   bool
}

// definition returns the definition of an object's type once the plan is executed, and
// whether the plan changes it; nil if the object need not be checked here.
func (c *objectCheck) definition(s *Step) (o *manifest.Object, changes bool) {
	if s.Object == nil || s.Action != Create && s.Action != Configure && s.Action != Unchanged {
		return nil, false
	}
	d := c.definers[kindOf(s.ID)]
	switch {
	case d == nil:
		return nil, false
	case d.Action == Create:
		return d.Object, true
	case d.Action == Configure && d.Compatibility > compat.Documentation && !(d.Drift && c.ReportDrift):
		return d.Object, true
	case c.before == nil && !(c.spaces[s.ID.Namespace] && (d.Action == Unchanged || d.Action == Configure && d.Compatibility <= compat.Documentation)):
		return nil, false
	case d.Action == Configure || d.Action == Unchanged:
		return d.Object, false
	}
	return c.before.Get(d.ID), false
}

func kindOf(id manifest.ID) schema.GroupKind {
	return schema.GroupKind(id.GroupKind())
}

// judge returns a [*validate.Refusal] if the API server would not accept a step, or the
// reason why that is not known.
func (c *objectCheck) judge(ctx context.Context, s *Step, definition *manifest.Object) error {
	t, err := c.Types.Type(definition, s.ID.Kind, s.Object.Version())
	if errors.Is(err, validate.ErrNotDefined) {
		return &validate.Refusal{Causes: []string{c.notServed(s, definition)}, Early: true}
	}
	if err != nil {
		return err
	}
	tree := s.Object.Tree()
	if unknown := s.Object.Unknown(); len(unknown) > 0 {
		return fmt.Errorf("not all of it is known yet (%s)", prose.Some(unknown, 3))
	}
	switch {
	case !t.Namespaced():
		tree = manifest.Without(tree, "metadata", "namespace")
	case s.ID.Namespace == "":
		return &validate.Refusal{Causes: []string{"its kind is namespaced, and it has no namespace; set metadata.namespace"}, Early: true}
	}
	if s.Action != Configure {
		return t.Create(ctx, tree)
	}
	if c.before != nil {
		before := c.before.Get(s.ID)
		err := t.Succeed(ctx, before.Tree(), tree)
		if refusal, _ := errors.AsType[*validate.Refusal](err); refusal != nil && refusal.Live && !c.wasAccepted(ctx, before, definition) {
			return t.Create(ctx, tree) // no cluster can have the earlier object
		}
		return c.replaced(ctx, t, s, tree, err)
	}
	live := c.Live(ctx, s)
	switch {
	case live.Err != nil:
		return live.Err
	case live.Tree == nil:
		return t.Create(ctx, tree)
	}
	return c.replaced(ctx, t, s, tree, t.Update(ctx, live.Tree, tree))
}

// replaced returns the error about a changed object, unless only immutable fields are
// wrong and the object is deleted and created again for that.
func (c *objectCheck) replaced(ctx context.Context, t *validate.Type, s *Step, tree map[string]any, err error) error {
	refusal, _ := errors.AsType[*validate.Refusal](err)
	known := c.before != nil || s.Force && s.UID != ""
	if refusal == nil || !known || slices.ContainsFunc(refusal.Causes, func(c string) bool { return !problem.Immutable(c) }) {
		return err
	}
	if !s.Replaceable() {
		return &validate.Refusal{Causes: append(slices.Clone(refusal.Causes), Anew(s.ID))}
	}
	if err := t.Create(ctx, tree); err != nil {
		return err
	}
	s.CreatedAnew(refusal.Error())
	return nil
}

// wasAccepted reports whether the earlier type of an object would have accepted it as it
// was. now is the definition of its type.
func (c *objectCheck) wasAccepted(ctx context.Context, before, now *manifest.Object) bool {
	definition := c.before.Get(now.ID())
	if definition == nil {
		return false
	}
	t, err := c.Types.Type(definition, before.ID().Kind, before.Version())
	return err == nil && t.Create(ctx, before.Tree()) == nil
}

// notServed returns the text for a version that a definition does not serve.
func (c *objectCheck) notServed(s *Step, definition *manifest.Object) string {
	var served []string
	for _, gvk := range Defines(definition) {
		if gvk.Kind == s.ID.Kind {
			served = append(served, gvk.Version)
		}
	}
	text := fmt.Sprintf("apiVersion: %s is not served", s.Object.APIVersion())
	if len(served) > 0 {
		text += fmt.Sprintf("; write it for %s", prose.Some(served, 3))
	}
	return text
}

// settle records a verdict in a plan.
func (c *objectCheck) settle(p *Plan, v *verdict) {
	s, definition := v.step, v.definition
	if v.err == nil {
		s.Checked = true
		if s.NotValidated != "" {
			s.NotValidated += ", by which it would be accepted"
		}
		return
	}
	refusal, _ := errors.AsType[*validate.Refusal](v.err)
	if s.Action == Unchanged {
		if refusal != nil && v.changes && c.mutator(p, v, refusal) == "" {
			d := c.definers[kindOf(s.ID)]
			d.Outgrown = append(d.Outgrown, Outgrown{ID: s.ID, Why: refusal.Error()})
		}
		return
	}
	if refusal == nil {
		s.NotValidated, s.Premature = fmt.Sprintf("it cannot be checked by %s: %v", definition.ID(), v.err), false
		return
	}
	if who := c.mutator(p, v, refusal); who != "" {
		s.NotValidated, s.Premature = fmt.Sprintf("as it is %s would not accept it, but %s: %v", definition.ID(), who, refusal), false
		return
	}
	s.Action, s.Reason = Refused, fmt.Sprintf("%s would not accept it: %v%s", definition.ID(), refusal, s.Object.Origin().InPackage())
	s.NotValidated, s.Premature = "", false
	for _, c := range refusal.Causes {
		if path, _, ok := strings.Cut(c, ": "); ok {
			s.Wrong = append(s.Wrong, path)
		}
	}
}

// mutator returns what may change an object before the API server checks it; "" if
// nothing can make it acceptable.
func (c *objectCheck) mutator(p *Plan, v *verdict, refusal *validate.Refusal) string {
	if refusal.Early {
		return ""
	}
	resource := resourceOf(v.definition, v.step.ID)
	for i := range p.Steps {
		if m := &p.Steps[i]; m.Object != nil && m.Action != Held && m.Action != Refused && m.Action != Conflict && mutates(m.Object.Tree(), resource) {
			return fmt.Sprintf("%s may change it first", m.ID)
		}
	}
	if c.Mutators != nil && !c.asked {
		c.asked = true
		c.mutators, c.unknown = c.Mutators()
	}
	for _, m := range c.mutators {
		if mutates(m, resource) {
			kind := manifest.KindOf(m)
			return fmt.Sprintf("%s may change it first", kind.ID("", manifest.Text(m, "metadata", "name")))
		}
	}
	if c.unknown != nil {
		return fmt.Sprintf("whether a webhook changes it first is not known (%v)", c.unknown)
	}
	return ""
}

func resourceOf(definition *manifest.Object, id manifest.ID) schema.GroupResource {
	d := types.Read(definition.Tree())
	names := d.Names
	if id.Kind == d.Claims.Kind {
		names = d.Claims
	}
	return schema.GroupResource{Group: d.Group, Resource: names.Plural}
}

// mutates reports whether an object is a webhook configuration or policy that may change
// objects of a resource at admission. It ignores versions and selectors.
func mutates(tree map[string]any, of schema.GroupResource) bool {
	switch manifest.KindOf(tree) {
	case manifest.MutatingWebhooks:
		return slices.ContainsFunc(manifest.List(tree, "webhooks"), func(w any) bool {
			hook, _ := w.(map[string]any)
			return matches(manifest.List(hook, "rules"), of)
		})
	case manifest.MutatingPolicy:
		return matches(manifest.List(tree, "spec", "matchConstraints", "resourceRules"), of)
	}
	return false
}

func matches(rules []any, of schema.GroupResource) bool {
	return slices.ContainsFunc(rules, func(r any) bool {
		rule, _ := r.(map[string]any)
		return webhook.Matches(rule, of.Group, of.Resource, "CREATE", "UPDATE")
	})
}
