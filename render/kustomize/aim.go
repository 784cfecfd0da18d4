//lint:file-ignore SA1019 What is deprecated in a kustomization is still in use, and must be checked like the rest.

package kustomize

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/resid"

	"gitopsd.dev/render/manifest"
)

// aim is a patch with a target in a kustomization, and the objects that it can see.
type aim struct {
	// file, line and field are its place: "a/kustomization.yaml:7: patches[0]".
	file   string
	line   int
	field  string
	target *types.Selector
	// seen are the written objects of the kustomization.
	seen []written
	// from is the index of the first one in all written objects.
	from int
}

// aims records the patches with a target in a kustomization. Call it after the inspection of
// the kustomization's entries.
func (in *inspection) aims(v *visit, f field, k *types.Kustomization) {
	in.renames = in.renames || k.NamePrefix+k.NameSuffix != ""
	if k.Namespace != "" {
		in.namespaces = append(in.namespaces, k.Namespace)
	}
	// Any of these can change names and kinds of objects, or make objects.
	in.opaque = in.opaque || len(k.Generators)+len(k.Transformers)+len(k.Replacements)+len(k.Vars) > 0
	if in.mount(f.file) != "" {
		return // readers of a note cannot correct another repository's file
	}
	for _, list := range []struct {
		name    string
		patches []types.Patch
	}{{"patches", k.Patches}, {"patchesJson6902", k.PatchesJson6902}} {
		var line func(int) int
		for i, p := range list.patches {
			in.opaque = in.opaque || p.Options != nil && (p.Options.AllowNameChange || p.Options.AllowKindChange)
			if p.Target == nil {
				continue
			}
			if line == nil {
				line = linesOfTargets(f.content, list.name)
			}
			in.aimed = append(in.aimed, aim{
				file: f.file, line: line(i), field: fmt.Sprintf("%s[%d]", list.name, i), target: p.Target, seen: in.written[v.from:len(in.written):len(in.written)], from: v.from,
			})
		}
	}
}

// linesOfTargets returns a function that returns the line of the target of each patch in a
// list of a kustomization; 0 if it is not found.
func linesOfTargets(content []byte, list string) func(int) int {
	var doc yaml.Node
	none := func(int) int { return 0 }
	if yaml.NewDecoder(bytes.NewReader(content)).Decode(&doc) != nil || len(doc.Content) == 0 {
		return none
	}
	value := func(n *yaml.Node, key string) *yaml.Node {
		for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == key {
				return n.Content[i+1]
			}
		}
		return nil
	}
	patches := value(doc.Content[0], list)
	if patches == nil || patches.Kind != yaml.SequenceNode {
		return none
	}
	return func(i int) int {
		if i >= len(patches.Content) {
			return 0
		}
		if target := value(patches.Content[i], "target"); target != nil {
			return target.Line
		}
		return patches.Content[i].Line
	}
}

// misses returns an error with its place for each patch with a target that cannot have
// matched any object. objects are the result of the build. It compares targets with the
// objects as written and as built. An object that may have matched in between counts as a
// match.
func (in *inspection) misses(objects []*manifest.Object) []error {
	if in.opaque || len(in.aimed) == 0 {
		return nil
	}
	schema.Lock() // kustomize looks up which kinds have a namespace
	defer schema.Unlock()
	before := make([]resid.ResId, len(in.written))
	for i, w := range in.written {
		before[i] = w.resID()
	}
	after := make([]candidate, len(objects))
	for i, o := range objects {
		after[i] = newCandidate(o)
	}
	var all []error
	for _, a := range in.aimed {
		among := a.among(after)
		if in.hits(a.target, before[a.from:a.from+len(a.seen)], among) {
			continue
		}
		var kinds, names []string
		add := func(kind, name string) {
			kinds = append(kinds, kind)
			if a.target.Kind == "" || kind == a.target.Kind {
				names = append(names, name)
			}
		}
		for _, w := range a.seen {
			add(w.id.Kind, w.id.Name)
		}
		for _, c := range among {
			add(c.id.Kind, c.id.Name)
		}
		all = append(all, at(a.file, a.line, fmt.Errorf("%s changes nothing: no object matches its target (%s)%s", a.field, target(a.target), meant(a.target, kinds, names))))
	}
	return all
}

// among returns the objects that may come from written objects that the patch can see.
func (a *aim) among(objects []candidate) []candidate {
	from := make(map[manifest.Origin]bool)
	for _, w := range a.seen {
		from[w.origin] = true
	}
	return slices.DeleteFunc(slices.Clone(objects), func(c candidate) bool {
		return !from[c.Origin()] && c.Origin().Line != 0 // an origin without a line is not exact
	})
}

// hits reports whether a target may have matched one of the objects, as written, as built or
// in between.
func (in *inspection) hits(t *types.Selector, written []resid.ResId, objects []candidate) bool {
	may, err := in.mayMatch(t)
	selector, serr := types.NewSelectorRegex(t)
	label, lerr := labels.Parse(t.LabelSelector)
	annotation, aerr := labels.Parse(t.AnnotationSelector)
	if errors.Join(err, serr, lerr, aerr) != nil {
		return true // kustomize reports the error
	}
	matches := func(id resid.ResId) bool {
		return may(id) &&
			(selector.MatchNamespace(id.EffectiveNamespace()) || slices.ContainsFunc(in.namespaces, selector.MatchNamespace))
	}
	before, after := 0, 0
	for _, id := range written {
		if matches(id) {
			before++
		}
	}
	for _, c := range objects {
		if !matches(c.id) {
			continue
		}
		after++
		if (label.Empty() || label.Matches(labels.Set(c.Labels()))) && (annotation.Empty() || annotation.Matches(labels.Set(c.Annotations()))) {
			return true
		}
	}
	if label.Empty() && annotation.Empty() {
		return before > 0
	}
	// Labels that a patch removed, and those of deleted objects, are not known.
	return before > after || before > 0 && (excludes(label) || excludes(annotation))
}

// mayMatch returns a function that reports whether a target matches the kind of an object, and
// a name that the object may have during the build.
func (in *inspection) mayMatch(t *types.Selector) (func(resid.ResId) bool, error) {
	selector, err := types.NewSelectorRegex(t)
	if err != nil {
		return nil, err
	}
	part, err := regexp.Compile(t.Name)
	if err != nil {
		return nil, err
	}
	return func(id resid.ResId) bool {
		// In between, the name may have been a part of the present one.
		name := selector.MatchName(id.Name) || in.renames && (part.MatchString(id.Name) || strings.ContainsAny(t.Name, "^$"))
		return name && selector.MatchGvk(id.Gvk)
	}, nil
}

// excludes reports whether a selector requires that a label or value is absent. It may have
// been added later.
func excludes(s labels.Selector) bool {
	requirements, _ := s.Requirements()
	return slices.ContainsFunc(requirements, func(r labels.Requirement) bool {
		return r.Operator() == "!" || r.Operator() == "!=" || r.Operator() == "notin"
	})
}
