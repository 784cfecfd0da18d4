package types_test

import (
	"fmt"
	"strings"

	"gitopsd.dev/render/types"
	"gitopsd.dev/sources"
)

const widgets = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.acme.example}
spec:
  group: acme.example
  scope: Namespaced
  names: {kind: Widget, plural: widgets}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        description: A widget.
        properties: {spec: {type: object, properties: {size: {type: integer}}}}
`

// The digest of a type stays the same if a description changes, and changes with a field.
func Example() {
	for _, edit := range [][2]string{{"", ""}, {"A widget.", "A small widget."}, {"integer", "string"}} {
		docs, err := sources.DecodeYAML(strings.NewReader(strings.Replace(widgets, edit[0], edit[1], 1)), sources.Limits{})
		if err != nil {
			panic(err)
		}
		all, err := types.All(docs)
		if err != nil {
			panic(err)
		}
		fmt.Println(all[0])
	}
	// Output:
	// acme.example/v1 Widget h1:XedRbin4oKPcVCXvBtOSMIl35ghTFOFL0itkbMlk4b0=
	// acme.example/v1 Widget h1:XedRbin4oKPcVCXvBtOSMIl35ghTFOFL0itkbMlk4b0=
	// acme.example/v1 Widget h1:gUBlWRVsR9QnfRQIZQdoLt6EXFAxQw2sXxIGYfZZ5/c=
}

func ExampleRead() {
	docs, err := sources.DecodeYAML(strings.NewReader(widgets), sources.Limits{})
	if err != nil {
		panic(err)
	}
	d := types.Read(docs[0].Tree)
	fmt.Println(d.Names.Kind, d.Names.ListKind, d.Group, d.Scope, d.Versions()[0].Name)
	// Output: Widget WidgetList acme.example Namespaced v1
}
