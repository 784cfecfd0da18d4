package apply

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/sources"
)

var (
	wanted = sources.DigestOf([]byte("wanted"))
	other  = sources.DigestOf([]byte("other"))
)

// Crossplane's conditions decide whether a package is healthy.
func TestPackageHealth(t *testing.T) {
	t.Parallel()
	pkg := "r.example.org/p:v1@" + string(wanted)
	const yes = "{type: Installed, status: 'True'}, {type: Healthy, status: 'True'}"
	current := "currentRevision: p-1, currentIdentifier: '" + pkg + "'"
	for _, tt := range []struct {
		name, status string
		state        State
		reason       string
	}{
		{"new", "", InProgress, "Crossplane has not looked at it yet"},
		{"not unpacked", "conditions: [{type: Installed, status: 'False', reason: UnpackingPackage, message: cannot pull}]", InProgress, "it is not installed: cannot pull"},
		{"the one before", "currentIdentifier: 'r.example.org/p:v0', conditions: [" + yes + "]", InProgress, "Crossplane has r.example.org/p:v0, and is to install " + pkg},
		{"rewritten", current + ", resolvedPackage: 'mirror.example.org/p@" + string(wanted) + "', conditions: [" + yes + "]", "Current", ""},
		{"another", current + ", resolvedPackage: 'mirror.example.org/p@" + string(other) + "', conditions: [" + yes + "]", FailedState, "Crossplane resolved mirror.example.org/p@" + string(other) + ", and clusters.lock has " + string(wanted)},
		{"a tag", current + ", resolvedPackage: 'mirror.example.org/p:v1', conditions: [" + yes + "]", FailedState, "Crossplane resolved mirror.example.org/p:v1, and clusters.lock has " + string(wanted)},
		{"inactive", current + ", conditions: [{type: Installed, status: 'False', reason: InactivePackageRevision}, {type: Healthy, status: 'True'}]", InProgress, "its revision p-1 waits to be activated (revisionActivationPolicy: Manual)"},
		{"unhealthy", current + ", conditions: [{type: Installed, status: 'True'}, {type: Healthy, status: 'False', reason: UnhealthyPackageRevision, message: no pods}]", InProgress, "it is not healthy: no pods"},
		{"health unknown", current + ", conditions: [{type: Installed, status: 'True'}]", InProgress, "it is not healthy: Crossplane has not said anything yet"},
		{"seen before the change", current + ", conditions: [{type: Installed, status: 'True'}, {type: Healthy, status: 'True', observedGeneration: 1}]", InProgress, "it is not healthy: Crossplane has not said anything yet"},
		{"well", current + ", conditions: [" + yes + "]", "Current", ""},
	} {
		u := &unstructured.Unstructured{Object: manifesttest.Tree(t, "{apiVersion: pkg.crossplane.io/v1, kind: Provider, metadata: {name: p, generation: 2}, spec: {package: '"+pkg+"'}, status: {"+tt.status+"}}")}
		if state, reason := packageHealth(u); state != tt.state || reason != tt.reason {
			t.Errorf("%s: %s %q, want %s %q", tt.name, state, reason, tt.state, tt.reason)
		}
	}
}

func TestRevisionHealth(t *testing.T) {
	t.Parallel()
	revision := func(spec, status string) map[string]any {
		return manifesttest.Tree(t, "{metadata: {name: p-1}, spec: {"+spec+"}, status: {"+status+"}}")
	}
	image := "desiredState: Active, image: 'r.example.org/p:v1@" + string(wanted) + "'"
	for _, tt := range []struct {
		name     string
		revision map[string]any
		state    State
		reason   string
	}{
		{"none", nil, InProgress, "its revision is not there"},
		{"another", revision("desiredState: Active, image: 'r.example.org/p:v1@"+string(other)+"'", ""), FailedState, "its revision p-1 is of r.example.org/p:v1@" + string(other)},
		{"resolved to another", revision(image, "resolvedImage: 'm.example.org/p@"+string(other)+"'"), FailedState, "its revision p-1 is of m.example.org/p@" + string(other)},
		{"inactive", revision(strings.Replace(image, "Active", "Inactive", 1), ""), InProgress, "its revision p-1 is Inactive"},
		{"well", revision(image, "resolvedImage: 'm.example.org/p@"+string(wanted)+"'"), "Current", ""},
	} {
		if state, reason := revisionHealth(tt.revision, wanted); state != tt.state || !strings.HasPrefix(reason, tt.reason) {
			t.Errorf("%s: %s %q, want %s %q", tt.name, state, reason, tt.state, tt.reason)
		}
	}
}

func TestDefinitionHealth(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		spec, status string
		state        State
		reason       string
	}{
		{"", "", InProgress, "its types are not served: Established: Crossplane has not said anything yet"},
		{"", "conditions: [{type: Established, status: 'False', reason: Terminating}]", InProgress, "its types are not served: Established: Terminating"},
		{"", "conditions: [{type: Established, status: 'True'}]", "Current", ""},
		{"claimNames: {kind: C}", "conditions: [{type: Established, status: 'True'}]", InProgress, "its types are not served: Offered: Crossplane has not said anything yet"},
		{"claimNames: {kind: C}", "conditions: [{type: Established, status: 'True'}, {type: Offered, status: 'True'}]", "Current", ""},
	} {
		u := &unstructured.Unstructured{Object: manifesttest.Tree(t, "{apiVersion: apiextensions.crossplane.io/v1, kind: CompositeResourceDefinition, metadata: {name: x}, spec: {"+tt.spec+"}, status: {"+tt.status+"}}")}
		if state, reason := definitionHealth(u); state != tt.state || reason != tt.reason {
			t.Errorf("%s: %s %q, want %s %q", tt.status, state, reason, tt.state, tt.reason)
		}
	}
}

// The conflict with another installer of a package comes with advice.
func TestInstalledBy(t *testing.T) {
	t.Parallel()
	live := manifest.Provider.ID("", "theirs")
	for _, tt := range []struct {
		steps     []plan.Step
		delegated bool
		inside    string
		action    plan.Action
		want      string
	}{
		{nil, false, "", plan.Conflict, "and each would overwrite what the other writes; set spec.packages: delegate on the Cluster and declare the package under the name theirs, annotated with gitopsd.dev/adopt: \"true\", to take it over, or delete it: it has no objects"},
		{nil, false, "2 objects (2 Bucket)", plan.Conflict, "to take it over; do not delete it: 2 objects (2 Bucket) would be deleted with it; docs/crossplane.md says"},
		{nil, true, "", plan.Conflict, "and each would overwrite what the other writes; declare the package under the name theirs, annotated"},
		{[]plan.Step{{ID: live, Action: plan.Prune}}, false, "", plan.Wait, "Crossplane's provider.pkg.crossplane.io/theirs installs the same package in this cluster; it has to be gone first"},
	} {
		if action, have := installedBy(&plan.Plan{Steps: tt.steps}, live, tt.delegated, tt.inside); action != tt.action || !strings.Contains(have, tt.want) {
			t.Errorf("have %s %s\nwant %s %s", action, have, tt.action, tt.want)
		}
	}
}
