package render

import (
	"fmt"
	"strings"

	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/runtime"
	"gitopsd.dev/sources"
)

// mostRequested limits the bytes of the rules that a note lists.
const mostRequested = 2000

// noteRequests notes the rights that packages ask for and that their controllers do not
// have. Crossplane too grants only those that somebody allowed.
func (r *Rendered) noteRequests(packages []sources.Selected) {
	for _, s := range packages {
		if s.Declaration.Kind != sources.Provider || s.Package == nil {
			continue
		}
		requests := manifest.List(s.Package.Meta.Document.Tree, "spec", "controller", "permissionRequests")
		controller := r.controller(s.Declaration.Name)
		if len(requests) == 0 || controller == nil {
			continue
		}
		account := behaviour.Account{Namespace: runtime.Namespace, Name: behaviour.FromWorkload(controller.Tree()).Account}
		rules := behaviour.Ungranted(account, r.Objects, requests)
		if len(rules) == 0 {
			continue
		}
		var texts []string
		left := mostRequested
		for _, rule := range rules {
			text := string(manifest.AppendJSON(nil, rule))
			if left -= len(text); left < 0 {
				break
			}
			texts = append(texts, text)
		}
		if more := len(rules) - len(texts); more > 0 {
			texts = append(texts, fmt.Sprintf("and %d more", more))
		}
		r.notef("Provider %s: %s asks for rights that its controller does not have (spec.controller.permissionRequests); if it should have them, add a ClusterRole with these rules to the Cluster's manifests, and a ClusterRoleBinding of it to ServiceAccount %s/%s: %s",
			s.Declaration.Name, s.Pin.Ref, account.Namespace, account.Name, strings.Join(texts, ", "))
	}
}

// controller returns the Deployment of a package's controller, nil if there is none.
func (r *Rendered) controller(pkg string) *manifest.Object {
	for _, o := range r.Objects.All() {
		if o.ID().Is(manifest.Deployment) && o.ID().Namespace == runtime.Namespace && o.Label(manifest.PackageLabel) == pkg {
			return o
		}
	}
	return nil
}
