package proof

import (
	"fmt"
	"strings"

	"gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest"
)

// Law is a property that conversions must have.
type Law string

// The laws.
const (
	// Total: every object is converted, without changing the input.
	Total Law = "total"
	// Metadata: a conversion changes only labels and annotations in metadata.
	Metadata Law = "metadata"
	// Leftovers: the converted object has no field that the schema lacks.
	Leftovers Law = "leftovers"
	// Admitted: a valid object becomes a valid one.
	Admitted Law = "admitted"
	// RoundTrip: an object that comes back is unchanged.
	RoundTrip Law = "round trip"
	// Edits: fields that are changed in the other version stay changed, and no others do.
	Edits Law = "edits"
	// Kept: a field that an object's stash keeps for another version, and that is shown
	// there now, is shown there. Only a [Trial] tries it.
	Kept Law = "kept"
	// RuleFails: a rule failed on a value, which is kept. This is reported, but breaks no
	// law.
	RuleFails Law = "rule fails"
)

// Finding is one way in which a law is broken.
type Finding struct {
	Law      Law
	From, To string
	// Reason explains the finding if Differences do not.
	Reason string
	// Edit is the change made in the version To before converting back; empty if there was
	// none.
	Edit string
	// Advice is the cause and its remedy, if they are known; it may be empty.
	Advice string
	// Differences are the differences from the expected object to the actual one.
	Differences []Difference
	// Rules are the places of the rules that write the first field concerned.
	Rules []string
	// Object is the smallest object found that shows the finding, and Converted the same
	// object in the version To.
	Object, Converted map[string]any
	// Times is the number of objects that show the finding.
	Times int

	// about is the field or rule that distinguishes findings of one law.
	about string
	// back is set if Differences are in the version From.
	back bool
}

// key is equal for findings that are reported as one.
func (f Finding) key() string {
	about := f.about
	if at, err := field.Parse(about); err == nil && f.Law != RuleFails {
		about = general(at)
	} else if about == "" && len(f.Differences) > 0 {
		about = general(f.Differences[0].Path)
	}
	return strings.Join([]string{string(f.Law), f.From, f.To, about}, "\x00")
}

// Title returns the finding in one line.
func (f Finding) Title() string {
	there := f.From + " -> " + f.To
	back := there + " -> " + f.From
	field := ""
	if len(f.Differences) > 0 {
		field = f.Differences[0].Path.String()
	}
	switch f.Law {
	case Total:
		return fmt.Sprintf("%s: the conversion fails: %s", there, f.Reason)
	case Metadata:
		return fmt.Sprintf("%s changes %s, which conversions must not", there, field)
	case Leftovers:
		return fmt.Sprintf("%s: the result has fields that %s lacks: %s", there, f.To, f.Reason)
	case Admitted:
		return fmt.Sprintf("%s: the result is not valid: %s", there, f.Reason)
	case RoundTrip:
		return fmt.Sprintf("%s: %s does not come back as it was", back, field)
	case Kept:
		return fmt.Sprintf("%s: %s, which the stash keeps, is lost", there, field)
	case Edits:
		if f.back {
			return fmt.Sprintf("%s: %s does not come back as it was after an edit of something else (%s)", back, field, f.Edit)
		}
		return fmt.Sprintf("%s -> %s: %s does not stay as an edit left it (%s)", back, f.To, field, f.Edit)
	}
	return fmt.Sprintf("%s: a rule fails, and its value is kept in the stash: %s", there, f.Reason)
}

// mostDifferences limits the fields in a finding's text.
const mostDifferences = 5

// String returns the finding in several lines: title, rules, the smallest object, the
// converted object, and the difference.
func (f Finding) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s (%s)\n", f.Title(), objectsShow(f.Times))
	for _, r := range f.Rules {
		fmt.Fprintf(&b, "  rule: %s\n", r)
	}
	if f.Advice != "" {
		fmt.Fprintf(&b, "  advice: %s\n", f.Advice)
	}
	fmt.Fprintf(&b, "  smallest object, %s:\n%s", f.From, indented(f.Object))
	if f.Converted != nil {
		fmt.Fprintf(&b, "  becomes, %s:\n%s", f.To, indented(f.Converted))
	}
	if len(f.Differences) > 0 {
		b.WriteString("  difference:\n")
	}
	for i, d := range f.Differences {
		if i == mostDifferences {
			fmt.Fprintf(&b, "    … and %d more\n", len(f.Differences)-i)
			break
		}
		for line := range strings.SplitSeq(d.String(), "\n") {
			fmt.Fprintf(&b, "    %s\n", line)
		}
	}
	return b.String()
}

// String returns the numbers of objects and edits in one line, and the findings below it.
func (r *Result) String() string {
	var b strings.Builder
	broken := 0
	for _, f := range r.Findings {
		if f.Law != RuleFails {
			broken++
		}
	}
	switch broken += r.More; broken {
	case 0:
		b.WriteString("no counterexample")
	case 1:
		b.WriteString("1 counterexample")
	default:
		fmt.Fprintf(&b, "%d counterexamples", broken)
	}
	for i, p := range r.Pairs {
		fmt.Fprintf(&b, "%s %d objects %s -> %s and back (%d of them partial), %d edits", []string{";", ","}[min(i, 1)], p.Objects, p.From, p.To, p.Partial, p.Edits)
	}
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "\n\n%s", strings.TrimSuffix(f.String(), "\n"))
	}
	if r.More > 0 {
		fmt.Fprintf(&b, "\n\n… and %d more", r.More)
	}
	if r.MoreFailing > 0 {
		fmt.Fprintf(&b, "\n\n… and %s fail on values, which are kept in the stash", moreRules(r.MoreFailing))
	}
	return b.String()
}

func moreRules(n int) string {
	if n == 1 {
		return "1 more rule"
	}
	return fmt.Sprintf("%d more rules", n)
}

func objectsShow(n int) string {
	if n == 1 {
		return "1 object shows it"
	}
	return fmt.Sprintf("%d objects show it", n)
}

// indented returns an object as indented YAML. YAML escapes line breaks and control
// characters in values.
func indented(tree map[string]any) string {
	o, err := manifest.New(tree, manifest.Origin{})
	var text []byte
	if err == nil {
		text, err = o.YAML()
	}
	if err != nil {
		text = manifest.AppendJSON(nil, tree)
	}
	var b strings.Builder
	for line := range strings.Lines(string(text)) {
		b.WriteString("    ")
		b.WriteString(strings.TrimSuffix(line, "\n"))
		b.WriteByte('\n')
	}
	return b.String()
}
