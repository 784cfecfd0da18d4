package harm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"gitopsd.dev/render/exact"
	"gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/validate"
)

// located is a harm with its path.
type located struct {
	Harm
	at field.Path
}

// same reports whether two harms of an object are the same, except for the reason.
func (h located) same(other located) bool {
	return h.Kind == other.Kind && h.Version == other.Version && h.Path == other.Path
}

// object returns the harms to an object.
func (j *Judge) object(ctx context.Context, tree map[string]any) ([]located, error) {
	if j.gone {
		return []located{{Harm: Harm{Kind: Removed}}}, nil
	}
	group, version := manifest.GroupVersion(manifest.Text(tree, "apiVersion"))
	switch {
	case group != j.group || manifest.Text(tree, "kind") != j.kind:
		return nil, fmt.Errorf("it is not a %s of %s", j.kind, j.group)
	case version != j.list && !j.converts && j.known[version]:
		// A manifest: the API server would change its apiVersion, too.
		version = j.list
		tree["apiVersion"] = group + "/" + version
	case version != j.list || j.old[version] == nil:
		return nil, fmt.Errorf("it is in %s, and only objects in %s are judged", version, j.list)
	}
	was, is := exact.Clone(tree), exact.Clone(tree)
	if err := read(was, j.old[version]); err != nil {
		return nil, err
	}
	var all []located
	if s := j.new[version]; s != nil {
		if err := read(is, s); err != nil {
			return nil, err
		}
		all = append(j.compare(version, tree, was, is), j.moved(version, was)...)
	}
	if version != j.lists[0] {
		return all, nil // the first list has shown whether it is valid
	}
	if j.new[version] != nil {
		invalid, err := j.invalid(ctx, version, was, is)
		if err != nil {
			return nil, err
		}
		all = append(all, invalid...)
	}
	for _, v := range slices.Sorted(maps.Keys(j.new)) {
		if v == version {
			continue
		}
		other := j.converted
		if j.converts {
			other = j.ruled
		}
		found, err := other(ctx, v, was, is)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// read prunes and defaults an object, as the API server does when it reads it in the version
// that it is stored in, or gets it in a request in that version.
func read(tree map[string]any, s *validate.Schema) error {
	if err := s.Prune(tree); err != nil {
		return err
	}
	return s.Default(tree)
}

// compare compares two readings of an object in one version.
func (j *Judge) compare(version string, tree, was, is map[string]any) []located {
	var all []located
	changes := differences(was, is, nil)
	filled := refilled(j.old[version], was, changes)
	for _, d := range changes {
		h := located{Harm{Version: version, Path: text(d.path)}, d.path}
		switch {
		case d.inOld && d.inNew:
			h.Kind, h.Why = Defaulted, "another value"
		case d.fills(tree):
			h.Kind, h.Why = Defaulted, shown(d.new)
		case d.inNew || d.old == nil || j.restored(version, d, filled, nil):
			continue
		default:
			h.Kind = Lost
		}
		all = append(all, h)
	}
	return all
}

// ruled checks the result of converting an object to another version than the listed one
// by the new conversion rules: what a write of it in that version would make of it. Like
// every other conversion, they get the defaults of the stored version alone; see
// [Judge.shows]. The list of that version shows the fields that it loses.
func (j *Judge) ruled(ctx context.Context, version string, _, is map[string]any) ([]located, error) {
	made, err := j.opts.Convert(is, version)
	if err != nil {
		return nil, err
	}
	now := exact.Clone(made)
	if err := read(now, j.new[version]); err != nil {
		return nil, err
	}
	var all []located
	for _, d := range differences(made, now, nil) {
		if d.fills(made) {
			all = append(all, located{Harm{Kind: Defaulted, Version: version, Path: text(d.path), Why: shown(d.new)}, d.path})
		}
	}
	invalid, err := j.invalid(ctx, version, nil, now)
	return append(all, invalid...), err
}

// refilled returns an object without the fields that it loses, with the defaults of a
// schema; nil if there is no schema or it fails.
func refilled(s *validate.Schema, was map[string]any, changes []difference) map[string]any {
	if s == nil {
		return nil
	}
	again := exact.Clone(was)
	for _, d := range changes {
		if d.inOld && !d.inNew {
			without(again, d.path)
		}
	}
	if err := s.Default(again); err != nil {
		return nil
	}
	return again
}

// restored reports whether nobody misses a value that a version loses: it was no more than
// the old default, which filled has, and either the stored object gives it back, or the
// field is in no other version. Only the stored version's defaults can give it back.
func (j *Judge) restored(version string, d difference, filled, stored map[string]any) bool {
	holds := func(tree map[string]any) bool {
		v, ok := d.path.In(tree)
		return ok && equal(v, d.old)
	}
	if !holds(filled) {
		return false
	}
	if holds(stored) || j.list != j.lists[0] { // the other versions are judged by their own lists
		return true
	}
	for name, v := range j.versions {
		if name != version && v.Served && keeps(v.Schema, d.path) {
			return false
		}
	}
	return true
}

// keeps reports whether pruning by a schema keeps a field.
func keeps(schema map[string]any, path field.Path) bool {
	for _, step := range path {
		inner, ok := manifest.Mapping(schema, "properties")[step.Key].(map[string]any)
		switch {
		case manifest.Truth(schema, "x-kubernetes-preserve-unknown-fields"), schema["additionalProperties"] == true:
			return true
		case step.List:
			inner = manifest.Mapping(schema, "items")
		case !ok:
			inner = manifest.Mapping(schema, "additionalProperties")
		}
		if inner == nil {
			return false
		}
		schema = inner
	}
	return true
}

// invalid returns the faults that only the new definition finds in an object, and those
// that it finds in every change of the object. A rule that compares an object with its
// previous state finds faults in changes alone.
func (j *Judge) invalid(ctx context.Context, version string, was, is map[string]any) ([]located, error) {
	if !j.served[version] || j.same[version] && was != nil && reflect.DeepEqual(was, is) {
		return nil, nil
	}
	causes, err := j.new[version].Causes(ctx, is)
	if err != nil {
		return nil, err
	}
	if len(causes) == 0 && !j.new[version].Transitions {
		return nil, nil
	}
	stuck, err := j.new[version].Stuck(ctx, is)
	if err != nil || len(causes)+len(stuck) == 0 {
		return nil, err
	}
	full := len(causes) == validate.MostCauses || len(stuck) == validate.MostCauses
	if old := j.old[version]; old != nil && was != nil {
		before, err := old.Causes(ctx, was)
		if err != nil {
			return nil, err
		}
		stuckBefore, err := old.Stuck(ctx, was)
		if err != nil {
			return nil, err
		}
		causes, stuck = except(causes, before), except(stuck, stuckBefore)
	}
	if full && len(causes)+len(stuck) == 0 {
		return nil, errors.New("too much was wrong with it before")
	}
	var all []located
	add := func(kind Kind, causes []validate.Cause) {
		for _, c := range causes {
			at := parsePath(c.Path)
			all = append(all, located{Harm{Kind: kind, Version: version, Path: text(at), Why: c.Why}, at})
		}
	}
	add(Stuck, stuck)
	add(Invalid, except(causes, stuck))
	return all, nil
}

// except returns the causes that are not among others.
func except(causes, others []validate.Cause) []validate.Cause {
	return slices.DeleteFunc(causes, func(c validate.Cause) bool { return slices.Contains(others, c) })
}

// shows returns what an object shows in another version than the one that it is stored in,
// and what a write of that in the other version would make of it. s is the schema of the
// other version.
//
// When the API server reads an object from etcd, it fills in the defaults of the version that
// the object is stored in. Then it converts, and the result is only pruned. That is so with
// and without a webhook: see the codec in apiextensions-apiserver's
// customresource_handler.go (crdConversionRESTOptionsGetter), which calls its defaulter
// before its convertor. Objects in requests get the defaults of the request's version.
func (j *Judge) shows(tree map[string]any, version string, s *validate.Schema) (read, written map[string]any, err error) {
	read = exact.Clone(tree)
	read["apiVersion"] = j.group + "/" + version
	if err := s.Prune(read); err != nil {
		return nil, nil, err
	}
	written = exact.Clone(read)
	return read, written, s.Default(written)
}

// converted judges an object in another version than the listed one. The conversion only
// changes apiVersion and drops the fields that the other version lacks.
func (j *Judge) converted(ctx context.Context, version string, was, is map[string]any) ([]located, error) {
	reads, now, err := j.shows(is, version, j.new[version])
	if err != nil {
		return nil, err
	}
	old := j.old[version]
	readsBefore, before := was, was
	if old != nil {
		if readsBefore, before, err = j.shows(was, version, old); err != nil {
			return nil, err
		}
	}
	all, err := j.hidden(version, readsBefore, reads, now)
	if err != nil {
		return nil, err
	}
	for _, d := range differences(before, now, nil) {
		h := located{Harm{Kind: Defaulted, Version: version, Path: text(d.path)}, d.path}
		switch {
		case old == nil:
			continue
		case d.inNew && d.inOld:
			h.Why = "another value"
		case d.fills(is):
			h.Why = shown(d.new)
		default:
			continue
		}
		all = append(all, h)
	}
	for _, d := range differences(reads, now, nil) {
		if d.old == nil && d.new != nil {
			all = append(all, located{Harm{Kind: Unfilled, Version: version, Path: text(d.path), Why: shown(d.new)}, d.path})
		}
	}
	if version == j.storage {
		lost, err := j.dropped(is, now)
		if err != nil {
			return nil, err
		}
		for _, h := range lost {
			if !slices.ContainsFunc(all, h.same) {
				all = append(all, h)
			}
		}
	}
	if old == nil {
		before = nil
	} else {
		all = append(all, j.moved(version, before)...)
	}
	invalid, err := j.invalid(ctx, version, before, now)
	return append(all, invalid...), err
}

// hidden returns the fields that an object shows in another version than the listed one,
// and will not any more. written is what a write in that version will make of the object.
func (j *Judge) hidden(version string, before, now, written map[string]any) ([]located, error) {
	changes := differences(before, now, nil)
	var stored map[string]any
	if v := cmp.Or(j.storage, j.list); j.new[v] != nil {
		var err error
		if _, stored, err = j.shows(written, v, j.new[v]); err != nil {
			return nil, err
		}
	}
	filled := refilled(j.old[version], before, changes)
	var all []located
	for _, d := range changes {
		if d.inOld && !d.inNew && d.old != nil && !j.restored(version, d, filled, stored) {
			all = append(all, located{Harm{Kind: Lost, Version: version, Path: text(d.path)}, d.path})
		}
	}
	return all, nil
}

// dropped returns the fields that the new storage version drops for the readers of other
// versions. is is the reading of the object in the listed version, and stored is what the
// new storage version makes of it, with its defaults.
func (j *Judge) dropped(is, stored map[string]any) ([]located, error) {
	var all []located
	for _, v := range slices.Sorted(maps.Keys(j.old)) {
		if v == j.storage || v != j.list && !j.served[v] {
			continue
		}
		before, again := is, stored
		if s := j.new[v]; s != nil {
			var err error
			if before, _, err = j.shows(is, v, s); err != nil {
				return nil, err
			}
			if again, _, err = j.shows(stored, v, s); err != nil {
				return nil, err
			}
		}
		for _, d := range differences(before, again, nil) {
			if d.inOld && !d.inNew && d.old != nil {
				all = append(all, located{Harm{Kind: Lost, Version: j.storage, Path: text(d.path)}, d.path})
			}
		}
	}
	return all, nil
}
