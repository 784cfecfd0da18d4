package plan

import (
	"fmt"
	"slices"
	"strings"

	"gitopsd.dev/reconcile/health"
	"gitopsd.dev/render/manifest"
)

// Gating decides when applied objects are ready, and which of them must be. The zero
// value has no rules but those of package health, and waits for all objects that these
// can judge.
type Gating struct {
	// Rules has rules for the health of kinds; may be nil.
	Rules *health.Custom
	// UnknownUnready: an object that no rule can judge is not ready.
	UnknownUnready bool
	// Gates are the objects of packages that must be ready, by the package's name. All
	// objects of other packages must be ready.
	Gates map[string]Gates
}

// Gates are the objects of a package that must be ready: kinds and objects as
// [manifest.ID.String] prints them.
type Gates []string

// noGates is the value of manifest.GatesAnnotation for a package without such objects.
const noGates = "none"

// ParseGates reads a manifest.GatesAnnotation.
func ParseGates(text string) (Gates, error) {
	gates := Gates{}
	if strings.TrimSpace(text) == noGates {
		return gates, nil
	}
	for name := range strings.SplitSeq(text, ",") {
		name = strings.TrimSpace(name)
		switch {
		case name == "":
			continue
		case name == noGates:
			return nil, fmt.Errorf("%q stands alone: no object of the package is waited for then", noGates)
		case strings.ContainsAny(name, " \t\n*"), strings.Count(name, "/") > 2:
			return nil, fmt.Errorf("%q: want a kind, as in deployment.apps, or an object, as in deployment.apps/gitopsd-system/NAME, separated by commas; or %s", name, noGates)
		}
		gates = append(gates, name)
	}
	if len(gates) == 0 {
		return nil, fmt.Errorf("names nothing: write kinds or objects, or %s", noGates)
	}
	return gates, nil
}

// Has reports whether an object of the package must be ready.
func (g Gates) Has(id manifest.ID) bool {
	text := id.String()
	kind, _, _ := strings.Cut(text, "/")
	return slices.Contains(g, text) || slices.Contains(g, kind)
}

// Idle returns the names that stand for no object of the package.
func (g Gates) Idle(objects []manifest.ID) []string {
	var idle []string
	for _, name := range g {
		if !slices.ContainsFunc(objects, Gates{name}.Has) {
			idle = append(idle, name)
		}
	}
	return idle
}

// Waits reports whether an object of a package, "" for a plain manifest, must be ready.
func (g *Gating) Waits(id manifest.ID, pkg string) bool {
	gates, ok := g.Gates[pkg]
	return !ok || pkg == "" || gates.Has(id)
}

// Key returns a text that differs for two Gatings that may judge an object differently.
func (g *Gating) Key() string {
	return fmt.Sprintf("%t %q %s", g.UnknownUnready, fmt.Sprint(g.Gates), g.Rules.Key())
}
