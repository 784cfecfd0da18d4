package migrate

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/exact"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types/compat"
	"gitopsd.dev/render/types/harm"
)

// Drop is a loss of fields: objects that are stored in an old version may have fields that
// the storage version does not keep.
type Drop struct {
	// Version is the old version.
	Version string `json:"version"`
	// Fields are the fields of the objects that the survey names, with "[*]" for any element of
	// a list. If no object is known to have one, they are the fields that may hold them.
	Fields []string `json:"fields"`
	// Survey has the objects with such a field, or why they cannot be seen.
	Survey *harm.Survey `json:"survey"`
}

// Drops returns what objects would lose if they were stored again; nothing if no object has
// a field that the storage version does not keep. Objects whose fields cannot be seen count
// as if they had them. If the CRD is not the same as in s any more, the error says so.
//
// The objects are read in the old version, which shows all that is stored in it, one page
// after the other. While the CRD stays the same, no object can get such a field: the API
// server drops it when it stores the object.
func (m *Migrator) Drops(ctx context.Context, s Storage) ([]Drop, error) {
	if !s.Needed() || s.Blocked != "" {
		return nil, nil
	}
	tree, err := m.tree(ctx, s.Name)
	if err != nil {
		return nil, err
	}
	if !s.same(read(tree)) {
		return nil, m.fault(s.Name, errMoved, "")
	}
	var all []Drop
	for _, version := range s.Old() {
		d, err := m.drop(ctx, s, tree, version)
		if err != nil {
			return nil, err
		}
		if d.seen() || d.Survey.Unknown != "" {
			all = append(all, d)
		}
	}
	return all, nil
}

// drop returns what objects would lose if all of them were stored in an old version: what a
// plan would say of a commit that moves the storage version from there.
func (m *Migrator) drop(ctx context.Context, s Storage, live map[string]any, version string) (Drop, error) {
	d := Drop{Version: version, Survey: &harm.Survey{}}
	if !slices.Contains(s.has, version) {
		return d, nil // its objects can neither be read nor stored again
	}
	old := storedIn(live, version)
	report, err := compat.Compare(ctx, old, live, compat.Options{StoredVersions: []string{version}})
	if err != nil {
		return d, cmp.Or(context.Cause(ctx), m.fault(s.Name, err, ""))
	}
	var fields []string
	for _, f := range report.Findings {
		if f.Name == compat.StorageVersionDrops && f.Version == version+" -> "+s.Version {
			fields = append(fields, cmp.Or(f.Path, "any field"))
		}
	}
	if len(fields) == 0 {
		return d, nil
	}
	if d.Survey, err = m.survey(ctx, s, version, func() ([]*harm.Judge, error) {
		return harm.New(old, live, report.Findings, harm.Options{Now: time.Now()})
	}); err != nil {
		return d, err
	}
	d.name(fields)
	return d, nil
}

// survey has judges look at the objects in an old version.
func (m *Migrator) survey(ctx context.Context, s Storage, version string, judges func() ([]*harm.Judge, error)) (*harm.Survey, error) {
	if !slices.Contains(s.served, version) {
		n, err := m.Count(ctx, s)
		if err != nil || n == 0 {
			return &harm.Survey{}, err
		}
		return &harm.Survey{Unknown: version + " is not served"}, nil
	}
	switch id, err := m.elsewhere(ctx, s, version); {
	case err != nil:
		return nil, err
	case id != manifest.ID{}:
		return &harm.Survey{Unknown: fmt.Sprintf("%s is served by another API server (%s)", version, id)}, nil
	}
	all, err := judges()
	if err != nil {
		return &harm.Survey{Unknown: err.Error()}, nil
	}
	survey, err := apply.SurveyAll(ctx, m.cfg.Cluster, all)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return survey, err
}

// storedIn returns a CRD as it was when its objects were stored in an old version.
func storedIn(live map[string]any, version string) map[string]any {
	old := exact.Clone(live)
	for _, v := range manifest.List(old, "spec", "versions") {
		if v, ok := v.(map[string]any); ok {
			v["storage"] = v["name"] == version
		}
	}
	old["status"] = map[string]any{"storedVersions": []any{version}}
	return old
}

// element matches the index of an element of a list in a path.
var element = regexp.MustCompile(`\[[0-9]+\]`)

// name names the fields that objects have, or those that may hold values.
func (d *Drop) name(may []string) {
	for _, o := range d.Survey.Objects {
		for _, h := range o.Harms {
			d.Fields = append(d.Fields, element.ReplaceAllString(h.Path, "[*]"))
		}
	}
	if !d.seen() {
		d.Fields = slices.Clone(may)
	}
	slices.Sort(d.Fields)
	d.Fields = slices.Compact(d.Fields)
}

// seen reports whether an object is known to have such a field.
func (d Drop) seen() bool { return d.Survey.Harmed > 0 }

// text says what the storage version does not keep.
func (d Drop) text(storage string) string {
	const mostFields, mostObjects = 5, 3
	fields := prose.Some(d.Fields, mostFields)
	if d.seen() {
		return fmt.Sprintf("%s does not keep %s of %s, which %s", storage, fields, d.Version, d.Survey.Text(mostObjects))
	}
	return fmt.Sprintf("%s does not keep all that %s allows in %s, and which objects have values there is not known: %s", storage, d.Version, fields, d.Survey.Unknown)
}

// Refusal returns why objects that would lose fields are not stored again, with advice; nil
// if there is no loss.
func (s Storage) Refusal(drops []Drop) error {
	if len(drops) == 0 {
		return nil
	}
	would, advice := "may", ""
	var texts, unread []string
	for _, d := range drops {
		if d.seen() {
			would = "would"
		}
		if d.Survey.Unknown != "" {
			unread = append(unread, d.Version)
		}
		texts = append(texts, d.text(s.Version))
	}
	if len(unread) > 0 {
		advice = "have all objects readable in " + strings.Join(unread, ", ") + ", or "
	}
	return &problem.Error{
		Err:    fmt.Errorf("storing the objects again %s drop fields: %s", would, strings.Join(texts, "; ")),
		Advice: fmt.Sprintf("%sadd the fields to %s, or move the values to others, or drop them with `gitopsd migrate --yes --drop-fields %s`", advice, s.Version, s.Name),
	}
}
