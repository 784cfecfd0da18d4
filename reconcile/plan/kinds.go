package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/sources"
)

// doubtKinds notes that the kind of a plain object may be misspelt: it resembles a built-
// in kind, or one of a definition in the commit, and is neither. Without a cluster no
// more can be known: a cluster may serve other kinds. It does not doubt kinds that the
// earlier revision had.
func doubtKinds(p *Plan, before, after *manifest.Set) {
	var known *kinds // made when needed; most plans need none
	had := make(map[manifest.GroupKind]bool)
	for _, o := range before.All() {
		had[o.ID().GroupKind()] = true
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.Object == nil || s.Package != "" || !s.Action.Writes() || s.NotValidated != "" || had[s.ID.GroupKind()] {
			continue
		}
		if known == nil {
			known = newKinds(after)
		}
		if meant := known.meant(s.ID.GroupKind()); meant != "" {
			s.NotValidated = fmt.Sprintf("neither Kubernetes nor a definition in this revision is known to have the kind %s in %s; did you mean %s?", s.ID.Kind, s.Object.APIVersion(), meant)
		}
	}
}

// kinds are the kinds that are known without a cluster.
type kinds struct {
	byGroup map[string][]string // groups -> their kinds
	byKind  map[string][]string // kinds, in lower case -> their groups
}

// newKinds returns the built-in kinds and those of definitions.
func newKinds(objects *manifest.Set) *kinds {
	k := &kinds{byGroup: make(map[string][]string), byKind: make(map[string][]string)}
	add := func(gk manifest.GroupKind) {
		k.byGroup[gk.Group] = append(k.byGroup[gk.Group], gk.Kind)
		name := strings.ToLower(gk.Kind)
		k.byKind[name] = append(k.byKind[name], gk.Group)
	}
	for gk := range manifest.BuiltInKinds {
		add(gk)
	}
	for _, o := range objects.All() {
		if o.ID().Is(manifest.Definitions...) {
			d := types.Read(o.Tree())
			for _, kind := range d.Kinds() {
				add(manifest.GroupKind{Group: d.Group, Kind: kind})
			}
		}
	}
	return k
}

// meant returns the kind, or the kind and its group, that was probably meant; empty if
// the kind is known, or resembles none.
func (k *kinds) meant(gk manifest.GroupKind) string {
	if slices.Contains(k.byGroup[gk.Group], gk.Kind) {
		return ""
	}
	if kind := near(gk.Kind, k.byGroup[gk.Group]); kind != "" {
		return kind
	}
	groups := k.byKind[strings.ToLower(gk.Kind)]
	group := nearGroup(gk.Group, groups)
	built, ok := manifest.BuiltInKind(gk.Kind)
	switch {
	case group != "":
		return in(k, gk.Kind, group)
	case ok && manifest.BuiltIn(gk.Group): // "v1" of a Deployment, "extensions" of an Ingress
		return in(k, built.Kind, built.Group)
	case len(groups) > 0:
		return "" // another project has a kind of the same name
	}
	if group = nearGroup(gk.Group, slices.Collect(maps.Keys(k.byGroup))); group == "" {
		return ""
	}
	if kind := near(gk.Kind, k.byGroup[group]); kind != "" { // both are misspelt
		return in(k, kind, group)
	}
	return ""
}

// near returns the kind that a misspelt one resembles. It is stricter than
// [sources.Closest], since a group may have more kinds than are known: a Node is no
// misspelt Pod.
func near(kind string, kinds []string) string {
	most := 1
	if len(kind) > 8 {
		most = 2
	}
	meant := sources.Closest(kind, kinds)
	if sources.Distance(strings.ToLower(kind), strings.ToLower(meant)) > most {
		return ""
	}
	return meant
}

// nearGroup returns the group that a misspelt one resembles. The first label
// distinguishes the services of a domain: eks.aws.upbound.io is no misspelt
// rds.aws.upbound.io.
func nearGroup(group string, groups []string) string {
	label, domain, _ := strings.Cut(group, ".")
	return sources.Closest(group, slices.DeleteFunc(slices.Clone(groups), func(known string) bool {
		first, rest, _ := strings.Cut(known, ".")
		return domain != "" && rest == domain && first != label && (len(label) <= 3 || sources.Distance(label, first) > 1)
	}))
}

// in returns the kind with its group, for people.
func in(k *kinds, kind, group string) string {
	for _, known := range k.byGroup[group] {
		if strings.EqualFold(known, kind) {
			kind = known
		}
	}
	if group == "" {
		return kind + " in v1"
	}
	return kind + " in the group " + group
}
