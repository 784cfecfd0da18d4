package xpkg

import (
	"fmt"
	"slices"
	"strings"

	"gitopsd.dev/sources"
)

// Groups of the API.
const (
	groupMeta       = "meta.pkg.crossplane.io"
	groupCRD        = "apiextensions.k8s.io"
	groupWebhook    = "admissionregistration.k8s.io"
	groupCrossplane = "apiextensions.crossplane.io"
	groupOperations = "ops.crossplane.io"
)

// gk is a kind without its version.
type gk struct{ group, kind string }

// allowed has the kinds of objects that a package may have, with their versions, as in
// Crossplane's linter (github.com/crossplane/crossplane-runtime, pkg/xpkg/lint.go). If
// that allows an alpha version, later versions are allowed too.
var allowed = map[sources.PackageKind]map[gk][]string{
	sources.Provider: {
		{groupCRD, "CustomResourceDefinition"}:           {"v1"},
		{groupCrossplane, "ManagedResourceDefinition"}:   {"v1alpha1", "v1beta1", "v1"},
		{groupWebhook, "MutatingWebhookConfiguration"}:   {"v1"},
		{groupWebhook, "ValidatingWebhookConfiguration"}: {"v1"},
	},
	sources.Configuration: {
		{groupCrossplane, "CompositeResourceDefinition"}:     {"v1", "v2"},
		{groupCrossplane, "Composition"}:                     {"v1"},
		{groupCrossplane, "ManagedResourceActivationPolicy"}: {"v1alpha1", "v1beta1", "v1"},
		{groupOperations, "Operation"}:                       {"v1alpha1", "v1beta1", "v1"},
		{groupOperations, "CronOperation"}:                   {"v1alpha1", "v1beta1", "v1"},
		{groupOperations, "WatchOperation"}:                  {"v1alpha1", "v1beta1", "v1"},
	},
	sources.Function: {
		{groupCRD, "CustomResourceDefinition"}: {"v1"},
	},
}

// metaVersions are the versions of meta objects.
var metaVersions = []string{"v1", "v1beta1", "v1alpha1"}

// lint checks a package's objects against the specification, and returns its meta object
// and the other documents. Where returns the place of document i. The error is an
// [*InvalidError].
func lint(docs []sources.Document, where func(i int) string) (sources.PackageMeta, []sources.Document, error) {
	l := linter{docs: docs, where: where}
	metaIndex := l.findMeta()
	if metaIndex < 0 {
		return sources.PackageMeta{}, nil, &InvalidError{Problems: l.problems}
	}
	meta := l.meta(metaIndex)
	l.objects(meta.Kind, metaIndex)
	if len(l.problems) > 0 {
		return meta, nil, &InvalidError{Problems: l.problems}
	}
	return meta, slices.Delete(slices.Clone(docs), metaIndex, metaIndex+1), nil
}

type linter struct {
	docs     []sources.Document
	where    func(i int) string
	problems []string
}

// problem records a fault of document i.
func (l *linter) problem(i int, format string, args ...any) {
	text := shorten(fmt.Sprintf(format, args...))
	l.problems = append(l.problems, fmt.Sprintf("%s: %s: %s", l.where(i), describe(l.docs[i]), text))
}

// describe describes an object for people.
func describe(d sources.Document) string {
	kind, name := text(d.Tree, "kind"), text(d.Tree, "metadata", "name")
	switch {
	case kind == "":
		return "a document without a kind"
	case name == "":
		return shorten(kind) + " without a name"
	}
	return shorten(kind) + " " + shorten(name)
}

// findMeta returns the index of the meta object, or -1.
func (l *linter) findMeta() int {
	found := -1
	for i, d := range l.docs {
		if group, _ := groupVersion(d); group != groupMeta {
			continue
		}
		if found >= 0 {
			l.problem(i, "a package has one meta object, and %s is at %s already", describe(l.docs[found]), l.where(found))
			continue
		}
		found = i
	}
	if found < 0 {
		l.problems = append(l.problems, fmt.Sprintf("there is no meta object among its documents; add a Provider, Configuration or Function of %s/v1, which says what the package is", groupMeta))
	}
	return found
}

// objects checks all documents except the meta object.
func (l *linter) objects(kind sources.PackageKind, metaIndex int) {
	type id struct {
		gk
		name string
	}
	seen := make(map[id]int, len(l.docs))
	for i, d := range l.docs {
		if i == metaIndex {
			continue
		}
		group, version := groupVersion(d)
		if group == groupMeta {
			continue // findMeta has the problem
		}
		what := gk{group, text(d.Tree, "kind")}
		name := text(d.Tree, "metadata", "name")
		if advice := refused(kind, what, version); advice != "" {
			l.problem(i, "%s", advice)
			continue
		}
		if name == "" {
			l.problem(i, "it needs metadata.name")
			continue
		}
		if first, twice := seen[id{what, name}]; twice {
			l.problem(i, "duplicate of the one at %s; remove one of them", l.where(first))
			continue
		}
		seen[id{what, name}] = i
	}
}

// refused returns the reason that an object may not be in a package, or "".
func refused(kind sources.PackageKind, what gk, version string) string {
	kinds, known := allowed[kind]
	if !known {
		return "" // meta has the problem
	}
	versions, ok := kinds[what]
	switch {
	case !ok && what.kind == "":
		return "it is not a Kubernetes object: it needs apiVersion and kind"
	case !ok:
		return fmt.Sprintf("a %s package cannot hold %s; it may hold %s. Other objects belong among the manifests of the cluster", kind, join(what, version), kindList(kinds))
	case slices.Contains(versions, version):
		return ""
	case what.group == groupCRD:
		return fmt.Sprintf("%s is gone since Kubernetes 1.22; convert it to %s/v1", join(what, version), groupCRD)
	}
	return fmt.Sprintf("%s is not a version that packages use; want %s", join(what, version), strings.Join(versions, " or "))
}

func join(what gk, version string) string {
	return fmt.Sprintf("%s of %s/%s", what.kind, what.group, version)
}

func kindList(kinds map[gk][]string) string {
	var names []string
	for k := range kinds {
		names = append(names, k.kind)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// groupVersion splits apiVersion.
func groupVersion(d sources.Document) (group, version string) {
	group, version, ok := strings.Cut(text(d.Tree, "apiVersion"), "/")
	if !ok {
		return "", group
	}
	return group, version
}

// text returns the string at a path, or "".
func text(tree map[string]any, path ...string) string {
	s, _ := at(tree, path...).(string)
	return s
}

// at returns the value at a path, or nil.
func at(tree map[string]any, path ...string) any {
	for _, key := range path[:len(path)-1] {
		tree, _ = tree[key].(map[string]any)
	}
	return tree[path[len(path)-1]]
}
