package xpkg

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/rules"
)

// fields are the fields of a mapping, or of the mappings in a list, with their own fields;
// nil for values that are not checked.
type fields map[string]fields

// metaFields are the fields of meta objects (github.com/crossplane/crossplane,
// apis/pkg/meta).
var metaFields = map[sources.PackageKind]fields{
	sources.Provider:      specFields(fields{"controller": {"image": nil, "permissionRequests": {"verbs": nil, "apiGroups": nil, "resources": nil, "resourceNames": nil, "nonResourceURLs": nil}}}),
	sources.Configuration: specFields(nil),
	sources.Function:      specFields(fields{"image": nil}),
}

func specFields(own fields) fields {
	spec := fields{
		"crossplane":   {"version": nil},
		"dependsOn":    {"apiVersion": nil, "kind": nil, "package": nil, "provider": nil, "configuration": nil, "function": nil, "version": nil},
		"capabilities": nil,
	}
	maps.Copy(spec, own)
	return fields{"apiVersion": nil, "kind": nil, "metadata": nil, "spec": spec}
}

// metaAnnotations are gitopsd's annotations of meta objects.
var metaAnnotations = []string{rules.RetractAnnotation, metaPrefix + "leader-election"}

const metaPrefix = "meta.gitopsd.dev/"

// dnsName matches the name of an object (RFC 1123).
var dnsName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

// lintMeta finds unknown fields and annotations of the meta object, and a name that no
// object can have. It is for authors: readers accept packages with fields of newer tools,
// and with any name.
func lintMeta(docs []sources.Document, places []string) []string {
	var problems []string
	for i, d := range docs {
		if group, _ := groupVersion(d); group != groupMeta {
			continue
		}
		say := func(format string, args ...any) {
			problems = append(problems, fmt.Sprintf("%s: %s: %s", places[i], describe(d), shorten(fmt.Sprintf(format, args...))))
		}
		if name := text(d.Tree, "metadata", "name"); len(name) > 253 || !dnsName.MatchString(name) {
			say("metadata.name: want lower-case letters, digits, '-' and '.', with a letter or digit at both ends, as in provider-example")
		}
		unknownFields(d.Tree, metaFields[sources.PackageKind(text(d.Tree, "kind"))], "", say)
		annotations, _ := at(d.Tree, "metadata", "annotations").(map[string]any)
		for _, key := range slices.Sorted(maps.Keys(annotations)) {
			if strings.HasPrefix(key, metaPrefix) && !slices.Contains(metaAnnotations, key) {
				say("metadata.annotations: there is no annotation %s%s", key, sources.Meant(key, metaAnnotations))
			}
		}
	}
	return problems
}

func unknownFields(value any, known fields, path string, say func(format string, args ...any)) {
	switch value := value.(type) {
	case []any:
		for i, item := range value {
			unknownFields(item, known, fmt.Sprintf("%s[%d]", path, i), say)
		}
	case map[string]any:
		names := slices.Sorted(maps.Keys(known))
		for _, key := range slices.Sorted(maps.Keys(value)) {
			where := strings.TrimPrefix(path+"."+key, ".")
			inner, there := known[key]
			switch {
			case !there:
				say("%s: is not a field here%s", where, sources.MeantOrAll(key, names))
			case inner != nil:
				unknownFields(value[key], inner, where, say)
			}
		}
	}
}
