package apply

import (
	"testing"
	"time"
)

// SurveyAtMost changes how many objects of a type are looked at during a test, which must
// not be parallel.
func SurveyAtMost(t *testing.T, n int) {
	before := mostSurveyed
	mostSurveyed = n
	t.Cleanup(func() { mostSurveyed = before })
}

// ListNamespaces changes how long the list of namespaces in an inventory may be during a
// test, which must not be parallel.
func ListNamespaces(t *testing.T, n int) {
	before := mostNamespaces
	mostNamespaces = n
	t.Cleanup(func() { mostNamespaces = before })
}

// ForgetDefinitions has the definitions of others read again, as after [definitionAge].
func (a *Applier) ForgetDefinitions() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.healthRead)
	for gk, d := range a.pinned {
		d.read = time.Time{}
		a.pinned[gk] = d
	}
}
