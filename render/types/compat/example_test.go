package compat_test

import (
	"context"
	"fmt"
	"strings"

	"gitopsd.dev/render/types/compat"
	"gitopsd.dev/sources"
)

func ExampleCompare() {
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
        properties: {spec: {type: object, properties: {size: {type: integer, maximum: 9}, colour: {type: string}}}}
`
	definition := func(text string) map[string]any {
		docs, err := sources.DecodeYAML(strings.NewReader(text), sources.Limits{})
		if err != nil {
			panic(err)
		}
		return docs[0].Tree
	}
	narrower := strings.NewReplacer("maximum: 9", "maximum: 5", ", colour: {type: string}", "").Replace(widgets)
	report, err := compat.Compare(context.Background(), definition(widgets), definition(narrower), compat.Options{})
	if err != nil {
		panic(err)
	}
	fmt.Println(report.Severity)
	for _, f := range report.Findings {
		fmt.Println(f.Name, f.Version, f.Path, f.Detail)
	}
	// Output:
	// breaking
	// field-removed v1 .spec.colour string -> none
	// maximum-tightened v1 .spec.size 9 -> 5
}
