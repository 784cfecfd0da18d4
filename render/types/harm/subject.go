package harm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"gitopsd.dev/render/exact"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/validate"
)

// subject is an object as it is, or as it will be, with its harms.
type subject struct {
	// tree is the object without metadata.managedFields, which entries has.
	tree     map[string]any
	entries  []any
	managers []*manager
	harms    []located
}

// newSubject takes the managed fields out of an object.
func newSubject(tree map[string]any) *subject {
	entries := manifest.List(tree, "metadata", "managedFields")
	delete(manifest.Mapping(tree, "metadata"), "managedFields")
	return &subject{tree: tree, entries: entries, managers: managersOf(entries)}
}

// judge finds the harms to an object.
func (j *Judge) judge(ctx context.Context, s *subject) error {
	harms, err := j.object(ctx, s.tree)
	if err != nil {
		return err
	}
	for _, h := range harms {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		// The default of a new field harms nobody, nor does one that was not filled in before.
		if (h.Kind == Defaulted || h.Kind == Unfilled) && !slices.ContainsFunc(j.findings, func(f finding) bool { return f.causes(h.Harm, h.at) }) {
			continue
		}
		// A field that somebody owns is stored.
		if h.Perhaps && slices.ContainsFunc(s.managers, func(m *manager) bool { return m.owns(m.fields, s.tree, h.at, false) }) {
			continue
		}
		if j.opts.OurStatus && h.Kind == Lost && len(h.at) > 0 && h.at[0].Key == "status" && slices.Equal(owners(s.managers, s.tree, h.at), []string{ourselves}) {
			continue
		}
		s.harms = append(s.harms, h)
	}
	return nil
}

// changed returns an object as the plan changes it, with the harms that it keeps: the new
// object has one in a version in which the object is harmed now. Whether the object gets
// others is not about the type. If the new object is not known, the object stays as it is.
func (j *Judge) changed(ctx context.Context, now *subject, fate Fate) *subject {
	tree, err := j.applied(now, fate)
	if err != nil {
		return now
	}
	then := newSubject(tree)
	if err := j.judge(ctx, then); err != nil {
		return now
	}
	then.harms = slices.DeleteFunc(then.harms, func(h located) bool {
		return !slices.ContainsFunc(now.harms, func(was located) bool {
			if h.Kind == Defaulted || h.Kind == Unfilled || h.Perhaps {
				return h.same(was)
			}
			return h.Version == was.Version
		})
	})
	return then
}

// applied returns an object as applying the manifest leaves it by the old definition, which
// hides none of its fields, in the version of the current list.
func (j *Judge) applied(now *subject, fate Fate) (map[string]any, error) {
	schema := j.old[j.list]
	if schema == nil {
		return nil, fmt.Errorf("objects are not read in %s", j.list)
	}
	t := j.types[j.list]
	if t == nil {
		var err error
		if t, err = validate.Compile(j.definition, j.kind, j.list); err != nil {
			return nil, err
		}
		j.types[j.list] = t
	}
	live, tree := maps.Clone(now.tree), exact.Clone(fate.Applied.Tree())
	meta := maps.Clone(manifest.Mapping(live, "metadata"))
	if meta == nil {
		return nil, errors.New("it has no metadata")
	}
	live["metadata"] = meta
	meta["managedFields"] = exact.Clone(now.entries)
	if version := fate.Applied.Version(); version != j.list && j.converts {
		return nil, fmt.Errorf("%s is not converted to %s here", version, j.list)
	}
	tree["apiVersion"] = j.group + "/" + j.list
	for _, item := range manifest.List(meta, "managedFields") {
		entry, _ := item.(map[string]any)
		_, version := manifest.GroupVersion(manifest.Text(entry, "apiVersion"))
		// The API server forgets what managers own in versions that are removed.
		if _, remains := j.served[version]; version == j.list || !remains || !j.known[version] {
			continue
		}
		if j.converts {
			return nil, fmt.Errorf("%s is not converted to %s here", version, j.list)
		}
		entry["apiVersion"] = tree["apiVersion"]
	}
	if err := schema.Prune(tree); err != nil {
		return nil, err
	}
	return t.Apply(live, tree, fate.Force)
}
