package apply

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/manifest"
)

// An object that is as it was applied is remembered without its metadata, but for what plans
// read of it.
func TestMemberKeepsWhatPlansRead(t *testing.T) {
	t.Parallel()
	read := []string{
		manifest.AppliedAnnotation, manifest.TypesAnnotation, manifest.HistoryAnnotation, manifest.AllowPruneAnnotation,
		manifest.DependsOnAnnotation, manifest.ConversionAnnotation, manifest.AdoptedAnnotation,
	}
	m := &metav1.ObjectMeta{Name: "widgets.e.org", Labels: map[string]string{manifest.PackageLabel: "widgets"}, Annotations: map[string]string{"theirs": "x"}}
	for _, key := range read {
		m.Annotations[key] = "value of " + key
	}
	remembered := newMember(kube.Type{Group: manifest.CRD.Group, Version: "v1", Kind: manifest.CRD.Kind}, m, nil)
	remembered.approve()
	meta := remembered.meta("set")
	for _, key := range read {
		if meta.Annotations[key] != m.Annotations[key] {
			t.Errorf("%s is %q", key, meta.Annotations[key])
		}
	}
	if meta.Labels[manifest.PackageLabel] != "widgets" || len(meta.Annotations) != len(read) {
		t.Errorf("labels %v, annotations %v", meta.Labels, meta.Annotations)
	}
}
