// Package placement decides which KubernetesTarget an application runs on. It is pure, and
// the order of its arguments does not matter.
//
// An application is placed once. Its placement is an argument of the next decision and
// stays, even if the target's labels no longer match or the target is gone. Only a
// person moves an application, by naming a target or by asking for another placement.
// An application is only placed on a target of its own namespace: a decision is about the
// applications and the targets of one namespace.
package placement

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
)

// Target is a KubernetesTarget of the namespace.
type Target struct {
	Name   string
	Labels map[string]string
	// Unready is the reason why nothing new may be placed on it; empty if it is ready.
	Unready string
	// Silent is the application that its cluster did not answer lately, although it is ready;
	// empty if there is none. It is chosen only if there is no other.
	Silent string
}

// Application is a KubernetesApplication of the namespace.
type Application struct {
	Name string
	// Ref is the target that the application names; may be empty. It takes precedence
	// over everything else.
	Ref string
	// Selector selects the targets to choose from; nil selects none.
	Selector labels.Selector
	// Placed is the target that the application is placed on; empty for none.
	Placed string
	// Moves reports whether the application is to leave Placed for another target.
	Moves bool
}

// Decision is where an application runs.
type Decision struct {
	// Target is the name of the target; empty if there is none yet. It may not exist or
	// not be ready if the application is placed there already or names it.
	Target string
	// Why is one line for people: why this target was chosen, or why there is none.
	Why string
	// New reports whether Target differs from the application's Placed.
	New bool
	// Stuck reports whether the application could not move; Why has the reason.
	Stuck bool
}

// Decide returns the decision for each application of a namespace, by name. Of the ready
// targets that an application's selector selects, it takes the one with the fewest
// applications of the namespace, if possible one whose cluster answers. A hash of the two
// names breaks ties, so that a preview and the daemon choose alike.
func Decide(namespace string, applications []Application, targets []Target) map[string]Decision {
	targets = slices.Clone(targets)
	slices.SortFunc(targets, func(a, b Target) int { return strings.Compare(a.Name, b.Name) })
	load := make(map[string]int)
	decisions := make(map[string]Decision, len(applications))
	var open []Application
	for _, a := range applications {
		switch {
		case a.Ref != "":
			decisions[a.Name] = Decision{Target: a.Ref, Why: "it asks for this target", New: a.Ref != a.Placed}
			load[a.Ref]++
		case a.Placed != "" && !a.Moves:
			decisions[a.Name] = Decision{Target: a.Placed, Why: "it was placed there"}
			load[a.Placed]++
		default:
			open = append(open, a)
		}
	}
	slices.SortFunc(open, func(a, b Application) int { return strings.Compare(a.Name, b.Name) })
	for _, a := range open {
		d := choose(namespace, a, targets, load)
		decisions[a.Name] = d
		if d.Target != "" {
			load[d.Target]++
		}
	}
	return decisions
}

// choose places one application.
func choose(namespace string, a Application, targets []Target, load map[string]int) Decision {
	var selected, ready []Target
	for _, t := range targets {
		if a.Selector == nil || !a.Selector.Matches(labels.Set(t.Labels)) || a.Moves && t.Name == a.Placed {
			continue
		}
		selected = append(selected, t)
		if t.Unready == "" {
			ready = append(ready, t)
		}
	}
	if len(ready) == 0 {
		d := Decision{Why: none(namespace, a, targets, selected)}
		if a.Placed != "" {
			d = Decision{Target: a.Placed, Stuck: true, Why: "it stays: " + d.Why}
		}
		return d
	}
	var silent []string
	answering := slices.DeleteFunc(slices.Clone(ready), func(t Target) bool {
		if t.Silent != "" {
			silent = append(silent, fmt.Sprintf("%s, whose cluster did not answer application %s", t.Name, t.Silent))
		}
		return t.Silent != ""
	})
	leftOut := ""
	if len(answering) > 0 && len(silent) > 0 {
		ready, leftOut = answering, "; left out: "+strings.Join(silent, ", and ")
	}
	best := slices.MinFunc(ready, func(x, y Target) int {
		return cmp.Or(cmp.Compare(load[x.Name], load[y.Name]), cmp.Compare(weight(namespace, a.Name, x.Name), weight(namespace, a.Name, y.Name)), strings.Compare(x.Name, y.Name))
	})
	why := "the only ready target that its selector selects"
	if len(ready) > 1 {
		why = fmt.Sprintf("chosen from %s: %s", names(ready), evenly(load[best.Name]))
	}
	return Decision{Target: best.Name, Why: why + leftOut, New: true}
}

func evenly(n int) string {
	switch n {
	case 0:
		return "no application is placed there yet"
	case 1:
		return "one application is placed there, and no fewer on another"
	}
	return fmt.Sprintf("%d applications are placed there, and no fewer on another", n)
}

// none returns the reason why an application has no target.
func none(namespace string, a Application, targets, selected []Target) string {
	switch {
	case a.Selector == nil:
		return "it names no target: set spec.targetSelector ({} selects any target of the namespace) or spec.targetRef"
	case len(selected) > 0:
		reasons := make([]string, len(selected))
		for i, t := range selected {
			reasons[i] = t.Name + ": " + t.Unready
		}
		return "no target that its selector selects is ready: " + strings.Join(reasons, "; ")
	case a.Moves && a.Placed != "":
		return "its selector selects no other target"
	case len(targets) == 0:
		return fmt.Sprintf("namespace %s has no KubernetesTarget", namespace)
	}
	return fmt.Sprintf("its selector (%s) selects none of the targets of namespace %s: %s", a.Selector, namespace, names(targets))
}

func names(targets []Target) string {
	list := make([]string, len(targets))
	for i, t := range targets {
		list[i] = t.Name
	}
	return strings.Join(list, ", ")
}

// weight orders targets with equal load, differently for each application.
func weight(namespace, application, target string) uint64 {
	sum := sha256.Sum256([]byte(namespace + "\x00" + application + "\x00" + target))
	return binary.BigEndian.Uint64(sum[:])
}
