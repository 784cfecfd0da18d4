package proof

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"gitopsd.dev/render/conversion"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
)

// narrower are the examples with rules that cannot keep every law: one schema refuses
// values that a rule makes of valid values of the other.
var narrower = map[string]string{
	"seed-convert-single-value-to-list": "v1 -> v2: the result is not valid: spec.names[0]: Too long",
	"express-duration-to-integer":       `v2 -> v1: the result is not valid: spec.timeout: Invalid value: "-9223372036854775808s"`,
}

// TestArchives tries the rules of each example of package conversion.
func TestArchives(t *testing.T) {
	files, err := filepath.Glob("../testdata/*.txtar")
	if err != nil || len(files) < 20 {
		t.Fatal(len(files), err)
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			d := crd(t)
			var versions []any
			document := conversion.Document{Origin: manifest.Origin{File: "rules.yaml", Line: 1}, Tree: manifesttest.Tree(t, `{apiVersion: apis.kcp.dev/v1alpha1, kind: APIConversionRules, metadata: {name: widgets.example.io}}`)}
			for _, f := range txtar.Parse(data).Files {
				switch {
				case f.Name == "rules":
					document.Tree["spec"] = manifesttest.Tree(t, string(f.Data))
				case strings.HasPrefix(f.Name, "v") && !strings.Contains(f.Name, "."):
					versions = append(versions, map[string]any{"name": f.Name, "served": true, "storage": len(versions) == 0,
						"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": manifesttest.Tree(t, string(f.Data))}}})
				}
			}
			d["spec"].(map[string]any)["versions"] = versions
			set, err := conversion.Compile(d, []conversion.Document{document})
			if err != nil {
				t.Fatal(err)
			}
			result, err := Run(t.Context(), Config{Rules: set, Documents: []conversion.Document{document}, Definition: d, Most: 40, Stash: manifest.ConversionStashAnnotation})
			if err != nil {
				t.Fatal(err)
			}
			example := strings.TrimSuffix(filepath.Base(name), ".txtar")
			expected := narrower[example]
			found := false
			for _, f := range result.Findings {
				switch {
				case expected != "" && strings.HasPrefix(f.Title(), expected):
					found = true
				case f.Law != RuleFails:
					t.Errorf("%s", f)
				}
			}
			if found != (expected != "") {
				t.Errorf("not found: %s", expected)
			}
		})
	}
}
