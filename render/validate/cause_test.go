package validate

import (
	"strings"
	"testing"

	"gitopsd.dev/render/manifest/manifesttest"
)

// Causes show no value of the object, neither through the message of a rule, nor through
// the error of a rule that fails.
func TestCausesShowNoValue(t *testing.T) {
	const secret = "hunter2"
	for name, tt := range map[string]struct{ schema, spec, want string }{
		"replicas":               {"{type: object, properties: {replicas: {x-kubernetes-preserve-unknown-fields: true}}}", "{replicas: '1 " + secret + "'}", "must be of type int64"},
		"replicas in a mapping":  {"{type: object, properties: {replicas: {x-kubernetes-preserve-unknown-fields: true}}}", "{replicas: {a: " + secret + "}}", "must be of type int64"},
		"a list around replicas": {"{type: object, x-kubernetes-preserve-unknown-fields: true}", "{scaled: [" + secret + "]}", "must be of type map[string]interface{}"},
		"a computed message": {
			"{type: object, properties: {a: {type: string, maxLength: 50}}, x-kubernetes-validations: [{rule: 'self.a == \"\"', messageExpression: '\"a is \" + self.a'}]}",
			"{a: " + secret + "}", `failed rule: self.a == ""`,
		},
		"a computed message beside a plain one": {
			"{type: object, properties: {a: {type: string, maxLength: 50}}, x-kubernetes-validations: [{rule: 'self.a == \"\"', message: a is to be empty, messageExpression: '\"a is \" + self.a'}]}",
			"{a: " + secret + "}", "a is to be empty",
		},
		"a rule that fails": {
			"{type: object, properties: {a: {type: string, maxLength: 50}}, x-kubernetes-validations: [{rule: 'url(self.a).getHost() == \"\"'}]}",
			"{a: '" + secret + " ://'}", "a rule fails: ",
		},
		"a key that is not there": {
			"{type: object, properties: {a: {type: string, maxLength: 50}, m: {type: object, maxProperties: 5, additionalProperties: {type: string}}}, x-kubernetes-validations: [{rule: 'self.m[self.a] == \"\"', message: m has a}]}",
			"{a: " + secret + ", m: {}}", "a rule fails: m has a",
		},
		"a format":  {"{type: object, properties: {a: {type: string, format: date}}}", "{a: " + secret + "}", "must be of type date"},
		"an enum":   {"{type: object, properties: {a: {type: string, enum: [x]}}}", "{a: " + secret + "}", `supported values: "x"`},
		"a pattern": {"{type: object, properties: {a: {type: string, pattern: '^x$'}}}", "{a: " + secret + "}", "should match '^x$'"},
		"a type":    {"{type: object, properties: {a: {type: integer}}}", "{a: " + secret + "}", "must be of type integer"},
		"a set":     {"{type: object, properties: {a: {type: array, x-kubernetes-list-type: set, items: {type: string}}}}", "{a: [" + secret + ", " + secret + "]}", "is there twice"},
		"metadata of an embedded object": {
			"{type: object, properties: {a: {type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}}}",
			"{a: {apiVersion: v1, kind: A, metadata: {name: a, labels: {l: '" + secret + "!'}}}}", "",
		},
	} {
		d := manifesttest.Tree(t, "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: widgets.e.org}, "+
			"spec: {group: e.org, scope: Namespaced, names: {kind: Widget, plural: widgets}, versions: [{name: v1, served: true, storage: true, "+
			"subresources: {scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .spec.scaled.replicas}}, schema: {openAPIV3Schema: {type: object, properties: {spec: "+tt.schema+"}}}}]}}")
		s, err := CompileSchema(d, "v1")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		tree, err := Decoded(manifesttest.Tree(t, "{apiVersion: e.org/v1, kind: Widget, metadata: {name: w, namespace: n}, spec: "+tt.spec+"}"))
		if err != nil {
			t.Fatal(err)
		}
		causes, err := s.Causes(t.Context(), tree)
		if err != nil || len(causes) == 0 {
			t.Errorf("%s: %v %v", name, causes, err)
		}
		for _, c := range causes {
			if strings.Contains(c.Why, secret) || !strings.Contains(c.Why, tt.want) {
				t.Errorf("%s: %q, want %q", name, c.Why, tt.want)
			}
		}
	}
}
