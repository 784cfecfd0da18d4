package preview

import (
	"fmt"
	"strings"
	"testing"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/render/types/harm"
)

// surveyed returns a bump that harms objects of dev and none of test. A finding in test is about
// clients. Objects of prod may not be listed.
func surveyed(t *testing.T) *Fleet {
	f := bumped(t)
	harmed := &harm.Survey{Looked: 2112, Harmed: 5}
	for i := range 5 {
		harmed.Objects = append(harmed.Objects, harm.Object{
			Namespace: "acme", Name: fmt.Sprintf("a%d", i),
			Harms: []harm.Harm{{Kind: harm.Lost, Version: "v1", Path: ".spec.b", Owners: []string{"kubectl"}}},
		})
	}
	for i, s := range []*harm.Survey{
		harmed,
		{Looked: 7, Tolls: []harm.Toll{
			{Name: "field-removed", Version: "v1", Path: ".b", Unjudged: "is about v1, to which a webhook converts the objects"},
			{Name: "maximum-added", Version: "v1", Path: ".a", Writers: []string{"app"}},
		}},
		{Unknown: "the account may not list the objects"},
	} {
		for n := range f.Clusters[i].Plan.Steps {
			if step := &f.Clusters[i].Plan.Steps[n]; step.ID.Name == "things0.acme.example" {
				step.Survey = s
			}
		}
	}
	return f
}

// The plan names harmed objects, and says why a change that harms none is refused. A comment folds
// the objects, and JSON has all of them.
func TestSurveys(t *testing.T) {
	t.Parallel()
	f := surveyed(t)
	text := textOf(t, f, show.Options{})
	for _, want := range []string{
		"harms 5 of 2112 objects in dev\n",
		"acme/a2 .spec.b would be dropped, owned by kubectl\n", "… 2 more objects\n",
		"harms nobody today in test (7 objects looked at), but field-removed is about v1, to which a webhook converts the objects\n",
		"maximum-added .a: written by app, whose next write counts\n",
		"prod: its effect on the objects is not known: the account may not list the objects\n",
	} {
		if strings.Count(text, want) != 1 {
			t.Errorf("the text has no %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "acme/a3") {
		t.Errorf("five objects are shown:\n%s", text)
	}
	markdown := markdownOf(t, f)
	shown, folded, _ := strings.Cut(markdown, "<details>")
	if strings.Contains(shown, "acme/a0") || !strings.Contains(folded, "acme/a0 .spec.b would be dropped, owned by kubectl") {
		t.Errorf("the objects are not folded:\n%s", markdown)
	}
	all := jsonOf(t, f)
	for _, want := range []string{`"looked": 2112`, `"name": "a4"`, `"path": ".spec.b"`, `"cluster": "prod"`, `"unknown": "the account may not list the objects"`, `"writers": [`} {
		if !strings.Contains(all, want) {
			t.Errorf("the JSON has no %s", want)
		}
	}
	if have, want := unharmedIn([]string{"test"}, 0, []string{"version-removed"}, nil), "harms no object in test: there are no objects, but clients: version-removed"; have != want {
		t.Errorf("%q, want %q", have, want)
	}
}
