package immutable

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/json"

	"gitopsd.dev/render/manifest"
)

// accepted returns an error if an API server would refuse rules that a schema has after but
// not before: CEL does not see a field, or the rules may cost too much. It ignores problems
// that exist before.
func accepted(before, after map[string]any) error {
	was, err := problems(before)
	if err != nil {
		return err
	}
	now, err := problems(after)
	if err != nil {
		return err
	}
	var reasons []string
	for _, text := range now {
		if !slices.Contains(was, text) && !slices.Contains(reasons, text) {
			reasons = append(reasons, text)
		}
	}
	if len(reasons) == 0 {
		return nil
	}
	if slices.ContainsFunc(reasons, func(text string) bool { return strings.Contains(text, "estimated rule cost") }) {
		return errors.New("the API server would refuse the rule as too expensive, since lists, mappings or texts have no maxItems, maxProperties or maxLength; make all of the list or mapping immutable instead")
	}
	slices.Sort(reasons)
	return fmt.Errorf("the API server would refuse the rule: %s", strings.Join(reasons, "; "))
}

// problems returns the errors of an API server's validation for a schema.
func problems(schema map[string]any) ([]string, error) {
	var external apiextensionsv1.JSONSchemaProps
	if err := json.Unmarshal(manifest.AppendJSON(nil, schema), &external); err != nil {
		return nil, fmt.Errorf("its schema: %w", err)
	}
	internal := new(apiextensions.JSONSchemaProps)
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(&external, internal, nil); err != nil {
		return nil, fmt.Errorf("its schema: %w", err)
	}
	// The definition around the schema is valid.
	names := apiextensions.CustomResourceDefinitionNames{Plural: "fields", Singular: "field", Kind: "Field", ListKind: "FieldList"}
	preserve := false
	crd := &apiextensions.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "fields.immutable.example"},
		Spec: apiextensions.CustomResourceDefinitionSpec{
			Group: "immutable.example", Names: names, Scope: apiextensions.NamespaceScoped, PreserveUnknownFields: &preserve,
			Conversion: &apiextensions.CustomResourceConversion{Strategy: apiextensions.NoneConverter},
			Version:    "v1",
			Versions: []apiextensions.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensions.CustomResourceValidation{OpenAPIV3Schema: internal},
			}},
		},
	}
	// A definition with one version has its schema at the top, internally.
	crd.Spec.Validation, crd.Spec.Versions[0].Schema = crd.Spec.Versions[0].Schema, nil
	crd.Status.StoredVersions = []string{"v1"}
	var all []string
	for _, e := range validation.ValidateCustomResourceDefinition(context.Background(), crd) {
		first, _, _ := strings.Cut(e.Detail, "\n") // CEL's errors show where
		all = append(all, first)
	}
	return all, nil
}
