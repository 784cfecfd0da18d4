package verify

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/manifest"
)

// Actors are the workloads of a cluster that may write types by the rights of their
// ServiceAccounts, beside the declared controllers.
type Actors struct {
	// Second are the workloads that the repository does not know, by definition.
	Second map[manifest.ID][]Actor
	// Known are the workloads that the repository declares or the Cluster names, with
	// the number of types that they may write.
	Known map[string]int
	// Everything are the workloads that may write all types of all groups, with the
	// namespace if the right is limited to one. Second and Known leave that right out.
	Everything []string
	// Idle are the ServiceAccounts that the Cluster names and no workload uses.
	Idle []string
}

// Actor is a workload that may write a type.
type Actor struct {
	// What is the workload and its account in words: "Deployment a/b as
	// ServiceAccount a/c".
	What string
	// By are the bindings that grant it: "ClusterRoleBinding d".
	By string
}

// actors reports undeclared workloads that may write a type.
func (c *comparison) actors(id manifest.ID) {
	found := newPartition()
	for i := range c.clusters {
		cl := &c.clusters[i]
		if cl.Actors == nil || cl.Unread {
			continue
		}
		for _, a := range cl.Actors.Second[id] {
			found.add(a.What, cl.Name, a.What, in(cl.Name, []string{"by " + a.By}))
		}
	}
	for _, s := range found.ordered() {
		c.report(SecondActor, id, []*side{s})
	}
}

// mostNoted is how many workloads a note names.
const mostNoted = 4

// actorNotes returns notes on workloads that have no finding.
func (c *comparison) actorNotes() []string {
	said := make(map[string][]string) // clusters by note
	for i := range c.clusters {
		cl := &c.clusters[i]
		if cl.Actors == nil || cl.Unread {
			continue
		}
		say := func(format string, args ...any) {
			note := fmt.Sprintf(format, args...)
			said[note] = append(said[note], cl.Name)
		}
		if all := cl.Actors.Everything; len(all) > 0 {
			say("left out of second actors: %s (%s)", prose.Agree(len(all), "workload that may write everything", "workloads that may write everything"), prose.Some(all, mostNoted))
		}
		if len(cl.Actors.Known) > 0 {
			var names []string
			for _, name := range slices.Sorted(maps.Keys(cl.Actors.Known)) {
				names = append(names, fmt.Sprintf("%s (%s)", name, prose.Count(cl.Actors.Known[name], "type")))
			}
			say("known to write types beside their controllers: %s", prose.Some(names, mostNoted))
		}
		if idle := cl.Actors.Idle; len(idle) > 0 {
			say("annotation %s names what no workload runs as: %s", manifest.ActorsAnnotation, prose.Some(idle, mostNoted))
		}
	}
	return byCluster(said)
}

// ParseActors reads the value of manifest.ActorsAnnotation.
func ParseActors(text string) ([]string, error) {
	var all []string
	for _, name := range strings.Split(text, ",") {
		name = strings.TrimSpace(name)
		if name == "" {
			continue
		}
		if namespace, account, ok := strings.Cut(name, "/"); !ok || namespace == "" || account == "" || strings.Contains(account, "/") {
			return nil, fmt.Errorf("%q is no ServiceAccount: want <namespace>/<name>, separated by commas", name)
		}
		all = append(all, name)
	}
	return all, nil
}
