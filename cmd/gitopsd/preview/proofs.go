package preview

import (
	"fmt"
	"strings"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/reconcile/prove"
	"gitopsd.dev/render/conversion/proof"
)

// proofTable is the proof of one definition's conversion rules, in the clusters in which the
// rules are the same.
type proofTable struct {
	// Definition is the CRD's name.
	Definition string
	// Clusters are in the plan's order.
	Clusters []string
	Proof    *prove.Proof
}

// shownProofs is how many counterexamples of one definition are shown; the rest is folded.
const shownProofs = 3

// proofTables returns the proofs of conversion rules. Clusters with equal rules share
// one.
func (f *Fleet) proofTables() []*proofTable {
	return shared(f, (*ClusterPlan).proofTables, func(t *proofTable) (string, *[]string) {
		return fmt.Sprintf("%q", []any{t.Definition, t.Proof.Version, t.Proof.Origin, t.Proof.Refused, t.Proof.Allowed, t.Proof.Unfinished}), &t.Clusters
	}, func(_, _ *proofTable) {})
}

func (c *ClusterPlan) proofTables() []*proofTable {
	if c.Plan == nil {
		return nil
	}
	var all []*proofTable
	for i := range c.Plan.Steps {
		if s := &c.Plan.Steps[i]; s.Proof != nil {
			all = append(all, &proofTable{Definition: s.ID.Name, Clusters: []string{c.Name}, Proof: s.Proof})
		}
	}
	return all
}

// findings returns the findings that break a law, or if broken is false the others.
func (t *proofTable) findings(broken bool) []proof.Finding {
	var all []proof.Finding
	for _, f := range t.Proof.Findings {
		if (f.Law != proof.RuleFails) == broken {
			all = append(all, f)
		}
	}
	return all
}

// summary summarizes the proof in one line.
func (t *proofTable) summary() string {
	p := t.Proof
	text := "no counterexample"
	if n := len(t.findings(true)) + p.More; n > 0 {
		text = prose.Count(n, "counterexample")
	}
	text += fmt.Sprintf(" in %s", prose.Count(p.Objects(), "object"))
	if p.Unfinished {
		text += ", stopped by the time limit"
	}
	if len(p.Refused) > 0 {
		text += ", refused"
	}
	return text
}

// proofs writes the proofs of conversion rules.
func (t textWriter) proofs(tables []*proofTable) {
	for i, table := range tables {
		if i > 0 {
			t.Line("")
		}
		t.Heading("", fmt.Sprintf("Conversion rules of %s in %s", table.Definition, where(table.Clusters)), table.summary())
		t.proof(table)
	}
}

func (t textWriter) proof(table *proofTable) {
	broken := table.findings(true)
	shown, folded := t.Fold(len(broken), shownProofs)
	for _, f := range broken[:shown] {
		colour, sign := show.Red, "!"
		title, rest, _ := strings.Cut(f.String(), "\n")
		if reason, ok := table.Proof.Allowed[prove.Name(f.Law)]; ok {
			colour, sign = show.Yellow, "~"
			title += " (allowed: " + reason + ")"
		}
		t.Say(colour, "  "+sign+" "+prove.Name(f.Law)+": "+title)
		for line := range strings.Lines(rest) {
			t.Line("    %s", strings.TrimSuffix(line, "\n"))
		}
	}
	if folded += table.Proof.More; folded > 0 {
		t.Line("  … %s", prose.Count(folded, "more counterexample"))
	}
	for _, f := range table.findings(false) {
		t.Say(show.Plain, "  "+f.Brief())
	}
	if n := table.Proof.MoreFailing; n > 0 {
		t.Line("  … %s", prose.Count(n, "more failing rule"))
	}
	for _, w := range table.Proof.Warnings {
		t.Say(show.Plain, "  "+w)
	}
}

// tried writes how conversion rules convert the objects of a cluster.
func (t textWriter) tried(steps []plan.Step) {
	for i := range steps {
		s := &steps[i]
		if s.Tried == nil {
			continue
		}
		t.Say(show.Plain, fmt.Sprintf("  %s of %s tried by its conversion rules%s", prose.Count(s.Tried.Objects, "object"), s.ID.Name, triedBut(s.Tried)))
		for _, f := range s.Tried.Findings {
			colour, sign := show.Red, "!"
			text := f.Text
			switch {
			case f.Law == proof.RuleFails:
				colour, sign = show.Plain, "~"
			case f.Allowed != "":
				colour, sign = show.Yellow, "~"
				text += " (allowed: " + f.Allowed + ")"
			}
			names := ids(f.Objects)
			if more := f.Times - len(names); more > 0 {
				names = append(names, fmt.Sprintf("and %d more", more))
			}
			t.Say(colour, fmt.Sprintf("    %s %s: %s", sign, text, strings.Join(names, ", ")))
		}
	}
}

func triedBut(l *prove.Live) string {
	text := ""
	if l.Version != "" && l.Objects > 0 {
		text = ", read in " + l.Version
	}
	if l.Stopped != "" {
		text += "; " + l.Stopped
	}
	return text
}

type proofJSON struct {
	Definition string   `json:"definition"`
	Clusters   []string `json:"clusters"`
	Digest     string   `json:"digest"`
	Objects    int      `json:"objects"`
	Unfinished bool     `json:"unfinished,omitempty"`
	// Refused and Allowed are by the names of laws.
	Refused         []string             `json:"refused,omitempty"`
	Allowed         map[string]string    `json:"allowed,omitempty"`
	Counterexamples []counterexampleJSON `json:"counterexamples,omitempty"`
	More            int                  `json:"more,omitempty"`
	Warnings        []string             `json:"warnings,omitempty"`
}

type counterexampleJSON struct {
	Law       string         `json:"law"`
	From      string         `json:"from"`
	To        string         `json:"to"`
	Title     string         `json:"title"`
	Rules     []string       `json:"rules,omitempty"`
	Object    map[string]any `json:"object"`
	Converted map[string]any `json:"converted,omitempty"`
	Times     int            `json:"times"`
}

func newProofJSON(t *proofTable) proofJSON {
	p := t.Proof
	pj := proofJSON{
		Definition: t.Definition, Clusters: t.Clusters, Digest: p.Version, Objects: p.Objects(), Unfinished: p.Unfinished,
		Refused: p.Refused, Allowed: p.Allowed, More: p.More, Warnings: p.Warnings,
	}
	for _, f := range p.Findings {
		pj.Counterexamples = append(pj.Counterexamples, counterexampleJSON{
			Law: prove.Name(f.Law), From: f.From, To: f.To, Title: f.Title(), Rules: f.Rules,
			Object: f.Object, Converted: f.Converted, Times: f.Times,
		})
	}
	return pj
}

type triedJSON struct {
	Definition string         `json:"definition"`
	Version    string         `json:"version,omitempty"`
	Objects    int            `json:"objects"`
	Stopped    string         `json:"stopped,omitempty"`
	Findings   []triedFinding `json:"findings,omitempty"`
}

type triedFinding struct {
	Law     string   `json:"law"`
	Text    string   `json:"text"`
	Allowed string   `json:"allowed,omitempty"`
	Objects []string `json:"objects"`
	Times   int      `json:"times"`
}

func newTriedJSON(s *plan.Step) triedJSON {
	tj := triedJSON{Definition: s.ID.Name, Version: s.Tried.Version, Objects: s.Tried.Objects, Stopped: s.Tried.Stopped}
	for _, f := range s.Tried.Findings {
		tj.Findings = append(tj.Findings, triedFinding{Law: prove.Name(f.Law), Text: f.Text, Allowed: f.Allowed, Objects: ids(f.Objects), Times: f.Times})
	}
	return tj
}
