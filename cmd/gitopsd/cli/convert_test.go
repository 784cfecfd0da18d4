package cli

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// What examples/conversion/README.md shows is what the program prints there.
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
			continue // the mistake is not in rules.yaml
		}
		code, stdout, stderr := gitopsd(t, nil, strings.Fields(m[1])...)
		if code != 0 || stdout != m[2] || stderr != "" {
			t.Errorf("gitopsd %s: %d\n%s%swant\n%s", m[1], code, stdout, stderr, m[2])
		}
	}
}

// The mistake that the page shows gives the error that it shows.
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
	if err := os.WriteFile(dir+"/rules.yaml", []byte(wrong), 0o600); err != nil {
		t.Fatal(err)
	}
	code, _, stderr := gitopsd(t, nil, "convert", "-f", dir+"/rules.yaml", "--crd", crd, "--check")
	first, _, _ := strings.Cut(strings.Replace(stderr, dir+"/", "", 1), "\n")
	if code != 1 || !strings.Contains(string(readme), "\n"+first+"\n") {
		t.Errorf("%d %s", code, stderr)
	}
}
