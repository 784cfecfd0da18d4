package render

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"gitopsd.dev/render/immutable"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// checkName checks the name of a package. Every object of the package has it in a label,
// and the objects of its controller are named by it.
func checkName(name string) error {
	switch {
	case len(name) > validation.LabelValueMaxLength:
		return fmt.Errorf("more than %d characters", validation.LabelValueMaxLength)
	case len(validation.IsDNS1123Subdomain(name)) > 0:
		return fmt.Errorf("%q cannot be the name of an object: want lower-case letters, digits, '-' and '.', and a letter or digit at both ends", name)
	}
	return nil
}

// declaration reads a Provider, Configuration or Function strictly: a field that
// gitopsd does not support is an error that names the field.
func declaration(o *manifest.Object) (sources.Declaration, error) {
	id := o.ID()
	d := sources.Declaration{
		Kind:       sources.PackageKind(id.Kind),
		Name:       id.Name,
		PullPolicy: sources.PullIfNotPresent,
		File:       o.Origin().File,
		Document:   sources.Document{Line: o.Origin().Line, Tree: o.Tree()},
	}
	if misspelled(o) && id.Group != manifest.GroupPackages {
		return d, fmt.Errorf("apiVersion: %s is not known; write %s/v1", o.APIVersion(), manifest.GroupPackages)
	} else if misspelled(o) {
		return d, fmt.Errorf("kind: %s is not known; write %s, %s or %s", id.Kind, sources.Provider, sources.Configuration, sources.Function)
	}
	if v := o.Version(); v != "v1" && (v != "v1beta1" || d.Kind != sources.Function) {
		return d, fmt.Errorf("apiVersion: %s is not known; write %s/v1", o.APIVersion(), manifest.GroupPackages)
	}
	if err := checkName(d.Name); err != nil {
		return d, fmt.Errorf("metadata.name: %w", err)
	}
	for key := range o.Tree() {
		if !slices.Contains([]string{"apiVersion", "kind", "metadata", "spec", "status"}, key) {
			return d, fmt.Errorf("%s: is not a field of a %s", key, d.Kind)
		}
	}
	spec := manifest.Mapping(o.Tree(), "spec")
	if spec == nil {
		return d, errors.New("spec: is missing, or not a mapping")
	}
	for _, key := range slices.Sorted(maps.Keys(spec)) {
		read, known := specFields[key]
		if !known || key == "runtimeConfigRef" && d.Kind == sources.Configuration {
			return d, fmt.Errorf("spec.%s: %s", key, unknownField(key, d.Kind))
		}
		if spec[key] == nil {
			continue
		}
		if err := read(spec[key], &d); err != nil {
			return d, fmt.Errorf("spec.%s: %w", key, err)
		}
	}
	if d.Ref == (sources.Ref{}) {
		return d, errors.New("spec.package: is missing; write <repository>:<version>")
	}
	if unknown := o.UnknownAnnotations(); len(unknown) > 0 {
		return d, fmt.Errorf("metadata.annotations: %s", strings.Join(unknown, "; "))
	}
	if text, annotated := o.Annotations()[manifest.ImmutableAnnotation]; annotated {
		d.Immutable = text
		if _, err := immutable.Parse(d.Immutable); err != nil {
			return d, fmt.Errorf("metadata.annotations: %s: %w", manifest.ImmutableAnnotation, err)
		}
	}
	switch how := o.Annotation(manifest.InstallAnnotation); {
	case how == "":
	case how != installByType:
		return d, fmt.Errorf("metadata.annotations: %s: want %s, have %q", manifest.InstallAnnotation, installByType, how)
	case d.Kind != sources.Provider:
		return d, fmt.Errorf("metadata.annotations: %s: only a Provider is installed by type", manifest.InstallAnnotation)
	default:
		d.ByType = true
	}
	return d, nil
}

// misspelled reports whether an object of an unknown kind most likely declares a package,
// with a typing error in its kind or group. Of Crossplane's kinds, only those of packages
// have the field spec.package.
func misspelled(o *manifest.Object) bool {
	value, declares := manifest.Mapping(o.Tree(), "spec")["package"]
	switch id := o.ID(); {
	case !declares, id.Is(manifest.Packages...):
		return false
	case id.Group == manifest.GroupPackages:
		return true
	default:
		_, text := value.(string)
		named := func(gk manifest.GroupKind) bool { return gk.Kind == id.Kind }
		return text && slices.ContainsFunc(manifest.Packages, named) && looksLike(id.Group, manifest.GroupPackages)
	}
}

// looksLike reports whether a group is most likely a misspelling of another: it has too few
// or too many parts, or at most two wrong characters.
func looksLike(group, meant string) bool {
	const wrong = 2
	return strings.HasSuffix(meant, "."+group) || group == "" || strings.HasSuffix(group, "."+meant) || sources.Distance(group, meant) <= wrong
}

// readable returns the readable part of an invalid declaration: its repository, even if the
// version in spec.package is not valid, and the fields that affect how it is resolved.
func readable(o *manifest.Object, d sources.Declaration) sources.Declaration {
	d.Ref = sources.Ref{}
	spec := manifest.Mapping(o.Tree(), "spec")
	for _, key := range []string{"packagePullSecrets", "skipDependencyResolution", "runtimeConfigRef"} {
		if spec[key] != nil {
			_ = specFields[key](spec[key], &d) // the declaration has an error already
		}
	}
	name, _, _ := strings.Cut(strings.TrimSpace(manifest.Text(spec, "package")), "@")
	if colon := strings.LastIndexByte(name, ':'); colon > strings.LastIndexByte(name, '/') {
		name = name[:colon]
	}
	if ref, err := sources.ParseRef(name + ":any"); err == nil {
		d.Ref.Repository = ref.Repository
	}
	return d
}

func unknownField(key string, kind sources.PackageKind) string {
	if key == "controllerConfigRef" {
		return "Crossplane has removed it, and gitopsd does not honour it; use runtimeConfigRef"
	}
	fields := slices.Sorted(maps.Keys(specFields))
	if kind == sources.Configuration {
		fields = slices.DeleteFunc(fields, func(f string) bool { return f == "runtimeConfigRef" })
	}
	if meant := sources.Meant(key, fields); meant != "" {
		return fmt.Sprintf("is not a field of a %s%s", kind, meant)
	}
	return fmt.Sprintf("is not a field of a %s that gitopsd knows (%s)", kind, strings.Join(fields, ", "))
}

// specFields read the fields of spec into a declaration.
var specFields = map[string]func(v any, d *sources.Declaration) error{
	"package": func(v any, d *sources.Declaration) error {
		s, ok := v.(string)
		if !ok {
			return wantString(v)
		}
		var err error
		d.Ref, err = sources.ParseRef(s)
		return err
	},
	"packagePullPolicy": func(v any, d *sources.Declaration) error {
		var s string
		err := oneOf(v, &s, string(sources.PullAlways), string(sources.PullIfNotPresent), string(sources.PullNever))
		d.PullPolicy = sources.PullPolicy(s)
		return err
	},
	"packagePullSecrets": func(v any, d *sources.Declaration) error {
		list, ok := v.([]any)
		if !ok {
			return errors.New("want a list of {name: <Secret>}")
		}
		d.PullSecrets = nil
		for i, item := range list {
			m, _ := item.(map[string]any)
			name := manifest.Text(m, "name")
			if !secretName.MatchString(name) || len(m) != 1 {
				return fmt.Errorf("%d: want {name: <Secret>}", i)
			}
			d.PullSecrets = append(d.PullSecrets, name)
		}
		return nil
	},
	"revisionActivationPolicy": func(v any, d *sources.Declaration) error {
		var s string
		err := oneOf(v, &s, "Automatic", "Manual")
		d.ManualActivation = s == "Manual"
		return err
	},
	// Without Crossplane the cluster keeps no revisions. They are in the repository's
	// history.
	"revisionHistoryLimit": func(v any, _ *sources.Declaration) error {
		if n, ok := v.(int64); !ok || n < 0 {
			return fmt.Errorf("want a number that is not negative, have %v", v)
		}
		return nil
	},
	"ignoreCrossplaneConstraints": func(v any, d *sources.Declaration) error {
		return boolean(v, &d.IgnoreCrossplaneConstraints)
	},
	"skipDependencyResolution": func(v any, d *sources.Declaration) error {
		return boolean(v, &d.SkipDependencyResolution)
	},
	"commonLabels": func(v any, d *sources.Declaration) (err error) {
		if d.CommonLabels, err = metadataMap(v); err != nil {
			return err
		}
		for _, key := range slices.Sorted(maps.Keys(d.CommonLabels)) {
			if wrong := validation.IsValidLabelValue(d.CommonLabels[key]); len(wrong) > 0 {
				return fmt.Errorf("%s: %q: %s", key, d.CommonLabels[key], wrong[0])
			}
		}
		return nil
	},
	"commonAnnotations": func(v any, d *sources.Declaration) (err error) {
		d.CommonAnnotations, err = metadataMap(v)
		return err
	},
	"runtimeConfigRef": func(v any, d *sources.Declaration) error {
		m, ok := v.(map[string]any)
		if !ok {
			return errors.New("want {name: <DeploymentRuntimeConfig>}")
		}
		for key, v := range m {
			switch {
			case key == "name":
			case key == "apiVersion" && v == runtimeConfigVersion, key == "kind" && v == manifest.RuntimeConfig.Kind:
			default:
				return fmt.Errorf("%s: %v is not known; want a %s of %s", key, v, manifest.RuntimeConfig.Kind, runtimeConfigVersion)
			}
		}
		if d.RuntimeConfig = manifest.Text(m, "name"); d.RuntimeConfig == "" {
			return errors.New("name: is missing")
		}
		return nil
	},
}

func wantString(v any) error { return fmt.Errorf("want a string, have %v; quote it", v) }

func oneOf(v any, s *string, values ...string) error {
	if *s, _ = v.(string); !slices.Contains(values, *s) {
		return fmt.Errorf("want %s, have %v", strings.Join(values, ", "), v)
	}
	return nil
}

func boolean(v any, b *bool) error {
	var ok bool
	if *b, ok = v.(bool); !ok {
		return fmt.Errorf("want true or false, have %v", v)
	}
	return nil
}

func metadataMap(v any) (map[string]string, error) {
	m, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("want a mapping of strings")
	}
	values := make(map[string]string, len(m))
	for _, key := range slices.Sorted(maps.Keys(m)) {
		if values[key], ok = m[key].(string); !ok {
			return nil, fmt.Errorf("%s: %w", key, wantString(m[key]))
		}
		if reserved(key) {
			return nil, fmt.Errorf("%s: is gitopsd's own to set", key)
		}
		if wrong := validation.IsQualifiedName(strings.ToLower(key)); len(wrong) > 0 {
			return nil, fmt.Errorf("%q: %s", key, wrong[0])
		}
	}
	return values, nil
}

// reserved reports whether a label or annotation is of gitopsd's group or its inventory's.
func reserved(key string) bool {
	prefix, _, _ := strings.Cut(key, "/")
	return prefix == manifest.Group || prefix == "applyset.kubernetes.io"
}
