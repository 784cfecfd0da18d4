// Package immutable makes fields of a CustomResourceDefinition immutable. It adds
// transition rules in CEL, so that API servers refuse to change or unset a field once it
// is set. The field can still be set for the first time. The package is pure and changes
// no tree that it is given.
//
// immutable.go parses the annotation that names the fields, and adds the rules. rule.go
// finds a field in a schema and makes its rule. compare.go knows how CEL compares values.
// accept.go runs the API server's validation on the definition with the rules.
//
// Package render applies this to declarations and definitions. render/types/compat
// decides what a new rule means for clients of a type; it recognizes the rules with
// [FieldOf].
//
// The use case is Crossplane's (design/design-doc-webhooks.md, issue 727): fields that
// cannot be changed once set, which differ from fields that can be set only on creation.
package immutable

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
)

// Message is the error message of an API server for a change that a rule refuses.
const Message = "cannot be changed or unset once it is set"

// Field is a field in the schema of a definition.
type Field struct {
	// Definition is the name of the CustomResourceDefinition.
	Definition string
	// Path is a path of its schema; see [field.ParseSchema].
	Path field.Path
}

// Parse parses the [manifest.ImmutableAnnotation] of a package's declaration:
// "<definition>:<path>", separated by commas. Errors name the entry.
func Parse(value string) ([]Field, error) {
	return parse(value, func(entry string) (Field, error) {
		definition, path, ok := strings.Cut(entry, ":")
		definition = strings.TrimSpace(definition)
		if !ok || definition == "" {
			return Field{}, fmt.Errorf("%q: want <name of a CustomResourceDefinition>:<path>, such as buckets.acme.example:spec.region", entry)
		}
		return fieldOf(definition, path)
	})
}

// ParseOwn parses the [manifest.ImmutableAnnotation] of a definition: paths, separated by
// commas. Errors name the entry.
func ParseOwn(definition, value string) ([]Field, error) {
	return parse(value, func(entry string) (Field, error) { return fieldOf(definition, entry) })
}

func parse(value string, read func(entry string) (Field, error)) ([]Field, error) {
	var all []Field
	known := make(map[[2]string]bool)
	for _, entry := range split(value) {
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		f, err := read(entry)
		if err != nil {
			return nil, err
		}
		key := [2]string{f.Definition, f.Path.String()}
		if known[key] {
			return nil, fmt.Errorf("%q: is there twice", entry)
		}
		known[key] = true
		all = append(all, f)
	}
	if len(all) == 0 {
		return nil, errors.New("names no field")
	}
	return all, nil
}

// split splits at commas that are not in quotes.
func split(value string) []string {
	var entries []string
	start, quoted := 0, false
	for i := 0; i < len(value); i++ {
		switch c := value[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case c == ',' && !quoted:
			entries, start = append(entries, value[start:i]), i+1
		}
	}
	return append(entries, value[start:])
}

func fieldOf(definition, text string) (Field, error) {
	path, err := field.ParseSchema(strings.TrimSpace(text))
	if err != nil {
		return Field{}, err
	}
	f := Field{Definition: definition, Path: path}
	for _, s := range path {
		if s.List && !s.Every {
			return f, fmt.Errorf("%s: %s picks one element; write [*] for every element", path, s)
		}
	}
	switch first := path[0]; {
	case first.Every:
		return f, fmt.Errorf("%s: does not start with the name of a field", path)
	case slices.Contains([]string{"apiVersion", "kind", "metadata"}, first.Key):
		return f, fmt.Errorf("%s: %s is Kubernetes' own; only the fields of a definition's schema can be made immutable", path, first.Key)
	}
	return f, nil
}

// Apply returns a definition with rules for the fields at the paths, in each served version
// that has them. It shares unchanged parts with the old one. The notes are about
// limitations of the rules; each starts with the path.
//
// Apply fails if no served version has a field, if there can be no rule for a field, or if
// an API server would not accept the rules. The error joins an error for each path.
func Apply(definition map[string]any, paths []field.Path) (changed map[string]any, notes []string, err error) {
	d := types.Read(definition)
	if d.XRD {
		return nil, nil, fmt.Errorf("it is a %s, which Crossplane makes CustomResourceDefinitions of; write the rules into its schema, as x-kubernetes-validations of spec", manifest.XRD.Kind)
	}
	var errs []error
	changed = definition
	for _, path := range paths {
		next, more, err := one(changed, d.Versions(), path)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", path, err))
			continue
		}
		changed, notes = next, append(notes, more...)
	}
	if len(errs) == 0 {
		errs = check(definition, changed, paths)
	}
	if len(errs) > 0 {
		return nil, nil, errors.Join(errs...)
	}
	return changed, notes, nil
}

// Holds reports whether a definition has the rules that [Apply] adds for the paths.
func Holds(definition map[string]any, paths []field.Path) bool {
	versions := types.Read(definition).Versions()
	return !slices.ContainsFunc(paths, func(path field.Path) bool {
		changed, _, err := one(definition, versions, path)
		return err != nil || !reflect.DeepEqual(changed, definition)
	})
}

// one adds the rules for one field.
func one(definition map[string]any, versions []types.Version, path field.Path) (changed map[string]any, notes []string, err error) {
	var ruled, lacking, defaulted, overlooked []string
	var unknown *missingError // from the version that has most of the path
	changed = definition
	for i, v := range versions {
		if !v.Served || v.Schema == nil {
			continue
		}
		way, err := resolve(v.Schema, path)
		if e := new(missingError); errors.As(err, &e) {
			lacking = append(lacking, v.Name)
			if unknown == nil || len(e.there) > len(unknown.there) {
				unknown = e
			}
			continue
		}
		if err != nil {
			return nil, nil, fmt.Errorf("version %s: %w", v.Name, err)
		}
		ruled = append(ruled, v.Name)
		if way.defaulted {
			defaulted = append(defaulted, v.Name)
		}
		for _, o := range way.overlooked {
			if !slices.Contains(overlooked, o) { // the same in each version
				overlooked = append(overlooked, o)
			}
		}
		at := slices.Concat([]any{"spec", "versions", i, "schema", "openAPIV3Schema"}, way.base, []any{"x-kubernetes-validations"})
		changed = with(changed, at, way.rule).(map[string]any)
	}
	switch {
	case len(ruled) > 0:
	case unknown == nil:
		return nil, nil, errors.New("the definition serves no version with a schema")
	default:
		return nil, nil, unknown
	}
	if len(lacking) > 0 {
		notes = append(notes, fmt.Sprintf("%s: version %s has no such field, and writes in that version are not checked", path, strings.Join(lacking, ", ")))
	}
	if len(defaulted) > 0 {
		notes = append(notes, fmt.Sprintf("%s: has a default in version %s, so it is set as soon as an object exists", path, strings.Join(defaulted, ", ")))
	}
	for _, o := range overlooked {
		notes = append(notes, fmt.Sprintf("%s: %s", path, o))
	}
	return changed, notes, nil
}

// check returns the errors of an API server about the new rules, if possible for each field
// alone.
func check(definition, changed map[string]any, paths []field.Path) []error {
	refused := func(changed map[string]any) error {
		before, after := types.Read(definition).Versions(), types.Read(changed).Versions()
		for i, v := range after {
			if !v.Served || v.Schema == nil {
				continue
			}
			if err := accepted(before[i].Schema, v.Schema); err != nil {
				return fmt.Errorf("version %s: %w", v.Name, err)
			}
		}
		return nil
	}
	together := refused(changed)
	switch {
	case together == nil:
		return nil
	case len(paths) == 1:
		return wrap(paths[0], together)
	}
	var errs []error
	for _, path := range paths {
		if alone, _, err := one(definition, types.Read(definition).Versions(), path); err == nil {
			errs = append(errs, wrap(path, refused(alone))...)
		}
	}
	if len(errs) == 0 {
		errs = []error{fmt.Errorf("all fields together: %w", together)}
	}
	return errs
}

func wrap(path field.Path, err error) []error {
	if err == nil {
		return nil
	}
	return []error{fmt.Errorf("%s: %w", path, err)}
}

// with returns a tree with a rule added to the list at a path of keys and indices. It
// copies the values along the path.
func with(tree any, at []any, rule map[string]any) any {
	if len(at) == 0 {
		rules, _ := tree.([]any)
		for _, r := range rules {
			if same, _ := r.(map[string]any); same["rule"] == rule["rule"] {
				return rules // an API server keeps rules by their text
			}
		}
		return append(slices.Clone(rules), rule)
	}
	switch key := at[0].(type) {
	case int:
		list := slices.Clone(tree.([]any))
		list[key] = with(list[key], at[1:], rule)
		return list
	default:
		old, _ := tree.(map[string]any)
		m := make(map[string]any, len(old)+1)
		maps.Copy(m, old)
		m[key.(string)] = with(old[key.(string)], at[1:], rule)
		return m
	}
}
