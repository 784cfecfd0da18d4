//lint:file-ignore SA1019 What is deprecated in a kustomization is still in use, and must be checked like the rest.

package kustomize

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/yaml"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/remote"
	"gitopsd.dev/sources"
)

var errHelm = errors.New("gitopsd does not inflate Helm charts; commit the output of `helm template`")

// fields inspects the fields of a kustomization in kustomize's order, and returns the number
// of objects. A test checks that it inspects all fields that kustomize knows.
func (in *inspection) fields(ctx context.Context, v *visit, f field, k *types.Kustomization, above int) (int, error) {
	if len(k.HelmCharts) > 0 || k.HelmGlobals != nil {
		return 0, at(f.file, max(lineOf(f.content, "helmCharts"), lineOf(f.content, "helmChartInflationGenerator")),
			fmt.Errorf("helmCharts: %w", errHelm))
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
		name, err := in.base(v, f.named("components"), entry)
		if err != nil {
			return 0, err
		}
		if name == "" {
			continue
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

// onlyResources fails if a kustomization below generators, transformers or validators has
// another field than resources, since a computed value could be a path.
func onlyResources(f field, k *types.Kustomization) error {
	rest := *k
	rest.TypeMeta, rest.MetaData, rest.Resources = types.TypeMeta{}, nil, nil
	if rest.CheckEmpty() == nil {
		return fmt.Errorf("%s: lists generators, transformers or validators, and may therefore have no field but resources: what kustomize would do to them cannot be checked before it runs", f.file)
	}
	return nil
}

// generators inspects the fields that add objects.
func (in *inspection) generators(ctx context.Context, v *visit, f field, k *types.Kustomization) (int, error) {
	objects := 0
	var line map[string]int
	if len(k.ConfigMapGenerator)+len(k.SecretGenerator) > 0 {
		line = lines(f.content)
	}
	generate := func(name, kind string, args types.GeneratorArgs) error {
		in.written = append(in.written, written{
			id:      manifest.ID{Kind: kind, Namespace: args.Namespace, Name: args.Name},
			version: "v1",
			origin:  manifest.Origin{File: f.file, Line: line[args.Name]},
		})
		objects++
		w, before := &in.written[len(in.written)-1], in.budget.bytes
		err := in.pairs(v.dir, f.named(name), args.KvPairSources, kind == manifest.Secret.Kind)
		w.bytes = before - in.budget.bytes
		for _, literal := range args.LiteralSources {
			w.bytes += len(literal)
		}
		return err
	}
	for _, g := range k.ConfigMapGenerator {
		if err := generate("configMapGenerator", manifest.ConfigMap.Kind, g.GeneratorArgs); err != nil {
			return 0, err
		}
	}
	for _, g := range k.SecretGenerator {
		if err := generate("secretGenerator", manifest.Secret.Kind, g.GeneratorArgs); err != nil {
			return 0, err
		}
	}
	if err := in.budget.hold(objects); err != nil {
		return 0, fmt.Errorf("%s: %w", f.file, err)
	}
	return objects, in.pluginEntries(ctx, v, f.named("generators"), k.Generators)
}

// pairs inspects the sources of a generator's values; secret reports whether it makes a Secret.
func (in *inspection) pairs(dir string, f field, from types.KvPairSources, secret bool) error {
	source := func(what, entry, name string, as sensitivity) ([]byte, error) {
		f := f.named(f.name + "." + what)
		if secret && in.notThere(dir, name) {
			// It may be a value in the wrong list.
			return nil, f.fault(entry, fmt.Errorf("%s: the file is not in the repository; write values under literals", f.name))
		}
		file, content, err := in.file(f, dir, name)
		if err == nil && secret {
			in.sensitive[file] = as
		}
		return content, err
	}
	for _, entry := range from.FileSources {
		// "path", or "key=path"; kustomize reports anything else.
		name := entry
		if _, after, ok := strings.Cut(entry, "="); ok {
			name = after
		}
		if _, err := source("files", entry, name, valueFile); err != nil {
			return err
		}
	}
	for i, entry := range from.LiteralSources {
		if strings.Index(entry, "=") < 1 {
			return f.fault(entry, fmt.Errorf("%s.literals[%d]: want key=value", f.name, i))
		}
	}
	keys := len(from.LiteralSources) + len(from.FileSources)
	for _, entry := range append(from.EnvSources, from.EnvSource) {
		if entry == "" {
			continue
		}
		content, err := source("envs", entry, entry, envFile)
		if err != nil {
			return err
		}
		number := 0
		for text := range bytes.Lines(content) {
			if number++; !utf8.Valid(text) {
				return at(path.Join(dir, entry), number, fmt.Errorf("the line is not valid UTF-8; save the file as UTF-8, or name files with other bytes under files of the %s", f.name))
			}
			// Kustomize takes a line without "=" for a key with an empty value, and the keys of Secrets are shown.
			if line := bytes.TrimSpace(bytes.TrimPrefix(text, []byte("\ufeff"))); secret && len(line) > 0 && line[0] != '#' && bytes.IndexByte(line, '=') < 1 {
				return at(path.Join(dir, entry), number, fmt.Errorf("want key=value, a comment or an empty line; name files with other content under files of the %s", f.name))
			}
			if len(bytes.TrimSuffix(text, []byte("\n"))) >= bufio.MaxScanTokenSize {
				return at(path.Join(dir, entry), number, fmt.Errorf("the line has 64 KiB or more, and kustomize reads none such, nor any line after it; put the value into a file of its own, and name it under files of the %s", f.name))
			}
		}
		keys += number
	}
	in.budget.widths.keys(keys)
	return nil
}

// notThere reports whether an entry names no file in the repository, nor resembles one.
func (in *inspection) notThere(dir, entry string) bool {
	name := path.Join(dir, entry)
	if remote.Looks(entry) || path.IsAbs(entry) || !fs.ValidPath(name) {
		return false
	}
	_, err := in.mode(name)
	return errors.Is(err, fs.ErrNotExist) && in.meant(name) == ""
}

// transformers inspects the fields that change objects.
func (in *inspection) transformers(ctx context.Context, v *visit, f field, k *types.Kustomization, objects int) error {
	operators := len(k.PatchesStrategicMerge) + len(k.PatchesJson6902) + len(k.Patches) + len(k.Labels) + len(k.CommonLabels) +
		len(k.CommonAnnotations) + len(k.Images) + len(k.Replicas) + len(k.Vars) + len(k.Transformers) + len(k.Validators)
	for _, name := range []string{k.NamePrefix, k.NameSuffix, k.Namespace} {
		if name != "" {
			operators++
		}
	}
	// Both are bounded by the size of the input, so the product does not overflow.
	if err := in.budget.step(operators * objects); err != nil {
		return fmt.Errorf("%s: %w", f.file, err)
	}
	in.from = v.from
	in.aims(v, f, k)
	if err := in.values(f, k); err != nil {
		return err
	}
	for _, patch := range k.PatchesStrategicMerge {
		if err := in.inlineOrFile(v.dir, f.named("patchesStrategicMerge"), string(patch)); err != nil {
			return err
		}
	}
	for _, patch := range append(k.PatchesJson6902, k.Patches...) {
		if err := in.patch(v.dir, f.named("patches"), patch.Path, patch.Patch, patch.Target); err != nil {
			return err
		}
	}
	if err := in.replacements(v.dir, f, k.Replacements); err != nil {
		return err
	}
	if err := in.pluginEntries(ctx, v, f.named("transformers"), k.Transformers); err != nil {
		return err
	}
	return in.pluginEntries(ctx, v, f.named("validators"), k.Validators)
}

// values counts the values that a kustomization's fields write to all of its objects.
func (in *inspection) values(f field, k *types.Kustomization) error {
	seen := in.written[in.from:]
	texts := func(name string, values map[string]string) error {
		for _, key := range slices.Sorted(maps.Keys(values)) {
			n := len(key) + len(values[key])
			if err := in.budget.write(n, n*len(seen)); err != nil {
				return f.fault(key, fmt.Errorf("%s: %s: %w", name, key, err))
			}
		}
		return nil
	}
	for i, l := range k.Labels {
		if err := texts(fmt.Sprintf("labels[%d]", i), l.Pairs); err != nil {
			return err
		}
	}
	if err := texts("commonLabels", k.CommonLabels); err != nil {
		return err
	}
	if err := texts("commonAnnotations", k.CommonAnnotations); err != nil {
		return err
	}
	names := 0
	for _, w := range seen {
		names += max(1, w.names)
	}
	for _, named := range []struct{ field, name string }{{"namePrefix", k.NamePrefix}, {"nameSuffix", k.NameSuffix}, {"namespace", k.Namespace}} {
		if err := in.budget.write(len(named.name), len(named.name)*names); err != nil {
			return f.fault(named.field, fmt.Errorf("%s: %w", named.field, err))
		}
	}
	longest := 0 // a container has one image
	for _, image := range k.Images {
		longest = max(longest, len(image.NewName)+len(image.NewTag)+len(image.TagSuffix)+len(image.Digest))
	}
	if err := in.budget.write(longest, longest*names); err != nil {
		return f.fault("images", fmt.Errorf("images: %w", err))
	}
	return nil
}

// reach returns the objects that a target may match.
func (in *inspection) reach(t *types.Selector) []written {
	may, err := in.mayMatch(t)
	if err != nil {
		return nil // kustomize reports the error
	}
	var reached []written
	for _, w := range in.written[in.from:] {
		if may(w.resID()) {
			reached = append(reached, w)
		}
	}
	return reached
}

// patch inspects a patch in a file or in the field itself.
func (in *inspection) patch(dir string, f field, file, text string, target *types.Selector) error {
	name, content := f.file, []byte(strings.TrimSpace(text))
	if file != "" {
		var err error
		if name, content, err = in.file(f.named(f.name+".path"), dir, file); err != nil {
			return err
		}
	}
	docs, ops, err := in.documentsOrList(name, content)
	if err != nil && file == "" {
		return f.fault(text, fmt.Errorf("%s: the patch%w", f.name, inline(err)))
	} else if err != nil {
		return err
	}
	in.budget.patches += len(docs)
	if err := in.growth.patch(ops); err != nil {
		return fmt.Errorf("%s: %s: %w", name, f.name, err)
	}
	total := len(content)
	if target != nil {
		total = 0
		for _, w := range in.reach(target) {
			total += len(content)
			if ops == nil {
				continue
			}
			total += w.bytes
			if w.rounded != nil {
				return f.fault(cmp.Or(file, text), fmt.Errorf("%s: %s (%s): %w", f.name, w.id, w.origin, w.rounded))
			}
		}
	}
	switch err := in.budget.write(len(content), total); {
	case err != nil && file == "":
		return f.fault(text, fmt.Errorf("%s: %w", f.name, err))
	case err != nil:
		return at(name, 0, fmt.Errorf("%s: %w", f.name, err))
	}
	if ops == nil {
		if err := in.mergePatch(f, name, content, text, docs); err != nil {
			return err
		}
	}
	return textsOfPatch(f, name, content, text, docs, ops)
}

// mergePatch checks that kustomize can read a strategic merge patch.
func (in *inspection) mergePatch(f field, name string, content []byte, text string, docs []sources.Document) error {
	for _, doc := range docs {
		_, missing := identify(doc.Tree)
		if missing == nil {
			continue
		}
		if _, err := in.parse(string(content), false); err == nil {
			return nil
		}
		err := fmt.Errorf("the patch is neither a list of JSON 6902 operations nor a strategic merge patch: %w", missing)
		if text != "" {
			return f.fault(text, fmt.Errorf("%s: %w", f.name, err))
		}
		return at(name, doc.Line, err)
	}
	return nil
}

// textsOfPatch checks the labels, annotations and dates that a patch sets. name and content are the
// file of the patch, and text is the patch if it is in the field itself.
func textsOfPatch(f field, name string, content []byte, text string, docs []sources.Document, ops []any) error {
	for _, doc := range docs {
		where, err := checkTextsOfPatch(doc.Tree, ops)
		switch {
		case err != nil && text != "":
			return f.fault(text, fmt.Errorf("%s: the patch: %w", f.name, err))
		case err != nil:
			return at(name, lineBelow(content, doc.Line, where...), err)
		}
	}
	if ops != nil {
		return nil // kustomize reads the values of operations as JSON
	}
	switch line, err := checkDates(content, docs); {
	case err != nil && text != "":
		return f.fault(text, fmt.Errorf("%s: the patch: %w", f.name, err))
	case err != nil:
		return at(name, line, err)
	}
	return nil
}

// inlineOrFile inspects a strategic merge patch. Kustomize parses the entry as YAML,
// and as a path if that fails.
func (in *inspection) inlineOrFile(dir string, f field, entry string) error {
	isYAML, err := in.inline(f, entry, false)
	if err != nil {
		return err
	}
	name, content := f.file, []byte(entry)
	if !isYAML {
		if err := in.notYAML(dir, f, entry, false); err != nil {
			return err
		}
		if name, content, err = in.file(f, dir, entry); err != nil {
			return err
		}
	}
	docs, err := in.documents(name, content)
	in.budget.patches += len(docs)
	if err != nil {
		return err
	}
	if isYAML {
		return textsOfPatch(f, name, content, entry, docs, nil)
	}
	return textsOfPatch(f, name, content, "", docs, nil)
}

// replacements inspects replacements.
func (in *inspection) replacements(dir string, f field, list []types.ReplacementField) error {
	var all []types.Replacement
	var files []string
	for _, r := range list {
		if r.Path == "" {
			all, files = append(all, r.Replacement), append(files, f.file)
			continue
		}
		name, content, err := in.file(f.named("replacements.path"), dir, r.Path)
		if err != nil {
			return err
		}
		if _, _, err := in.documentsOrList(name, content); err != nil {
			return err
		}
		// Kustomize accepts one replacement or a list.
		var several []types.Replacement
		if yaml.Unmarshal(content, &several) != nil {
			several = make([]types.Replacement, 1)
			if err := yaml.Unmarshal(content, &several[0]); err != nil {
				return at(name, 0, errors.New("holds neither a replacement nor a list of them"))
			}
		}
		all, files = append(all, several...), append(files, slices.Repeat([]string{name}, len(several))...)
	}
	fields := 0
	for _, r := range all {
		for _, target := range r.Targets {
			if target != nil {
				fields += max(1, len(target.FieldPaths))
			}
		}
	}
	if err := in.budget.step(fields * len(in.written[in.from:])); err != nil {
		return fmt.Errorf("%s: %w", f.file, err)
	}
	if err := in.growth.replacements(all); err != nil {
		return fmt.Errorf("%s: replacements: %w", f.file, err)
	}
	for i, r := range all {
		if err := in.replaced(r); err != nil {
			return at(files[i], 0, fmt.Errorf("replacements: %w", err))
		}
	}
	return nil
}

// replaced counts the value that a replacement writes. It is not longer than its source with
// what was written to it.
func (in *inspection) replaced(r types.Replacement) error {
	n := 0
	switch {
	case r.SourceValue != nil:
		n = len(*r.SourceValue)
	case r.Source != nil:
		for _, w := range in.reach(&types.Selector{ResId: r.Source.ResId}) {
			n = max(n, w.bytes)
		}
		n += in.budget.longest
	}
	times := 0
	for _, target := range r.Targets {
		if target != nil && target.Select != nil {
			times += max(1, len(target.FieldPaths)) * len(in.reach(target.Select))
		}
	}
	if times == 0 {
		return nil
	}
	return in.budget.write(n, n*times)
}
