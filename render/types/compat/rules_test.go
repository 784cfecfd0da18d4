package compat

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/render/manifest"
)

// A rule that did not change may be refused once the schema around it changes. Compare and
// the API server's own code agree on that.
func TestRulesAmongChanges(t *testing.T) {
	const (
		nested = `x-kubernetes-validations: [{rule: "self.list.all(x, self.list.all(y, x.contains(y)))"}]`
		costly = `x-kubernetes-validations: [{rule: "self.list.all(x, self.list.all(y, self.list.all(z, x.contains(y + z))))"}]`
		list   = `list: {type: array, maxItems: 10, items: {type: string, maxLength: 20}}`
		free   = `list: {type: array, items: {type: string}}`
		// fixed elements have a rule that compares them with their earlier state.
		fixed = `maxItems: 5, items: {type: object, required: [k], properties: {k: {type: string}}, x-kubernetes-validations: [{rule: self == oldSelf}]}`
		keyed = `x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [k], `
		inMap = `{type: object, properties: {m: {type: object, maxProperties: 5, additionalProperties: {type: integer, x-kubernetes-validations: [{rule: self >= oldSelf}]}}}}`
	)
	for _, tt := range []struct {
		name, old, new string
		refused        bool
	}{
		{"limits go", `{type: object, ` + nested + `, properties: {` + list + `}}`, `{type: object, ` + nested + `, properties: {` + free + `}}`, true},
		{"limits loosen", `{type: object, ` + nested + `, properties: {` + list + `}}`,
			`{type: object, ` + nested + `, properties: {list: {type: array, maxItems: 10000, items: {type: string, maxLength: 20000}}}}`, true},
		{"limits loosen little", `{type: object, ` + nested + `, properties: {` + list + `}}`,
			`{type: object, ` + nested + `, properties: {list: {type: array, maxItems: 11, items: {type: string, maxLength: 21}}}}`, false},
		{"limits loosen elsewhere", `{type: object, ` + nested + `, properties: {` + list + `, b: {type: string, maxLength: 1}}}`, `{type: object, ` + nested + `, properties: {` + list + `, b: {type: string}}}`, false},
		{"the limit of the list around", `{type: object, properties: {l: {type: array, maxItems: 2, items: {type: object, ` + nested + `, properties: {` + list + `}}}}}`,
			`{type: object, properties: {l: {type: array, maxItems: 100000, items: {type: object, ` + nested + `, properties: {` + list + `}}}}}`, true},
		{"the limit of the map around", `{type: object, properties: {m: {type: object, maxProperties: 2, additionalProperties: {type: object, ` + nested + `, properties: {` + list + `}}}}}`,
			`{type: object, properties: {m: {type: object, additionalProperties: {type: object, ` + nested + `, properties: {` + list + `}}}}}`, true},
		{"an enum goes", `{type: object, properties: {list: {type: array, maxItems: 500, items: {type: string, enum: [a, b]}}}, ` + nested + `}`,
			`{type: object, properties: {list: {type: array, maxItems: 500, items: {type: string}}}, ` + nested + `}`, true},
		{"an enum gets a long value", `{type: object, properties: {list: {type: array, maxItems: 500, items: {type: string, enum: [a, b]}}}, ` + nested + `}`,
			`{type: object, properties: {list: {type: array, maxItems: 500, items: {type: string, enum: [a, b, ` + long(4000) + `]}}}, ` + nested + `}`, true},
		{"elements may be smaller", large(`required: [NAME], `, ``), large(``, ``), true},
		{"elements may be smaller by a default", large(`required: [NAME], `, ``), large(`required: [NAME], `, `, default: x`), true},
		{"another name of a format", `{type: object, properties: {d: {type: string, format: datetime}}, x-kubernetes-validations: [{rule: "self.d.startsWith('2')"}]}`,
			`{type: object, properties: {d: {type: string, format: date-time}}, x-kubernetes-validations: [{rule: "self.d.startsWith('2')"}]}`, true},
		{"a field that a rule reads goes", `{type: object, properties: {a: {type: string}}, x-kubernetes-validations: [{rule: "self.a == 'x'"}]}`,
			`{type: object, properties: {b: {type: string}}, x-kubernetes-validations: [{rule: "self.a == 'x'"}]}`, true},
		{"a field that no rule reads goes", `{type: object, properties: {a: {type: string}, b: {type: string}}, x-kubernetes-validations: [{rule: "self.a == 'x'"}]}`,
			`{type: object, properties: {a: {type: string}}, x-kubernetes-validations: [{rule: "self.a == 'x'"}]}`, false},
		{"a new field with a costly rule", `{type: object}`, `{type: object, properties: {a: {type: object, ` + nested + `, properties: {` + free + `}}}}`, true},
		{"a new field with a cheap rule", `{type: object}`, `{type: object, properties: {a: {type: object, ` + nested + `, properties: {` + list + `}}}}`, false},
		{"a new field with a rule that does not compile", `{type: object}`, `{type: object, properties: {a: {type: object, properties: {b: {type: string}}, x-kubernetes-validations: [{rule: "self.c == 'x'"}]}}}`, true},
		{"new values of a map with a costly rule", `{type: object, properties: {m: {type: object}}}`,
			`{type: object, properties: {m: {type: object, additionalProperties: {type: object, ` + nested + `, properties: {` + free + `}}}}}`, true},
		{"a description beside a cheap rule", `{type: object, ` + nested + `, properties: {` + list + `}}`, `{type: object, description: d, ` + nested + `, properties: {` + list + `}}`, false},
		{"a new list, and the earlier state of its elements", `{type: object}`, `{type: object, properties: {l: {type: array, ` + fixed + `}}}`, true},
		{"a new keyed list, and the earlier state of its elements", `{type: object}`, `{type: object, properties: {l: {type: array, ` + keyed + fixed + `}}}`, false},
		{"a new list, and the earlier state of something in its elements", `{type: object}`, `{type: object, properties: {l: {type: array, maxItems: 5, items: ` + inMap + `}}}`, true},
		{"a keyed list in a new list, and the earlier state of its elements", `{type: object}`,
			`{type: object, properties: {o: {type: array, maxItems: 5, items: {type: object, properties: {l: {type: array, ` + keyed + fixed + `}}}}}}`, true},
		{"a new list, and its earlier state", `{type: object}`, `{type: object, properties: {l: {type: array, maxItems: 5, items: {type: integer}, x-kubernetes-validations: [{rule: self == oldSelf}]}}}`, false},
		{"a new map, and the earlier state of its values", `{type: object}`, inMap, false},
		{"a new set, and the earlier state of its elements if there is one", `{type: object}`,
			`{type: object, properties: {l: {type: array, x-kubernetes-list-type: set, maxItems: 5, items: {type: integer, x-kubernetes-validations: [{rule: "oldSelf.hasValue()", optionalOldSelf: true}]}}}}`, true},
		{"a rule about an earlier state that it does not read", `{type: object}`, `{type: object, properties: {a: {type: integer, x-kubernetes-validations: [{rule: "self > 1", optionalOldSelf: true}]}}}`, true},
		{"a keyed list becomes atomic", `{type: object, properties: {l: {type: array, ` + keyed + fixed + `}}}`, `{type: object, properties: {l: {type: array, ` + fixed + `}}}`, true},
		{"a set becomes atomic", `{type: object, properties: {l: {type: array, x-kubernetes-list-type: set, maxItems: 5, items: {type: integer}, x-kubernetes-validations: [{rule: self == oldSelf}]}}}`,
			`{type: object, properties: {l: {type: array, maxItems: 5, items: {type: integer}, x-kubernetes-validations: [{rule: self == oldSelf}]}}}`, false},
		{"all rules together", `{type: object, properties: {` + many(300_000) + `}}`, `{type: object, properties: {` + many(1_000_000) + `}}`, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			old, new := crd(t, tt.old), crd(t, tt.new)
			if err := refuses(t, crd(t, `{type: object}`), old); err != nil {
				t.Fatalf("the API server refuses the old definition: %v", err)
			}
			r, err := Compare(t.Context(), old, new, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if have := reports(r, "rule-refused"); have != tt.refused {
				t.Errorf("rule-refused: %t, want %t: %v", have, tt.refused, r.Findings)
			}
			if err := refuses(t, old, new); (err != nil) != tt.refused {
				t.Errorf("the API server: %.500v", err)
			}
		})
	}
	// The API server refuses every change of a schema that has costly rules, whatever it
	// is about. A cluster that has the old definition estimates in another way, so that
	// the change is not to blame.
	for _, tt := range []struct{ name, old, new string }{
		{"a limit", `{type: object, ` + nested + `, properties: {` + free + `}}`, `{type: object, ` + nested + `, properties: {` + free + `, b: {type: string}}}`},
		{"a limit that goes", `{type: object, ` + costly + `, properties: {list: {type: array, items: {type: string, maxLength: 9}}}}`, `{type: object, ` + costly + `, properties: {` + free + `}}`},
		{"white space", `{type: object, properties: {list: {type: array, items: {type: string, maxLength: 9}}}, x-kubernetes-validations: [{rule: "self.list.all(x,self.list.all(y,x.contains(y)))"}]}`, `{type: object, ` + nested + `, properties: {` + free + `}}`},
		{"a description", `{type: object, ` + nested + `, properties: {` + free + `}}`, `{type: object, description: d, ` + nested + `, properties: {` + free + `}}`},
		{"all rules together", `{type: object, properties: {` + many(1_000_000) + `}}`, `{type: object, properties: {` + many(1_000_001) + `}}`},
		{"a field that was not there before", `{type: object, properties: {b: {type: string}, c: {type: string}}, x-kubernetes-validations: [{rule: "self.a == 'x'"}]}`,
			`{type: object, properties: {b: {type: string}}, x-kubernetes-validations: [{rule: "self.a == 'x'"}]}`},
	} {
		t.Run("refused before: "+tt.name, func(t *testing.T) {
			old, new := crd(t, tt.old), crd(t, tt.new)
			if err := refuses(t, old, new); err == nil {
				t.Error("the API server accepts the change")
			}
			r, err := Compare(t.Context(), old, new, Options{})
			if err != nil || reports(r, "rule-refused") {
				t.Errorf("%v, %v", r.Findings, err)
			}
		})
	}
	// It accepts a change of anything else, though.
	t.Run("refused before, and the schema stays", func(t *testing.T) {
		old := crd(t, `{type: object, `+nested+`, properties: {list: {type: array, maxItems: 2000, items: {type: string, maxLength: 10}}}}`)
		new := crd(t, `{type: object, `+nested+`, properties: {list: {type: array, maxItems: 2000, items: {type: string, maxLength: 10}}}}`)
		manifest.Mapping(new, "spec", "names")["shortNames"] = []any{"b"}
		if err := refuses(t, crd(t, `{type: object}`), old); err == nil {
			t.Fatal("the API server accepts the old definition")
		}
		if err := refuses(t, old, new); err != nil {
			t.Errorf("the API server refuses the change: %v", err)
		}
		check(t, old, new, Options{}, "compatible short-name-added")
	})
}

// long returns a name of some length.
func long(n int) string { return strings.Repeat("a", n) }

// large returns a list whose elements have a long required field, so that few of them fit in
// a request, and a rule for each.
func large(required, withDefault string) string {
	return strings.ReplaceAll(`{type: object, properties: {l: {type: array, items: {type: object, `+required+`properties: {NAME: {type: string`+withDefault+`}, `+
		`a: {type: array, maxItems: 50, items: {type: string, maxLength: 100}}}, x-kubernetes-validations: [{rule: "self.a.all(c, c.contains('x'))"}]}}}}`, "NAME", long(900))
}

// many returns 30 lists with a rule each. At a million items the rules cost too much
// together, but none of them alone.
func many(items int) string {
	var all []string
	for i := range 30 {
		all = append(all, fmt.Sprintf(`l%d: {type: array, maxItems: %d, items: {type: string}, x-kubernetes-validations: [{rule: "self.all(x, x != 'a')"}]}`, i, items))
	}
	return strings.Join(all, ", ")
}

func reports(r Report, name string) bool {
	return slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Name == name })
}
