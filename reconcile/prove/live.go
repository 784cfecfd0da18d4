package prove

import (
	"context"
	"fmt"
	"slices"

	"gitopsd.dev/render"
	"gitopsd.dev/render/conversion/proof"
	"gitopsd.dev/render/manifest"
)

// Live is the result of trying rules on the objects of a cluster. It holds no value of any
// object.
type Live struct {
	// Version is the version in which the objects were read; empty if the cluster serves
	// none that the rules know.
	Version string
	// Objects is the number of objects that were tried.
	Objects int
	// Stopped is why not all objects were tried; empty if all were.
	Stopped string
	// Findings are the ways in which objects break laws.
	Findings []LiveFinding
}

// LiveFinding is one way in which objects of a cluster break a law.
type LiveFinding struct {
	Law proof.Law
	// Text is the finding in one line.
	Text string
	// Allowed is the reason for which the rules allow it; empty if they do not.
	Allowed string
	// Objects are the first objects that show it, Times is the number of all.
	Objects []manifest.ID
	Times   int
}

// Failed reports whether an object breaks a law, and no annotation of the rules allows that.
// A rule that failed on a value breaks no law, since the value is kept.
func (l *Live) Failed() bool { return len(l.wrong()) > 0 }

// wrong returns the findings that speak against the rules.
func (l *Live) wrong() []LiveFinding {
	return slices.DeleteFunc(slices.Clone(l.Findings), func(f LiveFinding) bool { return f.Law == proof.RuleFails || f.Allowed != "" })
}

// Laws returns the names of the laws that objects break without an allowance.
func (l *Live) Laws() []string {
	var names []string
	for _, f := range l.wrong() {
		if name := Name(f.Law); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// Why returns what is wrong with the rules, and for which objects; empty if nothing is.
func (l *Live) Why() string {
	wrong := l.wrong()
	if len(wrong) == 0 {
		return ""
	}
	f := wrong[0]
	text := fmt.Sprintf("its conversion rules are wrong for objects of this cluster: %s: %s", f.Text, f.Objects[0])
	for _, id := range f.Objects[1:] {
		text += ", " + id.String()
	}
	if n := f.Times - len(f.Objects); n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	if n := len(wrong) - 1; n > 0 {
		text += fmt.Sprintf("; and %d more ways in which they are", n)
	}
	return text
}

// mostNamed is how many objects a finding names, and mostWays how many findings there
// are of a law: what is allowed leaves room for what is not.
const (
	mostNamed = 3
	mostWays  = 50
)

// Trial tries rules on the objects of a cluster, one after the other. Only one goroutine
// at a time may use it.
type Trial struct {
	trial   *proof.Trial
	allowed allowances
	live    Live
}

// NewTrial returns a Trial of objects that are read in a version. It fails if the API
// server would not accept a schema.
func NewTrial(rules *render.Conversion, version string) (*Trial, error) {
	trial, err := proof.NewTrial(config(rules))
	return &Trial{trial: trial, allowed: readAllowances(rules), live: Live{Version: version}}, err
}

// Result returns what was found so far.
func (t *Trial) Result() *Live { return &t.live }

// Again forgets what was found so far.
func (t *Trial) Again() { t.live = Live{Version: t.live.Version} }

// Try tries an object, which is not kept. See [proof.Trial.Try] for now and for errors. Once
// enough objects lose what they keep, now is not called any more, since that is a request.
func (t *Trial) Try(ctx context.Context, tree map[string]any, now proof.Now) error {
	if slices.ContainsFunc(t.live.Findings, func(f LiveFinding) bool { return f.Law == proof.Kept && f.Times >= mostNamed }) {
		now = nil
	}
	findings, err := t.trial.Try(ctx, tree, now)
	if err != nil {
		return err
	}
	t.live.Objects++
	id := manifest.KindOf(tree).ID(manifest.Text(tree, "metadata", "namespace"), manifest.Text(tree, "metadata", "name"))
	for _, f := range findings {
		text := f.Brief()
		i := slices.IndexFunc(t.live.Findings, func(seen LiveFinding) bool { return seen.Text == text })
		if i < 0 {
			of := 0
			for _, seen := range t.live.Findings {
				if seen.Law == f.Law {
					of++
				}
			}
			if of == mostWays {
				continue
			}
			i = len(t.live.Findings)
			t.live.Findings = append(t.live.Findings, LiveFinding{Law: f.Law, Text: text, Allowed: t.allowed.reason(f.Law)})
		}
		seen := &t.live.Findings[i]
		if seen.Times++; len(seen.Objects) < mostNamed && !slices.Contains(seen.Objects, id) {
			seen.Objects = append(seen.Objects, id)
		}
	}
	return nil
}
