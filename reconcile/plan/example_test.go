package plan_test

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
)

// A cluster is to have two ConfigMaps: one exists without an owner, the other does
// not exist. A third one is a member of the inventory, and no longer wanted.
func ExampleCompute() {
	object := func(name string) *manifest.Object {
		o, err := manifest.New(map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap",
			"metadata": map[string]any{"name": name, "namespace": "default"},
		}, manifest.Origin{File: "clusters/dev/settings.yaml", Line: 1})
		if err != nil {
			panic(err)
		}
		return o
	}
	ours := plan.Inventory{ID: "applyset-dev-v1", FieldManager: "gitopsd"}
	old := object("old")
	desired, _ := manifest.NewSet([]*manifest.Object{object("colors"), object("sizes")})
	live := plan.Live{Objects: map[manifest.ID]*metav1.ObjectMeta{
		object("colors").ID(): {Name: "colors", Namespace: "default", UID: "1"},
		old.ID(): {
			Name: "old", Namespace: "default", UID: "2",
			Labels:        map[string]string{plan.PartOfLabel: ours.ID},
			Annotations:   map[string]string{manifest.AppliedAnnotation: ours.Applied(old)},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "gitopsd", Operation: metav1.ManagedFieldsOperationApply}},
		},
	}}
	for _, s := range plan.Compute("dev", desired, live, ours, plan.Options{}).Steps {
		fmt.Println(strings.TrimSpace(fmt.Sprint(s.Action, " ", s.ID, " ", s.Reason)))
	}
	// Output:
	// configure configmap/default/colors exists without an owner; adding it to the inventory
	// create configmap/default/sizes
	// prune configmap/default/old
}
