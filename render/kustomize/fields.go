//lint:file-ignore SA1019 What is deprecated in a kustomization is still in use, and must be checked like the rest.

package kustomize

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"sigs.k8s.io/kustomize/api/builtins"
	"sigs.k8s.io/kustomize/api/konfig"
	"sigs.k8s.io/kustomize/api/resource"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/yaml"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// fields inspects the fields of a kustomization in the order in which kustomize
// uses them. A test holds the list of all fields that kustomize knows against
// the ones that are looked at here.
func (in *inspection) fields(ctx context.Context, v *visit, f field, k *types.Kustomization, above int) (int, error) {
	if len(k.HelmCharts) > 0 || k.HelmGlobals != nil {
		return 0, at(f.file, max(lineOf(f.content, "helmCharts"), lineOf(f.content, "helmChartInflationGenerator")),
			errors.New("helmCharts: gitopsd does not inflate Helm charts; commit the output of `helm template`"))
	}
	if v.as == plugins {
		if err := onlyResources(f, k); err != nil {
			return 0, err
		}
	}
	objects := above
	for _, entry := range k.Resources {
		n, err := in.resource(ctx, v, f.named("resources"), entry)
		if err != nil {
			return 0, err
		}
		objects += n
	}
	if err := in.schemas(v.dir, f, k); err != nil {
		return 0, err
	}
	n, err := in.generators(ctx, v, f, k)
	if err != nil {
		return 0, err
	}
	objects += n
	for _, entry := range k.Components {
		name, err := in.path(f.named("components"), v.dir, entry)
		if err != nil {
			return 0, err
		}
		if !in.modes[name].IsDir() {
			return 0, f.fault(entry, fmt.Errorf("components: %q is a file; a component is a directory", entry))
		}
		if objects, err = in.directory(ctx, &visit{dir: name, as: component, up: v, depth: v.depth + 1}, objects); err != nil {
			return 0, err
		}
	}
	if err := in.transformers(ctx, v, f, k, objects); err != nil {
		return 0, err
	}
	if v.as == component {
		return objects, nil
	}
	return objects - above, nil
}

// onlyResources holds kustomizations below generators, transformers and
// validators to naming files: what they would compute could be a path.
func onlyResources(f field, k *types.Kustomization) error {
	rest := *k
	rest.TypeMeta, rest.MetaData, rest.Resources = types.TypeMeta{}, nil, nil
	if rest.CheckEmpty() == nil {
		return fmt.Errorf("%s: lists generators, transformers or validators, and may therefore have no field but resources: what kustomize would do to them cannot be checked before it runs", f.file)
	}
	return nil
}

// generators inspects what adds objects.
func (in *inspection) generators(ctx context.Context, v *visit, f field, k *types.Kustomization) (int, error) {
	objects := 0
	var line map[string]int
	if len(k.ConfigMapGenerator)+len(k.SecretGenerator) > 0 {
		line = lines(f.content)
	}
	generate := func(name, kind string, args types.GeneratorArgs) error {
		in.written = append(in.written, written{
			id:     manifest.ID{Kind: kind, Namespace: args.Namespace, Name: args.Name},
			origin: manifest.Origin{File: f.file, Line: line[args.Name]},
		})
		objects++
		return in.pairs(v.dir, f.named(name), args.KvPairSources)
	}
	for _, g := range k.ConfigMapGenerator {
		if err := generate("configMapGenerator", "ConfigMap", g.GeneratorArgs); err != nil {
			return 0, err
		}
	}
	for _, g := range k.SecretGenerator {
		if err := generate("secretGenerator", "Secret", g.GeneratorArgs); err != nil {
			return 0, err
		}
	}
	if err := in.budget.hold(objects); err != nil {
		return 0, fmt.Errorf("%s: %w", f.file, err)
	}
	return objects, in.pluginEntries(ctx, v, f.named("generators"), k.Generators)
}

// pairs inspects where a generator gets its values from.
func (in *inspection) pairs(dir string, f field, from types.KvPairSources) error {
	for _, entry := range from.FileSources {
		// "path", or "key=path"; anything else is kustomize's error to report.
		if _, name, ok := strings.Cut(entry, "="); ok {
			entry = name
		}
		if _, _, err := in.file(f.named(f.name+".files"), dir, entry); err != nil {
			return err
		}
	}
	for _, entry := range append(from.EnvSources, from.EnvSource) {
		if entry == "" {
			continue
		}
		if _, _, err := in.file(f.named(f.name+".envs"), dir, entry); err != nil {
			return err
		}
	}
	return nil
}

// transformers inspects what changes objects.
func (in *inspection) transformers(ctx context.Context, v *visit, f field, k *types.Kustomization, objects int) error {
	operators := len(k.PatchesStrategicMerge) + len(k.PatchesJson6902) + len(k.Patches) + len(k.Labels) + len(k.CommonLabels) +
		len(k.CommonAnnotations) + len(k.Images) + len(k.Replicas) + len(k.Vars) + len(k.Transformers) + len(k.Validators)
	for _, name := range []string{k.NamePrefix, k.NameSuffix, k.Namespace} {
		if name != "" {
			operators++
		}
	}
	for _, patch := range k.PatchesStrategicMerge {
		if err := in.inlineOrFile(v.dir, f.named("patchesStrategicMerge"), string(patch)); err != nil {
			return err
		}
	}
	for _, patch := range append(k.PatchesJson6902, k.Patches...) {
		if err := in.patch(v.dir, f.named("patches"), patch.Path, patch.Patch); err != nil {
			return err
		}
	}
	replaced, err := in.replacements(v.dir, f, k.Replacements)
	if err != nil {
		return err
	}
	if err := in.pluginEntries(ctx, v, f.named("transformers"), k.Transformers); err != nil {
		return err
	}
	if err := in.pluginEntries(ctx, v, f.named("validators"), k.Validators); err != nil {
		return err
	}
	if err := in.budget.work(operators+replaced, objects); err != nil {
		return fmt.Errorf("%s: %w", f.file, err)
	}
	return nil
}

// patch inspects a patch that is in a file or in the field itself.
func (in *inspection) patch(dir string, f field, file, text string) error {
	name, content := f.file, []byte(strings.TrimSpace(text))
	if file != "" {
		var err error
		if name, content, err = in.file(f.named(f.name+".path"), dir, file); err != nil {
			return err
		}
	}
	ops, err := in.documentsOrList(name, content)
	if err != nil && file == "" {
		return f.fault(text, fmt.Errorf("%s: the patch%w", f.name, inline(err)))
	} else if err != nil {
		return err
	}
	if err := in.growth.patch(ops); err != nil {
		return fmt.Errorf("%s: %s: %w", name, f.name, err)
	}
	return nil
}

// inlineOrFile inspects a strategic merge patch, which kustomize takes for YAML
// if it can, and else for a path.
func (in *inspection) inlineOrFile(dir string, f field, entry string) error {
	isYAML, err := in.inline(f, entry, false)
	if err != nil {
		return err
	}
	if isYAML {
		_, err := in.documents(f.file, []byte(entry))
		return err
	}
	name, content, err := in.file(f, dir, entry)
	if err != nil {
		return err
	}
	_, err = in.documents(name, content)
	return err
}

// replacements inspects replacements and returns how many fields they may set.
func (in *inspection) replacements(dir string, f field, list []types.ReplacementField) (int, error) {
	var all []types.Replacement
	for _, r := range list {
		if r.Path == "" {
			all = append(all, r.Replacement)
			continue
		}
		name, content, err := in.file(f.named("replacements.path"), dir, r.Path)
		if err != nil {
			return 0, err
		}
		if _, err := in.documentsOrList(name, content); err != nil {
			return 0, err
		}
		// One replacement or a list of them, as kustomize reads them.
		var several []types.Replacement
		if yaml.Unmarshal(content, &several) != nil {
			several = make([]types.Replacement, 1)
			if err := yaml.Unmarshal(content, &several[0]); err != nil {
				return 0, at(name, 0, errors.New("holds neither a replacement nor a list of them"))
			}
		}
		all = append(all, several...)
	}
	fields := 0
	for _, r := range all {
		for _, target := range r.Targets {
			if target != nil {
				fields += max(1, len(target.FieldPaths))
			}
		}
	}
	if err := in.growth.replacements(all); err != nil {
		return 0, fmt.Errorf("%s: replacements: %w", f.file, err)
	}
	return fields, nil
}

// pluginEntries inspects generators, transformers or validators. Each is YAML or
// a path: what kustomize can parse as objects is YAML.
func (in *inspection) pluginEntries(ctx context.Context, v *visit, f field, entries []string) error {
	for _, entry := range entries {
		isYAML, err := in.inline(f, entry, true)
		if err != nil {
			return err
		}
		if isYAML {
			if err := in.plugins(v.dir, f.file, []byte(entry)); err != nil {
				return f.fault(entry, fmt.Errorf("%s: %w", f.name, err))
			}
			continue
		}
		down := &visit{dir: v.dir, as: plugins, up: v.up, pluginDir: v.dir, depth: v.depth}
		if _, err := in.resource(ctx, down, f, entry); err != nil {
			return err
		}
	}
	return nil
}

// parse is kustomize's reading of YAML, with what it checks of a set of objects or
// without. A panic of its is an error.
func (in *inspection) parse(text string, asSet bool) (objects []*resource.Resource, err error) {
	fatal.enter()
	defer fatal.leave()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("malformed: %v", p)
		}
	}()
	schema.RLock() // kustomize looks up there what has a namespace
	defer schema.RUnlock()
	if !asSet {
		return in.parser.RF().SliceFromBytes([]byte(text))
	}
	rm, err := in.parser.NewResMapFromBytes([]byte(text))
	if err != nil {
		return nil, err
	}
	return rm.Resources(), nil
}

// inline tells whether kustomize takes a string for YAML rather than for a path.
// YAML that it would take for the address of a repository, if it should come to
// another opinion during the build, is an error.
func (in *inspection) inline(f field, entry string, asSet bool) (bool, error) {
	if _, err := in.parse(entry, asSet); err != nil {
		return false, nil
	}
	if clonable.MatchString(entry) {
		return false, f.fault(entry, fmt.Errorf("%s: YAML must not begin like the address of a repository", f.name))
	}
	return true, nil
}

// plugins inspects the configurations of plugins in a file or a field. Only those
// that are compiled into kustomize may be used.
func (in *inspection) plugins(dir, file string, content []byte) error {
	docs, err := in.documents(file, content)
	if err != nil {
		return err
	}
	configs, err := in.parse(string(content), true)
	if err != nil {
		return at(file, 0, err)
	}
	if err := in.budget.hold(len(configs)); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	line := 0
	if len(docs) > 0 {
		line = docs[0].Line
	}
	for _, res := range configs {
		what := res.GetKind() + " " + strconv.Quote(res.GetName())
		if res.GetApiVersion() != konfig.BuiltinPluginApiVersion {
			return at(file, line, fmt.Errorf("%s: apiVersion %s: gitopsd runs no plugins or functions, only what is built into kustomize (apiVersion: builtin)", what, res.GetApiVersion()))
		}
		config, err := res.AsYAML()
		if err != nil {
			return at(file, line, fmt.Errorf("%s: %w", what, err))
		}
		if err := in.plugin(dir, field{file: file, content: content, name: res.GetKind()}, res.GetKind(), config); err != nil {
			return err
		}
	}
	return nil
}

// plugin inspects the configuration of one builtin plugin, decoded to the type,
// and by the function, that kustomize uses. Plugins without paths need no look;
// those that are not listed are refused.
func (in *inspection) plugin(dir string, f field, kind string, config []byte) error {
	switch kind {
	case "AnnotationsTransformer", "HashTransformer", "IAMPolicyGenerator", "ImageTagTransformer", "LabelTransformer",
		"NamespaceTransformer", "PrefixSuffixTransformer", "PrefixTransformer", "SuffixTransformer", "ReplicaCountTransformer":
		return nil
	case "ConfigMapGenerator":
		var p builtins.ConfigMapGeneratorPlugin
		return in.decoded(f, config, &p, func() error { return in.pairs(dir, f, p.KvPairSources) })
	case "SecretGenerator":
		var p builtins.SecretGeneratorPlugin
		return in.decoded(f, config, &p, func() error { return in.pairs(dir, f, p.KvPairSources) })
	case "PatchTransformer":
		var p builtins.PatchTransformerPlugin
		return in.decoded(f, config, &p, func() error { return in.patch(dir, f, p.Path, p.Patch) })
	case "PatchJson6902Transformer":
		var p builtins.PatchJson6902TransformerPlugin
		return in.decoded(f, config, &p, func() error { return in.patch(dir, f, p.Path, p.JsonOp) })
	case "PatchStrategicMergeTransformer":
		var p builtins.PatchStrategicMergeTransformerPlugin
		return in.decoded(f, config, &p, func() error {
			for _, entry := range p.Paths {
				if err := in.inlineOrFile(dir, f, string(entry)); err != nil {
					return err
				}
			}
			_, err := in.documents(f.file, []byte(p.Patches))
			return err
		})
	case "ReplacementTransformer":
		var p builtins.ReplacementTransformerPlugin
		return in.decoded(f, config, &p, func() error {
			_, err := in.replacements(dir, f, p.ReplacementList)
			return err
		})
	case "ValueAddTransformer":
		var p builtins.ValueAddTransformerPlugin
		return in.decoded(f, config, &p, func() error {
			if p.TargetFilePath == "" {
				return nil
			}
			name, content, err := in.file(f, dir, p.TargetFilePath)
			if err != nil {
				return err
			}
			_, err = in.documents(name, content)
			return err
		})
	}
	return at(f.file, 0, fmt.Errorf("%s: gitopsd does not know this builtin plugin, or does not run it", kind))
}

func (in *inspection) decoded(f field, config []byte, into any, check func() error) error {
	if err := yaml.Unmarshal(config, into); err != nil {
		return at(f.file, 0, fmt.Errorf("%s: %w", f.name, err))
	}
	return check()
}

// documents decodes the YAML documents of a file, within the build's limits. It
// is stricter than kustomize: duplicate keys, unknown tags and numbers that JSON
// cannot hold are errors.
func (in *inspection) documents(file string, content []byte) ([]sources.Document, error) {
	docs, err := sources.DecodeYAML(bytes.NewReader(content), sources.Limits{
		Documents: MaxObjects + 1, Nodes: in.budget.values + 1,
	})
	if err != nil {
		return nil, yamlError(file, err)
	}
	n := 0
	for _, doc := range docs {
		n += count(doc.Tree)
	}
	if err := in.budget.parse(n); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return docs, nil
}

// documentsOrList is documents for what may also be one list, which it returns.
func (in *inspection) documentsOrList(file string, content []byte) ([]any, error) {
	_, err := in.documents(file, content)
	if err == nil {
		return nil, nil
	}
	list, errList := yaml.YAMLToJSON(content)
	if errList != nil || len(list) == 0 || list[0] != '[' {
		return nil, err
	}
	docs, err := in.documents(file, append(append([]byte(`{"list":`), list...), '}'))
	if err != nil {
		return nil, err
	}
	items, _ := docs[0].Tree["list"].([]any)
	return items, nil
}

func count(v any) int {
	n := 1
	switch v := v.(type) {
	case map[string]any:
		for _, item := range v {
			n += count(item)
		}
	case []any:
		for _, item := range v {
			n += count(item)
		}
	}
	return n
}
