package immutable

import (
	"fmt"
	"maps"
	"slices"

	apiservercel "k8s.io/apiserver/pkg/cel"

	"gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest"
)

// comparison collects the faults of CEL's == for the values of a schema
// (valuesunstructured.go of k8s.io/apiserver/pkg/cel/common).
type comparison struct {
	// overlooked are notes about changes that == does not see.
	overlooked []string
	// nulls reports whether a field of the value can be null. Then the rule must use == in
	// both directions: a null counts as a field, so == can miss a field that exists only
	// on the right side.
	nulls bool
}

// compare fails if == can report equal values as different, since then no object with such
// a value could be updated.
func (c *comparison) compare(schema map[string]any, at field.Path) error {
	if manifest.Truth(schema, "x-kubernetes-int-or-string") {
		return nil
	}
	switch manifest.Text(schema, "type") {
	case "array":
		items := manifest.Mapping(schema, "items")
		switch manifest.Text(schema, "x-kubernetes-list-type") {
		case "set":
			if slices.Contains([]string{"array", "object"}, manifest.Text(items, "type")) {
				return fmt.Errorf("CEL cannot compare the set %s, whose elements are lists or mappings; name another field", at)
			}
		case "map":
			for _, key := range manifest.Texts(schema, "x-kubernetes-list-map-keys") {
				if escaped, ok := apiservercel.Escape(key); ok && escaped != key {
					return fmt.Errorf("CEL cannot tell the elements of %s apart by their key %q, which has another name there; name another field", at, key)
				}
			}
		}
		return c.elements(items, append(slices.Clone(at), field.Step{List: true, Every: true}))
	case "object":
		properties := manifest.Mapping(schema, "properties")
		if manifest.Truth(schema, "x-kubernetes-preserve-unknown-fields") || manifest.Truth(schema, "x-kubernetes-embedded-resource") || schema["additionalProperties"] == true {
			c.overlooked = append(c.overlooked, fmt.Sprintf("an API server does not see when one field of %s that is not in its schema takes the place of another", at))
		}
		for _, name := range slices.Sorted(maps.Keys(properties)) {
			property, path := manifest.Mapping(properties, name), append(slices.Clone(at), field.Key(name))
			if read, ok := apiservercel.Unescape(name); !ok || read != name {
				c.overlooked = append(c.overlooked, fmt.Sprintf("an API server does not see changes of %s, since CEL reads its name as another", path))
			}
			c.nulls = c.nulls || manifest.Truth(property, "nullable")
			if err := c.compare(property, path); err != nil {
				return err
			}
		}
		if values := manifest.Mapping(schema, "additionalProperties"); values != nil {
			return c.elements(values, append(slices.Clone(at), field.Step{Every: true}))
		}
	}
	return nil
}

// elements compares the elements of a list or the values of a mapping.
func (c *comparison) elements(schema map[string]any, at field.Path) error {
	if !typed(schema) {
		return fmt.Errorf("CEL cannot compare %s, whose schema has no type; name another field", at)
	}
	return c.compare(schema, at)
}
