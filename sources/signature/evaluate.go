package signature

import (
	"fmt"
	"slices"
	"strings"

	"gitopsd.dev/sources"
)

// evaluation checks evidence about one digest against all authorities.
type evaluation struct {
	digest  sources.Digest
	results []*result
	seen    int
}

// result is the evaluation by one authority.
type result struct {
	authority authority
	// evidence that it accepted.
	evidence []evidence
	// missing are the predicate types without evidence so far.
	missing []string
	signer  proven
	// refused are the reasons for refusing evidence, each once.
	refused []string
}

func newEvaluation(d sources.Digest, authorities []authority) *evaluation {
	b := &evaluation{digest: d}
	for _, a := range authorities {
		h := &result{authority: a}
		for _, att := range a.Attestations {
			if t := predicateType(att.PredicateType); !slices.Contains(h.missing, t) {
				h.missing = append(h.missing, t)
			}
		}
		if len(h.missing) == 0 {
			h.missing = []string{signPredicate}
		}
		b.results = append(b.results, h)
	}
	return b
}

// wantsAttestations reports whether an authority needs statements.
func (b *evaluation) wantsAttestations() bool {
	return slices.ContainsFunc(b.results, func(h *result) bool { return len(h.authority.Attestations) > 0 })
}

// add checks evidence, and returns the first complete result, or nil.
func (b *evaluation) add(e evidence) *result {
	b.seen++
	for _, h := range b.results {
		if h.authority.err != nil {
			continue
		}
		p, err := h.authority.check(e, b.digest)
		if err != nil {
			h.refuse(printable(err.Error()))
			continue
		}
		i := slices.Index(h.missing, p.predicateType)
		if i < 0 {
			h.refuse(fmt.Sprintf("it is a statement of type %s", printable(p.predicateType)))
			continue
		}
		h.missing = slices.Delete(h.missing, i, i+1)
		h.evidence, h.signer = append(h.evidence, e), p
		if len(h.missing) == 0 {
			return h
		}
	}
	return nil
}

func (h *result) refuse(why string) {
	if !slices.Contains(h.refused, why) {
		h.refused = append(h.refused, why)
	}
}

// describe describes a complete result in one line.
func (h *result) describe(policy *sources.Verification) string {
	a := h.authority
	what := "signed"
	if len(a.Attestations) > 0 {
		what = "attested"
	}
	if a.Key != nil {
		return fmt.Sprintf("%s by key %s (ImageConfig %s)", what, a.Name, policy.ImageConfig)
	}
	return fmt.Sprintf("%s keyless by %s, certified by %s (authority %s, ImageConfig %s)", what, printable(h.signer.subject), printable(h.signer.issuer), a.Name, policy.ImageConfig)
}

// wanted describes the evidence that each authority would accept.
func (b *evaluation) wanted() []string {
	var all []string
	for _, h := range b.results {
		a := h.authority
		var by string
		if a.Key != nil {
			by = fmt.Sprintf("by the key in %s of Secret %s", a.Key.Entry, a.Key.Secret)
		} else {
			var ids []string
			for _, id := range a.Keyless.Identities {
				ids = append(ids, fmt.Sprintf("%s, certified by %s", either(id.SubjectRegExp, id.Subject), either(id.IssuerRegExp, id.Issuer)))
			}
			by = "keyless by " + strings.Join(ids, ", or by ")
		}
		what := "a signature"
		if len(a.Attestations) > 0 {
			var types []string
			for _, att := range a.Attestations {
				types = append(types, att.PredicateType)
			}
			what = "statements of type " + strings.Join(types, " and ")
		}
		all = append(all, fmt.Sprintf("%s %s (authority %s)", what, by, a.Name))
	}
	return all
}

func either(expr, text string) string {
	if expr != "" {
		return "/" + expr + "/"
	}
	return text
}

// maxFound bounds the reasons that a refusal lists for an authority.
const maxFound = 5

// found describes the evidence, and why it is not enough.
func (b *evaluation) found(dropped int) []string {
	var all []string
	if b.seen == 0 {
		all = append(all, "no signature")
	}
	for _, h := range b.results {
		for i, why := range h.refused {
			if i == maxFound {
				all = append(all, fmt.Sprintf("%d more that are not authority %s's", len(h.refused)-maxFound, h.authority.Name))
				break
			}
			all = append(all, fmt.Sprintf("one that is not authority %s's: %s", h.authority.Name, why))
		}
		if n := len(h.evidence); n > 0 {
			all = append(all, fmt.Sprintf("%d of authority %s's statements, but none of type %s", n, h.authority.Name, strings.Join(h.missing, " or ")))
		}
	}
	if dropped > 0 {
		all = append(all, fmt.Sprintf("%d that were not looked at, being too many, too large or garbled", dropped))
	}
	return all
}

// predicateTypes are cosign's short names for types of statements.
var predicateTypes = map[string]string{
	"custom":         "https://cosign.sigstore.dev/attestation/v1",
	"cyclonedx":      "https://cyclonedx.org/bom",
	"link":           "https://in-toto.io/Link/v1",
	"openvex":        "https://openvex.dev/ns",
	"slsaprovenance": "https://slsa.dev/provenance/v0.2", "slsaprovenance02": "https://slsa.dev/provenance/v0.2",
	"slsaprovenance1": "https://slsa.dev/provenance/v1",
	"spdx":            "https://spdx.dev/Document", "spdxjson": "https://spdx.dev/Document",
	"vuln": "https://cosign.sigstore.dev/attestation/vuln/v1",
}

func predicateType(name string) string {
	if t, ok := predicateTypes[name]; ok {
		return t
	}
	return name
}
