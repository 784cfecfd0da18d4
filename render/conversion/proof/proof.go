// Package proof tries conversion rules on objects that it generates from the schemas
// of a CustomResourceDefinition. It finds faults that compiling rules cannot find: fields
// that do not come back, edits that are lost, and values that the other version refuses.
//
// It owns
//   - the objects: each field alone, whole objects that differ in one value, and random
//     ones, with the values at every limit (generate.go, scalars.go, schema.go), those just
//     beyond the limits of the other version (limits.go), and those that decide in the
//     expressions of rules (constants.go). They depend only on schemas and rules, so that
//     every run has the same result;
//   - the laws that conversions must keep (proof.go, laws.go, edit.go, intent.go), also
//     tried on existing objects (trial.go);
//   - the smallest object that breaks a law, and its report (shrink.go, difference.go,
//     finding.go).
//
// Package render/conversion converts objects, and render/validate validates them with the
// API server's own code.
package proof

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gitopsd.dev/render/conversion"
	"gitopsd.dev/render/conversion/rules"
	"gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/render/validate"
)

// Converter converts objects, as [conversion.Set] does.
type Converter interface {
	// Versions returns all versions of the definition.
	Versions() []string
	// Convert converts an object, and does not change it. It fails only if the kind or one
	// of the versions is not the definition's.
	Convert(object map[string]any, to string) (converted map[string]any, report conversion.Report, err error)
}

// Config configures a run.
type Config struct {
	Rules Converter
	// Documents are the documents of the rules. They have the fields that are lost on
	// purpose, and the places of the rules.
	Documents []conversion.Document
	// Definition is the CustomResourceDefinition.
	Definition map[string]any
	// Objects are tried besides generated ones, such as those in a cluster. Each has one of
	// the versions.
	Objects []map[string]any
	// Most limits the objects generated for each version and each other version to convert
	// to. The default is 1000, and fewer if there are many versions.
	Most int
	// Stash is the annotation in which conversions keep fields that a version lacks.
	Stash string
}

// Limits of a run. They are numbers instead of durations, so that each run ends at the
// same object.
const (
	mostObjects  = 1000
	allObjects   = 12000
	mostFindings = 20
)

// Result is the result of a run.
type Result struct {
	// Pairs are the pairs of versions that were tried, in the order of the definition.
	Pairs []Pair
	// Findings are the ways in which laws were broken, at most twenty and the first of each
	// law, and at most twenty rules that failed. More counts the other ways in which laws
	// were broken, and MoreFailing the other rules that failed.
	Findings          []Finding
	More, MoreFailing int
	// Laws are the broken laws, sorted, including those that More counts.
	Laws []Law
}

// Pair is one version converted to another and back.
type Pair struct {
	From, To string
	// Objects is the number of converted objects, Partial the number of those that lack
	// fields that the schema requires, and Edits the number of edits.
	Objects, Partial, Edits int
}

// Failed reports whether a law was broken. Rules that fail on a value break no law, since
// the value is kept.
func (r *Result) Failed() bool { return len(r.Laws) > 0 }

// Run tries the rules. It fails if the API server does not accept a schema; faults of the
// rules are in the result. If ctx ends, Run returns its error, and the result so far.
func Run(ctx context.Context, c Config) (*Result, error) {
	p, err := newProver(c)
	if err != nil {
		return nil, err
	}
	versions := c.Rules.Versions()
	if p.Most <= 0 {
		p.Most = max(50, min(mostObjects, allObjects/max(1, len(versions)*(len(versions)-1))))
	}
	defer p.count()
	for _, from := range versions {
		for _, to := range versions {
			if from == to {
				continue
			}
			if err := p.pair(ctx, p.sides[from], p.sides[to]); err != nil {
				return &p.result, err
			}
		}
	}
	return &p.result, nil
}

func newProver(c Config) (*prover, error) {
	versions := c.Rules.Versions()
	p := &prover{Config: c, intent: read(c.Documents), sides: make(map[string]*side), seen: make(map[string]int)}
	for _, v := range types.Read(c.Definition).Versions() {
		if !slices.Contains(versions, v.Name) {
			continue
		}
		checks, err := validate.CompileSchema(c.Definition, v.Name)
		if err != nil {
			return nil, err
		}
		p.sides[v.Name] = &side{version: v.Name, schema: schema(v.Schema).with(p.intent.sought[v.Name]), checks: checks}
	}
	for _, v := range versions {
		if p.sides[v] == nil {
			return nil, fmt.Errorf("the definition has no version %s", v)
		}
	}
	for _, v := range versions {
		for _, other := range versions {
			if v != other {
				p.sides[v].schema = p.sides[v].schema.with(p.intent.limited(p.sides[v], p.sides[other]))
			}
		}
	}
	return p, nil
}

// count sets Times of the findings, and Laws.
func (p *prover) count() {
	for key := range p.seen {
		law, _, _ := strings.Cut(key, "\x00")
		if Law(law) != RuleFails && !slices.Contains(p.result.Laws, Law(law)) {
			p.result.Laws = append(p.result.Laws, Law(law))
		}
	}
	slices.Sort(p.result.Laws)
	for i := range p.result.Findings {
		p.result.Findings[i].Times = p.seen[p.result.Findings[i].key()]
	}
}

// side is one version.
type side struct {
	version string
	schema  schema
	checks  *validate.Schema
}

type prover struct {
	Config
	intent intent
	sides  map[string]*side
	result Result
	// seen counts findings by their keys.
	seen map[string]int
}

// pair tries one version and another.
func (p *prover) pair(ctx context.Context, from, to *side) error {
	pair := Pair{From: from.version, To: to.version}
	defer func() { p.result.Pairs = append(p.result.Pairs, pair) }()
	t := p.trial(ctx, from, to)
	try := func(tree map[string]any) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		ok, partial, err := t.admit(tree)
		if !ok || err != nil {
			return err
		}
		pair.Objects++
		if partial {
			pair.Partial++
		}
		pair.Edits += t.check(tree, partial, pair.Objects)
		return t.err
	}
	definition := types.Read(p.Definition)
	for _, tree := range p.Objects {
		if _, version := manifest.GroupVersion(manifest.Text(tree, "apiVersion")); version != from.version {
			continue
		}
		if err := try(tree); err != nil {
			return err
		}
	}
	given := pair.Objects
	tries := 0
	for tree := range objects(from.schema, uint64(len(from.version))) {
		if tries++; pair.Objects-given >= p.Most || tries > 4*p.Most {
			break
		}
		if err := try(p.dress(tree, definition, from.version, tries)); err != nil {
			return err
		}
	}
	return nil
}

// dress returns an object with apiVersion, kind and metadata. Some objects have labels
// and annotations, and some a garbled stash.
func (p *prover) dress(tree map[string]any, d types.Definition, version string, number int) map[string]any {
	meta := map[string]any{"name": "example"}
	if d.Scope == "Namespaced" {
		meta["namespace"] = "default"
	}
	switch number % 8 {
	case 1:
		meta["labels"] = map[string]any{"app.kubernetes.io/name": "example"}
		meta["annotations"] = map[string]any{"example.com/note": "{\"a\": 1}"}
	case 2:
		if p.Stash != "" {
			meta["annotations"] = map[string]any{p.Stash: "{\"garbled"}
		}
	case 3:
		meta["finalizers"] = []any{"example.com/hold"}
		meta["annotations"] = map[string]any{}
	}
	object := maps.Clone(tree)
	object["apiVersion"], object["kind"], object["metadata"] = d.Group+"/"+version, d.Names.Kind, meta
	return object
}

// read returns the intent of documents. It ignores documents with errors, which do not
// compile.
func read(documents []conversion.Document) intent {
	in := intent{sought: make(map[string][]sought)}
	for _, d := range documents {
		parsed, err := rules.Parse(d.Tree)
		if err != nil {
			continue
		}
		in.hub = cmp.Or(in.hub, parsed.Hub)
		in.seek(parsed)
		for _, pair := range parsed.Pairs {
			in.pairs, in.origins = append(in.pairs, pair), append(in.origins, d.Origin.String())
		}
	}
	return in
}

// report counts a finding, and keeps it with the smallest object if it is the first of
// its kind.
func (t *trial) report(f Finding, object map[string]any, partial bool, again func(map[string]any) []Finding) {
	p := t.prover
	f = t.named(f)
	key := f.key()
	if p.seen[key]++; p.seen[key] > 1 || !p.room(f.Law) {
		return
	}
	small := shrink(object, !partial, func(smaller map[string]any) bool {
		if ok, part, err := t.admit(smaller); !ok || part && !partial || err != nil {
			return false
		}
		for _, g := range again(smaller) {
			if g = t.named(g); g.key() == key {
				f = g // shrink continues with this object
				return true
			}
		}
		return false
	})
	f.Object = small
	from, to := f.From, f.To
	about := f.about
	if len(f.Differences) > 0 {
		about = f.Differences[0].Path.String()
		if f.Law != Edits || f.back {
			from, to = f.To, f.From // the field was not written on the way back
		}
	}
	if path, err := field.Parse(about); err == nil && f.Rules == nil {
		f.Rules = p.intent.writers(from, to, general(path))
	}
	p.result.Findings = append(p.result.Findings, f)
}

// room reports whether a finding is kept, and counts it otherwise. The first finding of
// each law is always kept, and rules that fail have a limit of their own.
func (p *prover) room(law Law) bool {
	kept, first := 0, true
	for _, f := range p.result.Findings {
		if (f.Law == RuleFails) == (law == RuleFails) {
			kept++
		}
		first = first && f.Law != law
	}
	switch {
	case kept < mostFindings || first:
		return true
	case law == RuleFails:
		p.result.MoreFailing++
	default:
		p.result.More++
	}
	return false
}

func (t *trial) named(f Finding) Finding {
	f.From, f.To = t.from.version, t.to.version
	return f
}

// admit reports whether API servers may ask to convert an object, and whether it is only
// part of a valid object. Server-side apply converts parts of objects when only their
// types are checked.
func (t *trial) admit(tree map[string]any) (ok, partial bool, err error) {
	err = t.from.checks.Check(t.ctx, tree)
	if err == nil {
		return true, false, nil
	}
	if _, refused := errors.AsType[*validate.Refusal](err); refused {
		return t.from.schema.merges(tree), true, nil
	}
	return false, false, err
}
