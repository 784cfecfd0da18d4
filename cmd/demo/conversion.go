package main

import (
	"context"
	"os"
	"path/filepath"
)

// gitopsdImage is the repository of the image that converts objects in dev.
const gitopsdImage = canonical + "/platform/gitopsd"

// dev converts objects once its registration names a conversion service (devConverts),
// and its kustomization includes the example's type with its rules.
const (
	devPath      = "  path: examples/fleet/dev\n"
	devConverts  = devPath + "  conversion:\n    service: {image: \"" + gitopsdImage + ":v1.0.0\"}\n"
	devResources = "resources:\n"
)

// widget is an object in the old version. The new version has no field for the note.
const widget = `apiVersion: example.io/v1
kind: Widget
metadata: {name: bob, namespace: default}
spec: {firstName: Bob, note: likes red}
`

// conversion renames a field across two versions of a type in dev.
func (s *stage) conversion(ctx context.Context) error {
	s.step("An author renames a field of a type, and writes rules beside it: dev serves both versions, without a webhook of theirs")
	if err := s.edit(ctx, "clusters.yaml", devPath, devConverts); err != nil {
		return err
	}
	if err := s.edit(ctx, "examples/fleet/dev/kustomization.yaml", devResources, devResources+"- ../../conversion\n"); err != nil {
		return err
	}
	rules, err := os.ReadFile(filepath.Join(s.clone, "examples/conversion/rules.yaml"))
	if err != nil {
		return err
	}
	s.say("   examples/conversion/rules.yaml:")
	s.indent(shorten(string(rules), 12))
	out, err := s.gitopsd(ctx, s.fleetFlags("plan", "--cluster", "dev")...)
	if err != nil {
		return err
	}
	s.indent(shorten(out, 14))
	head, err := s.merge(ctx, "Serve widgets in two versions in dev")
	if err != nil {
		return err
	}
	if err := s.settled(ctx, head); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(s.dir, "bob.yaml"), []byte(widget), 0o644); err != nil {
		return err
	}
	s.say("   bob is written in v1 and read in v2; then v2 is changed and v1 read:")
	for _, step := range []struct {
		args []string
		want string
	}{
		{[]string{"create", "-f", "../bob.yaml"}, "created"},
		{[]string{"get", "widgets.v2.example.io", "bob", "-o", "jsonpath={.spec}"}, `{"name":{"first":"Bob"}}`},
		{[]string{"patch", "widgets.v2.example.io", "bob", "--type=merge", `-p={"spec":{"name":{"first":"Robert"}}}`}, "patched"},
		{[]string{"get", "widgets.v1.example.io", "bob", "-o", "jsonpath={.spec}"}, `{"firstName":"Robert","note":"likes red"}`},
	} {
		if err := s.kubectl(ctx, s.kubeconfig("dev"), step.want, step.args...); err != nil {
			return err
		}
	}
	return nil
}
