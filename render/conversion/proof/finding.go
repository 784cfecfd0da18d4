package proof

import (
	"fmt"
	"strings"

	"gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest"
)

// Law is what a conversion must keep.
type Law string

// The laws.
const (
	// Total: every object is converted, without changing the input.
	Total Law = "total"
	// Metadata: a conversion changes nothing of metadata but labels and annotations.
	Metadata Law = "metadata"
	// Leftovers: the converted object has no field that the schema lacks.
	Leftovers Law = "leftovers"
	// Admitted: a valid object becomes a valid one.
	Admitted Law = "admitted"
	// RoundTrip: an object that comes back is as it was.
	RoundTrip Law = "round trip"
	// Edits: what is changed in the other version stays changed, and nothing else is.
	Edits Law = "edits"
	// RuleFails: a rule failed on a value, which is kept. It is told, and breaks no law.
	RuleFails Law = "rule fails"
)

// Finding is one way in which a law is broken.
type Finding struct {
	Law      Law
	From, To string
	// Reason says what is wrong, where Differences do not.
	Reason string
	// Edit says what was changed in the version To before the way back; empty for no
	// change.
	Edit string
	// Differences are from the object that was expected to the one that is.
	Differences []Difference
	// Rules are where the rules are written that write the first field concerned.
	Rules []string
	// Object is the smallest object found that shows it, Converted what it becomes in
	// the version To.
	Object, Converted map[string]any
	// Times is how many of the objects show it.
	Times int

	// about tells findings of one law from each other: a field or a rule.
	about string
	// back reports that Differences are in the version From.
	back bool
}

// key is equal for findings that are shown once.
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
	case Edits:
		if f.back {
			return fmt.Sprintf("%s: %s does not come back as it was after an edit of something else (%s)", back, field, f.Edit)
		}
		return fmt.Sprintf("%s -> %s: %s does not stay as an edit left it (%s)", back, f.To, field, f.Edit)
	}
	return fmt.Sprintf("%s: a rule fails, and its value is kept in the stash: %s", there, f.Reason)
}

// mostDifferences is how many fields a finding's text shows.
const mostDifferences = 5

// String returns the finding in several lines: title, rules, the smallest object, what
// it becomes, and the difference.
func (f Finding) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s (%s)\n", f.Title(), objectsShow(f.Times))
	for _, r := range f.Rules {
		fmt.Fprintf(&b, "  rule: %s\n", r)
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

// String returns what was tried in one line, and the findings below it.
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

// indented returns an object as YAML. Line breaks are YAML's own, and what a terminal
// would act on is escaped in it.
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
