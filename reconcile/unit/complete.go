package unit

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/render/manifest"
)

// Completer fills in values that are unknown when a unit is rendered: CA bundles,
// Secrets that hold a connection, addresses. Plans show these values, and the
// inventory records them apart from the rendered ones, so that a renewed bundle does not
// look like a change in the repository. It must be safe for concurrent use.
type Completer interface {
	// Complete returns the additions to a unit. The error names the cluster and is about
	// the unit as a whole, which then has no plan. A problem with one object leaves its
	// fields unknown.
	Complete(ctx context.Context, r Request) (Completion, error)
}

// Request is the input of a [Completer].
type Request struct {
	// Unit is the desired unit, as rendered.
	Unit *desired.Unit
	// Objects are the unit's, as completed so far.
	Objects *manifest.Set
	// Client talks to the unit's cluster.
	Client *kube.Client
	// Preview reports whether nothing may be written anywhere: values that only a
	// write would reveal stay unknown.
	Preview bool
	// Owns reports whether a live object is in the unit's inventory, or adopted into it.
	Owns func(id manifest.ID, meta *metav1.ObjectMeta) bool
	// Lists reports whether the unit's inventory may have objects of a kind.
	Lists func(kind manifest.GroupKind) bool
}

// Completion is the additions to a unit.
type Completion struct {
	// Objects are made by [manifest.Object.Complete]. Each replaces the object that
	// it completes, or is added if there is none.
	Objects []*manifest.Object
	// Again is when the unit must be reconciled again although nothing changed, since
	// something expires; zero for never.
	Again time.Time
	// Relied are the resourceVersions of the members of the inventory that were read. If
	// it is not nil, the completion of the same unit is reused until one of them changes,
	// or until Again.
	Relied map[manifest.ID]string
	// Serving reports whether this process must keep doing something for the unit. A
	// restart then completes the unit anew and uses no checkpoint.
	Serving bool
	// Refused is why objects must not be applied, with advice: a Completer cannot provide
	// what they ask for. A live object stays as it is, and so does the package of a changed
	// definition.
	Refused map[manifest.ID]string
	// Keeps reports whether an object that is not desired must stay, since it may be an
	// addition; nil if all additions are known.
	Keeps func(id manifest.ID) bool
	// Notes are for a person to read, though nothing is wrong.
	Notes []string
	// Certificates are for the status.
	Certificates []status.Certificate

	set *manifest.Set
}

// complete completes a unit, with all completers.
func (c *Connection) complete(ctx context.Context, want *desired.Unit, adopt []string, preview bool) (Completion, error) {
	if !preview && c.stands(want) {
		return c.completion, nil
	}
	now := time.Now().Round(0)
	all, err := c.completeAnew(ctx, want, adopt, preview)
	if !preview {
		c.completed, c.completedAt, c.completion = want, now, all
		if err != nil {
			c.completed = nil
		}
	}
	return all, err
}

// stands reports whether the last completion is still the unit's, so that a unit at
// rest costs no request.
func (c *Connection) stands(want *desired.Unit) bool {
	last := &c.completion
	now := time.Now()
	switch {
	case c.completed != want || last.Relied == nil || last.Serving:
		return false
	case now.Round(0).Before(c.completedAt), !last.Again.IsZero() && !now.Before(last.Again): // the clock may have been wrong
		return false
	}
	for id, version := range last.Relied {
		if !c.applier.IsAt(id, version) {
			return false
		}
	}
	return true
}

func (c *Connection) completeAnew(ctx context.Context, want *desired.Unit, adopt []string, preview bool) (Completion, error) {
	all := Completion{set: want.Objects, Refused: make(map[manifest.ID]string)}
	owns := func(id manifest.ID, meta *metav1.ObjectMeta) bool { return c.applier.Owns(id, meta, adopt) }
	if want.Remove && !preview {
		return all, c.serveLeaving(ctx, want, owns)
	}
	if want.Remove || want.Objects == nil || len(c.completers) == 0 {
		return all, nil
	}
	if err := c.applier.Check(ctx); err != nil { // a Completer may write
		return all, err
	}
	all.Relied = make(map[manifest.ID]string)
	for _, completer := range c.completers {
		one, err := completer.Complete(ctx, Request{Unit: want, Objects: all.set, Client: c.client, Preview: preview, Owns: owns, Lists: c.applier.Lists})
		if err != nil {
			return all, err
		}
		if all.set, err = merge(all.set, one.Objects); err != nil {
			return all, fmt.Errorf("cluster %s: %w", want.Name, err)
		}
		all.Serving = all.Serving || one.Serving
		maps.Copy(all.Refused, one.Refused)
		if before := all.Keeps; before == nil {
			all.Keeps = one.Keeps
		} else if one.Keeps != nil {
			all.Keeps = func(id manifest.ID) bool { return before(id) || one.Keeps(id) }
		}
		if one.Relied == nil {
			all.Relied = nil
		} else if all.Relied != nil {
			maps.Copy(all.Relied, one.Relied)
		}
		all.Notes = append(all.Notes, one.Notes...)
		all.Certificates = append(all.Certificates, one.Certificates...)
		if all.Again.IsZero() || !one.Again.IsZero() && one.Again.Before(all.Again) {
			all.Again = one.Again
		}
	}
	all.Notes = slices.Clip(all.Notes) // an outcome adds its own
	return all, nil
}

// keep makes a plan keep objects that may be additions.
func (c *Completion) keep(opts *plan.Options) {
	if c.Keeps == nil {
		return
	}
	rendered := opts.Keeps
	opts.Keeps = func(id manifest.ID, pkg string) bool { return c.Keeps(id) || rendered != nil && rendered(id, pkg) }
}

// merge replaces objects by their completed forms. An object of the repository is
// never replaced by one that completes none.
func merge(set *manifest.Set, completed []*manifest.Object) (*manifest.Set, error) {
	if len(completed) == 0 {
		return set, nil
	}
	objects := make(map[manifest.ID]*manifest.Object, set.Len()+len(completed))
	for _, o := range set.All() {
		objects[o.ID()] = o
	}
	for _, o := range completed {
		if old := objects[o.ID()]; old != nil && old.Rendered() != o.Rendered() {
			return nil, fmt.Errorf("%s is in the repository (%s) and made by gitopsd as well; rename the one in the repository", o.ID(), old.Origin())
		}
		objects[o.ID()] = o
	}
	merged, duplicates := manifest.NewSet(slices.Collect(maps.Values(objects)))
	if len(duplicates) > 0 {
		return nil, duplicates[0]
	}
	return merged, nil
}
