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

// doubtKinds notes with the plain objects of a plan between revisions that their kind may be
// misspelt: it is like a kind of Kubernetes' own, or of a definition in the commit, and none
// itself. That is all that can be known without a cluster, which may serve kinds that nobody
// here has heard of. Kinds that the earlier revision had are not doubted.
func doubtKinds(p *Plan, before, after *manifest.Set) {
	var known *kinds // of which most plans have no need
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

// kinds are those that are known without a cluster.
type kinds struct {
	byGroup map[string][]string // groups -> their kinds
	byKind  map[string][]string // kinds, in lower case -> their groups
}

// newKinds returns the kinds of Kubernetes' own and of definitions.
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

// meant returns the kind, or the kind and its group, that was most likely meant; empty if the
// kind is known, or if nothing suggests itself.
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

// near returns the kind that a misspelt one is like. It is stricter than [sources.Closest],
// since a group may have more kinds than are known: a Node is no misspelt Pod.
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

// nearGroup returns the group that a misspelt one is like. The first label tells the services
// of a domain apart: eks.aws.upbound.io is no misspelt rds.aws.upbound.io.
func nearGroup(group string, groups []string) string {
	label, domain, _ := strings.Cut(group, ".")
	return sources.Closest(group, slices.DeleteFunc(slices.Clone(groups), func(known string) bool {
		first, rest, _ := strings.Cut(known, ".")
		return domain != "" && rest == domain && first != label && (len(label) <= 3 || sources.Distance(label, first) > 1)
	}))
}

// in names a kind of a group.
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
