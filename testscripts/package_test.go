package testscripts

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"gitopsd.dev/sources"
	"gitopsd.dev/testscripts/runtimeimage"
	"gitopsd.dev/testscripts/upstream"
)

// makePackage writes the files of a provider with one type. It keeps existing files, so
// a script contains only the special files of its package.
func makePackage(_ context.Context, _ *scenario, c *call) error {
	dir := c.ts.MkAbs(c.args[0])
	name, _, _ := strings.Cut(filepath.Base(dir), "-")
	singular := strings.TrimSuffix(name, "s")
	if singular == "" {
		return fmt.Errorf("%s: a package is named after its directory", c.args[0])
	}
	schema, err := specSchema(c.args[1:])
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, file := range []struct{ name, text string }{
		{"crossplane.yaml", "apiVersion: meta.pkg.crossplane.io/v1\nkind: Provider\nmetadata: {name: " + name + "}\n"},
		{"crd.yaml", definition(singular, schema)},
	} {
		path := filepath.Join(dir, file.name)
		if _, err := os.Stat(path); err == nil {
			continue
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.WriteFile(path, []byte(file.text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// specSchema returns, in YAML, the schema of an object with these fields in its spec.
func specSchema(fields []string) (string, error) {
	if len(fields) == 0 {
		return " {type: object}\n", nil
	}
	var properties []string
	for _, field := range fields {
		name, kind, ok := strings.Cut(field, "=")
		if !ok {
			return "", fmt.Errorf("field %q: want FIELD=TYPE", field)
		}
		properties = append(properties, name+": {type: "+kind+"}")
	}
	return `
        type: object
        properties:
          spec: {type: object, properties: {` + strings.Join(properties, ", ") + "}}\n", nil
}

// definition returns a CRD in YAML.
func definition(singular, schema string) string {
	kind, plural := strings.ToUpper(singular[:1])+singular[1:], singular+"s"
	return fmt.Sprintf(`apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[2]s.acme.example}
spec:
  group: acme.example
  scope: Namespaced
  names: {kind: %[1]s, plural: %[2]s, singular: %[3]s}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:%[4]s`, kind, plural, singular, schema)
}

func pushPackage(ctx context.Context, s *scenario, c *call) error {
	if err := s.needRegistry(); err != nil {
		return err
	}
	var types bool
	if err := c.flags(func(f *flag.FlagSet) { f.BoolVar(&types, "types", false, "") }, 2, 2); err != nil {
		return err
	}
	dir := c.args[0]
	file := filepath.Join(c.ts.Getenv("TMPDIR"), "package.xpkg")
	build := []string{"package", "build", dir, "-o", file}
	if !types {
		on, err := onRuntime(c.ts.MkAbs(dir), c.ts.Getenv("TMPDIR"))
		if err != nil {
			return err
		}
		build = append(build, on...)
	}
	if _, err := c.output(ctx, "gitopsd", build...); err != nil {
		return err
	}
	// Pushes do not go to a mirror.
	reference, named := strings.CutPrefix(c.args[1], registryName+"/")
	if named {
		reference = s.registry.Host() + "/" + reference
	}
	pushed, err := c.output(ctx, "gitopsd", "package", "push", "--move-tag", file, reference)
	if named {
		pushed = strings.Replace(pushed, s.registry.Host(), registryName, 1)
	}
	fmt.Fprint(c.out, pushed)
	return err
}

// onRuntime returns the arguments that build the package in dir on a stand-in for its
// controller's image, which it writes to the directory to. It returns none unless the
// package is a Provider that names no image itself.
func onRuntime(dir, to string) ([]string, error) {
	f, err := os.Open(filepath.Join(dir, "crossplane.yaml"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	docs, err := sources.DecodeYAML(f, sources.Limits{})
	if err != nil || len(docs) == 0 {
		return nil, nil // the build says what is wrong with it
	}
	spec, _ := docs[0].Tree["spec"].(map[string]any)
	if docs[0].Tree["kind"] != string(sources.Provider) || spec["controller"] != nil {
		return nil, nil
	}
	image := filepath.Join(to, "runtime.tar")
	return []string{"--runtime-image", image}, runtimeimage.Write(image)
}

// upstreamPackage keeps the CRDs whose file names match one of the patterns, or all CRDs
// if there are none.
func upstreamPackage(ctx context.Context, _ *scenario, c *call) error {
	dir := c.ts.MkAbs(c.args[2])
	if err := upstream.Write(ctx, c.args[0], c.args[1], dir, os.Stderr); err != nil || len(c.args) == 3 {
		return err
	}
	kept := make(map[string]bool)
	for _, pattern := range c.args[3:] {
		names, err := filepath.Glob(filepath.Join(dir, "crds", pattern))
		if err != nil {
			return err
		}
		if len(names) == 0 {
			return fmt.Errorf("no CRD's file matches %s", pattern)
		}
		for _, name := range names {
			kept[name] = true
		}
	}
	all, err := filepath.Glob(filepath.Join(dir, "crds", "*"))
	if err != nil {
		return err
	}
	for _, name := range all {
		if !kept[name] {
			if err := os.Remove(name); err != nil {
				return err
			}
		}
	}
	return nil
}
