package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/types/compat"
	"gitopsd.dev/sources/errgroup"
	"gitopsd.dev/testscripts/devcluster"
)

// The number of objects, and how many of them the change harms.
const (
	dataObjects = 10_000
	dataHarmed  = 200
)

// data compares checking all objects of a changed type with printing them by kubectl. Its
// memory, without a page of objects, is compared with 50 MB.
func (b *bench) data(ctx context.Context, f *fixture) error {
	kubeconfig, err := f.controlPlane(ctx)
	if err != nil {
		return err
	}
	rival, err := devcluster.Kubectl(ctx)
	if err != nil {
		return err
	}
	old, now := filepath.Join(f.dir, "old.yaml"), filepath.Join(f.dir, "new.yaml")
	for name, text := range map[string]string{old: dataDefinition(false), now: dataDefinition(true)} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			return err
		}
	}
	fmt.Fprintf(b.say, "bench: creating %d objects\n", dataObjects)
	page, err := populate(ctx, kubeconfig, old)
	if err != nil {
		return err
	}
	for round := range b.rounds {
		fmt.Fprintf(b.say, "bench: data, round %d of %d\n", round+1, b.rounds)
		var ours []usage
		var theirs, idle float64
		sides := []func() error{
			func() (err error) {
				ours, err = each(ctx, round, [][]string{{"survey", kubeconfig, old, now}})
				return err
			},
			func() (err error) {
				if _, theirs, err = child(ctx, rival.Path, "--kubeconfig", kubeconfig, "get", "things.bench.example.org", "-o", "yaml"); err != nil {
					return err
				}
				_, idle, err = child(ctx, rival.Path, "version", "--client")
				return err
			},
		}
		for i := range sides {
			if err := sides[(i+round)%2](); err != nil {
				return err
			}
		}
		if ours[0].result != dataHarmed {
			return fmt.Errorf("%v objects are harmed, want %d", ours[0].result, dataHarmed)
		}
		b.add("data-plan-cpu", ours[0].cpu, theirs-idle)
		b.add("data-plan-rss", ours[0].rss-page, 50)
	}
	return nil
}

// dataDefinition returns a type. The changed type lacks a field, and has a limit and a rule
// more.
func dataDefinition(changed bool) string {
	colour, size, rule := "colour: {type: string}", "", ""
	if changed {
		colour, size = "", ", maximum: 100"
		rule = "\n            x-kubernetes-validations: [{rule: '!has(self.low) || self.low <= self.high'}]"
	}
	return `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.bench.example.org}
spec:
  group: bench.example.org
  scope: Namespaced
  names: {kind: Thing, plural: things}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object` + rule + `
            properties:
              ` + colour + `
              size: {type: integer` + size + `}
              low: {type: integer}
              high: {type: integer}
              class: {type: string, default: standard}
              parameters: {type: object, additionalProperties: {type: string}}
              rules:
                type: array
                items:
                  type: object
                  required: [name]
                  properties: {name: {type: string}, port: {type: integer, maximum: 65535}, protocol: {type: string, enum: [TCP, UDP], default: TCP}, hosts: {type: array, items: {type: string}}}
`
}

// dataObject returns an object of about 2 KB. The change harms one of fifty.
func dataObject(i int) string {
	var rules, parameters []string
	for n := range 8 {
		rules = append(rules, fmt.Sprintf(`{"name":"rule-%d","port":%d,"hosts":["a%d.example.org","b%d.example.org"]}`, n, 8000+n, i, i))
		parameters = append(parameters, fmt.Sprintf(`"parameter-%d":"value %d of object %d"`, n, n, i))
	}
	more := `"size":1`
	if i%(dataObjects/dataHarmed) == 0 {
		more = []string{`"colour":"red"`, `"size":200`, `"low":2,"high":1`}[i/(dataObjects/dataHarmed)%3]
	}
	return fmt.Sprintf(`{"apiVersion":"bench.example.org/v1","kind":"Thing","metadata":{"namespace":"default","name":"t%05d","labels":{"app":"bench"}},"spec":{%s,"rules":[%s],"parameters":{%s}}}`,
		i, more, strings.Join(rules, ","), strings.Join(parameters, ","))
}

// populate creates the objects, and returns the size of a page of them, in MB.
func populate(ctx context.Context, kubeconfig, definition string) (page float64, err error) {
	f, err := connect(kubeconfig, nil)
	if err != nil {
		return 0, err
	}
	defer f.close()
	set, err := load(definition)
	if err != nil {
		return 0, err
	}
	if _, _, err := f.pass(set); err != nil {
		return 0, err
	}
	t, err := f.cluster.Type(ctx, "bench.example.org/v1", "Thing")
	if err != nil {
		return 0, err
	}
	var g errgroup.Group
	g.SetLimit(8)
	for i := range dataObjects {
		g.Go(func() error {
			_, err := f.cluster.Create(ctx, t, t.ID("default", fmt.Sprintf("t%05d", i)), []byte(dataObject(i)))
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return 0, err
	}
	size := 0
	err = f.cluster.ListRaw(ctx, t, kube.ListOptions{Most: 250}, func(item []byte) bool {
		size += len(item)
		return true
	})
	return float64(size) / (1 << 20), err
}

// surveyOnce checks the objects of a type against a change of the type, and returns how many
// it harms: args are a kubeconfig, and the files with the old and the new type.
func surveyOnce(args []string) (float64, error) {
	f, err := connect(args[0], nil)
	if err != nil {
		return 0, err
	}
	defer f.close()
	var trees [2]map[string]any
	for i, name := range args[1:] {
		text, err := os.ReadFile(name)
		if err != nil {
			return 0, err
		}
		if err := yaml.Unmarshal(bytes.TrimSpace(text), &trees[i]); err != nil {
			return 0, err
		}
	}
	report, err := compat.Compare(context.Background(), trees[0], trees[1], compat.Options{})
	if err != nil {
		return 0, err
	}
	judges, err := apply.Judges(context.Background(), f.cluster, trees[0], trees[1], report.Findings, nil, false)
	if err != nil {
		return 0, err
	}
	s, err := apply.Survey(context.Background(), f.cluster, judges, nil)
	if err != nil {
		return 0, err
	}
	if s.Unknown != "" || s.Looked != dataObjects {
		return 0, fmt.Errorf("%d objects: %s", s.Looked, s.Unknown)
	}
	return float64(s.Harmed), nil
}
