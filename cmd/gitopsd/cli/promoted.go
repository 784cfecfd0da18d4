package cli

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/manifest"
)

// Bounds on a note: names of objects, clusters that act alike, and parts that differ.
const (
	promotedObjects  = 3
	promotedClusters = 4
	promotedParts    = 3
)

// sameTypeOtherController returns notes on manifests that go to several clusters with the same
// type but different controllers: an object that works in one cluster may do something else
// in another. A note is about all objects of a kind that go to the same clusters.
func sameTypeOtherController(state *desired.State) []string {
	var places show.Groups[placed, *desired.Unit]
	for _, c := range state.Clusters {
		if c.Objects == nil {
			continue
		}
		for _, o := range c.Objects.All() {
			// The content of a package goes with the package's version.
			if plan.StageOf(o.ID()) != plan.Custom || o.Label(manifest.PackageLabel) != "" || o.Origin().File == "" {
				continue
			}
			places.Add(placed{o.ID(), schema.FromAPIVersionAndKind(o.APIVersion(), o.ID().Kind), o.Origin().File}, c)
		}
	}
	x := actors{known: make(map[actorKey]acting)}
	var names show.Groups[string, string] // objects by the rest of the note
	for p, clusters := range places.All() {
		for _, text := range x.compare(p, clusters) {
			names.Add(text, strings.TrimPrefix(p.id.Namespace+"/"+p.id.Name, "/"))
		}
	}
	var notes []string
	for text, objects := range names.All() {
		kind, rest, _ := strings.Cut(text, ": ")
		slices.Sort(objects)
		verb := "go"
		if len(objects) == 1 {
			verb = "goes"
		}
		notes = append(notes, fmt.Sprintf("%s: %s %s to clusters %s", kind, prose.Some(objects, promotedObjects), verb, rest))
	}
	return notes
}

// placed is an object of one manifest. It is comparable.
type placed struct {
	id   manifest.ID
	gvk  schema.GroupVersionKind
	file string
}

// actors finds what acts on types, once for each type and cluster.
type actors struct{ known map[actorKey]acting }

type actorKey struct {
	cluster string
	gvk     schema.GroupVersionKind
}

// acting is a type in one cluster and what acts on it. It is zero if nothing defines the type,
// or if its controller is unknown.
type acting struct {
	digest string
	behind *behaviour.Identity
}

// alike are clusters in which the same acts on a type; behind is nil if nothing is declared.
type alike struct {
	behind   *behaviour.Identity
	clusters []string
}

// compare returns the notes on an object in the clusters that it goes to: "Kind.group: with
// the same type …".
func (x *actors) compare(p placed, in []*desired.Unit) []string {
	if len(in) < 2 {
		return nil
	}
	var types show.Groups[string, *alike] // by digest
	for _, c := range in {
		a := x.of(c, p.gvk)
		if a.digest == "" {
			continue
		}
		i := slices.IndexFunc(types.Of(a.digest), func(g *alike) bool {
			return g.behind == nil && a.behind == nil || g.behind != nil && a.behind != nil && g.behind.Digest() == a.behind.Digest()
		})
		if i < 0 {
			i = len(types.Of(a.digest))
			types.Add(a.digest, &alike{behind: a.behind})
		}
		same := types.Of(a.digest)[i]
		same.clusters = append(same.clusters, c.Name)
	}
	var texts []string
	for _, groups := range types.All() {
		if len(groups) < 2 {
			continue
		}
		first, from := groups[0], prose.Some(groups[0].clusters, promotedClusters)
		var others []string
		for _, g := range groups[1:] {
			there := prose.Some(g.clusters, promotedClusters)
			switch {
			case g.behind == nil:
				others = append(others, fmt.Sprintf("%s declares none, %s has %s", there, from, first.behind))
			case first.behind == nil:
				others = append(others, fmt.Sprintf("%s declares none, %s has %s", from, there, g.behind))
			default:
				others = append(others, fmt.Sprintf("%s differs from %s in %s", there, from, behaviour.Summary(behaviour.Differences(first.behind, g.behind), promotedParts)))
			}
		}
		shown, more := others, ""
		if n := len(others) - promotedParts; n > 0 {
			shown, more = others[:promotedParts], fmt.Sprintf("; and %d more", n)
		}
		texts = append(texts, fmt.Sprintf("%s.%s: with the same type and different controllers: %s%s; to refuse it where the controller differs, pin it with `gitopsd types pin --behaviour --cluster NAME`",
			p.gvk.Kind, p.gvk.Group, strings.Join(shown, "; "), more))
	}
	return texts
}

func (x *actors) of(c *desired.Unit, gvk schema.GroupVersionKind) acting {
	key := actorKey{c.Name, gvk}
	a, ok := x.known[key]
	if ok {
		return a
	}
	if definition := c.Definition(gvk); definition != nil {
		// Other commands report errors.
		if behind, err := c.Behaviour(definition); err == nil {
			a.behind = behind
			a.digest, _ = digestIn(definition.Tree(), gvk)
		}
	}
	x.known[key] = a
	return a
}
