package migrate

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/exact"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/render/types/compat"
	"gitopsd.dev/render/validate"
)

// An object that is stored in an old version may hold fields that the storage version does
// not have. If nothing converts, its next write drops them: the API server shows them in the
// old version until then.

// Loss is what objects of a CRD would lose if they were stored again.
type Loss struct {
	// Version is the old version, and Fields are the paths of its fields that objects hold
	// and the storage version does not have, sorted, at most mostFields of them.
	Version string   `json:"version"`
	Fields  []string `json:"fields"`
	// Objects is the number of these objects, and Some has the first of them.
	Objects int      `json:"objects"`
	Some    []string `json:"some,omitempty"`
	// Hidden reports whether the version is not served, so that nobody can see who holds
	// the fields. Then there are no objects.
	Hidden bool `json:"hidden,omitempty"`
}

const mostFields, mostSome = 5, 3

// Losses returns what the objects of a CRD would lose if they were stored again, for each old
// version.
func (m *Migrator) Losses(ctx context.Context, s Storage) ([]Loss, error) {
	if !s.Needed() || s.Blocked != "" {
		return nil, nil
	}
	crds, err := m.cfg.Cluster.Kind(ctx, manifest.CRD.Group, manifest.CRD.Kind)
	if err != nil {
		return nil, err
	}
	tree, _, err := m.cfg.Cluster.Get(ctx, crds, manifest.CRD.ID("", s.Name))
	if err != nil {
		return nil, err
	}
	d := types.Read(tree)
	if d.Converts {
		return nil, nil
	}
	var all []Loss
	for _, v := range d.Versions() {
		if !slices.Contains(s.Old(), v.Name) {
			continue
		}
		fields, err := droppable(ctx, tree, v.Name)
		if err != nil {
			return nil, m.fault(s.Name, err, "")
		}
		if len(fields) == 0 {
			continue
		}
		l := Loss{Version: v.Name, Fields: fields, Hidden: !v.Served}
		if v.Served {
			if l, err = m.holders(ctx, s, tree, v.Name); err != nil {
				return nil, err
			}
		}
		if l.Hidden || l.Objects > 0 {
			all = append(all, l)
		}
	}
	return all, nil
}

// droppable returns the fields of a version that the storage version does not have, by their
// schemas: what the comparison of types says of a change from one storage version to the
// other.
func droppable(ctx context.Context, tree map[string]any, version string) ([]string, error) {
	before := exact.Clone(tree)
	for _, item := range manifest.List(before, "spec", "versions") {
		if v, ok := item.(map[string]any); ok {
			v["storage"] = manifest.Text(v, "name") == version
		}
	}
	report, err := compat.Compare(ctx, before, tree, compat.Options{StoredVersions: []string{version}})
	if err != nil {
		return nil, err
	}
	var fields []string
	for _, f := range report.Findings {
		if f.Name == compat.StorageVersionDrops && strings.HasPrefix(f.Version, version+" ") && !slices.Contains(fields, f.Path) {
			fields = append(fields, f.Path)
		}
	}
	slices.Sort(fields)
	return fields[:min(len(fields), mostFields)], nil
}

// holders looks at all objects in an old version.
func (m *Migrator) holders(ctx context.Context, s Storage, tree map[string]any, version string) (Loss, error) {
	l := Loss{Version: version}
	var schemas [2]*validate.Schema
	for i, v := range []string{s.Version, version} {
		var err error
		if schemas[i], err = validate.CompileSchema(tree, v); err != nil {
			return l, m.fault(s.Name, err, "")
		}
	}
	fields := make(map[string]bool)
	var failed error
	again := func() { l.Objects, l.Some, failed = 0, nil, nil }
	err := m.cfg.Cluster.ListFull(ctx, s.Type(version), kube.ListOptions{Page: m.cfg.page, Again: again}, func(object map[string]any) bool {
		decoded, err := validate.Decoded(object)
		var lost []string
		if err == nil {
			lost, err = schemas[0].Drops(schemas[1], decoded)
		}
		if err != nil {
			failed = err
			return false
		}
		if len(lost) == 0 {
			return true
		}
		for _, f := range lost {
			fields[f] = true
		}
		if l.Objects++; len(l.Some) < mostSome {
			l.Some = append(l.Some, s.objects.ID(manifest.Text(object, "metadata", "namespace"), manifest.Text(object, "metadata", "name")).String())
		}
		return true
	})
	if err == nil && failed != nil {
		err = m.fault(s.Name, failed, "")
	}
	all := slices.Sorted(maps.Keys(fields))
	l.Fields = all[:min(len(all), mostFields)]
	return l, err
}

// Lossy says what objects would lose. to is the storage version.
func Lossy(losses []Loss, to string) string {
	var all []string
	for _, l := range losses {
		fields := prose.Some(l.Fields, mostFields)
		if l.Hidden {
			all = append(all, fmt.Sprintf("objects that are stored in %s may hold %s, which %s does not have, and nothing converts them; since %s is not served, nobody can see which", l.Version, fields, to, l.Version))
			continue
		}
		all = append(all, fmt.Sprintf("%s %s in %s, which %s does not have, and nothing converts them: %s",
			prose.Agree(l.Objects, "object holds", "objects hold"), fields, l.Version, to, some(l)))
	}
	return strings.Join(all, "; ")
}

func some(l Loss) string {
	text := strings.Join(l.Some, ", ")
	if n := l.Objects - len(l.Some); n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	return text
}
