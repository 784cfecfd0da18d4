package behaviour

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// Template is the part of a workload or pod that identifies its behaviour.
type Template struct {
	// Images are the images by container, as written.
	Images []Part
	// Settings are the settings of all containers; see [Identity].
	Settings []Part
	// Exact are the settings with the names of ConfigMaps and Secrets as written. In Settings
	// a name has no suffix that kustomize generated, since clusters are compared by contents.
	// Within one cluster another suffix is another object.
	Exact []Part
	// References are the ConfigMaps and Secrets that settings or files come from,
	// sorted, each once.
	References []Reference
	// Account is the name of the ServiceAccount.
	Account string
}

// FromPodSpec reads the containers of a pod's spec.
func FromPodSpec(spec map[string]any) Template {
	t := fromPodSpec(spec, plainName)
	t.Exact = fromPodSpec(spec, func(name string) string { return name }).Settings
	return t
}

// fromPodSpec reads a pod's spec without Exact. plain returns the form of a ConfigMap's or
// Secret's name in settings.
func fromPodSpec(spec map[string]any, plain func(name string) string) Template {
	var t Template
	sources := &volumes{plain: plain}
	sources.read(spec)
	for _, item := range slices.Concat(manifest.List(spec, "containers"), manifest.List(spec, "initContainers")) {
		c, ok := item.(map[string]any)
		if !ok {
			continue
		}
		name := manifest.Text(c, "name")
		t.Images = append(t.Images, Part{name, manifest.Text(c, "image")})
		t.Settings = append(t.Settings, settings(name, c, plain)...)
		sources.container(name, c)
	}
	t.Settings = append(t.Settings, sources.settings...)
	t.References = sources.all()
	t.Account = cmp.Or(manifest.Text(spec, "serviceAccountName"), manifest.Text(spec, "serviceAccount"), "default")
	sorted(t.Images)
	sorted(t.Settings)
	return t
}

// FromWorkload reads the pod template of a Deployment, StatefulSet or DaemonSet.
func FromWorkload(tree map[string]any) Template {
	return FromPodSpec(manifest.Mapping(tree, "spec", "template", "spec"))
}

// settings returns a container's command, arguments and environment.
func settings(container string, c map[string]any, plain func(name string) string) []Part {
	var names []string
	values := make(map[string][]any)
	add := func(name string, value any) {
		name = container + " " + name
		if values[name] == nil {
			names = append(names, name)
		}
		values[name] = append(values[name], value)
	}
	if command, ok := c["command"].([]any); ok {
		add("command", command)
	}
	arguments(manifest.List(c, "args"), add)
	for _, e := range manifest.List(c, "env") {
		variable, _ := e.(map[string]any)
		name := "variable " + manifest.Text(variable, "name")
		if source := variable["valueFrom"]; source != nil {
			add(name, plainSource(source, plain))
		} else {
			add(name, manifest.Text(variable, "value"))
		}
	}
	for _, f := range manifest.List(c, "envFrom") {
		add("envFrom", plainSource(f, plain))
	}
	parts := make([]Part, len(names))
	for i, name := range names {
		parts[i] = Part{name, string(sources.DigestOf(manifest.AppendJSON(nil, values[name])))}
	}
	return parts
}

// Only the name of a flag may be shown of an argument. A word after a flag may be its
// value, and a letter followed by more text may be a flag with its value.
var (
	longFlag  = regexp.MustCompile(`^--[A-Za-z0-9][A-Za-z0-9._-]*$`)
	shortFlag = regexp.MustCompile(`^-[A-Za-z0-9]$`)
	flagValue = regexp.MustCompile(`^(--?[A-Za-z0-9][A-Za-z0-9._-]*)=`)
)

func arguments(args []any, add func(name string, value any)) {
	flag := ""
	for n, a := range args {
		text, _ := a.(string)
		switch m := flagValue.FindStringSubmatch(text); {
		case m != nil:
			flag = ""
			add("argument "+m[1], text)
		case longFlag.MatchString(text), shortFlag.MatchString(text):
			flag = text
			add("argument "+flag, text)
		case flag != "" && !strings.HasPrefix(text, "-"):
			add("argument "+flag, text)
			flag = ""
		default:
			flag = ""
			add(fmt.Sprintf("argument %d", n+1), text)
		}
	}
}

// plainSource returns the source of a variable's value without the API server's
// defaults, and with the plain form of names.
func plainSource(source any, plain func(name string) string) any {
	m, _ := source.(map[string]any)
	all := make(map[string]any, len(m))
	for kind, v := range m {
		fields, ok := v.(map[string]any)
		if !ok {
			all[kind] = v
			continue
		}
		kept := make(map[string]any, len(fields))
		for k, v := range fields {
			if k == "apiVersion" && v == "v1" || k == "divisor" && v == "0" {
				continue
			}
			if name, ok := v.(string); ok && k == "name" {
				v = plain(name)
			}
			kept[k] = v
		}
		all[kind] = kept
	}
	return all
}

// ImageDigest returns the digest in an image's name or in the image ID of a container's
// status: "repository@sha256:…", perhaps after "docker-pullable://", or the digest alone.
// ok reports whether there is one.
func ImageDigest(image string) (d sources.Digest, ok bool) {
	i := strings.LastIndex(image, "sha256:")
	if i < 0 {
		return "", false
	}
	d, err := sources.ParseDigest(image[i:])
	return d, err == nil
}
