package plan

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// tracking is how other tools mark what is theirs. The mark is a label or an
// annotation; with a value it must have that one, and shown names the label or
// annotation that says which release or application it belongs to.
var tracking = []struct {
	key, value, shown, tool string
}{
	{key: "kustomize.toolkit.fluxcd.io/name", shown: "kustomize.toolkit.fluxcd.io/name", tool: "Flux Kustomization"},
	{key: "helm.toolkit.fluxcd.io/name", shown: "helm.toolkit.fluxcd.io/name", tool: "Flux HelmRelease"},
	{key: "argocd.argoproj.io/tracking-id", shown: "argocd.argoproj.io/tracking-id", tool: "Argo CD application"},
	{key: "argocd.argoproj.io/instance", shown: "argocd.argoproj.io/instance", tool: "Argo CD application"},
	{key: "meta.helm.sh/release-name", shown: "meta.helm.sh/release-name", tool: "Helm release"},
	{key: "app.kubernetes.io/managed-by", value: "Helm", tool: "Helm"},
	{key: "kapp.k14s.io/app", shown: "kapp.k14s.io/app", tool: "kapp application"},
	{key: "pkg.crossplane.io/provider", shown: "pkg.crossplane.io/provider", tool: "Crossplane provider"},
	{key: "fleet.cattle.io/bundle-id", shown: "fleet.cattle.io/bundle-id", tool: "Rancher Fleet bundle"},
}

// Kubernetes' own components create objects for everybody (the namespace
// default, its service account) and claim none of them.
var systemManagers = []string{
	"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy",
	"cloud-controller-manager", "clusterrole-aggregation-controller",
}

// Claimant says whose a live object is, to complete "it is …", or "" when it is
// nobody's, or ours but for a lost label. Looked at, in this order: a controller
// that owns it, another ApplySet, another tool's marks, and the field managers
// that wrote to it (status apart).
func Claimant(meta *metav1.ObjectMeta, inv Inventory) string {
	for _, o := range meta.OwnerReferences {
		if o.Controller != nil && *o.Controller {
			return fmt.Sprintf("controlled by %s %s", o.Kind, o.Name)
		}
	}
	if set := meta.Labels[PartOfLabel]; set != "" && set != inv.ID {
		return "a member of another ApplySet, " + set
	}
	for _, t := range tracking {
		for _, marks := range []map[string]string{meta.Labels, meta.Annotations} {
			v, ok := marks[t.key]
			if !ok || t.value != "" && v != t.value {
				continue
			}
			if t.shown == "" {
				return "managed by " + t.tool
			}
			return fmt.Sprintf("managed by %s %q", t.tool, v)
		}
	}
	var others []string
	ours := false
	for _, m := range meta.ManagedFields {
		switch {
		case m.Subresource == "status" || slices.Contains(systemManagers, m.Manager):
		case m.Manager == inv.FieldManager && m.Operation == metav1.ManagedFieldsOperationApply:
			ours = true
		case !slices.Contains(others, m.Manager):
			others = append(others, m.Manager)
		}
	}
	if ours || len(others) == 0 {
		return ""
	}
	return "managed by " + strings.Join(others, ", ")
}
