package proof

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"gitopsd.dev/render/conversion/stash"
	"gitopsd.dev/render/exact"
	"gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest"
)

// Trial tries rules on existing objects, such as those of a cluster, one after the other.
// It keeps none of them. Only one goroutine at a time may use it.
type Trial struct{ p *prover }

// NewTrial returns a Trial. It ignores Objects and Most of the Config. It fails if the API
// server does not accept a schema.
func NewTrial(c Config) (*Trial, error) {
	p, err := newProver(c)
	if err != nil {
		return nil, err
	}
	return &Trial{p}, nil
}

// Now returns an object in a version as clients read it now, by the rules that are to be
// replaced; nil if they cannot read it.
type Now func(ctx context.Context, version string) (map[string]any, error)

// Try converts an object to each other version and back, and returns the laws that this
// breaks. The object need not be valid. If the stash has fields that the rules do not
// restore, Try calls now for their version, unless it is nil. It fails if the rules lack the object's
// version, if now fails, or if ctx ends.
func (t *Trial) Try(ctx context.Context, object map[string]any, now Now) ([]Finding, error) {
	_, version := manifest.GroupVersion(manifest.Text(object, "apiVersion"))
	from := t.p.sides[version]
	if from == nil {
		return nil, fmt.Errorf("the rules have no version %s", version)
	}
	object = Numeric(object)
	delete(manifest.Mapping(object, "metadata"), "managedFields") // large, and not converted
	var all []Finding
	for _, to := range t.p.Rules.Versions() {
		if to == version {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		one := t.p.trial(ctx, from, t.p.sides[to])
		_, partial, err := one.admit(object)
		if err != nil {
			return nil, err
		}
		findings, there := one.laws(object, partial)
		if one.err != nil {
			return nil, one.err
		}
		if there != nil {
			lost, err := one.lost(object, there, now)
			if err != nil {
				return nil, err
			}
			findings = append(findings, lost...)
		}
		for _, f := range findings {
			f = one.named(f)
			f.Object, f.Times = object, 1
			all = append(all, f)
		}
	}
	return slices.Clip(all), nil
}

// lost returns the fields that the stash of an object keeps for the version To, and that
// clients read there now, but not in the converted object. Fields that the rules drop or
// derive do not count.
func (t *trial) lost(object, there map[string]any, now Now) ([]Finding, error) {
	kept, _ := stash.Read(object)
	missing := t.missing(kept[t.to.version], there)
	if len(missing) == 0 || now == nil {
		return nil, nil
	}
	read, err := now(t.ctx, t.to.version)
	if err != nil || read == nil {
		return nil, err
	}
	read = Numeric(read)
	missing = slices.DeleteFunc(missing, func(e stash.Entry) bool {
		v, ok := e.Path.In(read)
		return !ok || !exact.Equal(v, e.Value) // it is not restored now either
	})
	after := exact.Clone(there)
	for _, path := range t.excusedThere {
		remove(read, path)
		remove(after, path)
	}
	var all []Finding
	for _, e := range missing {
		was, had := e.Path.In(read)
		is, has := e.Path.In(after)
		if had == has && exact.Equal(was, is) {
			continue
		}
		d := Difference{Path: e.Path}
		if had {
			d.Before = shown(was)
		}
		if has {
			d.After = shown(is)
		}
		all = append(all, Finding{Law: Kept, Differences: []Difference{d}, Converted: there})
	}
	return all, nil
}

// missing returns the entries of a stash whose values an object does not have, but should.
func (t *trial) missing(entries []stash.Entry, object map[string]any) []stash.Entry {
	var all []stash.Entry
	for _, e := range entries {
		e.Value = numeric(exact.Clone(e.Value))
		if v, ok := e.Path.In(object); !e.Absent && (!ok || !exact.Equal(v, e.Value)) && !t.isExcused(e) {
			all = append(all, e)
		}
	}
	return all
}

// isExcused reports whether the rules drop or derive the whole field of an entry.
func (t *trial) isExcused(e stash.Entry) bool {
	tree := make(map[string]any)
	if !e.Apply(tree) {
		return false // it is in a list
	}
	for _, path := range t.excusedThere {
		remove(tree, path)
	}
	_, left := e.Path.In(tree)
	return !left
}

// Brief returns the finding in one line, with fields and rules but without values of the
// object, which may be secret. It is equal for findings that [Run] reports as one.
func (f Finding) Brief() string {
	there := f.From + " -> " + f.To
	back := there + " -> " + f.From
	path, in := "", ""
	if len(f.Differences) > 0 {
		path = general(f.Differences[0].Path)
	} else if at, err := field.Parse(f.about); err == nil && f.Law != RuleFails {
		in = " (" + general(at) + ")"
	}
	switch f.Law {
	case Total:
		return there + ": the conversion fails"
	case Metadata:
		return fmt.Sprintf("%s changes %s, which conversions must not", there, path)
	case Leftovers:
		return fmt.Sprintf("%s: the result has fields that %s lacks%s", there, f.To, in)
	case Admitted:
		return there + ": the result is not valid" + in
	case Kept:
		return fmt.Sprintf("%s: %s, which the stash keeps, is lost", there, path)
	case RuleFails:
		return fmt.Sprintf("%s: a rule fails, and its value is kept in the stash: %s", there, strings.Join(f.Rules, ", "))
	}
	return fmt.Sprintf("%s: %s does not come back as it was", back, path)
}
