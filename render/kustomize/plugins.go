package kustomize

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	//lint:ignore SA1019 kustomize decodes plugins to these types; copies of them could differ
	"sigs.k8s.io/kustomize/api/builtins"
	"sigs.k8s.io/kustomize/api/konfig"
	"sigs.k8s.io/kustomize/api/resource"
	"sigs.k8s.io/yaml"
)

// pluginEntries inspects generators, transformers or validators. An entry that
// kustomize can parse as objects is YAML, any other entry is a path.
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
		if err := in.notYAML(v.dir, f, entry, true); err != nil {
			return err
		}
		down := &visit{dir: v.dir, as: plugins, up: v.up, pluginDir: v.dir, depth: v.depth}
		if _, err := in.resource(ctx, down, f, entry); err != nil {
			return err
		}
	}
	return nil
}

// parse parses YAML as kustomize does; asSet adds its checks of a set of objects.
func (in *inspection) parse(text string, asSet bool) (objects []*resource.Resource, err error) {
	err = guarded(func() error {
		if !asSet {
			objects, err = in.parser.RF().SliceFromBytes([]byte(text))
			return err
		}
		rm, err := in.parser.NewResMapFromBytes([]byte(text))
		if err == nil {
			objects = rm.Resources()
		}
		return err
	})
	return objects, err
}

// inline reports whether kustomize reads a string as YAML rather than as a path. YAML that
// kustomize could also read as the address of a repository is an error.
func (in *inspection) inline(f field, entry string, asSet bool) (bool, error) {
	if _, err := in.parse(entry, asSet); err != nil {
		return false, nil
	}
	if clonable.MatchString(entry) {
		return false, f.fault(entry, fmt.Errorf("%s: YAML must not begin like the address of a repository", f.name))
	}
	return true, nil
}

// notYAML returns an error if an entry is not a path, but was meant to be YAML that kustomize
// parses as objects.
func (in *inspection) notYAML(dir string, f field, entry string, asSet bool) error {
	if !strings.Contains(entry, "\n") && !strings.Contains(entry, ": ") && !strings.HasPrefix(strings.TrimSpace(entry), "{") {
		return nil
	}
	if _, err := in.mode(path.Join(dir, entry)); err == nil {
		return nil
	}
	_, err := in.parse(entry, asSet)
	if err == nil {
		return nil
	}
	return f.fault(entry, fmt.Errorf("%s: the entry is neither a path nor YAML of objects: %s", f.name, reword(err.Error())))
}

// plugins inspects the configurations of plugins in a file or field. Only plugins
// that are compiled into kustomize are allowed.
func (in *inspection) plugins(dir, file string, content []byte) error {
	docs, err := in.documents(file, content)
	if err != nil {
		return err
	}
	configs, err := in.parse(string(content), true)
	if err != nil {
		return at(file, 0, errors.New(reword(err.Error())))
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
			return at(file, line, fmt.Errorf("%s: apiVersion %s: gitopsd runs no plugins or functions, only what is built into kustomize (apiVersion: builtin); commit what it makes", what, res.GetApiVersion()))
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

// plugin inspects the configuration of one builtin plugin. It decodes the configuration with
// kustomize's type and function. Plugins without paths need no inspection. Unknown plugins
// are refused.
func (in *inspection) plugin(dir string, f field, kind string, config []byte) error {
	switch kind {
	case "AnnotationsTransformer", "HashTransformer", "IAMPolicyGenerator", "ImageTagTransformer", "LabelTransformer",
		"NamespaceTransformer", "PrefixSuffixTransformer", "PrefixTransformer", "SuffixTransformer", "ReplicaCountTransformer":
		if err := in.budget.write(len(config), len(config)*len(in.written[in.from:])); err != nil {
			return at(f.file, 0, fmt.Errorf("%s: %w", kind, err))
		}
		return nil
	case "ConfigMapGenerator":
		var p builtins.ConfigMapGeneratorPlugin
		return in.decoded(f, config, &p, func() error { return in.pairs(dir, f, p.KvPairSources, false) })
	case "SecretGenerator":
		var p builtins.SecretGeneratorPlugin
		return in.decoded(f, config, &p, func() error { return in.pairs(dir, f, p.KvPairSources, true) })
	case "PatchTransformer":
		var p builtins.PatchTransformerPlugin
		return in.decoded(f, config, &p, func() error { return in.patch(dir, f, p.Path, p.Patch, p.Target) })
	case "PatchJson6902Transformer":
		var p builtins.PatchJson6902TransformerPlugin
		return in.decoded(f, config, &p, func() error { return in.patch(dir, f, p.Path, p.JsonOp, p.Target) })
	case "PatchStrategicMergeTransformer":
		var p builtins.PatchStrategicMergeTransformerPlugin
		return in.decoded(f, config, &p, func() error {
			for _, entry := range p.Paths {
				if err := in.inlineOrFile(dir, f, string(entry)); err != nil {
					return err
				}
			}
			docs, err := in.documents(f.file, []byte(p.Patches))
			in.budget.patches += len(docs)
			if err != nil {
				return err
			}
			return textsOfPatch(f, f.file, []byte(p.Patches), p.Patches, docs, nil)
		})
	case "ReplacementTransformer":
		var p builtins.ReplacementTransformerPlugin
		return in.decoded(f, config, &p, func() error {
			return in.replacements(dir, f, p.ReplacementList)
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
	case "HelmChartInflationGenerator":
		return at(f.file, 0, fmt.Errorf("%s: %w", kind, errHelm))
	}
	return at(f.file, 0, fmt.Errorf("%s: gitopsd does not know this builtin plugin", kind))
}

func (in *inspection) decoded(f field, config []byte, into any, check func() error) error {
	if err := yaml.Unmarshal(config, into); err != nil {
		return at(f.file, 0, fmt.Errorf("%s: %w", f.name, err))
	}
	return check()
}
