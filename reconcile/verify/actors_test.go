package verify

import (
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/render/manifest"
)

// A workload is reported once for all types that it may write, of whatever package, and
// for all clusters in which it runs.
func TestSecondActors(t *testing.T) {
	all := fleet("dev", "prod", "staging")
	actor := []Actor{{What: "Deployment a/b as ServiceAccount a/c", By: "ClusterRoleBinding d"}}
	for i := range all {
		all[i].Definitions[definitionID("Gadget")].Package = "gadgets"
	}
	for _, i := range []int{1, 2} {
		all[i].Actors = &Actors{
			Second: map[manifest.ID][]Actor{definitionID("Widget"): actor, definitionID("Gadget"): actor},
			Known:  map[string]int{"Deployment x/y": 2}, Everything: []string{"Deployment e/f"}, Idle: []string{"a/gone"},
		}
	}
	r := Compare(t.Context(), all, options)
	if len(r.Findings) != 1 {
		t.Fatalf("findings %+v", r.Findings)
	}
	f := r.Findings[0]
	have := append([]string{f.Title(), f.Sides[0].What}, f.Details...)
	have = append(have, r.Notes...)
	want := []string{
		"2 types: a workload that nobody declared may write them in prod and staging",
		"Deployment a/b as ServiceAccount a/c",
		"prod: by ClusterRoleBinding d",
		"staging: by ClusterRoleBinding d",
		"prod and staging: annotation gitopsd.dev/actors names what no workload runs as: a/gone",
		"prod and staging: known to write types beside their controllers: Deployment x/y (2 types)",
		"prod and staging: left out of second actors: 1 workload that may write everything (Deployment e/f)",
	}
	if !slices.Equal(have, want) {
		t.Errorf("have\n%s\nwant\n%s", strings.Join(have, "\n"), strings.Join(want, "\n"))
	}
}

func TestParseActors(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"", ""},
		{"a/b", "a/b"},
		{" a/b,c/d ,", "a/b c/d"},
		{"a", "error"}, {"a/", "error"}, {"/b", "error"}, {"a/b/c", "error"},
	} {
		all, err := ParseActors(tt.text)
		have := strings.Join(all, " ")
		if err != nil {
			have = "error"
		}
		if have != tt.want {
			t.Errorf("%q: %q, %v, want %q", tt.text, have, err, tt.want)
		}
	}
}
