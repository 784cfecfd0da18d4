// Package application reads KubernetesApplications of the group workload.crossplane.io
// and renders the objects that their targets' clusters get. It is pure.
//
// Both versions are read alike: v1alpha1 says clusterSelector and clusterRef where
// v1alpha2 says targetSelector and targetRef. The format is Crossplane's of 2020 (release
// 0.13, design/defunct/one-pager-consuming-k8s-clusters.md); spec.resourceSelector
// chose objects that no longer exist, and is ignored.
//
// application.go reads, objects.go renders. Where an application runs is
// render/target/placement's decision, and what is done there reconcile/applications'.
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
	// Namespace and Name are the application's own, UID the API server's; UID is empty
	// for one that is not in a cluster yet.
	Namespace, Name, UID string
	// TargetRef is the name of the KubernetesTarget that it asks for; may be empty.
	TargetRef string
	// Selector selects the targets that it may be placed on; nil if it has none.
	Selector labels.Selector
	// ServiceAccount is the account of the target's cluster that is acted as there, as
	// "namespace/name"; empty to act as the connection's user.
	ServiceAccount string
	// Resources are its templates, in their order.
	Resources []Resource
	// Reschedule is the value of manifest.RescheduleAnnotation.
	Reschedule string
	// AllowPrune is the value of manifest.AllowPruneAnnotation: how many objects may be
	// pruned at once.
	AllowPrune string
	// Placed is the target that its status names, and Rescheduled the value of the
	// annotation for which it was placed last.
	Placed, Rescheduled string
	// Left are the targets that still have objects of it from before it moved.
	Left []string
}

// Resource is one template of an application.
type Resource struct {
	// Name is unique in the application.
	Name string
	// Template is the object to apply.
	Template map[string]any
	// Secrets are the names of Secrets beside the application that go to the
	// cluster with the object.
	Secrets []string
}

// String returns the application's name as people know it.
func (a *Application) String() string { return a.Namespace + "/" + a.Name }

// Placement returns the application as placement decides about it.
func (a *Application) Placement() placement.Application {
	return placement.Application{
		Name: a.Name, Ref: a.TargetRef, Selector: a.Selector, Placed: a.Placed,
		Moves: a.Reschedule != "" && a.Reschedule != a.Rescheduled,
	}
}

// Read reads an application. The error joins everything that is wrong; each part names
// the field. What can be read is returned even then: everything but the resources and
// selectors with errors.
func Read(tree map[string]any) (*Application, error) {
	meta := manifest.Mapping(tree, "metadata")
	a := &Application{
		Namespace: manifest.Text(meta, "namespace"), Name: manifest.Text(meta, "name"), UID: manifest.Text(meta, "uid"),
		Reschedule: manifest.Text(meta, "annotations", manifest.RescheduleAnnotation),
		AllowPrune: manifest.Text(meta, "annotations", manifest.AllowPruneAnnotation),
		Placed:     manifest.Text(tree, "status", "targetRef", "name"), Rescheduled: manifest.Text(tree, "status", "rescheduled"),
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
	// An account that is empty, as a script leaves it that found none, does not mean the
	// rights of the connection.
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

// Reserved is the error of an application in a namespace with credentials of gitopsd's own.
func Reserved(namespace string) error {
	return fmt.Errorf("metadata.namespace: gitopsd keeps its own credentials in namespace %s, and runs no applications of it; choose another", namespace)
}

// readTarget reads which target is asked for.
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

// readResources reads the templates.
func (a *Application) readResources(spec map[string]any) error {
	var errs []error
	named := make(map[string]bool)
	items := manifest.List(spec, "resourceTemplates")
	if len(items) == 0 {
		return errors.New("spec.resourceTemplates has no resource; to remove everything that the application has, delete the application")
	}
	for i, item := range items {
		r, err := readResource(item)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("spec.resourceTemplates[%d]%w", i, err))
		case named[r.Name]:
			errs = append(errs, fmt.Errorf("spec.resourceTemplates[%d].metadata.name: there is another resource %q", i, r.Name))
		default:
			named[r.Name] = true
			a.Resources = append(a.Resources, r)
		}
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
