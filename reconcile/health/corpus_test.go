package health

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
)

// now is when the objects of the corpus were read.
var now = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// TestCorpus holds the rules against objects written from the documentation of their
// kinds. Each file has types and the objects that follow them:
//
//	type: cert-manager.io/v1 Certificate
//	columns: [JSON paths of the printer columns]
//	status: [fields of the status; "parents[]" has a list of things with conditions]
//	---
//	want: Failed
//	reason: part of the reason
//	object: {…}
//
// A type without a status has the field status: []; one without the field at all
// keeps unknown fields.
func TestCorpus(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/kinds/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no corpus", err)
	}
	kinds, objects := make(map[manifest.GroupKind]bool), 0
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		known := make(map[string]*Type)
		for _, text := range strings.Split(string(content), "\n---\n") {
			doc := manifesttest.Tree(t, text)
			if name := manifest.Text(doc, "type"); name != "" {
				known[name] = NewType(definition(name, doc), version(name))
				continue
			}
			object := manifest.Mapping(doc, "object")
			name := manifest.Text(object, "apiVersion") + " " + manifest.Text(object, "kind")
			kinds[manifest.KindOf(object)] = true
			objects++
			v := Rules{}.Of(object, known[name], now)
			if string(v.Status) != manifest.Text(doc, "want") || !strings.Contains(v.Reason, manifest.Text(doc, "reason")) || v.Reason == "" {
				t.Errorf("%s: %s: %s by %s: %s; want %s %s\n%s", filepath.Base(file), name, v.Status, v.Rule, v.Reason,
					manifest.Text(doc, "want"), manifest.Text(doc, "reason"), text)
			}
		}
	}
	t.Logf("%d objects of %d kinds", objects, len(kinds))
	if objects < 150 || len(kinds) < 60 {
		t.Errorf("the corpus has only %d objects of %d kinds", objects, len(kinds))
	}
}

func version(name string) string {
	apiVersion, _, _ := strings.Cut(name, " ")
	_, v := manifest.GroupVersion(apiVersion)
	return v
}

// definition makes a CustomResourceDefinition of a type of the corpus.
func definition(name string, doc map[string]any) map[string]any {
	apiVersion, kind, _ := strings.Cut(name, " ")
	group, v := manifest.GroupVersion(apiVersion)
	schema := map[string]any{"type": "object"}
	if fields, ok := doc["status"].([]any); ok && len(fields) > 0 {
		properties := make(map[string]any)
		for _, f := range fields {
			name, list := strings.CutSuffix(f.(string), "[]")
			properties[name] = map[string]any{}
			if list {
				properties[name] = listOfConditions
			}
		}
		schema["properties"] = map[string]any{"status": map[string]any{"type": "object", "properties": properties}}
	} else if !ok {
		schema["properties"] = map[string]any{"status": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}
	}
	var columns []any
	for _, path := range manifest.Texts(doc, "columns") {
		columns = append(columns, map[string]any{"name": path, "jsonPath": path})
	}
	return map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"spec": map[string]any{
			"group": group, "names": map[string]any{"kind": kind},
			"versions": []any{map[string]any{
				"name": v, "served": true, "schema": map[string]any{"openAPIV3Schema": schema}, "additionalPrinterColumns": columns,
			}},
		},
	}
}

var listOfConditions = map[string]any{"items": map[string]any{"properties": map[string]any{"conditions": map[string]any{}}}}
