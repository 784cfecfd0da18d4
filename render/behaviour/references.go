package behaviour

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/pem"
	"maps"
	"regexp"
	"slices"
	"strings"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// Reference is a ConfigMap or Secret that a pod's containers get settings or files
// from. References are comparable.
type Reference struct {
	// Kind is manifest.ConfigMap or manifest.Secret.
	Kind manifest.GroupKind
	// Name is the name of the object, in the namespace of the pod.
	Name string
	// Key is the only key that is used; empty if all are.
	Key string
}

// named reports whether a name of a part is the reference, or a key of it.
func (r Reference) named(name string) bool {
	object, key, _ := strings.Cut(name, " key ")
	return object == r.Kind.Kind+" "+plainName(r.Name) && (key == "" || r.Key == "" || r.Key == key)
}

// Values of parts with a content that is not known or not compared.
const (
	// Elsewhere: the object or its key does not exist among the objects.
	Elsewhere = "not there"
	// Certificates: the content is certificates, their keys or tokens, which differ in
	// every cluster.
	Certificates = "certificates"
	// Withheld: the content is part of a Secret. It is not hashed, since the hash would be
	// published.
	Withheld = "withheld"
)

// Config returns the contents that references refer to, one part for each key:
// "ConfigMap settings key mode". get returns a ConfigMap or Secret, or nil, and sum
// hashes a value.
//
// Contents that always differ between clusters are [Certificates]: Secrets of the types
// kubernetes.io/tls and kubernetes.io/service-account-token, and values that consist of
// PEM blocks. Names have no suffix that kustomize generated from the content.
func Config(references []Reference, get func(kind manifest.GroupKind, name string) map[string]any, sum func(value []byte) string) []Part {
	var parts []Part
	for _, r := range references {
		name := r.Kind.Kind + " " + plainName(r.Name)
		tree := get(r.Kind, r.Name)
		if tree == nil {
			parts = append(parts, Part{name, Elsewhere})
			continue
		}
		if r.Kind == manifest.Secret && certified(manifest.Text(tree, "type")) {
			parts = append(parts, Part{name, Certificates})
			continue
		}
		values := contents(r.Kind, tree)
		keys := slices.Sorted(maps.Keys(values))
		if r.Key != "" {
			keys = []string{r.Key}
		}
		if len(keys) == 0 {
			parts = append(parts, Part{name, sum(nil)})
		}
		for _, key := range keys {
			value, ok := values[key]
			p := Part{name + " key " + key, Elsewhere}
			switch {
			case ok && onlyPEM(value):
				p.Value = Certificates
			case ok:
				p.Value = sum(value)
			}
			parts = append(parts, p)
		}
	}
	return slices.CompactFunc(sorted(parts), func(a, b Part) bool { return a.Name == b.Name })
}

// certified reports whether Secrets of a type contain certificates or tokens.
func certified(secretType string) bool {
	return secretType == "kubernetes.io/tls" || secretType == "kubernetes.io/service-account-token"
}

// Empty reports whether a ConfigMap or Secret has no values.
func Empty(kind manifest.GroupKind, tree map[string]any) bool { return len(contents(kind, tree)) == 0 }

// contents returns the values of a ConfigMap or Secret by key.
func contents(kind manifest.GroupKind, tree map[string]any) map[string][]byte {
	values := make(map[string][]byte)
	add := func(field string, encoded bool) {
		for key, v := range manifest.Mapping(tree, field) {
			text, _ := v.(string)
			values[key] = []byte(text)
			if decoded, err := base64.StdEncoding.DecodeString(text); encoded && err == nil {
				values[key] = decoded
			}
		}
	}
	add("binaryData", true)
	add("data", kind == manifest.Secret)
	add("stringData", false) // takes precedence; live Secrets have none
	return values
}

// onlyPEM reports whether a value consists of PEM blocks alone.
func onlyPEM(value []byte) bool {
	rest := bytes.TrimSpace(value)
	if len(rest) == 0 {
		return false
	}
	for len(rest) > 0 {
		if !bytes.HasPrefix(rest, []byte("-----BEGIN ")) {
			return false
		}
		block, after := pem.Decode(rest)
		if block == nil {
			return false
		}
		rest = bytes.TrimSpace(after)
	}
	return true
}

// generated matches a name with a suffix that kustomize made from the content.
var generated = regexp.MustCompile(`^(.+)-[2456789bcdfghkmt]{10}$`)

func plainName(name string) string {
	if m := generated.FindStringSubmatch(name); m != nil {
		return m[1]
	}
	return name
}

// volumes collects the ConfigMaps and Secrets that a pod's containers refer to.
type volumes struct {
	// plain returns the form of a name in settings.
	plain    func(name string) string
	found    map[Reference]bool
	settings []Part
	// mounted are the volumes with references.
	mounted map[string]bool
}

// read adds the references of a pod's volumes.
func (v *volumes) read(pod map[string]any) {
	v.found, v.mounted = make(map[Reference]bool), make(map[string]bool)
	for _, item := range manifest.List(pod, "volumes") {
		volume, _ := item.(map[string]any)
		name := manifest.Text(volume, "name")
		var from []any
		add := func(kind manifest.GroupKind, object string, source map[string]any) {
			if object == "" {
				return
			}
			v.found[Reference{kind, object, ""}] = true
			items, _ := source["items"].([]any)
			from = append(from, []any{kind.Kind, v.plain(object), items})
		}
		one := func(source map[string]any) {
			if m := manifest.Mapping(source, "configMap"); m != nil {
				add(manifest.ConfigMap, manifest.Text(m, "name"), m)
			}
			if m := manifest.Mapping(source, "secret"); m != nil {
				add(manifest.Secret, cmp.Or(manifest.Text(m, "secretName"), manifest.Text(m, "name")), m)
			}
		}
		one(volume)
		for _, source := range manifest.List(volume, "projected", "sources") {
			projected, _ := source.(map[string]any)
			one(projected)
		}
		if from != nil {
			v.mounted[name] = true
			v.settings = append(v.settings, Part{"volume " + name, string(sources.DigestOf(manifest.AppendJSON(nil, from)))})
		}
	}
}

// container adds a container's references and its mounts of volumes.
func (v *volumes) container(name string, c map[string]any) {
	add := func(kind manifest.GroupKind, source map[string]any, key string) {
		if object := manifest.Text(source, "name"); object != "" {
			v.found[Reference{kind, object, key}] = true
		}
	}
	for _, item := range manifest.List(c, "env") {
		variable, _ := item.(map[string]any)
		if m := manifest.Mapping(variable, "valueFrom", "configMapKeyRef"); m != nil {
			add(manifest.ConfigMap, m, manifest.Text(m, "key"))
		}
		if m := manifest.Mapping(variable, "valueFrom", "secretKeyRef"); m != nil {
			add(manifest.Secret, m, manifest.Text(m, "key"))
		}
	}
	for _, item := range manifest.List(c, "envFrom") {
		from, _ := item.(map[string]any)
		add(manifest.ConfigMap, manifest.Mapping(from, "configMapRef"), "")
		add(manifest.Secret, manifest.Mapping(from, "secretRef"), "")
	}
	places := make(map[string][]any)
	for _, item := range manifest.List(c, "volumeMounts") {
		mount, _ := item.(map[string]any)
		if volume := manifest.Text(mount, "name"); v.mounted[volume] {
			places[volume] = append(places[volume], []any{manifest.Text(mount, "mountPath"), manifest.Text(mount, "subPath"), manifest.Text(mount, "subPathExpr")})
		}
	}
	for _, volume := range slices.Sorted(maps.Keys(places)) {
		v.settings = append(v.settings, Part{name + " mount " + volume, string(sources.DigestOf(manifest.AppendJSON(nil, places[volume])))})
	}
}

// all returns the references, except for keys of objects that are also used as a whole.
func (v *volumes) all() []Reference {
	var list []Reference
	for r := range v.found {
		if r.Key == "" || !v.found[Reference{r.Kind, r.Name, ""}] {
			list = append(list, r)
		}
	}
	slices.SortFunc(list, func(a, b Reference) int {
		return cmp.Or(cmp.Compare(a.Kind.Kind, b.Kind.Kind), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Key, b.Key))
	})
	return list
}
