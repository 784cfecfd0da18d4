package conversion

import (
	"crypto/sha256"
	"encoding/base64"
	"maps"
	"slices"

	"gitopsd.dev/render/conversion/rules"
	"gitopsd.dev/render/exact"
	"gitopsd.dev/render/types"
)

// sum returns the set's digest; see [Set.Digest].
func (s *Set) sum(said map[[2]string]*declared) string {
	var pairs []any
	for _, from := range s.versions {
		for _, to := range s.versions {
			if d := said[[2]string{from, to}]; d != nil {
				pairs = append(pairs, []any{from, to, ruleForms(d.rules, from), fieldForms(d.preserve), fieldForms(d.drop), fieldForms(d.derive)})
			}
		}
	}
	schemas := map[string]any{}
	for version, schema := range s.schemas {
		// Documentation converts nothing.
		form, err := types.SchemaForm(schema)
		if err != nil {
			schemas[version] = schema
			continue
		}
		schemas[version] = form
	}
	sets := map[string]any{}
	for name, list := range s.sets {
		sets[name] = ruleForms(list, "")
	}
	text, err := exact.Encode([]any{s.name, s.group, s.kind, s.hub, pairs, sets, schemas})
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(text)
	return digestPrefix + base64.StdEncoding.EncodeToString(sum[:])
}

// ruleForms returns the rules in canonical form: sorted, each once, and with self in the
// place of the version's name.
func ruleForms(list []rules.Rule, version string) []any {
	forms := map[string]any{}
	for _, r := range list {
		from := r.From
		if path, err := rules.ParsePath(from); err == nil {
			if path[0].Key == version {
				path[0].Key = "self"
			}
			from = path.String()
		}
		// In rules for elements, self is the element and the version is the object.
		form := []any{from, r.Transform, r.To.String(), ruleForms(r.Items, ""), r.Use}
		text, _ := exact.Encode(form)
		forms[string(text)] = form
	}
	all := []any{}
	for _, text := range slices.Sorted(maps.Keys(forms)) {
		all = append(all, forms[text])
	}
	return all
}

func fieldForms(list []rules.Field) []any {
	forms := map[string]bool{}
	for _, f := range list {
		forms[f.Path.String()] = true
	}
	all := []any{}
	for _, text := range slices.Sorted(maps.Keys(forms)) {
		all = append(all, text)
	}
	return all
}
