package testscripts

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/sources"
)

// renovate is the part of examples/ci/renovate.json that finds packages.
type renovate struct {
	CustomManagers []struct {
		CustomType          string
		ManagerFilePatterns []string
		MatchStrings        []string
		DatasourceTemplate  string
		VersioningTemplate  string
	}
}

// found is a package that Renovate finds.
type found struct{ name, value, digest string }

func readRenovate(t *testing.T) (files, packages []*regexp.Regexp) {
	text, err := os.ReadFile("../examples/ci/renovate.json")
	if err != nil {
		t.Fatal(err)
	}
	var cfg renovate
	if err := json.Unmarshal(text, &cfg); err != nil {
		t.Fatal(err)
	}
	if len(cfg.CustomManagers) != 1 {
		t.Fatalf("%d managers", len(cfg.CustomManagers))
	}
	m := cfg.CustomManagers[0]
	if m.CustomType != "regex" || m.DatasourceTemplate != "docker" || m.VersioningTemplate != "semver" {
		t.Errorf("manager %+v", m)
	}
	for _, p := range m.ManagerFilePatterns {
		// A pattern between slashes is a regular expression, any other is a glob.
		if len(p) < 2 || p[0] != '/' || p[len(p)-1] != '/' {
			t.Fatalf("managerFilePatterns: %s", p)
		}
		files = append(files, regexp.MustCompile(p[1:len(p)-1]))
	}
	for _, s := range m.MatchStrings {
		packages = append(packages, regexp.MustCompile(s)) // Renovate uses RE2 too
	}
	return files, packages
}

func find(packages []*regexp.Regexp, text string) (all []found) {
	for _, re := range packages {
		group := func(m []string, name string) string { return m[re.SubexpIndex(name)] }
		for _, m := range re.FindAllStringSubmatch(text, -1) {
			all = append(all, found{group(m, "depName"), group(m, "currentValue"), group(m, "currentDigest")})
		}
	}
	return all
}

// Renovate finds exactly the declarations of the example fleet and of README.md.
func TestRenovateFindsPackages(t *testing.T) {
	t.Parallel()
	files, packages := readRenovate(t)
	check := func(name, text string) (n int) {
		docs, err := sources.DecodeYAML(strings.NewReader(text), sources.Limits{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var want []found
		for _, doc := range docs {
			apiVersion, _ := doc.Tree["apiVersion"].(string)
			spec, _ := doc.Tree["spec"].(map[string]any)
			pkg, _ := spec["package"].(string)
			if !strings.HasPrefix(apiVersion, "pkg.crossplane.io/") || pkg == "" {
				continue
			}
			ref, err := sources.ParseRef(pkg)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			want = append(want, found{ref.Repository, ref.Tag, string(ref.Digest)})
		}
		if have := find(packages, text); !slices.Equal(have, want) {
			t.Errorf("%s: Renovate finds %v, want %v", name, have, want)
		}
		return len(want)
	}
	n := 0
	err := fs.WalkDir(os.DirFS(".."), "examples/fleet", func(name string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(name) != ".yaml" {
			return err
		}
		text, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			return err
		}
		declared := check(name, string(text))
		if declared > 0 && !slices.ContainsFunc(files, func(re *regexp.Regexp) bool { return re.MatchString(name) }) {
			t.Errorf("Renovate does not look into %s", name)
		}
		n += declared
		return nil
	})
	if err != nil || n < 3 {
		t.Errorf("%d packages in the example fleet, %v", n, err)
	}
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	n = 0
	for i, m := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(readme), -1) {
		n += check(fmt.Sprintf("README.md, sample %d", i+1), m[1])
	}
	if n == 0 {
		t.Error("no package in README.md")
	}
}

// Renovate finds packages in every form of declarations and of patches of them.
func TestRenovateForms(t *testing.T) {
	t.Parallel()
	_, packages := readRenovate(t)
	digest := "sha256:" + strings.Repeat("0a", 32)
	db := found{"reg.example.org/acme/db", "v1.2.3", ""}
	for _, tt := range []struct {
		text string
		want []found
	}{
		{"spec:\n  package: reg.example.org/acme/db:v1.2.3\n", []found{db}},
		{"spec:\r\n  package:   'reg.example.org/acme/db:v1.2.3' # why\r\n", []found{db}},
		{"spec: {package: \"reg.example.org/acme/db:v1.2.3\"}", []found{db}},
		{`{"spec": {"package": "reg.example.org/acme/db:v1.2.3"}}`, []found{db}},
		{"  package: localhost:5000/db:v1.2.3-rc.1", []found{{"localhost:5000/db", "v1.2.3-rc.1", ""}}},
		{"  package: reg.example.org/acme/db@" + digest + "\n", nil}, // no version to compare with
		{"  package: reg.example.org/acme/db:v1.2.3@" + digest, []found{{db.name, db.value, digest}}},
		{"- op: replace\n  path: /spec/package\n  value: reg.example.org/acme/db:v1.2.3\n", []found{db}},
		{"- {op: replace, path: /spec/package, value: 'reg.example.org/acme/db:v1.2.3'}", []found{db}},
		{`[{"op": "replace", "path": "/spec/package", "value": "reg.example.org/acme/db:v1.2.3"}]`, []found{db}},
		{"  package: acme/db:v1.2.3\n", nil}, // without a registry, Renovate would use Docker's
		{"  package: github.com/acme/db\n", nil},
		{"  subpackage: reg.example.org/acme/db:v1.2.3\n", nil},
		{"  packagePullPolicy: Always\n", nil},
		{"  - package: express\n", nil},
	} {
		if have := find(packages, tt.text); !slices.Equal(have, tt.want) {
			t.Errorf("%q: found %v, want %v", tt.text, have, tt.want)
		}
	}
}
