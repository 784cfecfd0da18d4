package kustomize

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/yaml"

	"gitopsd.dev/sources"
)

// maxReferences bounds the references that kustomize follows in one schema file.
const maxReferences = 10_000

// schemas inspects the files that describe types to kustomize: openapi, crds and
// configurations. Circular references in openapi hang kustomize, and in crds they overflow
// the stack, which ends the process.
func (in *inspection) schemas(dir string, f field, k *types.Kustomization) error {
	if len(k.OpenAPI) > 0 {
		in.schema = true
	}
	if entry, ok := k.OpenAPI["path"]; ok {
		if err := in.schemaFile(dir, f.named("openapi.path"), entry, checkOpenAPI); err != nil {
			return err
		}
	}
	for _, entry := range k.Crds {
		if err := in.schemaFile(dir, f.named("crds"), entry, checkCRDs); err != nil {
			return err
		}
	}
	for _, entry := range k.Configurations {
		if err := in.schemaFile(dir, f.named("configurations"), entry, func([]byte) error { return nil }); err != nil {
			return err
		}
	}
	return nil
}

func (in *inspection) schemaFile(dir string, f field, entry string, check func(json []byte) error) error {
	name, content, err := in.file(f, dir, entry)
	if err != nil {
		return err
	}
	docs, err := in.documents(name, content)
	if err != nil {
		return err
	}
	if len(docs) != 1 {
		return fmt.Errorf("%s: has %d documents; %s wants a file with one", name, len(docs), f.name)
	}
	asJSON, err := yaml.YAMLToJSON(content)
	if err != nil {
		return at(name, 0, err)
	}
	if err := check(asJSON); err != nil {
		return fmt.Errorf("%s: %s: %w", name, f.name, err)
	}
	return nil
}

// checkOpenAPI refuses circular references. References must name definitions, as in
// Kubernetes' own schemas.
func checkOpenAPI(content []byte) error {
	var schema struct {
		Definitions map[string]any `json:"definitions"`
	}
	if err := json.Unmarshal(content, &schema); err != nil {
		return err
	}
	next := make(map[string]string) // definitions that only refer to another
	var walk func(v any) error
	walk = func(v any) error {
		switch v := v.(type) {
		case map[string]any:
			if ref, ok := v["$ref"].(string); ok {
				if _, err := definition(ref); err != nil {
					return err
				}
			}
			for _, item := range v {
				if err := walk(item); err != nil {
					return err
				}
			}
		case []any:
			for _, item := range v {
				if err := walk(item); err != nil {
					return err
				}
			}
		}
		return nil
	}
	for name, d := range schema.Definitions {
		if err := walk(d); err != nil {
			return err
		}
		m, _ := d.(map[string]any)
		if ref, ok := m["$ref"].(string); ok {
			next[name], _ = definition(ref)
		}
	}
	for start := range next {
		steps := 0
		for name, ok := start, true; ok; name, ok = next[name] {
			if steps++; steps > len(next) {
				return fmt.Errorf("definition %q refers to itself", start)
			}
		}
	}
	return nil
}

func definition(ref string) (string, error) {
	name, ok := strings.CutPrefix(ref, "#/definitions/")
	if !ok || strings.ContainsAny(name, "/~%") {
		return "", fmt.Errorf("$ref %q: want #/definitions/<name>", ref)
	}
	return name, nil
}

// checkCRDs refuses definitions that contain themselves: kustomize expands each
// reference in place.
func checkCRDs(content []byte) error {
	var definitions map[string]struct {
		Schema spec.Schema
	}
	if err := json.Unmarshal(content, &definitions); err != nil {
		return errors.New("want a mapping of type names to {Schema, Dependencies}, as openapi-gen makes; kustomize does not read CustomResourceDefinitions here")
	}
	left := maxReferences
	var expand func(name string, above map[string]bool) error
	expand = func(name string, above map[string]bool) error {
		if above[name] {
			return fmt.Errorf("definition %q holds itself", name)
		}
		if left--; left < 0 {
			return fmt.Errorf("more than %d references: %w", maxReferences, sources.ErrLimit)
		}
		above[name] = true
		defer delete(above, name)
		for _, property := range definitions[name].Schema.Properties {
			if property.Ref.GetURL() == nil {
				continue
			}
			if err := expand(property.Ref.String(), above); err != nil {
				return err
			}
		}
		return nil
	}
	for name := range definitions {
		if err := expand(name, make(map[string]bool)); err != nil {
			return err
		}
	}
	return nil
}
