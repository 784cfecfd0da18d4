package apply

import (
	"log/slog"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
)

// An object that a controller writes to while a pass looks at it has not drifted.
// There is no cluster here, so that a request would panic.
func TestWrittenToMeanwhile(t *testing.T) {
	t.Parallel()
	o, err := manifest.New(map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "a", "namespace": "n"}, "data": map[string]any{"k": "v"},
	}, manifest.Origin{})
	if err != nil {
		t.Fatal(err)
	}
	set, duplicates := manifest.NewSet([]*manifest.Object{o})
	if len(duplicates) > 0 {
		t.Fatal(duplicates)
	}
	a := &Applier{set: newApplySet("dev"), log: slog.New(slog.DiscardHandler), kinds: make(map[schema.GroupKind]*kindState), fights: make(map[manifest.ID]*fight)}
	configMaps := kube.Type{Version: "v1", Kind: "ConfigMap", Resource: "configmaps", Namespaced: true}
	seen := func(version string) *metav1.ObjectMeta {
		return &metav1.ObjectMeta{
			Name: "a", Namespace: "n", UID: "1", ResourceVersion: version,
			Labels:      map[string]string{plan.PartOfLabel: a.set.id},
			Annotations: map[string]string{plan.AppliedAnnotation: string(o.Hash())},
			ManagedFields: []metav1.ManagedFieldsEntry{{
				Manager: kube.FieldManager, Operation: metav1.ManagedFieldsOperationApply,
				FieldsV1: metav1.NewFieldsV1(`{"f:data":{"f:k":{}}}`),
			}},
		}
	}
	a.listed(configMaps, map[manifest.ID]*metav1.ObjectMeta{o.ID(): seen("1")}, "1")
	a.state(configMaps).followed = true
	_, print, _ := a.suspect(o.ID())
	a.approve(o.ID(), print)

	v := &view{desired: set}
	v.live.Objects = make(map[manifest.ID]*metav1.ObjectMeta)
	if !a.recall(configMaps, v.live.Objects) {
		t.Fatal("the kind is not followed")
	}
	written := &metav1.PartialObjectMetadata{ObjectMeta: *seen("2")}
	if a.saw(a.state(configMaps), kube.Event{Meta: written}) != atOnce {
		t.Fatal("nobody is to look at what was written")
	}
	if err := a.findDrift(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	if len(v.live.Drifted) > 0 || v.live.Objects[o.ID()].ResourceVersion != "2" {
		t.Errorf("drifted %v; known as of version %s", v.live.Drifted, v.live.Objects[o.ID()].ResourceVersion)
	}
	if meta, _, _ := a.suspect(o.ID()); meta != nil {
		t.Error("it is looked at again")
	}
}
