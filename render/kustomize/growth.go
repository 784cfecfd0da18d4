package kustomize

import (
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/utils"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// maxGrowth bounds how often a value may contain itself through replacements and copy
// operations of JSON patches that use each other's results.
const maxGrowth = 1_000

// growth tracks where replacements and copy operations put values. Each may put a
// mapping into itself; forty of them in a short file make a billion copies. Values are not
// known before the build: each counts as one, and a path with an index or a condition stands
// for every element of the list.
type growth struct {
	inserts []insert
}

// insert is a value inserted at a path in objects of a kind.
type insert struct {
	kind string // empty for any
	path []string
	size int
}

func (g *growth) copy(fromKind string, from []string, toKind string, to []string) error {
	size := 1
	for _, i := range g.inserts {
		if sameKind(i.kind, fromKind) && overlap(i.path, from) {
			size += i.size
		}
	}
	if size > maxGrowth {
		return fmt.Errorf("copies %s to %s, which could make the value more than %d times as large: it was copied into itself before: %w", strings.Join(from, "."), strings.Join(to, "."), maxGrowth, sources.ErrLimit)
	}
	g.inserts = append(g.inserts, insert{kind: toKind, path: to, size: size})
	return nil
}

// patch tracks the operations of a JSON patch, as if there were only one object.
func (g *growth) patch(operations []any) error {
	for _, op := range operations {
		m, _ := op.(map[string]any)
		if manifest.Text(m, "op") != "copy" {
			continue
		}
		if err := g.copy("", pointer(manifest.Text(m, "from")), "", pointer(manifest.Text(m, "path"))); err != nil {
			return err
		}
	}
	return nil
}

func pointer(p string) []string {
	return strings.Split(strings.TrimPrefix(p, "/"), "/")
}

func (g *growth) replacements(list []types.Replacement) error {
	for _, r := range list {
		if r.Source == nil {
			continue // a string, which cannot grow
		}
		from := fieldPath(r.Source.FieldPath)
		for _, target := range r.Targets {
			if target == nil || target.Select == nil {
				continue
			}
			kind := target.Select.Kind
			if strings.ContainsFunc(kind, notLetter) {
				kind = "" // a regular expression
			}
			for _, field := range target.FieldPaths {
				if err := g.copy(r.Source.Kind, from, kind, fieldPath(field)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func fieldPath(p string) []string {
	if p == "" {
		p = types.DefaultReplacementFieldPath
	}
	return utils.SmarterPathSplitter(p, ".")
}

func notLetter(r rune) bool { return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') }

func sameKind(a, b string) bool { return a == "" || b == "" || a == b }

// overlap reports whether one path may lead to the other's value or into it.
func overlap(a, b []string) bool {
	n := min(len(a), len(b))
	return slices.EqualFunc(a[:n], b[:n], func(x, y string) bool {
		return x == y || x == "*" || y == "*" ||
			isElement(x) && isElement(y) && !(isCondition(x) && isCondition(y) && conditionKey(x) == conditionKey(y)) && !(isIndex(x) && isIndex(y))
	})
}

func isElement(s string) bool   { return s == "-" || isIndex(s) || isCondition(s) }
func isCondition(s string) bool { return strings.HasPrefix(s, "[") }
func isIndex(s string) bool     { return s != "" && strings.Trim(s, "0123456789") == "" }

func conditionKey(s string) string {
	key, _, _ := strings.Cut(s, "=")
	return key
}
