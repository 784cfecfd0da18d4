package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/render/manifest"
)

// tracking are the marks of other tools: labels or annotations that name the release or
// application. A mark with a value here must have that value, which names nothing.
var tracking = []struct {
	key, value, tool string
	// source is the tool in a manifest.AdoptAnnotation.
	source string
}{
	{key: "kustomize.toolkit.fluxcd.io/name", tool: "Flux Kustomization", source: "flux"},
	{key: "helm.toolkit.fluxcd.io/name", tool: "Flux HelmRelease", source: "flux"},
	{key: "argocd.argoproj.io/tracking-id", tool: "Argo CD application", source: "argocd"},
	{key: "argocd.argoproj.io/instance", tool: "Argo CD application", source: "argocd"},
	{key: "meta.helm.sh/release-name", tool: "Helm release", source: "helm"},
	{key: "app.kubernetes.io/managed-by", value: "Helm", tool: "Helm", source: "helm"},
	{key: "kapp.k14s.io/app", tool: "kapp application", source: "kapp"},
	{key: manifest.ProviderLabel, tool: "Crossplane provider", source: "crossplane"},
	{key: "fleet.cattle.io/bundle-id", tool: "Rancher Fleet bundle", source: "fleet"},
}

// Sources that are no tool with marks.
const (
	controllerSource = "controller" // Kind/name of the controller that owns it
	applySetSource   = "applyset"   // ID of another ApplySet
	managerSource    = "manager"    // name of a field manager
	kubectlSource    = "kubectl"    // whatever kubectl calls itself
	crossplaneSource = "crossplane" // a package's revision too
)

// applierSources are tools by their field managers, for objects without a mark of
// their own: if Argo CD tracks by labels, it uses app.kubernetes.io/instance as
// others do, and Helm does not mark the CRDs that it installs.
var applierSources = map[string]string{
	"argocd-controller": "argocd",
	"helm":              "helm",
}

// Kubernetes' own components create objects for everybody (the namespace
// default, its service account) and claim none of them.
var systemManagers = []string{
	"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy",
	"cloud-controller-manager", "clusterrole-aggregation-controller",
}

// claim is the owner of a live object; the zero claim means no owner.
type claim struct {
	// text completes "it is …".
	text string
	// sources name the owner as a Cluster's manifest.AdoptAnnotation does, as in
	// "flux/apps". Each of several field managers is a source, and all must be named. There
	// are none if one of them cannot be named; then each object is adopted by itself.
	sources []string
}

// claimant returns the owner of a live object. The object's writers choose the names in it,
// and people paste the sources into the registry, so an odd name leaves none.
func claimant(meta *metav1.ObjectMeta, inv Inventory) claim {
	c := claimOf(meta, inv)
	for _, source := range c.sources {
		if named, err := ParseAdopt(source); err != nil || !slices.Equal(named, []string{source}) || strings.ContainsFunc(source, unprintable) {
			c.sources = nil
			break
		}
	}
	return c
}

// Claimed describes the owner of a live object that is not the inventory's, to complete
// "it is …". It returns "" if the object has no owner.
func (inv Inventory) Claimed(meta *metav1.ObjectMeta) string { return claimant(meta, inv).text }

func unprintable(r rune) bool { return !strconv.IsPrint(r) }

// claimOf returns the owner of a live object. An object of ours that only lost its label
// has none. It checks, in this order: a controller that owns it, another ApplySet,
// another tool's marks, and the field managers that wrote to it (except to status).
func claimOf(meta *metav1.ObjectMeta, inv Inventory) claim {
	if o := metav1.GetControllerOfNoCopy(meta); o != nil {
		source := controllerSource + "/" + o.Kind + "/" + o.Name
		if strings.HasPrefix(o.APIVersion, manifest.GroupPackages+"/") {
			source = crossplaneSource + "/" + o.Name
		}
		return claim{fmt.Sprintf("controlled by %s %s", o.Kind, o.Name), []string{source}}
	}
	if set := meta.Labels[PartOfLabel]; set != "" && set != inv.ID {
		text := "a member of another ApplySet, " + set
		if app := meta.Annotations[manifest.ApplicationAnnotation]; app != "" {
			text += ", of KubernetesApplication " + app
		}
		return claim{text, []string{ApplySetSource(set)}}
	}
	for _, t := range tracking {
		for _, marks := range []map[string]string{meta.Labels, meta.Annotations} {
			v, ok := marks[t.key]
			if !ok || t.value != "" && v != t.value {
				continue
			}
			if t.value != "" {
				return claim{"managed by " + t.tool, []string{t.source}}
			}
			name, _, _ := strings.Cut(v, ":") // Argo CD's go on with the object
			return claim{fmt.Sprintf("managed by %s %q", t.tool, v), []string{t.source + "/" + name}}
		}
	}
	var others []string
	ours := false
	for _, m := range meta.ManagedFields {
		switch {
		case m.Subresource == "status" || slices.Contains(systemManagers, m.Manager):
		case m.Manager == inv.FieldManager && m.Operation == metav1.ManagedFieldsOperationApply:
			ours = true
		case m.Manager == inv.FieldManager && meta.Annotations[manifest.AdoptedAnnotation] != "":
			// An adoption that was interrupted wrote this annotation, and no more.
		case !slices.Contains(others, m.Manager):
			others = append(others, m.Manager)
		}
	}
	if ours || len(others) == 0 {
		return claim{}
	}
	c := claim{text: "managed by " + strings.Join(others, ", ")}
	for _, name := range others {
		source := managerSource + "/" + name
		switch tool := applierSources[name]; {
		case tool != "":
			source = tool
		case strings.HasPrefix(name, "kubectl"):
			source = kubectlSource
		}
		if !slices.Contains(c.sources, source) {
			c.sources = append(c.sources, source)
		}
	}
	return c
}

// ApplySetSource returns the source to adopt the members of an ApplySet from.
func ApplySetSource(id string) string { return applySetSource + "/" + id }

// ParseAdopt reads a Cluster's manifest.AdoptAnnotation: sources separated by commas, each
// a tool ("flux", "argocd", "helm", "kapp", "crossplane", "fleet", "kubectl"), one
// thing of a tool ("helm/ingress"), or "manager/NAME", "applyset/ID" and
// "controller/KIND/NAME".
func ParseAdopt(text string) ([]string, error) {
	known := []string{controllerSource, applySetSource, managerSource, kubectlSource}
	for _, t := range tracking {
		if !slices.Contains(known, t.source) {
			known = append(known, t.source)
		}
	}
	var sources []string
	for source := range strings.SplitSeq(text, ",") {
		source = strings.TrimSpace(source)
		tool, name, named := strings.Cut(source, "/")
		general := tool != controllerSource && tool != applySetSource && tool != managerSource
		switch {
		case !slices.Contains(known, tool):
			return nil, fmt.Errorf("%q is not a source to adopt from; the sources are %s", source, strings.Join(known, ", "))
		case named && (name == "" || tool == kubectlSource), !named && !general:
			return nil, fmt.Errorf("%q: want the tool, or the tool, a slash and a name; %s, %s and %s need the name", source, controllerSource, applySetSource, managerSource)
		}
		sources = append(sources, source)
	}
	return sources, nil
}

// adoptable reports whether all claimants are among the sources to adopt from.
func (c claim) adoptable(from []string) bool {
	return len(c.sources) > 0 && !slices.ContainsFunc(c.sources, func(source string) bool {
		tool, _, _ := strings.Cut(source, "/")
		return !slices.Contains(from, source) && !slices.Contains(from, tool)
	})
}
