package applications

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/unit"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/sources/clusters"
)

// A plan says where the applications of a repository will be placed, next to those that
// people have made.
func TestPreview(t *testing.T) {
	tm := newTeam(t)
	tm.target("one", "other")
	// Nobody can be placed where there is no connection, whatever its condition says.
	tm.target("cut", "other")
	tm.remove(tm.home, manifest.Secret, tm.name, "cut")
	tm.app("theirs", "targetRef: {name: one}", "")
	tm.is("theirs", "Submitted", "one", "")
	// What leaves the repository is no target any more.
	tm.target("old", "other")
	// A person's application waits for a target that the repository has now.
	tm.app("waits", "targetSelector: {matchLabels: {wanted: 'true'}}", "")
	tm.app("waits-for-another", "targetSelector: {matchLabels: {wanted: never}}", "")
	tm.is("waits", "Pending", "", "")
	docs := manifesttest.Documents(t, strings.ReplaceAll(`
apiVersion: workload.crossplane.io/v1alpha1
kind: KubernetesTarget
metadata: {name: new, namespace: $TEAM, labels: {all: "true", wanted: "true"}}
---
apiVersion: workload.crossplane.io/v1alpha2
kind: KubernetesApplication
metadata: {name: web, namespace: $TEAM}
spec: {targetSelector: {matchLabels: {all: "true"}}, resourceTemplates: [{metadata: {name: a}, spec: {template: {kind: X}}}]}
---
apiVersion: workload.crossplane.io/v1alpha2
kind: KubernetesApplication
metadata: {name: lost, namespace: $TEAM}
spec: {targetSelector: {matchLabels: {all: "none"}}, resourceTemplates: [{metadata: {name: a}, spec: {template: {kind: X}}}]}
---
apiVersion: workload.crossplane.io/v1alpha2
kind: KubernetesApplication
metadata: {name: theirs, namespace: $TEAM, annotations: {gitopsd.dev/reschedule: now}}
spec: {targetSelector: {}, resourceTemplates: [{metadata: {name: a}, spec: {template: {kind: X}}}]}
---
apiVersion: workload.crossplane.io/v1alpha1
kind: KubernetesTarget
metadata: {name: nowhere, namespace: $TEAM}
spec: {clusterRef: {name: nosuchcluster}}
---
apiVersion: workload.crossplane.io/v1alpha1
kind: KubernetesTarget
metadata: {name: unpublished, namespace: $TEAM}
spec: {clusterRef: {name: prod}}
---
apiVersion: workload.crossplane.io/v1alpha1
kind: KubernetesTarget
metadata: {name: stage, namespace: $TEAM}
spec: {clusterRef: {name: stage}}
---
apiVersion: workload.crossplane.io/v1alpha2
kind: KubernetesApplication
metadata: {name: named, namespace: $TEAM}
spec: {targetRef: {name: stage}, resourceTemplates: [{metadata: {name: a}, spec: {template: {kind: X}}}]}
---
apiVersion: workload.crossplane.io/v1alpha2
kind: KubernetesApplication
metadata: {name: named-cut, namespace: $TEAM}
spec: {targetRef: {name: cut}, resourceTemplates: [{metadata: {name: a}, spec: {template: {kind: X}}}]}
---
apiVersion: workload.crossplane.io/v1alpha2
kind: KubernetesApplication
metadata: {name: named-nowhere, namespace: $TEAM}
spec: {targetRef: {name: nowhere}, resourceTemplates: [{metadata: {name: a}, spec: {template: {kind: X}}}]}
---
apiVersion: workload.crossplane.io/v1alpha2
kind: KubernetesApplication
metadata: {name: named-unpublished, namespace: $TEAM}
spec: {targetRef: {name: unpublished}, resourceTemplates: [{metadata: {name: a}, spec: {template: {kind: X}}}]}
---
apiVersion: workload.crossplane.io/v1alpha2
kind: KubernetesApplication
metadata: {name: typo, namespace: $TEAM}
spec: {targetRef: {name: pord}, resourceTemplates: [{metadata: {name: a}, spec: {template: {kind: X}}}]}
`, "$TEAM", tm.name))
	var objects []*manifest.Object
	for _, d := range docs {
		o, err := manifest.New(d.Tree, manifest.Origin{File: "apps.yaml", Line: d.Line})
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, o)
	}
	set, _ := manifest.NewSet(objects)
	hub := &desired.Unit{Cluster: clusters.Cluster{Name: "hub"}, Beside: []clusters.Cluster{{Name: "hub"}, {Name: "prod"},
		{Name: "stage", Spec: clusters.Spec{Publish: []clusters.Publication{{Cluster: "hub", Namespace: tm.name}}}}}}
	old := manifest.Target.ID(tm.name, "old")
	r := unit.Request{Unit: hub, Objects: set, Client: tm.home, Preview: true, Owns: func(id manifest.ID, meta *metav1.ObjectMeta) bool {
		return id == old && meta.Name == "old"
	}}
	done, err := Preview{}.Complete(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"application " + tm.name + "/lost: its selector (all=none) selects none of the targets of namespace " + tm.name + ": cut, new, nowhere, one, stage, unpublished",
		"application " + tm.name + "/named will be placed on target stage: it asks for this target",
		"application " + tm.name + "/named-cut names target cut, which is not ready: its connection Secret cut is missing",
		"application " + tm.name + "/named-nowhere names target nowhere, which is not ready: cluster nosuchcluster is not registered in clusters.yaml",
		"application " + tm.name + "/named-unpublished names target unpublished, which is not ready: cluster prod is not published to this namespace",
		"application " + tm.name + "/theirs moves from target one to new: chosen from new, stage: no application is placed there yet",
		"application " + tm.name + "/typo names target pord, which does not exist",
		"application " + tm.name + "/waits will be placed on target new: the only ready target that its selector selects",
		"application " + tm.name + "/web will be placed on target one: chosen from new, one: no application is placed there yet",
	}
	if !slices.Equal(done.Notes, want) {
		t.Errorf("notes:\n%s\nwant:\n%s", strings.Join(done.Notes, "\n"), strings.Join(want, "\n"))
	}
	// The repository may have targets alone.
	r.Objects, _ = manifest.NewSet(slices.DeleteFunc(slices.Clone(objects), func(o *manifest.Object) bool { return o.ID().Is(manifest.Application) }))
	if done, err = (Preview{}).Complete(t.Context(), r); err != nil || !slices.Equal(done.Notes, want[7:8]) {
		t.Errorf("notes: %v, %v", done.Notes, err)
	}
	r.Objects = set
	r.Preview = false
	if done, err = (Preview{}).Complete(t.Context(), r); err != nil || done.Notes != nil || done.Relied == nil || len(done.Objects) > 0 {
		t.Errorf("outside of a plan it completes %+v: %v", done, err)
	}
}
