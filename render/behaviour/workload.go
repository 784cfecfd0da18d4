package behaviour

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// Template is the part of a workload or pod that decides what runs.
type Template struct {
	// Images by container, as written.
	Images []Part
	// Settings of all containers; see Identity.
	Settings []Part
	// References are the ConfigMaps and Secrets that settings or files come from,
	// sorted, each once.
	References []Reference
	// Account is the name of the ServiceAccount.
	Account string
}

// FromPodSpec reads the containers of a pod's spec.
func FromPodSpec(spec map[string]any) Template {
	var t Template
	var containers []map[string]any
	for _, field := range []string{"containers", "initContainers"} {
		list, _ := spec[field].([]any)
		for _, c := range list {
			if m, ok := c.(map[string]any); ok {
				containers = append(containers, m)
			}
		}
	}
	for _, c := range containers {
		name, _ := c["name"].(string)
		image, _ := c["image"].(string)
		t.Images = append(t.Images, Part{name, image})
		t.Settings = append(t.Settings, settings(name, c)...)
	}
	sources := new(volumes)
	sources.read(spec)
	for _, c := range containers {
		name, _ := c["name"].(string)
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
	spec, _ := tree["spec"].(map[string]any)
	template, _ := spec["template"].(map[string]any)
	pod, _ := template["spec"].(map[string]any)
	return FromPodSpec(pod)
}

// settings returns a container's command, arguments and environment.
func settings(container string, c map[string]any) []Part {
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
	args, _ := c["args"].([]any)
	arguments(args, add)
	env, _ := c["env"].([]any)
	for _, e := range env {
		variable, _ := e.(map[string]any)
		name, _ := variable["name"].(string)
		if source := variable["valueFrom"]; source != nil {
			add("variable "+name, plainSource(source))
		} else {
			value, _ := variable["value"].(string)
			add("variable "+name, value)
		}
	}
	from, _ := c["envFrom"].([]any)
	for _, f := range from {
		add("envFrom", plainSource(f))
	}
	parts := make([]Part, len(names))
	for i, name := range names {
		parts[i] = Part{name, string(sources.DigestOf(manifest.AppendJSON(nil, values[name])))}
	}
	return parts
}

// The part of an argument that may be shown: the name of a flag. A word after a flag
// may be its value; one letter with more behind it may be a flag with its value.
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
// defaults, and without the hash in a generated name.
func plainSource(source any) any {
	m, _ := source.(map[string]any)
	plain := make(map[string]any, len(m))
	for kind, v := range m {
		fields, ok := v.(map[string]any)
		if !ok {
			plain[kind] = v
			continue
		}
		kept := make(map[string]any, len(fields))
		for k, v := range fields {
			if k == "apiVersion" && v == "v1" || k == "divisor" && v == "0" {
				continue
			}
			if name, ok := v.(string); ok && k == "name" {
				v = plainName(name)
			}
			kept[k] = v
		}
		plain[kind] = kept
	}
	return plain
}

// ImageDigest returns the digest in an image's name or in the image ID of a
// container's status: "repository@sha256:…", with "docker-pullable://" before it or
// the digest alone. ok reports whether there is one.
func ImageDigest(image string) (d sources.Digest, ok bool) {
	i := strings.LastIndex(image, "sha256:")
	if i < 0 {
		return "", false
	}
	d, err := sources.ParseDigest(image[i:])
	return d, err == nil
}
