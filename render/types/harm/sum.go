package harm

import (
	"cmp"
	"maps"
	"slices"
)

// clone returns a copy that later changes of either do not affect.
func (s *Survey) clone() Survey {
	c := *s
	c.Objects = slices.Clone(s.Objects)
	for i := range c.Objects {
		c.Objects[i].Harms = slices.Clone(c.Objects[i].Harms)
	}
	c.Tolls = slices.Clone(s.Tolls)
	for i := range c.Tolls {
		t := &c.Tolls[i]
		t.by, t.Objects, t.Keepers = slices.Clone(t.by), slices.Clone(t.Objects), slices.Clone(t.Keepers)
	}
	c.Relies = slices.Clone(s.Relies)
	c.unnamed = maps.Clone(s.unnamed)
	return c
}

// Sum adds the surveys of the kinds of one definition. All must have the same findings.
func Sum(all []*Survey) *Survey {
	if len(all) == 1 {
		return all[0]
	}
	sum := new(Survey)
	for n, s := range all {
		if n == 0 {
			sum.At = s.At
			sum.Tolls = make([]Toll, len(s.Tolls))
		}
		sum.Looked, sum.Harmed, sum.unmatched = sum.Looked+s.Looked, sum.Harmed+s.Harmed, sum.unmatched+s.unmatched
		sum.Objects = append(sum.Objects, s.Objects[:min(len(s.Objects), mostObjects-len(sum.Objects))]...)
		sum.Relies = append(sum.Relies, s.Relies...)
		sum.Unknown = cmp.Or(sum.Unknown, s.Unknown)
		for i := range s.Tolls {
			sum.Tolls[i].add(&s.Tolls[i])
		}
	}
	return sum
}

// add adds the toll of the same finding for another kind.
func (t *Toll) add(other *Toll) {
	t.Name, t.Version, t.Path, t.class = other.Name, other.Version, other.Path, other.class
	t.Harmed, t.Written, t.Kept = t.Harmed+other.Harmed, t.Written+other.Written, t.Kept+other.Kept
	t.Unjudged = cmp.Or(t.Unjudged, other.Unjudged)
	t.Writers = both(t.Writers, other.Writers)
	// A writer that is live in one of the tolls is live.
	t.Former = slices.DeleteFunc(both(t.Former, other.Former), func(name string) bool { return slices.Contains(t.Writers, name) })
	t.Objects = append(t.Objects, other.Objects[:min(len(other.Objects), mostWriters-len(t.Objects))]...)
	t.Keepers = append(t.Keepers, other.Keepers[:min(len(other.Keepers), mostWriters-len(t.Keepers))]...)
}

// both returns the union of two lists, sorted; at most mostWriters.
func both(a, b []string) []string {
	all := slices.Concat(a, b)
	slices.Sort(all)
	all = slices.Compact(all)
	return all[:min(len(all), mostWriters)]
}

// divide divides the writers of a finding into Writers and Former.
func (j *Judge) divide(t *Toll) {
	slices.Sort(t.by)
	for _, name := range t.by {
		to := &t.Writers
		if last, known := j.last[name]; known && !last.IsZero() && !j.opts.Now.IsZero() && j.opts.Now.Sub(last) > liveFor {
			to = &t.Former
		}
		if len(*to) < mostWriters {
			*to = append(*to, name)
		}
	}
	t.by = nil
}
