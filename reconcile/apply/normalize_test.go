package apply_test

import (
	"strings"
	"testing"
)

// Two objects of a cluster-wide kind that only differ in their namespaces are refused. The
// live one stays, and the others are applied.
func TestStrayNamespaces(t *testing.T) {
	b := newBed(t)
	space := strings.Split(everything, "---")[0]
	role := func(namespace string) string {
		return "\n---\n{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: $NAME" + namespace + "}, rules: []}"
	}
	a, other := role(", namespace: a"), role(", namespace: b")
	b.applied(b.set(space + a))
	const refused = "refused clusterrole.rbac.authorization.k8s.io/$NAME it is defined 2 times: by test.yaml:7 and by test.yaml:9; keep one definition, as its kind is cluster-wide, and namespaces do not tell objects apart"
	for _, want := range [][]string{{"create configmap/$NAME/fine", refused}, {refused}} {
		steps, results := b.apply(b.set(space + a + other + "\n---\n" + cm("fine")))
		b.want("steps", steps, want...)
		b.wantNothing("results", results)
		b.restart()
	}
	if b.get(role("")) == nil || b.get(cm("fine")) == nil {
		t.Error("the ClusterRole or the ConfigMap is missing")
	}
	b.applied(b.set(space + other))
}
