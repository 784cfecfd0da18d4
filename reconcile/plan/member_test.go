package plan_test

import (
	"testing"

	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
)

// An object is as applied only if nothing in it, its record or its managers is somebody's.
func TestAsApplied(t *testing.T) {
	const fields = "apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, rules: [{apiGroups: [''], resources: [pods], verbs: [get]}]"
	record := inventory.Applied(manifesttest.Object(t, "{"+fields+", metadata: {name: x, labels: {app: x}}}"))
	rules := []any{map[string]any{"apiGroups": []any{"*"}, "resources": []any{"*"}, "verbs": []any{"*"}}}
	for _, tt := range []struct {
		name string
		to   any
		path []string // nil changes nothing
		want bool
	}{
		{"as applied", nil, nil, true},
		{"edited", rules, []string{"rules"}, false},
		{"removed", nil, []string{"rules"}, false},
		{"another label", "x", []string{"metadata", "labels", "x"}, false},
		{"no record", nil, []string{"metadata", "annotations", manifest.AppliedAnnotation}, false},
		{"a garbled record", "x" + record, []string{"metadata", "annotations", manifest.AppliedAnnotation}, false},
		{"somebody wrote to it", []any{map[string]any{"manager": "gitopsd", "operation": "Apply"}, map[string]any{"manager": "kubectl-edit", "operation": "Update"}}, []string{"metadata", "managedFields"}, false},
		{"an update in gitopsd's name", []any{map[string]any{"manager": "gitopsd", "operation": "Update"}}, []string{"metadata", "managedFields"}, false},
		{"adopted, and edited", map[string]any{manifest.AppliedAnnotation: record, manifest.AdoptedAnnotation: "true", "x": "y"}, []string{"metadata", "annotations"}, false},
		{"adopted", map[string]any{manifest.AppliedAnnotation: record, manifest.AdoptedAnnotation: "true"}, []string{"metadata", "annotations"}, true},
		{"no managers", nil, []string{"metadata", "managedFields"}, false},
		{"being deleted", "2026-01-02T03:04:05Z", []string{"metadata", "deletionTimestamp"}, false},
	} {
		live := manifesttest.Tree(t, "{"+fields+", metadata: {name: x, uid: u, resourceVersion: '7', creationTimestamp: '2026-01-02T03:04:05Z', labels: {app: x, "+plan.PartOfLabel+": "+inventory.ID+"}, annotations: {"+manifest.AppliedAnnotation+": '"+record+"'}, managedFields: [{manager: gitopsd, operation: Apply}]}}")
		switch {
		case tt.path == nil:
		case tt.to == nil:
			live = manifest.Without(live, tt.path...)
		default:
			live = manifest.With(live, tt.to, tt.path...)
		}
		if have := plan.AsApplied(live, inventory.FieldManager); have != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, have, tt.want)
		}
	}
}
