package plan_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
)

var inventory = plan.Inventory{ID: "applyset-ours-v1", FieldManager: "gitopsd", Namespace: "gitopsd-system"}

// live makes the metadata of objects as they would be when they were applied.
func live(t *testing.T, text string, change func(*metav1.ObjectMeta)) plan.Live {
	t.Helper()
	l := plan.Live{Objects: make(map[manifest.ID]*metav1.ObjectMeta), Namespaced: make(map[schema.GroupVersionKind]bool)}
	for _, o := range manifesttest.Objects(t, text) {
		m := &metav1.ObjectMeta{
			Name: o.ID().Name, Namespace: o.ID().Namespace, UID: types.UID("uid-" + o.ID().Name),
			Labels: o.Labels(), Annotations: o.Annotations(),
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "gitopsd", Operation: metav1.ManagedFieldsOperationApply}},
		}
		m.Labels[plan.PartOfLabel] = inventory.ID
		m.Annotations[manifest.AppliedAnnotation] = inventory.Applied(o)
		if change != nil {
			change(m)
		}
		l.Objects[o.ID()] = m
	}
	return l
}

func steps(p *plan.Plan) string {
	var b strings.Builder
	for _, s := range p.Steps {
		line := fmt.Sprintf("%s %s %s", s.Action, s.ID, s.Reason)
		if s.NotValidated != "" {
			line += "(" + s.NotValidated + ")"
		}
		b.WriteString(strings.TrimSpace(line) + "\n")
	}
	return b.String()
}

const cm = "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: ns}, data: {x: '1'}}\n---\n"

func TestCompute(t *testing.T) {
	t.Parallel()
	crd := `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: ws.e.org},
spec: {group: e.org, scope: Namespaced, names: {kind: W, plural: ws}, versions: [{name: v1, served: true}, {name: v0, served: false}]}}
---
`
	xrd := `{apiVersion: apiextensions.crossplane.io/v1, kind: CompositeResourceDefinition, metadata: {name: xs.e.org},
spec: {group: e.org, names: {kind: X, plural: xs}, claimNames: {kind: Yy}, versions: [{name: v1, served: true}]}}
---
`
	automatic := "{apiVersion: workload.crossplane.io/v1alpha1, kind: KubernetesTarget, metadata: {name: t, namespace: ns, labels: {workload.crossplane.io/autotarget: 'true'}}}"
	unserved := func(kinds ...string) func(*plan.Live) {
		return func(l *plan.Live) {
			l.Unserved = make(map[schema.GroupVersionKind]string)
			for _, k := range kinds {
				l.Unserved[schema.GroupVersionKind{Group: "e.org", Version: k[:2], Kind: k[3:]}] = "the cluster serves no kind " + k[3:]
			}
		}
	}
	meta := func(change func(*metav1.ObjectMeta)) func(*plan.Live) {
		return func(l *plan.Live) {
			for _, m := range l.Objects {
				change(m)
			}
		}
	}
	for _, tt := range []struct {
		name          string
		desired, live string
		change        func(*plan.Live)
		want          string
	}{
		{name: "new", desired: cm, want: "create configmap/ns/a\n"},
		{name: "unchanged", desired: cm, live: cm, want: "unchanged configmap/ns/a\n"},
		{name: "changed", desired: cm, live: strings.Replace(cm, "'1'", "'2'", 1), want: "configure configmap/ns/a changed in the repository\n"},
		{name: "gone", live: cm + "{apiVersion: v1, kind: ConfigMap, metadata: {name: b, namespace: ns}}", desired: cm, want: "unchanged configmap/ns/a\nprune configmap/ns/b\n"},
		{
			name: "drift", desired: cm, live: cm, want: "configure configmap/ns/a drift: data.x changed by kubectl-edit\n",
			change: func(l *plan.Live) {
				l.Drifted = map[manifest.ID]string{{Kind: "ConfigMap", Namespace: "ns", Name: "a"}: "data.x changed by kubectl-edit"}
			},
		},
		{
			name: "going", desired: cm, live: cm, want: "wait configmap/ns/a it is being deleted, held by finalizer f; it is created again when it is gone\n",
			change: meta(func(m *metav1.ObjectMeta) {
				m.DeletionTimestamp, m.Finalizers = &metav1.Time{Time: time.Now()}, []string{"f"}
			}),
		},
		{
			name: "unwanted and going", desired: crd, live: cm, want: "create customresourcedefinition.apiextensions.k8s.io/ws.e.org\nwait configmap/ns/a it is being deleted\n",
			change: meta(func(m *metav1.ObjectMeta) { m.DeletionTimestamp = &metav1.Time{Time: time.Now()} }),
		},
		{
			name: "somebody else's", desired: cm, live: cm, want: "conflict configmap/ns/a it is managed by helm; annotate it with gitopsd.dev/adopt: \"true\" to take it over, or the Cluster with gitopsd.dev/adopt: helm for all that is\n",
			change: meta(func(m *metav1.ObjectMeta) { m.Labels, m.ManagedFields[0].Manager = nil, "helm" }),
		},
		{
			name: "somebody else's, by the name of a published cluster", desired: automatic, live: strings.Replace(automatic, ", labels: {workload.crossplane.io/autotarget: 'true'}", "", 1),
			want:   "held kubernetestarget.workload.crossplane.io/ns/t it is managed by kubectl, and stays: delete it there, or do not publish the cluster to this namespace\n",
			change: meta(func(m *metav1.ObjectMeta) { m.Labels, m.ManagedFields[0].Manager = nil, "kubectl" }),
		},
		{
			name: "another registered cluster's", desired: strings.Replace(cm, "name: a,", "name: a, annotations: {gitopsd.dev/adopt: 'true'},", 1), live: cm,
			want: "conflict configmap/ns/a it is cluster us's, whose inventory configmap/gitopsd-system/inventory-us is in this cluster: do both kubeconfigs lead to the same cluster? Correct spec.kubeconfig or spec.context of one of them; or, if this cluster was restored from a backup of us, delete that inventory here\n",
			change: func(l *plan.Live) {
				meta(func(m *metav1.ObjectMeta) { m.Labels = map[string]string{plan.PartOfLabel: "applyset-us"} })(l)
				l.Beside = map[string]plan.Beside{"applyset-us": {Cluster: "us", Inventory: manifest.ConfigMap.ID("gitopsd-system", "inventory-us")}}
			},
		},
		{
			name: "a former cluster's", desired: cm, live: cm,
			want: "conflict configmap/ns/a it is cluster us's, which left clusters.yaml; if it was renamed to this one, annotate the Cluster with gitopsd.dev/adopt: applyset/applyset-us to take over all that it has\n",
			change: func(l *plan.Live) {
				meta(func(m *metav1.ObjectMeta) { m.Labels = map[string]string{plan.PartOfLabel: "applyset-us"} })(l)
				l.Beside = map[string]plan.Beside{"applyset-us": {Cluster: "us", Left: true}}
			},
		},
		{
			name: "a former cluster's, adopted", desired: strings.Replace(cm, "name: a,", "name: a, annotations: {gitopsd.dev/adopt: 'true'},", 1), live: cm,
			want: "configure configmap/ns/a adopted: until now it was cluster us's, which left clusters.yaml\n",
			change: func(l *plan.Live) {
				meta(func(m *metav1.ObjectMeta) { m.Labels = map[string]string{plan.PartOfLabel: "applyset-us"} })(l)
				l.Beside = map[string]plan.Beside{"applyset-us": {Cluster: "us", Left: true}}
			},
		},
		{
			name: "label lost", desired: cm, live: cm, want: "configure configmap/ns/a drift: somebody removed its label applyset.kubernetes.io/part-of: applyset-ours-v1\n",
			change: meta(func(m *metav1.ObjectMeta) { m.Labels = nil }),
		},
		{
			name: "label lost, and changed", desired: cm, live: strings.Replace(cm, "'1'", "'2'", 1), want: "configure configmap/ns/a changed in the repository\n",
			change: meta(func(m *metav1.ObjectMeta) { m.Labels = nil }),
		},
		{
			name: "label lost by a copy", desired: cm, live: cm, want: "configure configmap/ns/a exists without an owner; adding it to the inventory\n",
			change: meta(func(m *metav1.ObjectMeta) {
				m.Labels, m.Annotations[manifest.AppliedAnnotation] = nil, m.Annotations[manifest.AppliedAnnotation]+"x"
			}),
		},
		{
			name: "released", desired: crd, live: cm, want: "create customresourcedefinition.apiextensions.k8s.io/ws.e.org\n",
			change: meta(func(m *metav1.ObjectMeta) { m.Labels = nil }),
		},
		{
			name: "an inventory that was taken up", desired: cm, live: "{apiVersion: v1, kind: ConfigMap, metadata: {name: inventory-dev, namespace: gitopsd-system}}\n---\n" + cm,
			want: "unchanged configmap/ns/a\n",
		},
		{
			name: "order", want: `create namespace/ns
create customresourcedefinition.apiextensions.k8s.io/ws.e.org
create configmap/ns/a
create clusterrole.rbac.authorization.k8s.io/r
create deployment.apps/ns/d
create validatingwebhookconfiguration.admissionregistration.k8s.io/v
create compositeresourcedefinition.apiextensions.crossplane.io/xs.e.org
create w.e.org/ns/w
`,
			desired: crd + xrd + cm + `{apiVersion: e.org/v1, kind: W, metadata: {name: w, namespace: ns}}
---
{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: v}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: d, namespace: ns}}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: r}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: ns}}
`,
		},
		{
			name: "prune order",
			want: `create configmap/ns/b
prune w.e.org/ns/w
prune deployment.apps/ns/d
prune configmap/ns/a
prune customresourcedefinition.apiextensions.k8s.io/ws.e.org
prune namespace/ns
`,
			desired: strings.Replace(cm, "name: a", "name: b", 1),
			live: crd + cm + `{apiVersion: e.org/v1, kind: W, metadata: {name: w, namespace: ns}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: d, namespace: ns}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: ns}}
`,
		},
		{
			name: "type of the same plan", desired: crd + "{apiVersion: e.org/v1, kind: W, metadata: {name: w, namespace: ns}}", change: unserved("v1/W"),
			want: "create customresourcedefinition.apiextensions.k8s.io/ws.e.org\ncreate w.e.org/ns/w (its type is installed by customresourcedefinition.apiextensions.k8s.io/ws.e.org)\n",
		},
		{
			name: "version that is not served", desired: crd + "{apiVersion: e.org/v0, kind: W, metadata: {name: w, namespace: ns}}", change: unserved("v0/W"),
			want: "create customresourcedefinition.apiextensions.k8s.io/ws.e.org\nrefused w.e.org/ns/w customresourcedefinition.apiextensions.k8s.io/ws.e.org serves W in e.org/v1, not in e.org/v0: write apiVersion: e.org/v1\n",
		},
		{
			name: "another version of ours", desired: crd + "{apiVersion: e.org/v1, kind: W, metadata: {name: w, namespace: ns}}", live: crd + "{apiVersion: e.org/v0, kind: W, metadata: {name: w, namespace: ns}}", change: unserved("v1/W"),
			want: "unchanged customresourcedefinition.apiextensions.k8s.io/ws.e.org\nconfigure w.e.org/ns/w changed in the repository(its changes are not known before v1 is served: its type is installed by customresourcedefinition.apiextensions.k8s.io/ws.e.org)\n",
		},
		{
			name: "another version of somebody else's", desired: crd + "{apiVersion: e.org/v1, kind: W, metadata: {name: w, namespace: ns}}", live: "{apiVersion: e.org/v0, kind: W, metadata: {name: w, namespace: ns}}",
			change: func(l *plan.Live) {
				unserved("v1/W")(l)
				meta(func(m *metav1.ObjectMeta) { m.Labels, m.ManagedFields[0].Manager = nil, "helm" })(l)
			},
			want: "create customresourcedefinition.apiextensions.k8s.io/ws.e.org\nconflict w.e.org/ns/w it is managed by helm; annotate it with gitopsd.dev/adopt: \"true\" to take it over, or the Cluster with gitopsd.dev/adopt: helm for all that is\n",
		},
		{
			name: "another version of somebody else's, in one that does not come", desired: crd + "{apiVersion: e.org/v2, kind: W, metadata: {name: w, namespace: ns}}", live: "{apiVersion: e.org/v0, kind: W, metadata: {name: w, namespace: ns}}",
			change: func(l *plan.Live) {
				unserved("v2/W")(l)
				meta(func(m *metav1.ObjectMeta) { m.Labels, m.ManagedFields[0].Manager = nil, "helm" })(l)
			},
			want: "create customresourcedefinition.apiextensions.k8s.io/ws.e.org\nrefused w.e.org/ns/w customresourcedefinition.apiextensions.k8s.io/ws.e.org serves W in e.org/v1, not in e.org/v2: write apiVersion: e.org/v1\n",
		},
		{
			name: "types of an XRD", desired: xrd + "{apiVersion: e.org/v1, kind: X, metadata: {name: x}}\n---\n{apiVersion: e.org/v1, kind: Yy, metadata: {name: yy, namespace: ns}}", change: unserved("v1/X", "v1/Yy"),
			want: "create compositeresourcedefinition.apiextensions.crossplane.io/xs.e.org\n" +
				"create x.e.org/x (its type is installed by compositeresourcedefinition.apiextensions.crossplane.io/xs.e.org)\n" +
				"create yy.e.org/ns/yy (its type is installed by compositeresourcedefinition.apiextensions.crossplane.io/xs.e.org)\n",
		},
		{
			name: "no namespace", desired: "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}",
			change: func(l *plan.Live) { l.Namespaced[schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}] = true },
			want:   "refused configmap/a its kind is namespaced, and it has no namespace; set metadata.namespace\n",
		},
		{
			name: "unreadable", desired: cm, change: func(l *plan.Live) { l.Unreadable = map[schema.GroupKind]string{{Kind: "ConfigMap"}: "forbidden"} },
			want: "refused configmap/ns/a cannot tell what is there: forbidden\n",
		},
		{
			name: "made by a controller with our label", desired: crd, live: cm,
			change: meta(func(m *metav1.ObjectMeta) {
				yes := true
				m.OwnerReferences = []metav1.OwnerReference{{Kind: "Service", Name: "s", Controller: &yes}}
			}),
			want: "create customresourcedefinition.apiextensions.k8s.io/ws.e.org\n",
		},
		{
			name: "copied label", desired: crd, live: cm,
			change: meta(func(m *metav1.ObjectMeta) { m.ManagedFields, m.Annotations = nil, nil }),
			want:   "create customresourcedefinition.apiextensions.k8s.io/ws.e.org\n",
		},
		{
			name: "copy into another namespace", desired: crd, live: cm, change: meta(func(m *metav1.ObjectMeta) {
				m.Annotations[manifest.AppliedAnnotation] = inventory.Applied(manifesttest.Objects(t, strings.Replace(cm, "namespace: ns", "namespace: other", 1))[0])
				m.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl-create", Operation: metav1.ManagedFieldsOperationUpdate}}
			}),
			want: "create customresourcedefinition.apiextensions.k8s.io/ws.e.org\n",
		},
		{
			name: "copy with managed fields", desired: crd, live: cm, change: meta(func(m *metav1.ObjectMeta) {
				m.Annotations[manifest.AppliedAnnotation] = inventory.Applied(manifesttest.Objects(t, strings.Replace(cm, "name: a", "name: other", 1))[0])
			}),
			want: "create customresourcedefinition.apiextensions.k8s.io/ws.e.org\n",
		},
		{
			name: "copy of a completed object", desired: crd, live: cm, change: meta(func(m *metav1.ObjectMeta) {
				other := manifesttest.Objects(t, strings.Replace(cm, "name: a", "name: other", 1))[0]
				completed, err := other.Complete(map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "other", "namespace": "ns"}})
				if err != nil {
					t.Fatal(err)
				}
				m.Annotations[manifest.AppliedAnnotation] = inventory.Applied(completed)
			}),
			want: "create customresourcedefinition.apiextensions.k8s.io/ws.e.org\n",
		},
		{
			name: "member of another inventory that was relabelled", desired: crd, live: cm, change: meta(func(m *metav1.ObjectMeta) {
				m.Annotations[manifest.AppliedAnnotation] = plan.Inventory{ID: "applyset-theirs-v1"}.Applied(manifesttest.Objects(t, cm)[0])
			}),
			want: "create customresourcedefinition.apiextensions.k8s.io/ws.e.org\n",
		},
		{
			name: "copy under the name of something wanted", desired: cm, live: cm, change: meta(func(m *metav1.ObjectMeta) {
				m.Annotations[manifest.AppliedAnnotation] = inventory.Applied(manifesttest.Objects(t, strings.Replace(cm, "name: a", "name: other", 1))[0])
				m.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "hnc", Operation: metav1.ManagedFieldsOperationUpdate}}
			}),
			want: "conflict configmap/ns/a it is managed by hnc; annotate it with gitopsd.dev/adopt: \"true\" to take it over, or the Cluster with gitopsd.dev/adopt: manager/hnc for all that is\n",
		},
		{
			name: "restored under its own name", desired: crd, live: cm, change: meta(func(m *metav1.ObjectMeta) {
				m.UID, m.ManagedFields = "another", []metav1.ManagedFieldsEntry{{Manager: "velero", Operation: metav1.ManagedFieldsOperationUpdate}}
			}),
			want: "create customresourcedefinition.apiextensions.k8s.io/ws.e.org\nprune configmap/ns/a\n",
		},
		{
			name: "managed fields cleared", desired: crd, live: cm, change: meta(func(m *metav1.ObjectMeta) { m.ManagedFields = nil }),
			want: "create customresourcedefinition.apiextensions.k8s.io/ws.e.org\nprune configmap/ns/a\n",
		},
		{
			name: "annotation removed", desired: crd, live: cm, change: meta(func(m *metav1.ObjectMeta) { m.Annotations = nil }),
			want: "create customresourcedefinition.apiextensions.k8s.io/ws.e.org\nprune configmap/ns/a\n",
		},
		{
			name: "recorded by an older gitopsd", desired: cm, live: cm, change: meta(older(t)),
			want: "configure configmap/ns/a unchanged in the repository; renewing the record of an older gitopsd, which copies share\n",
		},
		{
			name: "unwanted, recorded by an older gitopsd", desired: crd, live: cm, change: meta(older(t)),
			want: "create customresourcedefinition.apiextensions.k8s.io/ws.e.org\nprune configmap/ns/a\n",
		},
		{
			name: "unwanted, an older gitopsd's or a copy", desired: crd, live: cm,
			change: meta(func(m *metav1.ObjectMeta) { older(t)(m); m.ManagedFields = nil }),
			want: "create customresourcedefinition.apiextensions.k8s.io/ws.e.org\n" +
				"held configmap/ns/a kept: it has gitopsd's label and an older gitopsd's record, but its metadata.managedFields do not show that gitopsd applied it: it may be a copy; delete it, or remove its label applyset.kubernetes.io/part-of to keep it\n",
		},
		{
			name: "unwanted, there before", desired: crd, live: cm, change: meta(func(m *metav1.ObjectMeta) { m.Annotations[manifest.AdoptedAnnotation] = "true" }),
			want: "create customresourcedefinition.apiextensions.k8s.io/ws.e.org\n" +
				"held configmap/ns/a kept: it was there before gitopsd adopted it; to keep it for good, release it: kubectl label KIND NAME applyset.kubernetes.io/part-of-; to have it deleted, annotate it with gitopsd.dev/allow-prune: \"true\"\n",
		},
		{
			name: "unwanted, there before, with others in it", desired: crd, live: cm + "{apiVersion: v1, kind: Namespace, metadata: {name: ns}}\n---\n{apiVersion: v1, kind: Namespace, metadata: {name: new}}",
			change: func(l *plan.Live) {
				l.Objects[manifest.Namespace.ID("", "ns")].Annotations[manifest.AdoptedAnnotation] = "true"
				l.Contents = map[manifest.ID][]plan.Content{manifest.Namespace.ID("", "ns"): {{ID: manifest.ConfigMap.ID("ns", "theirs"), UID: "1"}}}
			},
			want: "create customresourcedefinition.apiextensions.k8s.io/ws.e.org\nprune configmap/ns/a\n" +
				"prune namespace/new\n" +
				"held namespace/ns kept: it was there before gitopsd adopted it; to keep it for good, release it: kubectl label KIND NAME applyset.kubernetes.io/part-of-; to have it deleted with everything in it, annotate it with gitopsd.dev/allow-prune: \"true\"\n",
		},
		{
			name: "unwanted, in a namespace, there before", desired: crd, live: cm + "{apiVersion: v1, kind: Namespace, metadata: {name: ns}}",
			change: func(l *plan.Live) {
				l.Objects[manifest.ConfigMap.ID("ns", "a")].Annotations[manifest.AdoptedAnnotation] = "true"
				l.Contents = map[manifest.ID][]plan.Content{manifest.Namespace.ID("", "ns"): {{ID: manifest.ConfigMap.ID("ns", "a"), UID: "uid-a"}}}
			},
			want: "create customresourcedefinition.apiextensions.k8s.io/ws.e.org\n" +
				"held configmap/ns/a kept: it was there before gitopsd adopted it; to keep it for good, release it: kubectl label KIND NAME applyset.kubernetes.io/part-of-; to have it deleted, annotate it with gitopsd.dev/allow-prune: \"true\"\n" +
				"held namespace/ns kept: it holds configmap/ns/a, which must go first; the reason given there says what that needs\n",
		},
		{
			name: "unwanted, there before, allowed", desired: crd, live: cm, change: meta(func(m *metav1.ObjectMeta) {
				m.Annotations[manifest.AdoptedAnnotation], m.Annotations[manifest.AllowPruneAnnotation] = "true", "true"
			}),
			want: "create customresourcedefinition.apiextensions.k8s.io/ws.e.org\nprune configmap/ns/a it was there before gitopsd adopted it\n",
		},
		{
			name: "unwanted, there before, of an empty directory", desired: "", live: cm, change: meta(func(m *metav1.ObjectMeta) { m.Annotations[manifest.AdoptedAnnotation] = "true" }),
			want: "held configmap/ns/a kept: the cluster's directory renders no objects, which may be a mistake; if not, declare another object there, such as a Namespace; to remove everything for good, annotate the Cluster in the registry with gitopsd.dev/remove and its name\n",
		},
		{
			name: "an adoption that was interrupted", desired: strings.Replace(cm, "name: a,", "name: a, annotations: {gitopsd.dev/adopt: 'true'},", 1), live: cm,
			want: "configure configmap/ns/a adopted: until now it was managed by kubectl-create\n",
			change: meta(func(m *metav1.ObjectMeta) {
				m.Labels, m.Annotations = nil, map[string]string{manifest.AdoptedAnnotation: "true"}
				m.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl-create", Operation: metav1.ManagedFieldsOperationUpdate}, {Manager: "gitopsd", Operation: metav1.ManagedFieldsOperationUpdate}}
			}),
		},
		{
			name: "written by gitopsd, and no manifest's", desired: cm, live: cm, want: "conflict configmap/ns/a it is managed by gitopsd; annotate it with gitopsd.dev/adopt: \"true\" to take it over, or the Cluster with gitopsd.dev/adopt: manager/gitopsd for all that is\n",
			change: meta(func(m *metav1.ObjectMeta) {
				m.Labels, m.Annotations = nil, nil
				m.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "gitopsd", Operation: metav1.ManagedFieldsOperationUpdate}}
			}),
		},
		{
			name: "namespace with contents that stay", desired: crd, live: "{apiVersion: v1, kind: Namespace, metadata: {name: ns}}\n---\n" + cm,
			change: func(l *plan.Live) {
				l.Contents = map[manifest.ID][]plan.Content{{Kind: "Namespace", Name: "ns"}: {
					{ID: manifest.ID{Kind: "ConfigMap", Namespace: "ns", Name: "a"}, UID: "uid-a"},
					{ID: manifest.ID{Kind: "Secret", Namespace: "ns", Name: "theirs"}, UID: "1"},
				}}
			},
			want: "create customresourcedefinition.apiextensions.k8s.io/ws.e.org\nprune configmap/ns/a\n" +
				"held namespace/ns kept: it holds secret/ns/theirs, which would be deleted with it; to allow that, annotate it with gitopsd.dev/allow-prune: \"true\"\n",
		},
		{
			name: "namespace with unknown contents", desired: crd, live: "{apiVersion: v1, kind: Namespace, metadata: {name: ns}}",
			change: func(l *plan.Live) {
				l.ContentsUnknown = map[manifest.ID]string{{Kind: "Namespace", Name: "ns"}: "forbidden"}
			},
			want: "create customresourcedefinition.apiextensions.k8s.io/ws.e.org\nheld namespace/ns kept: its contents are not known: forbidden; to prune it all the same, annotate it with gitopsd.dev/allow-prune: \"true\"\n",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			l := live(t, tt.live, nil)
			if tt.change != nil {
				tt.change(&l)
			}
			p := plan.Compute("prod", manifesttest.Set(t, tt.desired), l, inventory, plan.Options{})
			if have := steps(p); have != tt.want {
				t.Errorf("have\n%s\nwant\n%s", have, tt.want)
			}
			for _, s := range p.Steps {
				if s.Object == nil && s.UID == "" {
					t.Errorf("%s would delete whatever has that name", s.ID)
				}
				if s.Force && s.Action != plan.Configure && s.Action != plan.Unchanged {
					t.Errorf("%s %s would take fields by force", s.Action, s.ID)
				}
			}
		})
	}
}

// older replaces the record by one of an older gitopsd, which did not bind it to the
// object.
func older(t *testing.T) func(*metav1.ObjectMeta) {
	return func(m *metav1.ObjectMeta) {
		m.Annotations[manifest.AppliedAnnotation] = string(manifesttest.Objects(t, cm)[0].Hash())
	}
}

// Copies of members are no members that could make a prune look small.
func TestMassPruneBesideCopies(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for i := range 30 {
		fmt.Fprintf(&b, "{apiVersion: v1, kind: ConfigMap, metadata: {name: c%03d, namespace: ns}}\n---\n", i)
	}
	l := live(t, b.String(), nil)
	for i := range 100 {
		id := manifest.ID{Kind: "ConfigMap", Namespace: fmt.Sprintf("ns%d", i), Name: "c000"}
		l.Objects[id] = l.Objects[manifest.ID{Kind: "ConfigMap", Namespace: "ns", Name: "c000"}]
	}
	p := plan.Compute("prod", manifesttest.Set(t, cm), l, inventory, plan.Options{})
	if n := p.Count(plan.Held); n != 30 {
		t.Errorf("%d of 30 members are held", n)
	}
}

// The guard against pruning too much counts, and allows the declared number.
func TestMassPrune(t *testing.T) {
	t.Parallel()
	many := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "{apiVersion: v1, kind: ConfigMap, metadata: {name: c%03d, namespace: ns}}\n---\n", i)
		}
		return b.String()
	}
	for _, tt := range []struct {
		have, want, allow int
		held              bool
	}{
		{have: 20, want: 1},
		{have: 21, want: 1}, // twenty are few
		{have: 22, want: 1, held: true},
		{have: 100, want: 50},
		{have: 100, want: 49, held: true},
		{have: 100, want: 49, allow: 50, held: true},
		{have: 100, want: 49, allow: 51},
	} {
		l := live(t, many(tt.have), nil)
		p := plan.Compute("prod", manifesttest.Set(t, many(tt.want)), l, inventory, plan.Options{AllowPrune: tt.allow})
		action := plan.Prune
		if tt.held {
			action = plan.Held
		}
		if n := p.Count(action); n != tt.have-tt.want {
			t.Errorf("%d of %d wanted, %d allowed: %d to %s, want %d", tt.want, tt.have, tt.allow, n, action, tt.have-tt.want)
		}
	}
}

// An object is recorded as there before unless a gitopsd made it. Emptying the cluster says so
// of what it deletes.
func TestThereBefore(t *testing.T) {
	t.Parallel()
	theirs := plan.Inventory{ID: "applyset-theirs-v1", FieldManager: "gitopsd"}
	by := func(manager string, op metav1.ManagedFieldsOperationType) []metav1.ManagedFieldsEntry {
		return []metav1.ManagedFieldsEntry{{Manager: manager, Operation: op}}
	}
	wanted := manifesttest.Set(t, strings.Replace(cm, "name: a,", "name: a, annotations: {gitopsd.dev/adopt: 'true'},", 1))
	for _, tt := range []struct {
		name   string
		change func(*metav1.ObjectMeta)
		want   bool
	}{
		{"a member", func(*metav1.ObjectMeta) {}, false},
		{"without our label", func(m *metav1.ObjectMeta) { m.Labels = nil }, false},
		{"without our label and record", func(m *metav1.ObjectMeta) { m.Labels, m.Annotations = nil, nil }, false},
		{"kubectl's", func(m *metav1.ObjectMeta) {
			m.Labels, m.Annotations, m.ManagedFields = nil, nil, by("kubectl", "Update")
		}, true},
		{"nobody's", func(m *metav1.ObjectMeta) { m.Labels, m.Annotations, m.ManagedFields = nil, nil, nil }, true},
		{"recorded already", func(m *metav1.ObjectMeta) {
			m.Labels, m.Annotations, m.ManagedFields = nil, map[string]string{manifest.AdoptedAnnotation: "true"}, nil
		}, false},
		{"a copy with its label and record", func(m *metav1.ObjectMeta) {
			m.Annotations[manifest.AppliedAnnotation] = inventory.Applied(manifesttest.Objects(t, strings.Replace(cm, "name: a", "name: other", 1))[0])
		}, true},
		{"another cluster's of gitopsd", func(m *metav1.ObjectMeta) {
			m.Labels[plan.PartOfLabel], m.Annotations[manifest.AppliedAnnotation] = theirs.ID, theirs.Applied(wanted.All()[0])
		}, false},
		{"another cluster's of gitopsd, interrupted", func(m *metav1.ObjectMeta) { m.Labels[plan.PartOfLabel], m.Annotations = theirs.ID, nil }, false},
		{"another tool's ApplySet", func(m *metav1.ObjectMeta) {
			m.Labels[plan.PartOfLabel], m.Annotations, m.ManagedFields = "applyset-kubectls-v1", nil, by("kubectl", "Apply")
		}, true},
	} {
		p := plan.Compute("prod", wanted, live(t, cm, tt.change), inventory, plan.Options{})
		if have := p.Steps[0].Found; have != tt.want {
			t.Errorf("%s: %t (%s)", tt.name, have, steps(p))
		}
	}
	l := live(t, cm, func(m *metav1.ObjectMeta) { m.Annotations[manifest.AdoptedAnnotation] = "true" })
	const want = "prune configmap/ns/a it was there before gitopsd adopted it\n"
	if have := steps(plan.Compute("prod", manifesttest.Set(t, ""), l, inventory, plan.Options{RemoveAll: true})); have != want {
		t.Errorf("have\n%s\nwant\n%s", have, want)
	}
}
