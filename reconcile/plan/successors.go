package plan

import (
	"fmt"
	"slices"
	"strings"

	"gitopsd.dev/render/manifest"
)

// Successors are the packages that take over definitions from others, by the former package.
// "" is for plain manifests. What a former package had stays until its successors are
// applied and their controllers are ready.
type Successors map[string][]string

// Add adds a successor.
func (s Successors) Add(former, successor string) {
	if !slices.Contains(s[former], successor) {
		s[former] = append(s[former], successor)
		slices.Sort(s[former])
	}
}

// String is the form in which an inventory records them: former=successor, with commas
// between.
func (s Successors) String() string {
	var pairs []string
	for former, by := range s {
		for _, successor := range by {
			pairs = append(pairs, former+"="+successor)
		}
	}
	slices.Sort(pairs)
	return strings.Join(pairs, ",")
}

// ParseSuccessors reads the form of [Successors.String]. It leaves out what is not in that
// form.
func ParseSuccessors(text string) Successors {
	s := make(Successors)
	for pair := range strings.SplitSeq(text, ",") {
		if former, successor, ok := strings.Cut(pair, "="); ok {
			s.Add(former, successor)
		}
	}
	return s
}

// of returns the successors of packages of which a plan has objects. Those that are desired may
// leave in a later commit, before the successor works.
func (s Successors) of(steps []Step) Successors {
	of := make(Successors)
	for i := range steps {
		if by := s[steps[i].Package]; by != nil {
			of[steps[i].Package] = by
		}
	}
	return of
}

// takeovers returns the successors, given the steps of desired objects. A live definition has
// the label of its former package until it is applied; after that, the inventory's record
// tells.
func (c *computation) takeovers(wanted []Step) Successors {
	s := make(Successors)
	desired := make(map[string]bool)
	for i := range wanted {
		step := &wanted[i]
		desired[step.Package] = true
		meta := c.live.Objects[step.ID]
		if meta == nil || !step.ID.Is(manifest.Definitions...) || !step.Member && c.inv.Unlabelled(step.ID, meta) == "" {
			continue
		}
		if former := meta.Labels[manifest.PackageLabel]; former != step.Package {
			s.Add(former, step.Package)
		}
	}
	recorded := make(Successors)
	for former := range c.live.Successors {
		for _, successor := range c.current(former, s, desired, map[string]bool{former: true}) {
			if successor != former { // or the definitions went back
				recorded.Add(former, successor)
			}
		}
	}
	for former, by := range recorded {
		for _, successor := range by {
			s.Add(former, successor)
		}
	}
	return s
}

// current returns the packages that take over from a former one by the record. A successor that
// left may have successors by now, some in taken; its former package waits for these. Until it has,
// it is the successor as long as it has objects, or errors: what it has may be all that works, or
// wait for the former package's.
func (c *computation) current(former string, taken Successors, desired, seen map[string]bool) (all []string) {
	for _, successor := range c.live.Successors[former] {
		if seen[successor] {
			continue
		}
		seen[successor] = true
		next := slices.Concat(taken[successor], c.current(successor, taken, desired, seen))
		switch {
		case desired[successor]:
			all = append(all, successor)
		case len(next) > 0:
			all = append(all, next...)
		case slices.Contains(c.opts.Broken, successor) || c.has(successor):
			all = append(all, successor)
		}
	}
	return all
}

// has reports whether the cluster has objects of a package.
func (c *computation) has(pkg string) bool {
	for _, meta := range c.live.Objects {
		if pkg != "" && meta.Labels[manifest.PackageLabel] == pkg {
			return true
		}
	}
	return false
}

// besideSuccessors says of a former package's workloads when they go, or that they do not go
// yet: two controllers may act on the same objects then.
func (c *computation) besideSuccessors(steps []Step) {
	controllers := make(map[string]manifest.ID)
	for _, o := range c.desired.All() {
		if pkg := o.Label(manifest.PackageLabel); pkg != "" && o.ID().Is(manifest.Deployment) && o.ID().Namespace == c.inv.Namespace {
			controllers[pkg] = o.ID()
		}
	}
	for i := range steps {
		s := &steps[i]
		for _, successor := range c.successors[s.Package] {
			id, ok := controllers[successor]
			switch {
			case !ok || s.Stage != Workloads:
			case s.Action == Prune:
				s.Reason = joined(s.Reason, fmt.Sprintf("pruned once %s is ready", id))
			case s.Action == Held && s.Package != "":
				s.Reason = joined(s.Reason, fmt.Sprintf("until it goes, it may act on the same objects as %s", id))
			}
		}
	}
}
