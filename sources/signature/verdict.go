package signature

import (
	"fmt"
	"slices"
	"strings"

	"gitopsd.dev/sources"
)

// checks are all authorities' checks of the evidence about one digest.
type checks struct {
	digest   sources.Digest
	verdicts []*verdict
	checked  int
}

// verdict is what one authority accepts of it.
type verdict struct {
	authority authority
	// evidence is what it accepted and needs.
	evidence []evidence
	// missing are the predicate types that nothing proved yet.
	missing []string
	signer  proven
	// refused are the reasons for which it refused evidence, each once.
	refused []string
}

func newChecks(d sources.Digest, authorities []authority) *checks {
	c := &checks{digest: d}
	for _, a := range authorities {
		v := &verdict{authority: a}
		for _, att := range a.Attestations {
			if t := predicateType(att.PredicateType); !slices.Contains(v.missing, t) {
				v.missing = append(v.missing, t)
			}
		}
		if len(v.missing) == 0 {
			v.missing = []string{signPredicate}
		}
		c.verdicts = append(c.verdicts, v)
	}
	return c
}

// wantsAttestations tells whether some authority needs statements.
func (c *checks) wantsAttestations() bool {
	return slices.ContainsFunc(c.verdicts, func(v *verdict) bool { return len(v.authority.Attestations) > 0 })
}

// check has the authorities check evidence, and returns the verdict of the first that
// is satisfied, nil if none is.
func (c *checks) check(e evidence) *verdict {
	c.checked++
	for _, v := range c.verdicts {
		if v.authority.err != nil {
			continue
		}
		p, err := v.authority.check(e, c.digest)
		if err != nil {
			v.refuse(printable(err.Error()))
			continue
		}
		i := slices.Index(v.missing, p.predicateType)
		if i < 0 {
			v.refuse(fmt.Sprintf("it is a statement of type %s", printable(p.predicateType)))
			continue
		}
		v.missing = slices.Delete(v.missing, i, i+1)
		v.evidence, v.signer = append(v.evidence, e), p
		if len(v.missing) == 0 {
			return v
		}
	}
	return nil
}

func (v *verdict) refuse(why string) {
	if !slices.Contains(v.refused, why) {
		v.refused = append(v.refused, why)
	}
}

// says returns the verdict in one line.
func (v *verdict) says(policy *sources.Verification) string {
	a := v.authority
	what := "signed"
	if len(a.Attestations) > 0 {
		what = "attested"
	}
	if a.Key != nil {
		return fmt.Sprintf("%s by key %s (ImageConfig %s)", what, a.Name, policy.ImageConfig)
	}
	return fmt.Sprintf("%s keyless by %s, certified by %s (authority %s, ImageConfig %s)", what, printable(v.signer.subject), printable(v.signer.issuer), a.Name, policy.ImageConfig)
}

// wanted describes what each authority would accept.
func (c *checks) wanted() []string {
	var all []string
	for _, v := range c.verdicts {
		a := v.authority
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

// maxFound bounds what a refusal lists for an authority.
const maxFound = 5

// found describes what was found and why it is not enough.
func (c *checks) found(dropped int) []string {
	var all []string
	if c.checked == 0 {
		all = append(all, "no signature")
	}
	for _, v := range c.verdicts {
		for i, why := range v.refused {
			if i == maxFound {
				all = append(all, fmt.Sprintf("%d more that are not authority %s's", len(v.refused)-maxFound, v.authority.Name))
				break
			}
			all = append(all, fmt.Sprintf("one that is not authority %s's: %s", v.authority.Name, why))
		}
		if n := len(v.evidence); n > 0 {
			all = append(all, fmt.Sprintf("%d of authority %s's statements, but none of type %s", n, v.authority.Name, strings.Join(v.missing, " or ")))
		}
	}
	if dropped > 0 {
		all = append(all, fmt.Sprintf("%d that were not looked at, being too many, too large or garbled", dropped))
	}
	return all
}

// predicateTypes are the short names that cosign has for types of statements.
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
