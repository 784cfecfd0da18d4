package compat

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
)

// ruled returns a schema of n fields with a rule about each, after edit has changed each
// field.
func ruled(n int, edit func(field, rule node)) node {
	properties, rules := node{}, []any{}
	for i := range n {
		name := fmt.Sprintf("f%d", i)
		f := node{"type": "string", "maxLength": int64(10)}
		r := node{"rule": fmt.Sprintf("!has(self.%s) || self.%s.startsWith('x')", name, name), "messageExpression": fmt.Sprintf("'%s is wrong'", name)}
		if edit != nil {
			edit(f, r)
		}
		properties[name] = f
		rules = append(rules, r)
	}
	return node{"type": "object", "properties": properties, "x-kubernetes-validations": rules}
}

// sizes has pairs of schemas with n of each part, and the name and number of the findings
// about them.
var sizes = []struct {
	name     string
	old, new func(n int) node
	finding  string
	found    func(n int) int
}{
	{"defaults of fields that rules read", func(n int) node { return ruled(n, nil) },
		func(n int) node { return ruled(n, func(f, _ node) { f["default"] = "x" }) },
		"default-added", func(n int) int { return n }},
	{"new fields with defaults beside rules", func(n int) node { return ruled(n, nil) },
		func(n int) node {
			s := ruled(n, nil)
			for i := range n {
				s["properties"].(node)[fmt.Sprintf("g%d", i)] = node{"type": "string", "maxLength": int64(10), "default": "x"}
			}
			return s
		}, "field-added", func(n int) int { return n }},
	{"defaults that go", func(n int) node { return ruled(n, func(f, _ node) { f["default"] = "x" }) },
		func(n int) node {
			s := ruled(n, nil)
			s["required"] = []any{}
			for i := range n {
				s["required"] = append(s["required"].([]any), fmt.Sprintf("f%d", n-1-i))
			}
			return s
		}, "default-removed", func(n int) int { return n }},
	{"rules that go, and other ones with other messages", func(n int) node { return ruled(n, nil) },
		func(n int) node {
			return ruled(n, func(_, r node) {
				r["rule"] = strings.ReplaceAll(r["rule"].(string), "'x'", "'y'")
				r["messageExpression"] = strings.ReplaceAll(r["messageExpression"].(string), "wrong", "bad")
			})
		}, "rule-removed", func(n int) int { return n }},
}

// The work grows like the definition, not like its square: twice the fields and rules take
// about twice the allocations.
func TestLarge(t *testing.T) {
	for _, tt := range sizes {
		t.Run(tt.name, func(t *testing.T) {
			work := func(n int) float64 {
				old, new := definitionOf(tt.old(n)), definitionOf(tt.new(n))
				return testing.AllocsPerRun(1, func() {
					r, err := Compare(t.Context(), old, new, Options{})
					if err != nil {
						t.Fatal(err)
					}
					have := 0
					for _, f := range r.Findings {
						if f.Name == tt.finding {
							have++
						}
					}
					if want := tt.found(n); have != want {
						t.Fatalf("%d findings %s, want %d", have, tt.finding, want)
					}
				})
			}
			if small, big := work(100), work(200); big > 2.5*small {
				t.Errorf("%.0f allocations, and %.0f for twice as much", small, big)
			}
		})
	}
}

// Defaults are tried on many branches until that is too much. The rest of the findings are
// as if a branch refused the default.
func TestManyBranches(t *testing.T) {
	schema := func(n int, field func(f node)) map[string]any {
		s := ruled(n, func(f, _ node) { field(f) })
		delete(s, "x-kubernetes-validations")
		var all []any
		for i := range n {
			all = append(all, node{"required": []any{fmt.Sprintf("f%d", i)}})
		}
		s["allOf"] = all
		return definitionOf(s)
	}
	const n = 1500
	r, err := Compare(t.Context(), schema(n, func(node) {}), schema(n, func(f node) { f["default"] = "x" }), Options{})
	if err != nil {
		t.Fatal(err)
	}
	tried, rest := 0, 0
	for _, f := range r.Findings {
		switch {
		case f.Name != "default-added":
			t.Fatalf("finding %s", f)
		case strings.HasSuffix(f.Detail, "too many to try") && f.Breaks&StoredObjects != 0:
			rest++
		case f.Breaks&StoredObjects == 0:
			tried++
		default:
			t.Fatalf("finding %s", f)
		}
	}
	if tried == 0 || rest == 0 || tried+rest != n {
		t.Errorf("%d defaults were tried and %d were not, of %d", tried, rest, n)
	}
}

// alternatives returns a schema of n branches that exclude each other only by the last of
// some fields, for oneOf or anyOf. An earlier field has a maximum.
func alternatives(keyword string, n, fields int, maximum int64) map[string]any {
	properties := node{"a": node{"type": "integer", "maximum": maximum}, "z": node{"type": "string"}}
	checks, required := node{}, []any{"z"}
	for i := range fields {
		name := fmt.Sprintf("f%d", i)
		properties[name], checks[name] = node{"type": "string"}, node{}
		required = append(required, name)
	}
	var branches []any
	for i := range n {
		own := maps.Clone(checks)
		own["a"], own["z"] = node{"maximum": maximum}, node{"enum": []any{fmt.Sprint(i)}}
		branches = append(branches, node{"properties": own, "required": required})
	}
	return definitionOf(node{"type": "object", "properties": properties, keyword: branches})
}

// Branches of oneOf are compared with each other until that is too much. Then they are as if
// they did not exclude each other.
func TestManyAlternatives(t *testing.T) {
	for _, tt := range []struct {
		branches, fields int
		want             Severity
	}{{15, 100, Compatible}, {80, 200, Breaking}} {
		r, err := Compare(t.Context(), alternatives("oneOf", tt.branches, tt.fields, 5), alternatives("oneOf", tt.branches, tt.fields, 6), Options{})
		if err != nil || r.Severity != tt.want {
			t.Errorf("%d branches with %d fields: %s, want %s; error %v", tt.branches, tt.fields, r.Severity, tt.want, err)
		}
	}
}

// ending is a context that ends after it was asked a number of times.
type ending struct {
	context.Context
	left int
}

func (e *ending) Err() error {
	if e.left--; e.left < 0 {
		return context.Canceled
	}
	return nil
}

// A comparison ends with its context, wherever it is.
func TestCancelled(t *testing.T) {
	for _, tt := range sizes {
		for _, after := range []int{0, 1, 10, 100, 300} {
			ctx := &ending{t.Context(), after}
			r, err := Compare(ctx, definitionOf(tt.old(200)), definitionOf(tt.new(200)), Options{})
			if !errors.Is(err, context.Canceled) || len(r.Findings) > 0 {
				t.Errorf("%s, ended after %d: %d findings, error %v", tt.name, after, len(r.Findings), err)
			}
		}
	}
	// The branches have fewer places than pairs.
	for _, keyword := range []string{"oneOf", "anyOf"} {
		if _, err := Compare(&ending{t.Context(), 1500}, alternatives(keyword, 60, 1, 5), alternatives(keyword, 60, 1, 6), Options{}); !errors.Is(err, context.Canceled) {
			t.Errorf("comparing branches of %s with each other: %v", keyword, err)
		}
	}
	if _, err := CompareAll(&ending{t.Context(), 0}, Set{}, Set{{"CustomResourceDefinition", "a"}: definitionOf(node{"type": "object"})}); !errors.Is(err, context.Canceled) {
		t.Errorf("comparing sets: %v", err)
	}
}
