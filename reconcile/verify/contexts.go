package verify

import (
	"fmt"
	"slices"
	"strings"

	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/manifest"
)

// aspect is a [Context] of controllers with its findings.
type aspect struct {
	name             string
	drifted, differs Kind
	of               func(*Controller) *Context
	// shown reports whether values may be shown.
	shown bool
}

var aspects = []aspect{
	{"ConfigMaps", ConfigDrifted, ConfigDiffers, func(c *Controller) *Context { return &c.ConfigMaps }, false},
	{"Secrets", ConfigDrifted, ConfigDiffers, func(c *Controller) *Context { return &c.Secrets }, false},
	{"rights", RightsDrifted, RightsDiffer, func(c *Controller) *Context { return &c.Rights }, true},
}

// finding is a kind with the clusters that have it.
type finding struct {
	kind  Kind
	sides []*side
}

// contexts compares the contents of ConfigMaps and Secrets, and the rights, of controllers.
// The result is the same for all types of a controller.
func (c *comparison) contexts(all []here) []finding {
	var key strings.Builder
	for _, h := range all {
		fmt.Fprintln(&key, h.cluster, h.control.Wanted.Workload)
	}
	if known, ok := c.inContext[key.String()]; ok {
		return known
	}
	var found []finding
	for _, a := range aspects {
		problems, values := newPartition(), newPartition()
		parts := make(map[string][]behaviour.Part)
		for _, h := range all {
			ctx := a.of(h.control)
			waits := ctx.waits(h.planned)
			switch {
			case !ctx.Read:
				continue
			case len(ctx.Drift) > 0 && !waits:
				text := h.control.Wanted.String() + ", other than rendered: " + prose.Some(ctx.Drift, 4)
				problems.add(text, h.cluster, text, in(h.cluster, ctx.reasons(h.planned)))
				continue
			case waits, h.behind:
				// What it has belongs to the controller before.
				if len(all) > 1 && len(ctx.Parts) > 0 {
					c.uncompared = append(c.uncompared, Omission{
						Cluster: h.cluster, What: a.name + " of " + h.control.Wanted.String(),
						Reason: "not compared with other clusters' until what was declared is applied",
					})
				}
				continue
			}
			own := h.control.Wanted.Common(ctx.Parts)
			if a.differs == RightsDiffer {
				own = c.comparable(own, h.cluster, all)
			}
			sum := behaviour.SettingsDigest(own)
			parts[sum] = own
			values.add(sum, h.cluster, h.control.Wanted.String(), nil)
		}
		for _, s := range problems.ordered() {
			found = append(found, finding{a.drifted, []*side{s}})
		}
		if sides := values.ordered(); len(sides) > 1 {
			a.words(sides, parts)
			found = append(found, finding{a.differs, sides})
		}
	}
	c.inContext[key.String()] = found
	return found
}

// waits reports whether all that is not as rendered was refused or is not applied yet, so that
// comparison.pending reports it. What a plan has a step for somebody may have changed, too, so
// the objects must also be gitopsd's, and as it applied them.
func (c *Context) waits(planned map[manifest.ID]Planned) bool {
	return c.Applied && len(c.From) > 0 && !slices.ContainsFunc(c.From, func(id manifest.ID) bool { return !planned[id].Member })
}

// reasons returns why objects that differ were refused or are not applied yet.
func (c *Context) reasons(planned map[manifest.ID]Planned) []string {
	var all []string
	for _, id := range c.From {
		if p := planned[id]; p.Kind != "" {
			all = append(all, fmt.Sprintf("`gitopsd plan` also has a step for %s: %s", id, p.Why))
		}
	}
	return all
}

// mostTold is how many differing parts are listed for each side.
const mostTold = 4

// words adds to each side its values of the parts that differ. Values that may not be shown
// get letters, in the order of the sides.
func (a *aspect) words(sides []*side, parts map[string][]behaviour.Part) {
	var names []string
	for _, s := range sides[1:] {
		names = append(names, behaviour.Differing(parts[sides[0].key], parts[s.key])...)
	}
	slices.Sort(names)
	names = slices.DeleteFunc(slices.Compact(names), func(name string) bool {
		// An object that one side lacks is listed by its keys.
		return !slices.ContainsFunc(sides, func(s *side) bool { return !none(valueOf(parts[s.key], name)) })
	})
	told := make([][]string, len(sides))
	for _, name := range names[:min(len(names), mostTold)] {
		letters := make(map[string]string)
		for i, s := range sides {
			value := valueOf(parts[s.key], name)
			switch {
			case none(value):
				told[i] = append(told[i], name+": none")
			case a.shown, value == behaviour.Certificates:
				told[i] = append(told[i], name+": "+value)
			default:
				if letters[value] == "" {
					letters[value] = letter(len(letters))
				}
				told[i] = append(told[i], name+": value "+letters[value])
			}
		}
	}
	for i, s := range sides {
		s.What += ", " + strings.Join(told[i], "; ")
		if more := len(names) - mostTold; more > 0 {
			s.What += fmt.Sprintf("; %d more differ", more)
		}
	}
	if len(names) > mostTold {
		sides[0].details = append(sides[0].details, "differing: "+prose.Some(names, 4*mostTold))
	}
}

// letter returns the letter for a value that may not be shown.
func letter(n int) string { return string(rune('A' + min(n, 25))) }

func none(value string) bool { return value == "" || value == behaviour.Elsewhere }

// valueOf returns the value of the part of that name, empty if there is none.
func valueOf(parts []behaviour.Part, name string) string {
	i, found := slices.BinarySearchFunc(parts, name, func(p behaviour.Part, name string) int { return strings.Compare(p.Name, name) })
	if !found {
		return ""
	}
	return parts[i].Value
}

// comparable returns the rights of a cluster without those on types that not all of these
// clusters have: a cluster with more packages of a family grants its controllers more. The
// names of namespaces that contain the cluster's name get a mark in its place.
func (c *comparison) comparable(rights []behaviour.Part, cluster string, all []here) []behaviour.Part {
	var kept []behaviour.Part
	for _, p := range rights {
		if c.partly(p.Name, all) {
			continue
		}
		if what, namespace, ok := strings.Cut(p.Name, " in namespace "); ok {
			p.Name = what + " in namespace " + unnamed(namespace, cluster)
		}
		kept = append(kept, p)
	}
	slices.SortStableFunc(kept, func(a, b behaviour.Part) int { return strings.Compare(a.Name, b.Name) })
	return kept
}

// partly reports whether a right is on a type that only some of these clusters have.
func (c *comparison) partly(right string, all []here) bool {
	resource, _, _ := strings.Cut(right, " ")
	plural, group, ok := strings.Cut(resource, ".")
	if !ok {
		return false
	}
	plural, _, _ = strings.Cut(plural, "/")
	having := c.having[plural+"."+group]
	return having != nil && slices.ContainsFunc(all, func(h here) bool { return !having[h.cluster] })
}

// unnamed returns a namespace with a mark in place of the cluster's name.
func unnamed(namespace, cluster string) string {
	const mark = "<cluster>"
	if namespace == cluster {
		return mark
	}
	if rest, ok := strings.CutPrefix(namespace, cluster+"-"); ok {
		return mark + "-" + rest
	}
	if rest, ok := strings.CutSuffix(namespace, "-"+cluster); ok {
		return rest + "-" + mark
	}
	return namespace
}
