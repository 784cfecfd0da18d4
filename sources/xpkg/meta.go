package xpkg

import (
	"fmt"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"

	"gitopsd.dev/sources"
)

// meta reads the meta object (github.com/crossplane/crossplane, apis/pkg/meta).
func (l *linter) meta(i int) sources.PackageMeta {
	d := l.docs[i]
	m := sources.PackageMeta{
		Kind:     sources.PackageKind(text(d.Tree, "kind")),
		Name:     text(d.Tree, "metadata", "name"),
		Document: d,
	}
	_, version := groupVersion(d)
	if _, known := allowed[m.Kind]; !known {
		l.problem(i, "it is no kind of package; want Provider, Configuration or Function")
	}
	if !slices.Contains(metaVersions, version) {
		l.problem(i, "%s/%s is not known; want %s", groupMeta, version, strings.Join(metaVersions, ", "))
	}
	if m.Name == "" {
		l.problem(i, "it needs metadata.name")
	}
	m.Crossplane = l.constraint(i)
	image := []string{"spec", "image"} // of a Function
	if m.Kind == sources.Provider {
		image = []string{"spec", "controller", "image"}
	}
	m.Image = l.optional(i, image...)
	m.DependsOn = l.dependencies(i)
	return m
}

// optional reads an optional string.
func (l *linter) optional(i int, path ...string) string {
	value := at(l.docs[i].Tree, path...)
	s, ok := value.(string)
	if !ok && value != nil {
		l.problem(i, "%s is not a string", strings.Join(path, "."))
	}
	return s
}

// constraint reads spec.crossplane.version.
func (l *linter) constraint(i int) string {
	c := l.optional(i, "spec", "crossplane", "version")
	if _, err := semver.NewConstraint(c); c != "" && err != nil {
		l.problem(i, `spec.crossplane.version %q is not a range of versions; want for instance ">=v1.14.0"`, c)
	}
	return c
}

// dependencies reads spec.dependsOn.
func (l *linter) dependencies(i int) []sources.Dependency {
	value := at(l.docs[i].Tree, "spec", "dependsOn")
	if value == nil {
		return nil
	}
	list, ok := value.([]any)
	if !ok {
		l.problem(i, "spec.dependsOn is not a list")
		return nil
	}
	var all []sources.Dependency
	for n, item := range list {
		tree, ok := item.(map[string]any)
		if !ok {
			l.problem(i, "spec.dependsOn[%d] is not a mapping", n)
			continue
		}
		dep, err := dependency(tree)
		if err != nil {
			l.problem(i, "spec.dependsOn[%d]: %v", n, err)
			continue
		}
		if slices.ContainsFunc(all, func(d sources.Dependency) bool { return d.Repository == dep.Repository }) {
			l.problem(i, "spec.dependsOn[%d]: duplicate entry for %s; combine both ranges in one, with a comma between them", n, dep.Repository)
			continue
		}
		all = append(all, dep)
	}
	return all
}

// kindKeys are the keys of the older form, "provider: <package>".
var kindKeys = map[string]sources.PackageKind{
	"provider":      sources.Provider,
	"configuration": sources.Configuration,
	"function":      sources.Function,
}

// dependency reads an entry of spec.dependsOn, in either form.
func dependency(tree map[string]any) (sources.Dependency, error) {
	var dep sources.Dependency
	var named []string
	for key, kind := range kindKeys {
		if p, ok := tree[key].(string); ok && p != "" {
			dep.Kind, dep.Repository = kind, p
			named = append(named, key)
		}
	}
	if p, ok := tree["package"].(string); ok && p != "" {
		dep.Repository = p
		named = append(named, "package")
	}
	slices.Sort(named)
	switch len(named) {
	case 0:
		return dep, fmt.Errorf(`it names no package; want apiVersion, kind, package and version, or "provider: <package>"`)
	case 1:
	default:
		return dep, fmt.Errorf("it names a package as %s; leave one", strings.Join(named, " and as "))
	}
	if named[0] == "package" {
		group, _, _ := strings.Cut(text(tree, "apiVersion"), "/")
		dep.Kind = sources.PackageKind(text(tree, "kind"))
		if _, known := allowed[dep.Kind]; group != "pkg.crossplane.io" || !known {
			return dep, fmt.Errorf("%s %s is no kind of package; want a Provider, Configuration or Function of pkg.crossplane.io/v1", text(tree, "apiVersion"), dep.Kind)
		}
	}
	repository, ok := sources.ParseRepository(dep.Repository)
	if !ok {
		return dep, fmt.Errorf("%q is not a repository; the version goes into its own field", dep.Repository)
	}
	dep.Repository = repository
	dep.Constraint = text(tree, "version")
	if dep.Constraint == "" {
		return dep, fmt.Errorf(`%s needs a version: a range such as ">=v1.0.0", or a digest`, dep.Repository)
	}
	if _, err := sources.ParseDigest(dep.Constraint); err == nil {
		return dep, nil
	}
	if _, err := semver.NewConstraint(dep.Constraint); err != nil {
		return dep, fmt.Errorf(`version %q of %s is neither a range such as ">=v1.0.0" nor a digest`, dep.Constraint, dep.Repository)
	}
	return dep, nil
}
