package types

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// The parts that fields of a definition play in a type.
type meaning int

const (
	// part of the type: a change changes the digest.
	part meaning = iota + 1
	// documentation, or the address of a webhook.
	aside
	// inner: a struct with fields that are decided one by one.
	inner
)

// decided has every field of the definitions of apiextensions.k8s.io/v1. If a newer
// Kubernetes adds a field, TestFields fails until the field is here, and schema.go or
// form.go treats it accordingly.
var decided = map[string]map[string]meaning{
	"CustomResourceDefinitionSpec": {
		"group": part, "names": inner, "scope": part, "versions": inner, "conversion": inner, "preserveUnknownFields": part,
	},
	"CustomResourceDefinitionNames": {
		"plural": part, "singular": part, "shortNames": part, "kind": part, "listKind": part, "categories": part,
	},
	"CustomResourceConversion": {"strategy": part, "webhook": inner},
	"WebhookConversion":        {"clientConfig": inner, "conversionReviewVersions": part},
	"WebhookClientConfig":      {"url": aside, "service": inner, "caBundle": aside},
	"ServiceReference":         {"namespace": aside, "name": aside, "path": aside, "port": aside},
	"CustomResourceDefinitionVersion": {
		"name": part, "served": part, "storage": part, "deprecated": part, "deprecationWarning": part, "schema": inner,
		"subresources": inner, "additionalPrinterColumns": inner, "selectableFields": inner,
	},
	"CustomResourceValidation":       {"openAPIV3Schema": inner},
	"CustomResourceSubresources":     {"status": part, "scale": inner},
	"CustomResourceSubresourceScale": {"specReplicasPath": part, "statusReplicasPath": part, "labelSelectorPath": part},
	"CustomResourceColumnDefinition": {
		"name": part, "type": part, "format": part, "description": aside, "priority": part, "jsonPath": part,
	},
	"SelectableField": {"jsonPath": part},
	"ValidationRule": {
		"rule": part, "message": part, "messageExpression": part, "reason": part, "fieldPath": part, "optionalOldSelf": part,
	},
	"ExternalDocumentation": {"description": aside, "url": aside},
	"JSONSchemaProps": {
		"id": part, "$schema": part, "$ref": part, "description": aside, "type": part, "format": part, "title": aside, "default": part,
		"maximum": part, "exclusiveMaximum": part, "minimum": part, "exclusiveMinimum": part, "maxLength": part, "minLength": part,
		"pattern": part, "maxItems": part, "minItems": part, "uniqueItems": part, "multipleOf": part, "enum": part,
		"maxProperties": part, "minProperties": part, "required": part, "items": part, "allOf": part, "oneOf": part, "anyOf": part,
		"not": part, "properties": part, "additionalProperties": part, "patternProperties": part, "dependencies": part,
		"additionalItems": part, "definitions": part, "externalDocs": inner, "example": aside, "nullable": part,
		"x-kubernetes-preserve-unknown-fields": part, "x-kubernetes-embedded-resource": part, "x-kubernetes-int-or-string": part,
		"x-kubernetes-list-map-keys": part, "x-kubernetes-list-type": part, "x-kubernetes-map-type": part,
		"x-kubernetes-validations": inner,
	},
}

// sample is a definition with one of each struct that a definition may contain, and
// nothing else.
func sample() *apiextensions.CustomResourceDefinitionSpec {
	return &apiextensions.CustomResourceDefinitionSpec{
		Group: "example.org", Names: apiextensions.CustomResourceDefinitionNames{Kind: "Bucket", Plural: "buckets"}, Scope: "Cluster",
		Conversion: &apiextensions.CustomResourceConversion{Strategy: "Webhook", Webhook: &apiextensions.WebhookConversion{
			ClientConfig: &apiextensions.WebhookClientConfig{Service: &apiextensions.ServiceReference{}},
		}},
		Versions: []apiextensions.CustomResourceDefinitionVersion{{
			Name: "v1",
			Schema: &apiextensions.CustomResourceValidation{OpenAPIV3Schema: &apiextensions.JSONSchemaProps{
				ExternalDocs: &apiextensions.ExternalDocumentation{},
				XValidations: apiextensions.ValidationRules{{}},
			}},
			Subresources:             &apiextensions.CustomResourceSubresources{Scale: &apiextensions.CustomResourceSubresourceScale{}},
			AdditionalPrinterColumns: []apiextensions.CustomResourceColumnDefinition{{}},
			SelectableFields:         []apiextensions.SelectableField{{}},
		}},
	}
}

// values are the values to set a field to, by its type. Each differs from the others and
// from an absent field.
func values(t *testing.T, field reflect.Type) []reflect.Value {
	schemas := []apiextensions.JSONSchemaProps{{MaxLength: new(int64)}, {Type: "object", Properties: map[string]apiextensions.JSONSchemaProps{"description": {}}}}
	some := func(values ...any) []reflect.Value {
		var all []reflect.Value
		for _, v := range values {
			all = append(all, reflect.ValueOf(v).Convert(field))
		}
		return all
	}
	switch field {
	case reflect.TypeFor[apiextensions.JSON]():
		return some(apiextensions.JSON{Raw: []byte(`{"description":""}`)}, apiextensions.JSON{Raw: []byte(`0`)}, apiextensions.JSON{Raw: []byte(`""`)}, apiextensions.JSON{Raw: []byte(`false`)})
	case reflect.TypeFor[apiextensions.JSONSchemaProps]():
		return some(schemas[0], schemas[1])
	case reflect.TypeFor[apiextensions.JSONSchemaPropsOrArray]():
		return some(apiextensions.JSONSchemaPropsOrArray{Schema: &schemas[0]}, apiextensions.JSONSchemaPropsOrArray{JSONSchemas: schemas}, apiextensions.JSONSchemaPropsOrArray{JSONSchemas: schemas[1:]})
	case reflect.TypeFor[apiextensions.JSONSchemaPropsOrBool]():
		return some(apiextensions.JSONSchemaPropsOrBool{Allows: true}, apiextensions.JSONSchemaPropsOrBool{}, apiextensions.JSONSchemaPropsOrBool{Schema: &schemas[0]})
	case reflect.TypeFor[apiextensions.JSONSchemaPropsOrStringArray]():
		return some(apiextensions.JSONSchemaPropsOrStringArray{Schema: &schemas[0]}, apiextensions.JSONSchemaPropsOrStringArray{Property: []string{"a"}})
	case reflect.TypeFor[apiextensions.CustomResourceSubresourceStatus]():
		return some(apiextensions.CustomResourceSubresourceStatus{})
	}
	var all []reflect.Value
	switch field.Kind() {
	case reflect.String:
		return some("a", "b")
	case reflect.Bool:
		return some(true)
	case reflect.Int32, reflect.Int64:
		return some(1, 10, 12)
	case reflect.Float64:
		return some(1.0, 10.0, 0.5)
	case reflect.Uint8:
		return some(1, 2)
	case reflect.Pointer:
		for _, v := range values(t, field.Elem()) {
			p := reflect.New(field.Elem())
			p.Elem().Set(v)
			all = append(all, p)
		}
		if k := field.Elem().Kind(); k == reflect.Int64 || k == reflect.Float64 {
			all = append(all, reflect.New(field.Elem())) // zero is not absent
		}
	case reflect.Slice:
		for _, v := range values(t, field.Elem()) {
			all = append(all, reflect.Append(reflect.Zero(field), v))
		}
	case reflect.Map:
		for _, name := range []string{"title", "default"} {
			for _, v := range values(t, field.Elem()) {
				m := reflect.MakeMap(field)
				m.SetMapIndex(reflect.ValueOf(name), v)
				all = append(all, m)
			}
		}
	default:
		t.Fatalf("no values for a field of type %s: give it some here", field)
	}
	return all
}

// find calls visit for every struct in a sample's value that decided names.
func find(v reflect.Value, visit func(reflect.Value)) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			find(v.Elem(), visit)
		}
	case reflect.Slice:
		for i := range v.Len() {
			find(v.Index(i), visit)
		}
	case reflect.Struct:
		if decided[v.Type().Name()] != nil {
			visit(v)
		}
		for i := range v.NumField() {
			find(v.Field(i), visit)
		}
	}
}

func formOf(t *testing.T, spec *apiextensions.CustomResourceDefinitionSpec) string {
	t.Helper()
	text, err := json.Marshal(map[string]any{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "spec": spec})
	if err != nil {
		t.Fatal(err)
	}
	var tree map[string]any
	if err := utiljson.Unmarshal(text, &tree); err != nil {
		t.Fatal(err)
	}
	return forms(t, tree)[0]
}

// Every field of a definition changes the form if it is part of the type, and
// does not if it is not.
func TestFields(t *testing.T) {
	spec := sample()
	base := formOf(t, spec)
	unvisited := maps.Clone(decided)
	find(reflect.ValueOf(spec), func(s reflect.Value) {
		name := s.Type().Name()
		delete(unvisited, name)
		undecided := maps.Clone(decided[name])
		for i := range s.NumField() {
			field, _, _ := strings.Cut(s.Type().Field(i).Tag.Get("json"), ",")
			kind, ok := decided[name][field]
			delete(undecided, field)
			if !ok {
				t.Errorf("%s.%s is not decided: is it part of the type?", name, field)
				continue
			}
			if kind == inner {
				continue
			}
			seen := map[string]string{base: "the field as it was"}
			was := reflect.New(s.Field(i).Type()).Elem()
			was.Set(s.Field(i))
			for _, v := range values(t, s.Field(i).Type()) {
				s.Field(i).Set(v)
				what, _ := json.Marshal(v.Interface())
				form := formOf(t, spec)
				switch other, same := seen[form]; {
				case kind == aside && form != base:
					t.Errorf("%s.%s: %s changes the form", name, field, what)
				case kind == part && same && !bytes.Equal(what, mustMarshal(t, was)):
					t.Errorf("%s.%s: %s has the form of %s", name, field, what, other)
				}
				seen[form] = string(what)
			}
			s.Field(i).Set(was)
		}
		for field := range undecided {
			t.Errorf("%s.%s is decided but no field", name, field)
		}
	})
	for name := range unvisited {
		t.Errorf("%s is decided, but the sample has none", name)
	}
	// The sample has all structs.
	reachable := map[string]bool{}
	reach(reflect.TypeFor[apiextensions.CustomResourceDefinitionSpec](), reachable)
	for _, leaf := range []string{"CustomResourceSubresourceStatus", "JSON", "JSONSchemaPropsOrArray", "JSONSchemaPropsOrBool", "JSONSchemaPropsOrStringArray"} {
		delete(reachable, leaf) // whole values of their own in values
	}
	for _, name := range slices.Sorted(maps.Keys(reachable)) {
		if decided[name] == nil {
			t.Errorf("%s is not decided", name)
		}
	}
}

func mustMarshal(t *testing.T, v reflect.Value) []byte {
	t.Helper()
	text, err := json.Marshal(v.Interface())
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func reach(typ reflect.Type, seen map[string]bool) {
	switch typ.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		reach(typ.Elem(), seen)
	case reflect.Struct:
		if seen[typ.Name()] {
			return
		}
		seen[typ.Name()] = true
		for i := range typ.NumField() {
			reach(typ.Field(i).Type, seen)
		}
	}
}

// The fields of types that are set as a whole.
func TestLeafFields(t *testing.T) {
	for _, tt := range []struct {
		typ  reflect.Type
		want []string
	}{
		{reflect.TypeFor[apiextensions.CustomResourceSubresourceStatus](), nil},
		{reflect.TypeFor[apiextensions.JSON](), []string{"Raw"}},
		{reflect.TypeFor[apiextensions.JSONSchemaPropsOrArray](), []string{"Schema", "JSONSchemas"}},
		{reflect.TypeFor[apiextensions.JSONSchemaPropsOrBool](), []string{"Allows", "Schema"}},
		{reflect.TypeFor[apiextensions.JSONSchemaPropsOrStringArray](), []string{"Schema", "Property"}},
	} {
		var have []string
		for i := range tt.typ.NumField() {
			have = append(have, tt.typ.Field(i).Name)
		}
		if !slices.Equal(have, tt.want) {
			t.Errorf("%s has fields %v, want %v: decide whether they are part of the type", tt.typ.Name(), have, tt.want)
		}
	}
}
