package upstream

import (
	"bytes"
	"encoding/json"
)

// Bumped returns a definition after a change of each kind: a field added, a field
// removed, and every rule changed. Applied to all definitions of a package it is
// the worst possible bump.
func Bumped(definition map[string]any) (map[string]any, error) {
	text, err := json.Marshal(definition)
	if err != nil {
		return nil, err
	}
	text = bytes.ReplaceAll(text, []byte(`"rule":"`), []byte(`"rule":"true && `))
	var out map[string]any
	if err := json.Unmarshal(text, &out); err != nil {
		return nil, err
	}
	versions, _ := field(out, "spec")["versions"].([]any)
	for _, v := range versions {
		version, _ := v.(map[string]any)
		fields := field(field(field(version, "schema"), "openAPIV3Schema"), "properties")
		if fields == nil {
			continue
		}
		fields["another"] = map[string]any{"type": "string"}
		spec := field(field(fields, "spec"), "properties")
		if spec == nil {
			delete(fields, "providerConfigRef")
			continue
		}
		if provider, ok := spec["forProvider"]; ok {
			spec["another"] = provider
		}
		delete(spec, "publishConnectionDetailsTo")
		delete(spec, "credentials")
	}
	return out, nil
}

func field(m map[string]any, key string) map[string]any {
	v, _ := m[key].(map[string]any)
	return v
}
