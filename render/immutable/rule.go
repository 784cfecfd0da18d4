package immutable

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	apiservercel "k8s.io/apiserver/pkg/cel"

	"gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// way is the rule for a field, and its place in a schema.
type way struct {
	// base is the path from the schema of the whole object to the schema with the rule:
	// that of the nearest list element or mapping value around the field, since an API
	// server compares these one by one.
	base []any
	rule map[string]any
	// defaulted reports whether the field or a parent has a default.
	defaulted bool
	// overlooked are notes about changes that the rule does not see.
	overlooked []string
}

// missingError is the error for a field that a schema does not have. there is the part of
// the path that exists.
type missingError struct {
	there field.Path
	text  string
}

func (e *missingError) Error() string { return e.text }

func missing(there field.Path, format string, args ...any) error {
	return &missingError{there, fmt.Sprintf(format, args...)}
}

// resolve finds a field in the schema of an object and makes its rule. The error is a
// *missingError if the schema does not have the field. It fails also if there can be no
// rule for the field.
func resolve(schema map[string]any, path field.Path) (way, error) {
	var w way
	var e expression
	at := []any{}
	for i, step := range path {
		before := path[:i]
		if _, set := path[i:].In(schema["default"]); set {
			w.defaulted = true
		}
		if step.Every {
			child, err := every(schema, step, before)
			if err != nil {
				return w, err
			}
			if e.keyed {
				return w, fmt.Errorf("an API server has one rule for what is below all keys of a mapping, and %s is below one; %s, or write {*} for all keys", before, instead(before))
			}
			if i+2 == len(path) && slices.Contains(manifest.Texts(schema, "x-kubernetes-list-map-keys"), path[i+1].Key) {
				return w, fmt.Errorf("%s is a key by which an API server tells the elements of %s apart, so it never sees it change; %s", path[i+1].Key, before, instead(before))
			}
			schema = manifest.Mapping(schema, child)
			at = append(at, child)
			w.base, e = slices.Clone(at), expression{}
			continue
		}
		properties := manifest.Mapping(schema, "properties")
		switch {
		case properties[step.Key] != nil:
			name, ok := apiservercel.Escape(step.Key)
			if !ok {
				return w, fmt.Errorf("CEL has no way to name the field %q; %s", step.Key, instead(before))
			}
			e.property(name, step.Key)
			schema = manifest.Mapping(properties, step.Key)
			at = append(at, "properties", step.Key)
		case manifest.Mapping(schema, "additionalProperties") != nil:
			e.key(step.Key)
			schema = manifest.Mapping(schema, "additionalProperties")
			at = append(at, "additionalProperties")
		case schema["additionalProperties"] == true, manifest.Truth(schema, "x-kubernetes-preserve-unknown-fields"):
			return w, fmt.Errorf("%s keeps fields that its schema does not have, and a rule cannot name these; %s", shown(before), instead(before))
		case schema["items"] != nil:
			return w, missing(before, "%s is a list; write %s[*].%s for a field of its elements", before, before, step.Key)
		default:
			return w, missing(before, "there is no such field%s", suggestion(properties, step.Key, before))
		}
	}
	if !typed(schema) {
		return w, fmt.Errorf("CEL does not see it, since its schema has no type; %s", instead(path[:len(path)-1]))
	}
	if _, set := schema["default"]; set {
		w.defaulted = true
	}
	var c comparison
	if err := c.compare(schema, path); err != nil {
		return w, err
	}
	w.overlooked = c.overlooked
	w.rule = e.rule(c.nulls)
	return w, nil
}

// typed reports whether CEL knows the type of a schema's values.
func typed(schema map[string]any) bool {
	return manifest.Text(schema, "type") != "" || manifest.Truth(schema, "x-kubernetes-int-or-string")
}

// every returns the keyword of the schema for the elements of a list or the values of a
// mapping. It fails if an API server cannot correlate them after a change.
func every(schema map[string]any, step field.Step, before field.Path) (keyword string, err error) {
	if !step.List {
		if manifest.Mapping(schema, "additionalProperties") == nil {
			return "", missing(before, "%s is not a mapping with arbitrary keys", before)
		}
		return "additionalProperties", nil
	}
	if manifest.Mapping(schema, "items") == nil {
		return "", missing(before, "%s is not a list", before)
	}
	switch kind := manifest.Text(schema, "x-kubernetes-list-type"); kind {
	case "map":
		return "items", nil
	case "set":
		return "", fmt.Errorf("%s is a set, and an API server cannot tell which element was which before; %s", before, instead(before))
	default:
		return "", fmt.Errorf("%s is an atomic list (it has no x-kubernetes-list-type: map), and an API server cannot tell which element was which before; %s", before, instead(before))
	}
}

// instead returns advice to make a parent immutable.
func instead(path field.Path) string {
	if len(path) == 0 {
		return "name another field"
	}
	return "make all of " + path.String() + " immutable instead"
}

func shown(path field.Path) string {
	if len(path) == 0 {
		return "the object"
	}
	return path.String()
}

// suggestion returns the field that was most likely meant, or the existing fields.
func suggestion(properties map[string]any, key string, before field.Path) string {
	names := slices.Sorted(maps.Keys(properties))
	if near := sources.Closest(key, names); near != "" {
		return "; did you mean " + append(slices.Clone(before), field.Key(near)).String() + "?"
	}
	const most = 8
	switch {
	case len(names) == 0:
		return "; " + shown(before) + " has none"
	case len(names) > most:
		return fmt.Sprintf("; %s has %s and %d more", shown(before), strings.Join(names[:most], ", "), len(names)-most)
	}
	return "; " + shown(before) + " has " + strings.Join(names, ", ")
}

// expression is a field in CEL, relative to the schema with the rule.
type expression struct {
	// steps lead to the field: ".spec" for a property, `["a"]` for a key of a mapping.
	steps []string
	// path is the fieldPath for x-kubernetes-validations. It ends before a key that
	// cannot be written there, and then cut is set.
	path string
	cut  bool
	// keyed reports whether a step is a key of a mapping.
	keyed bool
}

func (e *expression) property(escaped, name string) {
	e.steps = append(e.steps, "."+escaped)
	e.step(name)
}

func (e *expression) key(name string) {
	e.keyed = true
	e.steps = append(e.steps, "["+strconv.Quote(name)+"]")
	e.step(name)
}

// A fieldPath can have speakable keys. Plain keys need no quotes.
var (
	speakable = regexp.MustCompile(`^[A-Za-z0-9_./-]+$`)
	plain     = regexp.MustCompile(`^[A-Za-z0-9_/-]+$`)
)

func (e *expression) step(name string) {
	switch {
	case e.cut || !speakable.MatchString(name):
		e.cut = true
	case plain.MatchString(name):
		e.path += "." + name
	default:
		e.path += "['" + name + "']"
	}
}

// isSet returns the condition in CEL that the field of an object is set. For CEL a null
// field is not set.
func (e *expression) isSet(object string) string {
	all := make([]string, len(e.steps))
	for i, step := range e.steps {
		if key, ok := strings.CutPrefix(step, "["); ok {
			all[i] = strings.TrimSuffix(key, "]") + " in " + object
		} else {
			all[i] = "has(" + object + step + ")"
		}
		object += step
	}
	return strings.Join(all, " && ")
}

// rule returns the entry of x-kubernetes-validations. An API server does not evaluate it
// for a new object, since it names oldSelf. It compares whole values, which has the lowest
// estimated cost, in both directions if both is set.
func (e *expression) rule(both bool) map[string]any {
	field := strings.Join(e.steps, "")
	same := fmt.Sprintf("self%[1]s == oldSelf%[1]s", field)
	if both {
		same += fmt.Sprintf(" && oldSelf%[1]s == self%[1]s", field)
	}
	if len(e.steps) > 0 {
		same = fmt.Sprintf("!(%s) || %s && %s", e.isSet("oldSelf"), e.isSet("self"), same)
	}
	rule := map[string]any{"message": Message, "reason": "FieldValueForbidden", "rule": same}
	if e.path != "" {
		rule["fieldPath"] = e.path
	}
	return rule
}

// FieldOf reports whether this package made a rule of x-kubernetes-validations, and returns
// the path of its field relative to the schema with the rule: ".spec.size".
func FieldOf(rule map[string]any) (path string, ok bool) {
	if manifest.Text(rule, "message") != Message || !strings.Contains(manifest.Text(rule, "rule"), "oldSelf") {
		return "", false
	}
	return strings.NewReplacer("['", `["`, "']", `"]`).Replace(manifest.Text(rule, "fieldPath")), true
}
