package proof

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"gitopsd.dev/render/conversion"
	"gitopsd.dev/render/conversion/rules"
	"gitopsd.dev/render/exact"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/validate"
)

// trial tries the laws between two versions.
type trial struct {
	*prover
	ctx      context.Context
	from, to *side
	// excused and excusedThere are the fields of from and to that need not come back.
	excused, excusedThere []rules.Path
	// err ends the run.
	err error
}

// trial returns a trial of one version and another.
func (p *prover) trial(ctx context.Context, from, to *side) *trial {
	return &trial{
		prover: p, ctx: ctx, from: from, to: to,
		excused: p.intent.excused(from.version, to.version), excusedThere: p.intent.excused(to.version, from.version),
	}
}

// check tries all laws on one object, and returns the number of edits made.
func (t *trial) check(object map[string]any, partial bool, number int) int {
	findings, there := t.laws(object, partial)
	for _, f := range findings {
		t.report(f, object, partial, func(smaller map[string]any) []Finding {
			again, _ := t.laws(smaller, partial)
			return again
		})
	}
	if there == nil || slices.ContainsFunc(findings, func(f Finding) bool { return f.Law != RuleFails }) {
		return 0 // an edit would show the same finding again
	}
	there, err := t.served(object, partial)
	if err != nil {
		return 0
	}
	made := 0
	for _, e := range t.edits(there, uint64(number)) {
		findings, ok := t.edited(object, there, e, partial)
		if ok {
			made++
		}
		for _, f := range findings {
			t.report(f, object, partial, func(smaller map[string]any) []Finding {
				there, err := t.served(smaller, partial)
				if err != nil {
					return nil
				}
				again, _ := t.edited(smaller, there, e, partial)
				return again
			})
		}
	}
	return made
}

// laws tries the laws that need no edit. It also returns the converted object; nil if
// the conversion fails.
func (t *trial) laws(object map[string]any, partial bool) (findings []Finding, there map[string]any) {
	input := exact.Clone(object)
	there, report, err := t.convert(input, t.to)
	if err != nil {
		return []Finding{{Law: Total, Reason: err.Error()}}, nil
	}
	if len(differences(object, input)) > 0 {
		return []Finding{{Law: Total, Reason: "the conversion changed its input"}}, nil
	}
	for _, n := range report.Failed {
		findings = append(findings, Finding{Law: RuleFails, Reason: n.Err, Rules: []string{n.Rule}, about: n.Rule, Converted: there})
	}
	if changed := t.metadata(object, there, t.to); changed != nil {
		return append(findings, changed...), there
	}
	findings = append(findings, t.fits(there, t.to, partial)...)
	back, _, err := t.convert(there, t.from)
	if err != nil {
		return append(findings, Finding{Law: Total, Reason: "on the way back: " + err.Error(), Converted: there}), nil
	}
	lost := differences(t.plain(object, t.from, t.excused), t.plain(back, t.from, t.excused))
	if len(lost) > 0 {
		findings = append(findings, Finding{Law: RoundTrip, Differences: lost, Converted: there})
	}
	return findings, there
}

// served returns an object in the other version as clients get it: the API server fills in
// the defaults of the stored version before it converts.
func (t *trial) served(object map[string]any, partial bool) (map[string]any, error) {
	if !partial {
		object = exact.Clone(object)
		if err := t.from.checks.Default(object); err != nil {
			return nil, err
		}
	}
	there, _, err := t.convert(object, t.to)
	return there, err
}

// convert converts an object. A panic is an error.
func (t *trial) convert(object map[string]any, to *side) (converted map[string]any, report conversion.Report, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	converted, report, err = t.Rules.Convert(object, to.version)
	if err == nil && converted == nil {
		err = errors.New("nothing was returned")
	}
	if err == nil {
		converted = numeric(exact.Clone(converted)).(map[string]any)
	}
	return converted, report, err
}

// metadata checks that a conversion changes only labels and annotations in metadata. The
// API server refuses other changes.
func (t *trial) metadata(object, converted map[string]any, to *side) []Finding {
	group, _ := manifest.GroupVersion(manifest.Text(object, "apiVersion"))
	want := map[string]any{"apiVersion": group + "/" + to.version, "kind": object["kind"], "metadata": rest(object)}
	have := map[string]any{"apiVersion": converted["apiVersion"], "kind": converted["kind"], "metadata": rest(converted)}
	if d := differences(want, have); len(d) > 0 {
		return []Finding{{Law: Metadata, Differences: d, Converted: converted}}
	}
	return nil
}

// rest returns metadata without labels and annotations.
func rest(object map[string]any) map[string]any {
	return manifest.Without(manifest.Without(manifest.Mapping(object, "metadata"), "labels"), "annotations")
}

// fits checks a converted object against the schema of its version.
func (t *trial) fits(converted map[string]any, side *side, partial bool) []Finding {
	unknown, err := side.checks.Unknown(converted)
	if err != nil {
		return []Finding{{Law: Admitted, Reason: err.Error(), Converted: converted}}
	}
	if len(unknown) > 0 {
		return []Finding{{Law: Leftovers, Reason: strings.Join(unknown, ", "), about: unknown[0], Converted: converted}}
	}
	if partial {
		return nil // the object is not valid before the conversion either
	}
	read := exact.Clone(converted)
	if err := side.checks.Default(read); err != nil {
		return []Finding{{Law: Admitted, Reason: err.Error(), Converted: converted}}
	}
	err = side.checks.Check(t.ctx, read)
	refusal, refused := errors.AsType[*validate.Refusal](err)
	switch {
	case refused:
		about, _, _ := strings.Cut(refusal.Causes[0], ":")
		return []Finding{{Law: Admitted, Reason: strings.Join(refusal.Causes, "; "), about: about, Converted: converted}}
	case err != nil:
		t.err = err
	}
	return nil
}

// plain returns an object as clients compare it: with defaults, and without the stash,
// empty labels and annotations, and excused fields.
func (t *trial) plain(object map[string]any, side *side, excused []rules.Path) map[string]any {
	object = exact.Clone(object)
	if err := side.checks.Default(object); err != nil {
		t.err = err
	}
	meta := manifest.Mapping(object, "metadata")
	delete(manifest.Mapping(meta, "annotations"), t.Stash)
	for _, name := range []string{"labels", "annotations"} {
		if len(manifest.Mapping(meta, name)) == 0 {
			delete(meta, name)
		}
	}
	for _, path := range excused {
		remove(object, path)
	}
	return object
}
