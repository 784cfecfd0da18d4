package storageversionmigrator

import (
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// definition is the test's, with both versions from the start.
func definition() *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: crdName + "s." + crdGroup},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group:    crdGroup,
			Names:    apiextensionsv1.CustomResourceDefinitionNames{Kind: crdName, ListKind: crdName + "List", Plural: crdName + "s", Singular: crdName},
			Scope:    apiextensionsv1.NamespaceScoped,
			Versions: v2StorageCRDVersion,
		},
	}
}

// fields are an object's in each version.
var fields = map[string]map[string]any{
	"v1": {"hostPort": "example.com:7070"},
	"v2": {"host": "example.com", "port": "7070"},
}

func fill(object *unstructured.Unstructured, version string) {
	for name, value := range fields[version] {
		object.Object[name] = value
	}
}

// filled returns the object if it has all fields of its version, and no other.
func filled(t *testing.T, object *unstructured.Unstructured, version string) *unstructured.Unstructured {
	t.Helper()
	for _, all := range fields {
		for name := range all {
			if object.Object[name] != fields[version][name] {
				t.Errorf("%s in %s: %s is %v, not %v", object.GetName(), version, name, object.Object[name], fields[version][name])
			}
		}
	}
	return object
}
