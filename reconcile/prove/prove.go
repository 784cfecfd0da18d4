// Package prove tries the conversion rules of a fleet before an API server uses them: on
// generated objects, once for all clusters (prove.go), and on the objects of a cluster
// (live.go).
//
// render/conversion/proof has the laws and generates the objects, and reconcile/plan decides
// about counterexamples. This package sends no requests.
package prove

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"gitopsd.dev/render"
	"gitopsd.dev/render/conversion/proof"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types/compat"
	"gitopsd.dev/sources/errgroup"
)

const (
	// longest bounds the time for one set of rules. Most take a second; two versions of a
	// definition of more than a megabyte have taken fourteen.
	longest = 2 * time.Minute
	// mostKept bounds the proofs that are remembered.
	mostKept = 200
	// shortest is how many digits of a digest an allowance has: enough that it does not
	// outlive a change of the rules.
	shortest = len("h1:") + 12
)

// Proof is the result of trying a set of rules. It is immutable.
type Proof struct {
	*proof.Result
	// Unfinished reports whether the time was over before all objects were tried.
	Unfinished bool
	// Warnings are the rules' warnings.
	Warnings []string
	// Refused names the broken laws that no annotation of the rules allows; Allowed has
	// the reasons for those that one allows.
	Refused []string
	Allowed map[string]string
	// Version stands for the rules in allowances: the first digits of their digest.
	Version string
	// Origin is where the first document of the rules is written.
	Origin manifest.Origin
	// Malformed is why an annotation that should allow something allows nothing.
	Malformed string
}

// Cache proves rules, and remembers the results. It is safe for concurrent use. The zero
// value is ready.
type Cache struct {
	// Longest bounds the time for one set of rules; default two minutes.
	Longest time.Duration

	mu   sync.Mutex
	done map[string]*entry
	// order are the keys of done, the oldest first.
	order []string
	// slots bounds the proofs under way, which are work for the processor alone.
	slots chan struct{}
}

type entry struct {
	ended chan struct{}
	// result is of a run that took too long if unfinished is set.
	result     *proof.Result
	unfinished bool
	err        error
}

// Prove tries a definition's rules. The result depends on the rules alone, unless the time
// was over. Prove fails if the API server would not accept a schema, or if ctx ends; the
// next call goes on with the same proof.
func (c *Cache) Prove(ctx context.Context, rules *render.Conversion) (*Proof, error) {
	e := c.entry(rules)
	select {
	case <-e.ended:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if e.err != nil {
		return nil, e.err
	}
	return judge(rules, e), nil
}

// entry returns the entry of rules, and starts their proof if there is none.
func (c *Cache) entry(rules *render.Conversion) *entry {
	key := keyOf(rules)
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.done[key]; e != nil {
		return e
	}
	if c.done == nil {
		c.done, c.slots = make(map[string]*entry), make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))
	}
	if len(c.order) == mostKept {
		delete(c.done, c.order[0])
		c.order = slices.Delete(c.order, 0, 1)
	}
	e := &entry{ended: make(chan struct{})}
	c.done[key], c.order = e, append(c.order, key)
	slots, limit := c.slots, cmp.Or(c.Longest, longest)
	go func() {
		defer close(e.ended)
		slots <- struct{}{}
		defer func() { <-slots }()
		defer func() {
			if v := recover(); v != nil {
				e.err = errgroup.Recovered(v)
			}
		}()
		// The proof goes on without the first caller, for others.
		limited, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		if e.result, e.err = proof.Run(limited, config(rules)); errors.Is(e.err, context.DeadlineExceeded) {
			e.unfinished, e.err = true, nil
		}
	}()
	return e
}

// keyOf identifies rules with the places of their documents, which findings name.
func keyOf(rules *render.Conversion) string {
	var b strings.Builder
	b.WriteString(rules.Set.Digest())
	for _, d := range rules.Documents {
		b.WriteString("\n" + d.Origin.String())
	}
	return b.String()
}

// config returns the configuration to try rules with.
func config(rules *render.Conversion) proof.Config {
	return proof.Config{Rules: rules.Set, Documents: rules.Documents, Definition: rules.Definition.Tree(), Stash: manifest.ConversionStashAnnotation}
}

// judge returns the proof of rules whose trial has ended.
func judge(rules *render.Conversion, e *entry) *Proof {
	allowed := readAllowances(rules)
	p := &Proof{
		Result: e.result, Unfinished: e.unfinished, Warnings: rules.Set.Warnings(),
		Version: allowed.version, Malformed: allowed.malformed, Allowed: make(map[string]string),
	}
	if len(rules.Documents) > 0 {
		p.Origin = rules.Documents[0].Origin
	}
	for _, law := range p.Laws {
		if reason := allowed.reason(law); reason != "" {
			p.Allowed[Name(law)] = reason
		} else {
			p.Refused = append(p.Refused, Name(law))
		}
	}
	return p
}

// allowances are the allowances in the documents of rules.
type allowances struct {
	version   string
	all       []compat.Allowance
	malformed string
}

func readAllowances(rules *render.Conversion) allowances {
	digest := rules.Set.Digest()
	a := allowances{version: digest[:min(shortest, len(digest))]}
	for _, d := range rules.Documents {
		all, err := compat.ParseAllowancesOf(manifest.Text(d.Tree, "metadata", "annotations", manifest.AllowBreakingAnnotation), names())
		if err != nil {
			a.malformed = d.Origin.String() + ": " + err.Error()
		}
		a.all = append(a.all, all...)
	}
	return a
}

// reason returns the reason for which a law may be broken; empty if it may not.
func (a *allowances) reason(law proof.Law) string {
	found, _ := compat.Allowed(a.all, a.version, compat.Finding{Name: Name(law)})
	return found.Reason
}

// Name returns the name by which an allowance has a law.
func Name(law proof.Law) string { return strings.ReplaceAll(string(law), " ", "-") }

func names() []string {
	var all []string
	for _, law := range []proof.Law{proof.Total, proof.Metadata, proof.Leftovers, proof.Admitted, proof.RoundTrip, proof.Edits, proof.Kept} {
		all = append(all, Name(law))
	}
	return all
}

// Objects returns how many objects were converted.
func (p *Proof) Objects() int {
	n := 0
	for _, pair := range p.Pairs {
		n += pair.Objects
	}
	return n
}

// Why returns why the rules are refused, and what to do; empty if they are not.
func (p *Proof) Why() string {
	if len(p.Refused) == 0 {
		return ""
	}
	text := "its conversion rules have a counterexample"
	if i := slices.IndexFunc(p.Findings, func(f proof.Finding) bool { return slices.Contains(p.Refused, Name(f.Law)) }); i >= 0 {
		text += ": " + p.Findings[i].Title()
		if by := p.Findings[i].Rules; len(by) > 0 {
			text += " (" + by[0] + ")"
		}
	}
	return text + "; `gitopsd plan` shows the object. " + p.WayOut(p.Refused)
}

// WayOut returns advice about broken laws, by their names.
func (p *Proof) WayOut(laws []string) string {
	text := "Correct the rules"
	if slices.Contains(laws, Name(proof.Kept)) {
		text = "Give the objects the field that the rules convert it to first, or keep it under preserve"
	}
	text += fmt.Sprintf(", or have them drop or derive the field if that is meant, or annotate them (%s) with %s, a line \"%s:%s=<reason>\"",
		p.Origin, manifest.AllowBreakingAnnotation, p.Version, strings.Join(laws, "=<reason>\" and \""+p.Version+":"))
	if p.Malformed != "" {
		text += "; " + p.Malformed
	}
	return text
}
