package proof

import (
	"context"
	"fmt"
	"slices"
	"strings"

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

// Try converts an object to each other version and back, and returns the laws that this
// breaks. The object need not be valid. It fails if the rules lack the object's version,
// or if ctx ends.
func (t *Trial) Try(ctx context.Context, object map[string]any) ([]Finding, error) {
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
		findings, _ := one.laws(object, partial)
		if one.err != nil {
			return nil, one.err
		}
		for _, f := range findings {
			f = one.named(f)
			f.Object, f.Times = object, 1
			all = append(all, f)
		}
	}
	return slices.Clip(all), nil
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
	case RuleFails:
		return fmt.Sprintf("%s: a rule fails, and its value is kept in the stash: %s", there, strings.Join(f.Rules, ", "))
	}
	return fmt.Sprintf("%s: %s does not come back as it was", back, path)
}
