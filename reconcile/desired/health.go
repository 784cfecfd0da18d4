package desired

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"gitopsd.dev/reconcile/health"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/clusters"
)

// HealthRules returns the health rules of a cluster's registration, with their lines in the
// registry.
func HealthRules(spec *clusters.Spec) []health.Rule {
	list := make([]health.Rule, len(spec.Health))
	for i, r := range spec.Health {
		list[i] = health.Rule{
			Kind: manifest.GroupKind{Group: r.Group, Kind: r.Kind},
			Expressions: health.Expressions{
				InProgress: r.InProgress, Failed: r.Failed, Current: r.Current, Message: r.Message,
			},
			From: fmt.Sprintf("spec.health (%s:%d)", sources.RegistryFile, r.Line),
		}
	}
	return list
}

// Gating returns the rules for when the cluster's objects are ready.
func (cl *Unit) Gating() plan.Gating {
	return plan.Gating{Rules: cl.Health, UnknownUnready: cl.Spec.UnknownHealth == clusters.Unready, Gates: cl.gates}
}

// readGates reads the annotations with the objects of packages to wait for. If one has an error,
// all objects of its package are waited for.
func (cl *Unit) readGates() {
	cl.gates = make(map[string]plan.Gates)
	for _, p := range cl.Packages {
		name := p.Declaration.Name
		text := annotation(p.Declaration, manifest.GatesAnnotation)
		if text == "" || slices.Contains(cl.Incomplete, name) {
			continue
		}
		gates, err := plan.ParseGates(text)
		if err == nil {
			var objects []manifest.ID
			for _, o := range cl.Objects.All() {
				if o.Label(manifest.PackageLabel) == name {
					objects = append(objects, o.ID())
				}
			}
			if idle := gates.Idle(objects); len(idle) > 0 {
				err = fmt.Errorf("the package has no %s", strings.Join(idle, " and no "))
			}
		}
		if err != nil {
			cl.fault(problem.Problem{Package: name, Origin: p.Declaration.Place(), Reason: fmt.Sprintf("annotation %s: %v", manifest.GatesAnnotation, err)})
			continue
		}
		cl.gates[name] = gates
	}
}

// healthAnnotation is the path of the annotation with a health rule.
var healthAnnotation = field.Path{field.Key("metadata"), field.Key("annotations"), field.Key(manifest.HealthAnnotation)}.String()

// readHealth compiles the health rules of definitions and of the registration. An error in a rule
// is a fault: everything is applied, but the objects of its kind are not healthy.
func (cl *Unit) readHealth() {
	cl.Health = new(health.Custom)
	definitions := make(map[manifest.GroupKind]map[string]any)
	kinds := make(map[manifest.GroupKind]bool)
	own := HealthRules(&cl.Spec)
	for _, o := range cl.Objects.All() {
		id := o.ID()
		kinds[id.GroupKind()] = true
		if !id.Is(manifest.Definitions...) {
			continue
		}
		if o.Annotation(manifest.HealthAnnotation) != "" {
			if err := cl.Health.AddAnnotated(o.Tree()); err != nil {
				at := o.Origin()
				at.Line = cmp.Or(cl.LineOf(o, healthAnnotation), at.Line)
				cl.fault(problem.Problem{Package: o.Label(manifest.PackageLabel), Object: id.String(), Origin: at.Place(), Reason: err.Error()})
			}
		}
		for _, r := range own {
			if types.Read(o.Tree()).Defines(r.Kind) {
				definitions[r.Kind] = o.Tree()
			}
		}
	}
	for i, r := range own {
		at := fmt.Sprintf("%s:%d: spec.health for %s", sources.RegistryFile, cl.Spec.Health[i].Line, r.Kind)
		annotated := cl.Health.Has(r.Kind)
		if err := cl.Health.Add(r, definitions[r.Kind]); err != nil {
			cl.fault(problem.Problem{Reason: fmt.Sprintf("%s: %v", at, err)})
		}
		idle := ""
		switch {
		case annotated:
			idle = fmt.Sprintf("the annotation %s on the kind's definition comes first; spec.patches can change it", manifest.HealthAnnotation)
		case r.Kind == manifest.XRD || slices.Contains(manifest.Packages, r.Kind):
			idle = "objects of this kind are judged by what Crossplane reports of them"
		case !kinds[r.Kind] && definitions[r.Kind] == nil:
			idle = "the cluster gets no object of that kind, and no definition of it"
		}
		if idle != "" {
			cl.Notes = append(cl.Notes, at+" judges nothing: "+idle)
		}
	}
}
