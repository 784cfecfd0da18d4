package plan

import (
	"fmt"
	"maps"
	"slices"

	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/manifest"
)

// Content is an object in a Namespace, or of a type that a CRD, XRD or Crossplane
// package defines: it is deleted together with its container.
type Content struct {
	ID  manifest.ID
	UID string
	// Owners are the UIDs of its owners. The garbage collector deletes it when all of
	// these are gone, but never if it has none.
	Owners []string
	// Writers are the field managers that wrote it, without gitopsd.
	Writers []string
	// Deleting says what holds up the object's deletion; empty if it is not being
	// deleted.
	Deleting string
}

// String names the object for people.
func (c Content) String() string {
	if c.Deleting != "" {
		return c.ID.String() + " (" + c.Deleting + ")"
	}
	return c.ID.String()
}

// written names the object with its writers.
func (c Content) written() string {
	if len(c.Writers) == 0 {
		return c.String()
	}
	return c.String() + " (written by " + prose.Some(c.Writers, 3) + ")"
}

// Holds reports whether deleting an object deletes others with it: a Namespace,
// CRD, XRD or Crossplane package does.
func Holds(id manifest.ID) bool {
	return id.Is(manifest.Namespace) || id.Is(manifest.Definitions...) || id.Is(manifest.Packages...)
}

// otherKind is advice about a definition whose new version would be another type.
const otherKind = "publish a new kind, or delete this one by hand, with its objects"

// Anew returns advice about an object with an immutable field that is to change.
func Anew(id manifest.ID) string {
	const never = "gitopsd replaces nothing that holds other objects: "
	switch {
	case id.Is(manifest.Definitions...):
		return never + otherKind
	case Holds(id):
		return never + "declare another one, or delete this one by hand, with what it holds"
	}
	return fmt.Sprintf("to have it deleted and created anew, annotate it with %s: \"true\"", manifest.ReplaceAnnotation)
}

// Leaving returns the UIDs of objects that are gone, and of contents that the garbage
// collector deletes after them: the plan's contents, and now.
func (p *Plan) Leaving(gone map[string]bool, now []Content) map[string]bool {
	return leaving(gone, append(slices.Clip(p.contents), now...))
}

// leaving is Leaving for the given contents. An unknown owner stays, and so do its
// dependents.
func leaving(going map[string]bool, contents []Content) map[string]bool {
	all := maps.Clone(going)
	for again := true; again; {
		again = false
		for _, c := range contents {
			stays := func(owner string) bool { return !all[owner] }
			if len(c.Owners) > 0 && !all[c.UID] && !slices.ContainsFunc(c.Owners, stays) {
				all[c.UID], again = true, true
			}
		}
	}
	return all
}

// Staying returns the contents that are not leaving, without those that another of them
// owns.
func Staying(contents []Content, leaving map[string]bool) []Content {
	staying := slices.DeleteFunc(slices.Clone(contents), func(c Content) bool { return leaving[c.UID] })
	there := make(map[string]bool, len(staying))
	for _, c := range staying {
		there[c.UID] = true
	}
	return slices.DeleteFunc(staying, func(c Content) bool {
		return slices.ContainsFunc(c.Owners, func(owner string) bool { return owner != c.UID && there[owner] })
	})
}

// keepContents keeps containers of objects that stay, with what these may need. Something
// that is kept may be inside another container, or own objects in others, so keepContents
// repeats until nothing changes.
func (c *computation) keepContents(steps []Step) {
	unwanted := make(map[string]*Step, len(steps)) // by UID
	for i := range steps {
		unwanted[steps[i].UID] = &steps[i]
	}
	c.installed = c.packages()
	for before := len(steps) + 1; prunes(steps) < before; {
		before = prunes(steps)
		leaving := leaving(c.going(steps), c.contents())
		for i := range steps {
			if s := &steps[i]; s.Action == Prune && Holds(s.ID) {
				c.keepFull(s, leaving, unwanted)
			}
		}
		c.keepControllers(steps)
		c.keepPackages(steps)
	}
}

func prunes(steps []Step) int {
	n := 0
	for i := range steps {
		if steps[i].Action == Prune {
			n++
		}
	}
	return n
}

// contents returns the contents of all objects that were looked into.
func (c *computation) contents() []Content {
	var all []Content
	for _, list := range c.live.Contents {
		all = append(all, list...)
	}
	return all
}

// keepControllers keeps what an object may need that is being deleted, and for which one of
// the types is kept: the object's finalizers may need a controller. It also
// keeps the servers of webhook configurations that are kept, or that may exist.
func (c *computation) keepControllers(steps []Step) {
	var busy []*Step // the contents, with what holds them up as the reason
	served := make(map[string]string)
	unreadable, serving := c.serving()
	for i := range steps {
		s := &steps[i]
		if s.Action == Held && s.Package != "" && s.ID.Is(manifest.Webhooks...) {
			served[s.Package] = s.ID.String()
		}
		if s.Action != Held || !s.ID.Is(manifest.Definitions...) {
			continue
		}
		for _, k := range c.live.Contents[s.ID] {
			if k.Deleting != "" {
				busy = append(busy, &Step{ID: k.ID, Stage: StageOf(k.ID), Package: s.Package, Reason: k.String()})
			}
		}
	}
	needs := NewNeeds(steps, nil)
	for i := range steps {
		s := &steps[i]
		if j := slices.IndexFunc(busy, func(b *Step) bool { return b.Package == s.Package && needs.Of(b, s) }); j >= 0 && s.Stage != Custom && !s.ID.Is(manifest.Definitions...) {
			hold(s, "kept: %s needs it until it is gone", busy[j].Reason)
		}
		if what := served[s.Package]; what != "" && (s.Stage == Workloads || s.Stage == Settings) {
			hold(s, "kept: %s needs it until it is gone", what)
		}
		if serving[s.Package] && (s.Stage == Workloads || s.Stage == Settings) {
			hold(s, "kept: whether a webhook configuration needs it cannot be told: %s", unreadable)
		}
	}
}

// keepPackages keeps everything of a package that leaves while one of its definitions is kept
// with its contents. These may need all of it: the controller for their finalizers, its
// rights, what admits them and converts them, and other types without which a controller
// does not start. A package that stays has a controller in any case, in its new version.
func (c *computation) keepPackages(steps []Step) {
	kept := make(map[string][]string) // the definitions, by package
	passing := make(map[string]bool)
	for i := range steps {
		s := &steps[i]
		_, unknown := c.live.ContentsUnknown[s.ID]
		if s.Action == Held && s.ID.Is(manifest.Definitions...) && !c.installed[s.Package] && (unknown || len(c.live.Contents[s.ID]) > 0) {
			kept[s.Package] = append(kept[s.Package], s.ID.String())
			passing[s.Package] = passing[s.Package] || !s.Lasts()
		}
	}
	for i := range steps {
		s := &steps[i]
		of, keep := kept[s.Package], holdFor
		if passing[s.Package] {
			keep = hold
		}
		for _, successor := range c.successors[s.Package] { // which may not work yet
			of = append(slices.Clip(of), kept[successor]...)
			if passing[successor] {
				keep = hold
			}
		}
		if len(of) == 0 || s.Package == "" {
			continue
		}
		keep(s, "kept: objects of %s may need it; remove them, or annotate their definition with %s: \"true\"", prose.Some(of, 3), manifest.AllowPruneAnnotation)
	}
}

// packages returns the packages that are still desired.
func (c *computation) packages() map[string]bool {
	installed := make(map[string]bool)
	for _, o := range c.desired.All() {
		installed[o.Label(manifest.PackageLabel)] = true
	}
	for _, t := range c.opts.Inactive {
		installed[t.Package] = true
	}
	delete(installed, "")
	return installed
}

// going returns the UIDs of objects that are pruned or being deleted. An object that
// is deleted with "orphan" leaves its dependents behind.
func (c *computation) going(steps []Step) map[string]bool {
	going := make(map[string]bool, len(steps))
	for i := range steps {
		s := &steps[i]
		orphans := s.Action == Wait && slices.Contains(c.live.Objects[s.ID].Finalizers, "orphan")
		if (s.Action == Prune || s.Action == Wait) && !orphans {
			going[s.UID] = true
		}
	}
	return going
}

// keepFull keeps one object that holds others. The annotation that allows pruning it with
// objects of others does not apply to our own.
func (c *computation) keepFull(s *Step, leaving map[string]bool, unwanted map[string]*Step) {
	staying := Staying(c.live.Contents[s.ID], leaving)
	var wanted, kept, all []string
	lasting := true // as far as the contents decide
	for _, k := range staying {
		name := k.String()
		if s.ID.Is(manifest.Definitions...) {
			name = k.written()
		}
		all = append(all, name)
		if step := unwanted[k.UID]; step != nil {
			kept = append(kept, k.String())
			lasting = lasting && step.Lasts()
		} else if o := c.desired.Get(k.ID); o != nil {
			wanted = append(wanted, k.String()+" ("+declared(o.Origin())+")")
		} else {
			lasting = lasting && k.Deleting == ""
		}
	}
	keep := hold
	if lasting {
		keep = holdFor
	}
	switch {
	case len(wanted) == 1:
		holdFor(s, "kept: it holds %s, which is wanted; remove it too", wanted[0])
	case len(wanted) > 1:
		holdFor(s, "kept: it holds %s, which are wanted; remove them too", prose.Some(wanted, 3))
	case len(kept) > 0:
		keep(s, "kept: it holds %s, which must go first; the reason given there says what that needs", prose.Some(kept, 3))
	}
	if s.WithContents {
		return
	}
	if why, ok := c.live.ContentsUnknown[s.ID]; ok {
		hold(s, "kept: its contents are not known: %s; to prune it all the same, annotate it with %s: \"true\"", why, manifest.AllowPruneAnnotation)
	}
	if len(all) > 0 && c.dormant[s.ID] {
		keep(s, "kept: no activation policy names it any more, but it holds %s, which would be deleted with it; name it in a policy again, delete these, or annotate it with %s: \"true\"", prose.Some(all, 3), manifest.AllowPruneAnnotation)
	}
	if len(all) > 0 && c.installed[s.Package] && s.ID.Is(manifest.Definitions...) {
		keep(s, "kept: package %s does not have it any more, but it holds %s, which would be deleted with it; delete these, or annotate it with %s: \"true\"", s.Package, prose.Some(all, 3), manifest.AllowPruneAnnotation)
	}
	if len(all) > 0 {
		keep(s, "kept: it holds %s, which would be deleted with it; to allow that, annotate it with %s: \"true\"", prose.Some(all, 3), manifest.AllowPruneAnnotation)
	}
}

// declared says where an object comes from.
func declared(o manifest.Origin) string {
	if o.For != "" {
		return o.String()
	}
	return "declared in " + o.String()
}
