package composition

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"gitopsd.dev/render/manifest"
)

// functionGroups is the suffix of the groups of functions' own kinds: their inputs, and
// kinds in templates that they do not compose.
const functionGroups = ".fn.crossplane.io"

// patchInput is the kind of the input of function-patch-and-transform.
var patchInput = manifest.GroupKind{Group: "pt" + functionGroups, Kind: "Resources"}

// Templates returns the objects that a Composition composes, in the written order.
func Templates(composition map[string]any) []Template {
	spec := manifest.Mapping(composition, "spec")
	var all []Template
	steps := manifest.List(spec, "pipeline")
	if manifest.Text(spec, "mode") == "Resources" || len(steps) == 0 {
		return resources(all, spec, "spec")
	}
	for i, s := range steps {
		step, _ := s.(map[string]any)
		input := manifest.Mapping(step, "input")
		at := fmt.Sprintf("spec.pipeline[%d].input", i)
		if manifest.KindOf(input) == patchInput {
			all = resources(all, input, at)
			continue
		}
		all = within(all, input, at)
	}
	return all
}

// resources reads templates with patches.
func resources(all []Template, input map[string]any, at string) []Template {
	sets := make(map[string]any)
	for _, s := range manifest.List(input, "patchSets") {
		set, _ := s.(map[string]any)
		sets[manifest.Text(set, "name")] = set
	}
	for i, r := range manifest.List(input, "resources") {
		resource, _ := r.(map[string]any)
		base := manifest.Mapping(resource, "base")
		at := fmt.Sprintf("%s.resources[%d]", at, i)
		t := Template{Path: at + ".base", Base: base, APIVersion: manifest.Text(base, "apiVersion"), Kind: manifest.Text(base, "kind")}
		for j, p := range manifest.List(resource, "patches") {
			patch, _ := p.(map[string]any)
			at := fmt.Sprintf("%s.patches[%d]", at, j)
			if manifest.Text(patch, "type") != "PatchSet" {
				t.Fields = append(t.Fields, patched(patch, at)...)
				continue
			}
			set, _ := sets[manifest.Text(patch, "patchSetName")].(map[string]any)
			for k, p := range manifest.List(set, "patches") {
				patch, _ := p.(map[string]any)
				t.Fields = append(t.Fields, patched(patch, fmt.Sprintf("%s (patch set %s, patches[%d])", at, manifest.Text(set, "name"), k))...)
			}
		}
		for _, list := range []struct{ name, field string }{{"connectionDetails", "fromFieldPath"}, {"readinessChecks", "fieldPath"}} {
			for j, item := range manifest.List(resource, list.name) {
				detail, _ := item.(map[string]any)
				if name := manifest.Text(detail, list.field); name != "" {
					t.Fields = append(t.Fields, Field{Path: fmt.Sprintf("%s.%s[%d].%s", at, list.name, j, list.field), Name: name})
				}
			}
		}
		if t.APIVersion != "" && t.Kind != "" {
			all = append(all, t)
		}
		all = embedded(all, base, t.Path, false)
	}
	return all
}

// patched returns the fields that a patch names, without those of the environment.
func patched(patch map[string]any, at string) []Field {
	var from, to, fromComposite, toComposite bool // whether the side is known, and is the composite
	switch manifest.Text(patch, "type") {
	case "", "FromCompositeFieldPath", "CombineFromComposite":
		from, to, fromComposite = true, true, true
	case "ToCompositeFieldPath", "CombineToComposite":
		from, to, toComposite = true, true, true
	case "FromEnvironmentFieldPath", "CombineFromEnvironment":
		to = true
	case "ToEnvironmentFieldPath", "CombineToEnvironment":
		from = true
	}
	var all []Field
	name := manifest.Text(patch, "fromFieldPath")
	if from && name != "" {
		all = append(all, Field{at + ".fromFieldPath", name, fromComposite})
	}
	if from {
		for i, v := range manifest.List(patch, "combine", "variables") {
			variable, _ := v.(map[string]any)
			if name := manifest.Text(variable, "fromFieldPath"); name != "" {
				all = append(all, Field{fmt.Sprintf("%s.combine.variables[%d].fromFieldPath", at, i), name, fromComposite})
			}
		}
	}
	if !to {
		return all
	}
	if target := manifest.Text(patch, "toFieldPath"); target != "" {
		return append(all, Field{at + ".toFieldPath", target, toComposite})
	}
	if from && name != "" { // without it, the names are the same
		all = append(all, Field{at + ".fromFieldPath", name, toComposite})
	}
	return all
}

// within finds the objects in a function's input.
func within(all []Template, input map[string]any, at string) []Template {
	for _, key := range slices.Sorted(maps.Keys(input)) {
		all = embedded(all, input[key], at+"."+key, true)
	}
	return all
}

// embedded finds the objects below a value, and the value itself if self is set. A
// reference, which has neither metadata nor a spec, is not an object.
func embedded(all []Template, v any, at string, self bool) []Template {
	switch v := v.(type) {
	case map[string]any:
		apiVersion, kind := manifest.Text(v, "apiVersion"), manifest.Text(v, "kind")
		if self && apiVersion != "" && kind != "" && (v["metadata"] != nil || v["spec"] != nil) {
			all = append(all, Template{Path: at, APIVersion: apiVersion, Kind: kind})
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			all = embedded(all, v[key], at+"."+key, true)
		}
	case []any:
		for i, item := range v {
			all = embedded(all, item, fmt.Sprintf("%s[%d]", at, i), true)
		}
	case string:
		all = inText(all, v, at)
	}
	return all
}

// line matches a line of YAML in a text, with its indent. Values that a template fills in
// have braces and do not match.
var line = regexp.MustCompile(`^([ \t]*(?:- )?)(?:(apiVersion|kind):[ \t]*(?:["']?([A-Za-z0-9][A-Za-z0-9./-]*)["']?)?[ \t]*(?:#.*)?|(metadata|spec):.*)$`)

// inText finds the objects in a template of YAML: mappings with an apiVersion, a kind, and
// metadata or a spec. It returns each kind once.
func inText(all []Template, text, at string) []Template {
	if !strings.Contains(text, "apiVersion:") || !strings.Contains(text, "kind:") {
		return all
	}
	type object struct {
		Template
		content bool
	}
	open := make(map[int]*object) // by indent
	var order []*object
	for l := range strings.Lines(text) {
		l = strings.TrimRight(l, " \t\r\n")
		body := strings.TrimLeft(l, " \t")
		switch {
		case body == "", strings.HasPrefix(body, "{{"):
			continue
		case strings.HasPrefix(l, "---"):
			clear(open)
			continue
		}
		// A line with less indent ends the mappings with more.
		at0 := len(l) - len(body)
		maps.DeleteFunc(open, func(indent int, _ *object) bool {
			return indent > at0+2 || indent > at0 && !strings.HasPrefix(body, "- ")
		})
		m := line.FindStringSubmatch(l)
		if m == nil {
			continue
		}
		indent := len(m[1])
		o := open[indent]
		if o == nil || strings.HasSuffix(m[1], "- ") {
			o = &object{Template: Template{Path: at}}
			open[indent] = o
			order = append(order, o)
		}
		switch m[2] {
		case "apiVersion":
			o.APIVersion = m[3]
		case "kind":
			o.Kind = m[3]
		default:
			o.content = true
		}
	}
	var seen []Template
	for _, o := range order {
		alike := func(t Template) bool { return t.APIVersion == o.APIVersion && t.Kind == o.Kind }
		if o.content && o.APIVersion != "" && o.Kind != "" && !slices.ContainsFunc(seen, alike) {
			seen = append(seen, o.Template)
		}
	}
	return append(all, seen...)
}
