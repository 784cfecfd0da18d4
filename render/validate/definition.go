package validate

import (
	"context"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	strict "sigs.k8s.io/json"

	"gitopsd.dev/render/manifest"
)

// Definition returns the errors of the API server for a new CustomResourceDefinition of a
// package, at most [MostCauses]. The address of a conversion webhook is not checked: it is known
// where the package is installed. Definition fails if the errors are not known.
func Definition(tree map[string]any) (causes []Cause, err error) {
	defer recovered(&err)
	if manifest.Text(tree, "spec", "conversion", "strategy") == "Webhook" {
		tree = manifest.Without(tree, "spec", "conversion")
	}
	var external apiextensionsv1.CustomResourceDefinition
	unknown, err := strict.UnmarshalStrict(manifest.AppendJSON(nil, tree), &external)
	if err != nil {
		return []Cause{{Why: bounded(strings.TrimPrefix(err.Error(), "json: "))}}, nil
	}
	for _, e := range unknown {
		causes = append(causes, Cause{Why: bounded(e.Error())})
	}
	external.Status = apiextensionsv1.CustomResourceDefinitionStatus{} // the API server's
	apiextensionsv1.SetDefaults_CustomResourceDefinition(&external)
	internal := new(apiextensions.CustomResourceDefinition)
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&external, internal, nil); err != nil {
		return nil, err
	}
	for _, c := range causesOf(crdvalidation.ValidateCustomResourceDefinition(context.Background(), internal)) {
		for field, written := range inCommon {
			if rest, ok := strings.CutPrefix(c.Path, field); ok {
				c.Path = written + rest
			}
		}
		if len(causes) < MostCauses && !slices.Contains(causes, c) && !strings.HasPrefix(c.Path, "status.") {
			causes = append(causes, c)
		}
	}
	return causes, nil
}

// inCommon are the fields that the API server's internal type has once if all versions have the
// same, and where they are written.
var inCommon = map[string]string{
	"spec.validation":               "spec.versions[0].schema",
	"spec.subresources":             "spec.versions[0].subresources",
	"spec.additionalPrinterColumns": "spec.versions[0].additionalPrinterColumns",
}
