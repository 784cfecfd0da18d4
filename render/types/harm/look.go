package harm

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"gitopsd.dev/render/conversion/stash"
	"gitopsd.dev/render/manifest"
)

// Fate is the plan's action on an object, beside changing its type. The zero value is none.
type Fate struct {
	// Goes: the object is deleted.
	Goes bool
	// Applied is the manifest that gitopsd applies, if it changes the object. Force takes
	// over fields of other field managers.
	Applied *manifest.Object
	Force   bool
}

// Look judges an object in the version of the current list, and adds it to the survey. It
// may change the object. An object that cannot be judged makes the survey unknown. An
// object that the plan changes is only harmed if it has and will have such a harm.
func (j *Judge) Look(ctx context.Context, tree map[string]any, fate Fate) {
	first := j.list == j.lists[0]
	if first {
		j.survey.Looked++
	}
	object := Object{Namespace: manifest.Text(tree, "metadata", "namespace"), Name: manifest.Text(tree, "metadata", "name")}
	if fate.Goes {
		j.relies(object)
		return
	}
	if j.named {
		object.Kind = j.kind
	}
	now := newSubject(tree)
	if first {
		j.writers(object.name(), now.managers)
		j.keepers(object.name(), tree)
	}
	err := j.judge(ctx, now)
	if err == nil && fate.Applied != nil && len(now.harms) > 0 {
		then := j.changed(ctx, now, fate)
		if slices.ContainsFunc(now.harms, func(h located) bool { return !slices.ContainsFunc(then.harms, h.same) }) {
			j.relies(object)
		}
		now = then
	}
	if ctx.Err() != nil {
		j.survey.Unknown = cmp.Or(j.survey.Unknown, context.Cause(ctx).Error())
		return
	}
	if err != nil {
		if j.survey.Unknown == "" {
			j.survey.Unknown = fmt.Sprintf("%s cannot be judged: %v", object.name(), err)
		}
		return
	}
	hit := make([]bool, len(j.findings))
	for _, h := range now.harms {
		j.match(h, hit)
		if len(object.Harms) == mostHarms {
			object.More++
			continue
		}
		if len(h.at) > 0 || h.Kind == Removed {
			h.Owners = owners(now.managers, now.tree, h.at)
			h.Owners = h.Owners[:min(len(h.Owners), mostWriters)]
		}
		object.Harms = append(object.Harms, h.Harm)
	}
	if len(object.Harms) == 0 {
		return
	}
	for i, is := range hit {
		if is {
			j.survey.Tolls[i].Harmed++
		}
	}
	j.harmed(object)
}

// harmed counts a harmed object, once for all versions in which it is listed.
func (j *Judge) harmed(o Object) {
	if len(j.lists) > 1 {
		same := func(s Object) bool { return s.Namespace == o.Namespace && s.Name == o.Name }
		if i := slices.IndexFunc(j.survey.Objects, same); i >= 0 {
			named := &j.survey.Objects[i]
			n := min(len(o.Harms), mostHarms-len(named.Harms))
			named.Harms = append(named.Harms, o.Harms[:n]...)
			named.More += o.More + len(o.Harms) - n
			return
		}
		if j.survey.unnamed[o.name()] {
			return
		}
	}
	j.survey.Harmed++
	switch {
	case len(j.survey.Objects) < mostObjects:
		j.survey.Objects = append(j.survey.Objects, o)
	case len(j.lists) > 1:
		if j.survey.unnamed == nil {
			j.survey.unnamed = make(map[string]bool)
		}
		j.survey.unnamed[o.name()] = true
	}
}

// relies notes that an object is unharmed only because of its fate.
func (j *Judge) relies(o Object) {
	id := manifest.ID{Group: j.group, Kind: j.kind, Namespace: o.Namespace, Name: o.Name}
	if n := len(j.survey.Relies); n == 0 || j.survey.Relies[n-1] != id {
		j.survey.Relies = append(j.survey.Relies, id)
	}
}

// match notes the findings that may cause a harm. If no finding does, no finding is cleared.
func (j *Judge) match(h located, hit []bool) {
	matched := false
	for i := range j.findings {
		if j.findings[i].causes(h.Harm, h.at) {
			hit[i], matched = true, true
		}
	}
	if !matched {
		j.survey.unmatched++
	}
}

// writers notes the managers of an object that write the fields, or in the versions, of
// the findings.
func (j *Judge) writers(object string, managers []*manager) {
	for _, m := range managers {
		last, known := j.last[m.name]
		switch {
		case known && (last.IsZero() || !m.at.IsZero() && !m.at.After(last)): // it has written since
		case known || len(j.last) < mostManagers:
			j.last[m.name] = m.at
		}
	}
	for i := range j.findings {
		f, t := &j.findings[i], &j.survey.Tolls[i]
		written := false
		for _, m := range managers {
			if m.name == ourselves {
				continue
			}
			inVersion, known := f.class == byVersion && m.version == f.Version, slices.Contains(t.by, m.name)
			written = written || inVersion
			if known || len(t.by) == mostKnown {
				continue
			}
			if inVersion || f.class.byObjects() && len(f.path) > 0 && m.owns(m.fields, nil, f.path, true) {
				t.by = append(t.by, m.name)
			}
		}
		if !written {
			continue
		}
		if t.Written++; len(t.Objects) < mostWriters {
			t.Objects = append(t.Objects, object)
		}
	}
}

// keepers notes the fields that an object keeps for removed versions. Their removal loses
// no field, but hides these.
func (j *Judge) keepers(object string, tree map[string]any) {
	var kept stash.Stash
	for i := range j.survey.Tolls {
		t := &j.survey.Tolls[i]
		if t.Name != "version-removed" {
			continue
		}
		if kept == nil {
			if kept, _ = stash.Read(tree); len(kept) == 0 {
				return
			}
		}
		at := slices.IndexFunc(kept[t.Version], func(e stash.Entry) bool { return !e.Absent })
		if at < 0 {
			continue
		}
		if t.Kept++; len(t.Keepers) < mostWriters {
			t.Keepers = append(t.Keepers, object+" "+text(kept[t.Version][at].Path))
		}
	}
}
