package upgrade

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types/compat"
	"gitopsd.dev/sources"
)

// Move is a package's change from one version to another.
type Move struct {
	Repository string
	// From and To are tags or digests; From is empty for a new package, To for a
	// removed one.
	From, To string
	// FromDigest and ToDigest are what the two are.
	FromDigest, ToDigest sources.Digest

	Clusters []string
	Types    compat.Count
	Changes  []compat.Change
	// Error is why the types could not be compared.
	Error string
	// Refused are the names of breaking findings that no annotation of the declaration
	// allows.
	Refused []string
	// Declaration is the name of the declaration, for the annotation. If the package is a
	// dependency, which has none, Undeclared is one for a person to add.
	Declaration string
	Undeclared  *sources.Declaration
}

// Allowance returns an annotation that allows the refused findings, with reasons to fill in,
// and for a dependency the whole declaration; empty if nothing is refused.
func (m *Move) Allowance() string {
	if len(m.Refused) == 0 {
		return ""
	}
	annotation := []string{manifest.AllowBreakingAnnotation + ": |"}
	for _, name := range m.Refused {
		annotation = append(annotation, fmt.Sprintf("  %s:%s=<why that is fine>", m.To, name))
	}
	lines := []string{"metadata:", "  annotations:", "    " + strings.Join(annotation, "\n    ")}
	if d := m.Undeclared; d != nil {
		lines = manifest.Declare(d.Kind, d.Name, d.Ref.String(), annotation)
	}
	return strings.Join(lines, "\n") + "\n"
}

// moves returns the changes of versions.
func (u *Upgrader) moves(ctx context.Context, before, after *desired.State) []*Move {
	groups := make(map[[5]string]*Move)
	for _, c := range after.Clusters {
		old := make(map[string]sources.Selected)
		for _, s := range before.Get(c.Name).Packages {
			old[s.Pin.Ref.Repository] = s
		}
		now := make(map[string]sources.Selected)
		for _, s := range c.Packages {
			now[s.Pin.Ref.Repository] = s
		}
		for _, d := range before.Get(c.Name).Declared {
			if _, ok := old[d.Ref.Repository]; ok {
				continue
			}
			// It could not be resolved.
			old[d.Ref.Repository] = sources.Selected{Declaration: d, Pin: sources.Pin{Ref: d.Ref}}
			if now[d.Ref.Repository].Package == nil {
				continue
			}
			if s, ok := u.excluded(ctx, before, d); ok {
				old[d.Ref.Repository] = s
			}
		}
		for repo := range union(old, now) {
			was, is := old[repo], now[repo]
			if was.Pin == is.Pin || is.Package == nil && was.Package == nil {
				continue
			}
			name := cmp.Or(is.Declaration.Name, was.Declaration.Name)
			key := [5]string{repo, was.Pin.String(), is.Pin.String(), name}
			undeclared, dependency := is.Undeclared()
			if dependency {
				key[4] = undeclared.Ref.String()
			}
			m, ok := groups[key]
			if !ok {
				m = &Move{Repository: repo, From: was.Pin.Ref.Version(), To: is.Pin.Ref.Version(), FromDigest: was.Pin.Digest, ToDigest: is.Pin.Digest, Declaration: name}
				if dependency {
					m.Undeclared = &undeclared
				}
				m.compare(ctx, was.Package, is.Package)
				groups[key] = m
			}
			m.Clusters = append(m.Clusters, c.Name)
			m.refuse(c)
		}
	}
	for _, m := range groups {
		slices.Sort(m.Clusters)
		slices.Sort(m.Refused)
	}
	return slices.SortedFunc(maps.Values(groups), func(a, b *Move) int {
		return cmp.Or(cmp.Compare(a.Repository, b.Repository), cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To), slices.Compare(a.Clusters, b.Clusters))
	})
}

func union[V any](a, b map[string]V) map[string]V {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// compare compares the types. Those of a new or removed package are only counted.
func (m *Move) compare(ctx context.Context, was, is *sources.Package) {
	switch {
	case is == nil:
		n := len(definitions(was))
		m.Types.Removed, m.Types.Breaking = n, n
	case m.From == "":
		m.Types.Added = len(definitions(is))
	case was == nil:
		m.Error = "its types before are not known"
	default:
		var err error
		if m.Changes, err = compare(ctx, was, is); err != nil {
			m.Error = err.Error()
			return
		}
		m.Types = compat.Summarize(m.Changes)
	}
}

// refuse adds the findings that a cluster's declaration does not allow.
func (m *Move) refuse(c *desired.Unit) {
	for _, change := range m.Changes {
		for _, f := range change.Findings {
			if f.Severity != compat.Breaking || slices.Contains(m.Refused, f.Name) {
				continue
			}
			if _, ok := c.Allows(m.Declaration, f); !ok {
				m.Refused = append(m.Refused, f.Name)
			}
		}
	}
}
