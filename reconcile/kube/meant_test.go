package kube

import (
	"encoding/json"
	"testing"
)

// The field that was probably meant is found in the schema that an API server publishes,
// through references, lists and mappings.
func TestMeant(t *testing.T) {
	const text = `{"components": {"schemas": {
		"io.k8s.api.apps.v1.Deployment": {
			"properties": {"metadata": {"$ref": "#/components/schemas/Meta"}, "spec": {"allOf": [{"$ref": "#/components/schemas/Spec"}], "default": {}}},
			"x-kubernetes-group-version-kind": [{"group": "apps", "version": "v1", "kind": "Deployment"}]},
		"Meta": {"properties": {"labels": {"additionalProperties": {"type": "string"}}}},
		"Spec": {"properties": {"replicas": {"type": "integer"}, "containers": {"items": {"$ref": "#/components/schemas/Container"}}, "parts": {"additionalProperties": {"$ref": "#/components/schemas/Container"}},
			"open": {"x-kubernetes-preserve-unknown-fields": true}, "any": {"additionalProperties": true}, "loop": {"$ref": "#/components/schemas/Loop"}}},
		"Container": {"properties": {"image": {"type": "string"}, "name": {"type": "string"}}},
		"Loop": {"$ref": "#/components/schemas/Loop"}
	}}}`
	doc := new(published)
	if err := json.Unmarshal([]byte(text), doc); err != nil {
		t.Fatal(err)
	}
	deployment := Type{Group: "apps", Version: "v1", Kind: "Deployment"}
	for _, tt := range []struct {
		of         Type
		path, want string
	}{
		{deployment, "spec.replcas", "; did you mean replicas?"},
		{deployment, "sepc", "; did you mean spec?"},
		{deployment, `spec.containers[name="web"].imgae`, "; did you mean image?"},
		{deployment, "spec.containers[0].imgae", "; did you mean image?"},
		{deployment, "spec.parts.main.imgae", "; did you mean image?"},
		{deployment, "metadata.lables", "; did you mean labels?"},
		{deployment, "spec.colour", ""},
		{deployment, "spec.replicas.x", ""},
		{deployment, "spec.open.imgae", ""},
		{deployment, "spec.any.imgae", ""},
		{deployment, "spec.loop.imgae", ""},
		{deployment, "spec.containers[0]", ""},
		{deployment, "", ""},
		{deployment, "spec..x", ""},
		{Type{Group: "apps", Version: "v2", Kind: "Deployment"}, "spec.replcas", ""},
	} {
		if have := doc.meant(tt.of, tt.path); have != tt.want {
			t.Errorf("%s: %q, want %q", tt.path, have, tt.want)
		}
	}
}
