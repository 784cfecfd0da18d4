package conversion

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gitopsd.dev/render/conversion/rules"
	"gitopsd.dev/sources"
)

// declared holds the entries of all documents for a pair.
type declared struct {
	// place is the origin of the first of these documents.
	place                  string
	rules                  []rules.Rule
	preserve, drop, derive []rules.Field
}

// read parses the documents and joins their entries for each pair.
func (s *Set) read(documents []Document) (map[[2]string]*declared, []error) {
	said := map[[2]string]*declared{}
	var errs []error
	for _, document := range documents {
		place := document.Origin.String()
		origin := place + ": "
		parsed, err := rules.Parse(document.Tree)
		if err != nil {
			for line := range strings.SplitSeq(err.Error(), "\n") {
				errs = append(errs, errors.New(origin+line))
			}
			continue
		}
		known := func(where, version string) bool {
			if slices.Contains(s.versions, version) {
				return true
			}
			errs = append(errs, fmt.Errorf("%s%s: %s has no version %s; it has %s%s", origin, where, s.name, version,
				strings.Join(s.versions, ", "), sources.Meant(version, s.versions)))
			return false
		}
		if parsed.Hub != "" && known("hub", parsed.Hub) {
			if s.hub != "" && s.hub != parsed.Hub {
				errs = append(errs, fmt.Errorf("%shub: is %s, and another document says %s", origin, parsed.Hub, s.hub))
			}
			s.hub = parsed.Hub
		}
		for _, name := range slices.Sorted(maps.Keys(parsed.Sets)) {
			if s.sets[name] != nil {
				errs = append(errs, fmt.Errorf("%sruleSets.%s: another document has a set of this name", origin, name))
			}
			s.sets[name] = placed(origin, parsed.Sets[name])
		}
		for _, p := range parsed.Pairs {
			if !known("conversions", p.From) || !known("conversions", p.To) {
				continue
			}
			if p.From == p.To {
				errs = append(errs, fmt.Errorf("%sconversions: from and to are both %s", origin, p.From))
				continue
			}
			key := [2]string{p.From, p.To}
			if said[key] == nil {
				said[key] = &declared{place: place}
			}
			said[key].add(origin, p)
		}
	}
	return said, errs
}

// named reports whether a document names a version.
func (s *Set) named(said map[[2]string]*declared, version string) bool {
	if version == s.hub {
		return true
	}
	for pair := range said {
		if slices.Contains(pair[:], version) {
			return true
		}
	}
	return false
}

// placed returns the rules with the document's origin before their places.
func placed(origin string, list []rules.Rule) []rules.Rule {
	if len(list) == 0 {
		return nil
	}
	list = slices.Clone(list)
	for i := range list {
		list[i].Where = origin + list[i].Where
		list[i].Items = placed(origin, list[i].Items)
	}
	return list
}

// add adds a pair of a document.
func (d *declared) add(origin string, p rules.Pair) {
	fields := func(list []rules.Field) []rules.Field {
		list = slices.Clone(list)
		for i := range list {
			list[i].Where = origin + list[i].Where
		}
		return list
	}
	d.rules = rules.Merge(append(d.rules, placed(origin, p.Rules)...))
	d.preserve = append(d.preserve, fields(p.Preserve)...)
	d.drop = append(d.drop, fields(p.Drop)...)
	d.derive = append(d.derive, fields(p.Derive)...)
}
