package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"gitopsd.dev/render/conversion"
	"gitopsd.dev/render/conversion/proof"
	"gitopsd.dev/render/exact"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
)

// The program prints the output that examples/conversion/README.md shows.
func TestConversionExample(t *testing.T) {
	readme, err := os.ReadFile("../../../examples/conversion/README.md")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir("../../../examples/conversion")
	shown := regexp.MustCompile("(?ms)^```\n\\$ gitopsd (convert [^\n]*)\n(.*?)```$").FindAllStringSubmatch(string(readme), -1)
	if len(shown) != 3 {
		t.Fatalf("%d commands are shown with their output", len(shown))
	}
	for _, m := range shown {
		if strings.HasPrefix(m[2], "gitopsd: ") {
			continue // TestConversionExampleMistake checks it
		}
		code, stdout, stderr := gitopsd(t, nil, strings.Fields(m[1])...)
		if code != 0 || stdout != m[2] || stderr != "" {
			t.Errorf("gitopsd %s: %d\n%s%swant\n%s", m[1], code, stdout, stderr, m[2])
		}
	}
}

// A mistake in the rules gives the error that the page shows.
func TestConversionExampleMistake(t *testing.T) {
	rules, err := os.ReadFile("../../../examples/conversion/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("../../../examples/conversion/README.md")
	if err != nil {
		t.Fatal(err)
	}
	crd := "../../../examples/conversion/crd.yaml"
	dir := t.TempDir()
	wrong := strings.Replace(string(rules), "v1.spec.firstName", "v1.spec.firstname", 1)
	code, _, stderr := gitopsd(t, nil, "convert", "-f", writeFile(t, dir, "rules.yaml", wrong), "--crd", crd, "--check")
	first, _, _ := strings.Cut(strings.Replace(stderr, dir+"/", "", 1), "\n")
	if code != 1 || !strings.Contains(string(readme), "\n"+first+"\n") {
		t.Errorf("%d %s", code, stderr)
	}
}

// Each section of the reference shows the rules and the example of the file that is linked below
// them. The rules have no counterexample, and the examples pass.
func TestConversionReference(t *testing.T) {
	readme, err := os.ReadFile("../../../examples/conversion/reference/README.md")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir("../../../examples/conversion/reference")
	files, err := filepath.Glob("*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	tests, err := filepath.Glob("tests/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	shown := regexp.MustCompile("(?ms)^```yaml\n(.*?)^```\n\n^```yaml\n(.*?)^```\n\n^\\[([a-z-]+)\\.yaml\\]").FindAllStringSubmatch(string(readme), -1)
	if len(shown) != len(files) || len(files) < 15 {
		t.Fatalf("the page shows %d of %d files", len(shown), len(files))
	}
	for _, m := range shown {
		t.Run(m[3], func(t *testing.T) {
			text, err := os.ReadFile(m[3] + ".yaml")
			if err != nil {
				t.Fatal(err)
			}
			documents := manifesttest.Documents(t, string(text))
			rules := documents[1].Tree
			if want := manifesttest.Tree(t, m[1]); !exact.Equal(rules["spec"], want) {
				t.Errorf("the rules are\n%v\nand the page shows\n%v", rules["spec"], want)
			}
			text, err = os.ReadFile("tests/" + m[3] + ".yaml")
			if err != nil {
				t.Fatal(err)
			}
			objects := manifesttest.Documents(t, string(text))
			for i, line := range strings.Split(strings.TrimSuffix(m[2], "\n"), "\n") {
				spec, version, _ := strings.Cut(line, "# ")
				want := manifesttest.Tree(t, spec)["spec"]
				if have := objects[i].Tree; !exact.Equal(have["spec"], want) || manifest.Text(have, "apiVersion") != "example.io/"+version {
					t.Errorf("the example is\n%v\nand the page shows\n%v", have, line)
				}
			}
			for _, name := range tests {
				if name != "tests/"+m[3]+".yaml" && !strings.HasPrefix(name, "tests/"+m[3]+"-") {
					continue
				}
				if code, stdout, stderr := gitopsd(t, nil, "convert", "-f", m[3]+".yaml", "--test", name); code != 0 {
					t.Errorf("%s: %d\n%s%s", name, code, stdout, stderr)
				}
			}
			// As --check, on fewer objects.
			set := ruleSet{tree: documents[0].Tree, documents: []conversion.Document{{Tree: documents[1].Tree}}}
			if set.Set, err = conversion.Compile(set.tree, set.documents); err != nil {
				t.Fatal(err)
			}
			result, err := proof.Run(t.Context(), proof.Config{Rules: set, Documents: set.documents, Definition: set.tree,
				Stash: manifest.ConversionStashAnnotation, Most: 40})
			if err != nil || result.Failed() {
				t.Errorf("%v %+v", err, result)
			}
		})
	}
}
