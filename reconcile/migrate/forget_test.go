package migrate

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/conversion/stash"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/testscripts/await"
)

// keep creates an object with that text in the annotation of conversions; empty for none.
func (b *bench) keep(name, text string) {
	b.Helper()
	object := map[string]any{"apiVersion": b.group + "/v1", "kind": "Widget", "metadata": map[string]any{"name": name}, "spec": map[string]any{"size": 1}}
	if text != "" {
		object["metadata"].(map[string]any)["annotations"] = map[string]any{manifest.ConversionStashAnnotation: text, "other": "stays"}
	}
	body, err := json.Marshal(object)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := b.cluster.Create(b.Context(), b.widgets(), b.widgets().ID("default", name), body); err != nil {
		b.Fatal(err)
	}
}

// kept returns what the objects have in the annotation, in the order of their names.
func (b *bench) kept() (all []string) {
	b.Helper()
	objects := make(map[string]string)
	err := b.cluster.ListFull(b.Context(), b.widgets(), kube.ListOptions{}, func(tree map[string]any) bool {
		annotations := manifest.Mapping(tree, "metadata", "annotations")
		text, _ := annotations[manifest.ConversionStashAnnotation].(string)
		if objects[manifest.Text(tree, "metadata", "name")] = text; len(annotations) > 0 && annotations["other"] != "stays" {
			b.Errorf("%v lost an annotation of its own", manifest.Text(tree, "metadata", "name"))
		}
		return true
	})
	if err != nil {
		b.Fatal(err)
	}
	for name, text := range objects {
		all = append(all, name+" "+text)
	}
	slices.Sort(all)
	return all
}

// What conversions kept for a version that the CRD has no more is taken off, when somebody
// asks for it, and nothing else: neither what a version needs that there is, nor what no
// conversion wrote.
func TestForget(t *testing.T) {
	t.Parallel()
	b := shared(t, "forget.example")
	const both = `{"v1":[{"path":"spec.b","value":12345678901234567890.10}],"v1beta1":[{"path":"spec.a","value":1}]}`
	b.keep("a", `{"v1beta1":[{"path":"spec.a","value":"secret"}]}`)
	b.keep("b", both)
	b.keep("c", "garbage v1beta1")
	b.keep("d", `{"v1alpha1":[{"path":"spec.a","value":1}]}`)
	b.keep("e", "")
	before := b.kept()
	m := b.migrator(nil)

	f, err := m.Forget(t.Context(), b.crd(), "v1beta1", false)
	if want := (Forgotten{Name: b.crd(), Version: "v1beta1", Objects: 2}); err != nil || fmt.Sprint(f) != fmt.Sprint(want) {
		t.Errorf("%+v, %v", f, err)
	}
	for _, version := range []string{"v1", "v1alpha1"} {
		f, err := m.Forget(t.Context(), b.crd(), version, true)
		if err == nil || !strings.Contains(err.Error(), "it has version "+version+", which needs what its objects keep for it") || f.Done > 0 {
			t.Errorf("%s: %+v, %v", version, f, err)
		}
	}
	if _, err := m.Forget(t.Context(), "gadgets.forget.example", "v1beta1", true); kube.ClassOf(err) != kube.NotFound {
		t.Error(err)
	}
	if after := b.kept(); !slices.Equal(after, before) {
		t.Fatalf("nothing was to change; have\n%q\nwant\n%q", after, before)
	}

	// An object that a policy refuses is named, and the others are done.
	b.refuse("a")
	f, err = m.Forget(t.Context(), b.crd(), "v1beta1", true)
	if err != nil || f.Objects != 2 || f.Done != 1 || len(f.Failures) != 1 || !strings.Contains(f.Failures[0].Reason, "it is not to be touched") || strings.Contains(f.Failures[0].Reason, "secret") {
		t.Errorf("%+v, %v", f, err)
	}
	b.remove(manifest.ValidatingPolicyBinding, "forget.example")
	a := b.widgets().ID("default", "a")
	await.True(b, "the policy is gone", func() bool { return b.cluster.Rewrite(t.Context(), b.widgets(), a) == nil })
	f, err = m.Forget(t.Context(), b.crd(), "v1beta1", true)
	if err != nil || f.Objects != 1 || f.Done != 1 || len(f.Failures) > 0 {
		t.Errorf("%+v, %v", f, err)
	}
	left, _ := stash.Without(both, "v1beta1")
	want := []string{"a ", "b " + left, "c garbage v1beta1", before[3], "e "}
	if after := b.kept(); !slices.Equal(after, want) {
		t.Errorf("have\n%q\nwant\n%q", after, want)
	}
	if f, err := m.Forget(t.Context(), b.crd(), "v1beta1", true); err != nil || f.Objects != 0 {
		t.Errorf("again: %+v, %v", f, err)
	}
}
