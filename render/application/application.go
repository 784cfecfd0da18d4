// Package application reads KubernetesApplications of the group workload.crossplane.io
// (application.go) and renders their objects (objects.go). It is pure.
//
// It reads two versions: clusterSelector and clusterRef of v1alpha1 are targetSelector and
// targetRef in v1alpha2. The format is Crossplane's of 2020 (release 0.13,
// design/defunct/one-pager-consuming-k8s-clusters.md). spec.resourceSelector is ignored,
// since it selected objects that no longer exist.
//
// render/target/placement decides where an application runs, and reconcile/applications
// applies its objects there.
package application

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/runtime"
	"gitopsd.dev/render/target/placement"
)

// Application is a KubernetesApplication. It is immutable once read.
type Application struct {
	// Namespace, Name and UID are from its metadata. UID is empty for an application that
	// is not in a cluster yet.
	Namespace, Name, UID string
	// Generation is the generation of its spec; 0 for one that is not in a cluster yet.
	Generation int64
	// TargetRef is the KubernetesTarget that it names; may be empty.
	TargetRef string
	// Selector selects the targets that it may be placed on; nil if it has none.
	Selector labels.Selector
	// ServiceAccount is the account to impersonate in the target's cluster,
	// "namespace/name"; empty to act as the connection's user.
	ServiceAccount string
	// Resources are its templates, in order.
	Resources []Resource
	// Reschedule is the value of manifest.RescheduleAnnotation.
	Reschedule string
	// AllowPrune is the value of manifest.AllowPruneAnnotation: the number of objects that
	// one pass may prune.
	AllowPrune string
	// Adopt is the value of manifest.AdoptAnnotation: the owners whose objects it takes over.
	// It is empty for "true", which is about the application itself.
	Adopt string
	// Placed is the target in its status, or else Noted, and Rescheduled the value of Reschedule
	// at the last placement.
	Placed, Rescheduled string
	// Noted is the target in its manifest.PlacedAnnotation; empty if there is none.
	Noted string
	// Left are former targets that still have some of its objects.
	Left []string
}

// Resource is one template of an application.
type Resource struct {
	// Name is unique in the application.
	Name string
	// Template is the object to apply.
	Template map[string]any
	// Secrets are the names of Secrets in the application's namespace to copy to the
	// cluster with the object.
	Secrets []string
}

// String returns "namespace/name".
func (a *Application) String() string { return a.Namespace + "/" + a.Name }

// PlacedOn returns the value of [manifest.PlacedAnnotation] for a target.
func (a *Application) PlacedOn(target string) string { return target + "/" + a.UID }

// Placement returns the application in the form for [placement.Decide].
func (a *Application) Placement() placement.Application {
	return placement.Application{
		Name: a.Name, Ref: a.TargetRef, Selector: a.Selector, Placed: a.Placed,
		Moves: a.Reschedule != "" && a.Reschedule != a.Rescheduled,
	}
}

// Read reads an application. The error joins an error for each invalid field. The
// application is returned even with an error, without the resources and selectors that are
// invalid.
func Read(tree map[string]any) (*Application, error) {
	meta := manifest.Mapping(tree, "metadata")
	a := &Application{
		Namespace: manifest.Text(meta, "namespace"), Name: manifest.Text(meta, "name"), UID: manifest.Text(meta, "uid"),
		Reschedule: manifest.Text(meta, "annotations", manifest.RescheduleAnnotation),
		AllowPrune: manifest.Text(meta, "annotations", manifest.AllowPruneAnnotation),
		Placed:     manifest.Text(tree, "status", "targetRef", "name"), Rescheduled: manifest.Text(tree, "status", "rescheduled"),
	}
	if target, uid, _ := strings.Cut(manifest.Text(meta, "annotations", manifest.PlacedAnnotation), "/"); uid != "" && uid == a.UID {
		a.Noted = target
	}
	if a.Placed == "" && a.Noted != "" { // the status was lost
		a.Placed, a.Rescheduled = a.Noted, a.Reschedule
	}
	a.Generation, _ = meta["generation"].(int64)
	if from := manifest.Text(meta, "annotations", manifest.AdoptAnnotation); from != "true" {
		a.Adopt = from
	}
	for _, item := range manifest.List(tree, "status", "leftTargetRefs") {
		ref, _ := item.(map[string]any)
		if name := manifest.Text(ref, "name"); name != "" {
			a.Left = append(a.Left, name)
		}
	}
	spec := manifest.Mapping(tree, "spec")
	errs := []error{a.readTarget(spec), a.readResources(spec)}
	if a.Namespace == runtime.Namespace {
		errs = append(errs, Reserved(a.Namespace))
	}
	// An empty account, which a failed script may write, must not give the rights of the
	// connection.
	if account, asked := spec["serviceAccount"]; asked {
		a.ServiceAccount, _ = account.(string)
		namespace, name, _ := strings.Cut(a.ServiceAccount, "/")
		if len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
			errs = append(errs, fmt.Errorf("spec.serviceAccount: %q is not a ServiceAccount of the target's cluster, as namespace/name", a.ServiceAccount))
		}
	}
	if n, err := strconv.Atoi(a.AllowPrune); a.AllowPrune != "" && (err != nil || n < 0) {
		errs = append(errs, fmt.Errorf("metadata.annotations: %s: %q is not a number of objects", manifest.AllowPruneAnnotation, a.AllowPrune))
	}
	return a, errors.Join(errs...)
}

// Reserved returns the error for an application in the namespace of gitopsd's own credentials.
func Reserved(namespace string) error {
	return fmt.Errorf("metadata.namespace: gitopsd keeps its own credentials in namespace %s, and runs no applications of it; choose another", namespace)
}

// readTarget reads the target and the selector.
func (a *Application) readTarget(spec map[string]any) error {
	var errs []error
	pick := func(now, before string) (string, any) {
		if spec[before] == nil {
			return "spec." + now, spec[now]
		}
		if spec[now] != nil {
			errs = append(errs, fmt.Errorf("spec.%s is the older name of spec.%s; write one of them", before, now))
		}
		return "spec." + before, spec[before]
	}
	if field, ref := pick("targetRef", "clusterRef"); ref != nil {
		name, _ := ref.(map[string]any)
		if a.TargetRef = manifest.Text(name, "name"); a.TargetRef == "" {
			errs = append(errs, fmt.Errorf("%s.name: name a KubernetesTarget of the application's namespace", field))
		} else if len(validation.IsDNS1123Subdomain(a.TargetRef)) > 0 {
			errs = append(errs, fmt.Errorf("%s.name: %q is not the name of a KubernetesTarget", field, a.TargetRef))
			a.TargetRef = ""
		}
	}
	if field, selector := pick("targetSelector", "clusterSelector"); selector != nil {
		var err error
		if a.Selector, err = readSelector(selector); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", field, err))
		}
	}
	return errors.Join(errs...)
}

// readSelector reads a label selector; an empty one selects everything.
func readSelector(value any) (labels.Selector, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	var s metav1.LabelSelector
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, errors.New("want matchLabels (a mapping of strings) and matchExpressions (key, operator, values)")
	}
	return metav1.LabelSelectorAsSelector(&s)
}

// mostErrors bounds the errors of templates. The status shows them, and a tenant may write very
// many templates.
const mostErrors = 10

// readResources reads the templates.
func (a *Application) readResources(spec map[string]any) error {
	var errs []error
	more := 0
	named := make(map[string]bool)
	items := manifest.List(spec, "resourceTemplates")
	if len(items) == 0 {
		return errors.New("spec.resourceTemplates has no resource; to remove everything that the application has, delete the application")
	}
	for i, item := range items {
		r, err := readResource(item)
		if err == nil && named[r.Name] {
			err = fmt.Errorf(".metadata.name: there is another resource %q", r.Name)
		}
		switch {
		case err == nil:
			named[r.Name] = true
			a.Resources = append(a.Resources, r)
		case len(errs) < mostErrors:
			errs = append(errs, fmt.Errorf("spec.resourceTemplates[%d]%w", i, err))
		default:
			more++
		}
	}
	if more > 0 {
		errs = append(errs, fmt.Errorf("spec.resourceTemplates: %d more have errors", more))
	}
	return errors.Join(errs...)
}

// readResource reads one template. Errors begin with the field in it.
func readResource(item any) (Resource, error) {
	tree, _ := item.(map[string]any)
	r := Resource{Name: manifest.Text(tree, "metadata", "name"), Template: manifest.Mapping(tree, "spec", "template")}
	if r.Name == "" || len(validation.IsDNS1123Subdomain(r.Name)) > 0 {
		return r, fmt.Errorf(".metadata.name: %q is not a name: lower-case letters, digits, '-' and '.'", r.Name)
	}
	if r.Template == nil {
		return r, fmt.Errorf(".spec.template: resource %s has no object", r.Name)
	}
	for i, secret := range manifest.List(tree, "spec", "secrets") {
		ref, _ := secret.(map[string]any)
		name := manifest.Text(ref, "name")
		if len(validation.IsDNS1123Subdomain(name)) > 0 {
			return r, fmt.Errorf(".spec.secrets[%d].name: %q is not the name of a Secret", i, name)
		}
		r.Secrets = append(r.Secrets, name)
	}
	return r, nil
}
