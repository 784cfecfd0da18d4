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

// successors returns the successors of packages with objects that are not desired. A live
// definition has the label of its former package until it is applied; after that, the
// inventory's record tells.
func (c *computation) successors(steps []Step) Successors {
	s := make(Successors)
	leave, desired := make(map[string]bool), make(map[string]bool)
	for i := range steps {
		step := &steps[i]
		if step.Object == nil {
			leave[step.Package] = true
			continue
		}
		desired[step.Package] = true
		if step.Member && step.ID.Is(manifest.Definitions...) {
			if former := c.live.Objects[step.ID].Labels[manifest.PackageLabel]; former != step.Package {
				s.Add(former, step.Package)
			}
		}
	}
	for former, by := range c.live.Successors {
		for _, successor := range by {
			if desired[successor] {
				s.Add(former, successor)
			}
		}
	}
	for former := range s {
		if !leave[former] {
			delete(s, former)
		}
	}
	return s
}

// announce says of a former package's workloads that they go once the successors' controllers
// are ready.
func (c *computation) announce(p *Plan) {
	controllers := make(map[string]manifest.ID)
	for i := range p.Steps {
		if s := &p.Steps[i]; s.Object != nil && s.ID.Is(manifest.Deployment) && s.ID.Namespace == c.inv.Namespace {
			controllers[s.Package] = s.ID
		}
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.Action != Prune || s.Stage != Workloads {
			continue
		}
		for _, successor := range p.Successors[s.Package] {
			if id, ok := controllers[successor]; ok && successor != "" {
				s.Reason = joined(s.Reason, fmt.Sprintf("pruned once %s is ready", id))
			}
		}
	}
}
