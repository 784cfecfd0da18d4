package preview

import (
	"fmt"
	"strings"
	"testing"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/render/types/harm"
)

// surveyed is a bump that was looked into: it harms objects of dev, and none of test, where
// a finding is not about objects. Nobody may list those of prod.
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

// The plan names harmed objects, and says why a change is refused that harms none. A comment
// folds the objects, and JSON has all of them.
func TestSurveys(t *testing.T) {
	t.Parallel()
	f := surveyed(t)
	var text, markdown, all strings.Builder
	if err := f.WriteText(&text, show.Options{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"harms 5 of 2112 objects in dev\n",
		"acme/a2 .spec.b would be dropped, owned by kubectl\n", "… 2 more objects\n",
		"harms nobody today in test (7 objects looked at), but field-removed is about v1, to which a webhook converts the objects\n",
		"maximum-added .a: written by app, whose next write counts\n",
		"prod: its effect on the objects is not known: the account may not list the objects\n",
	} {
		if strings.Count(text.String(), want) != 1 {
			t.Errorf("the text has no %q:\n%s", want, text.String())
		}
	}
	if strings.Contains(text.String(), "acme/a3") {
		t.Errorf("five objects are shown:\n%s", text.String())
	}
	if err := f.WriteMarkdown(&markdown); err != nil {
		t.Fatal(err)
	}
	shown, folded, _ := strings.Cut(markdown.String(), "<details>")
	if strings.Contains(shown, "acme/a0") || !strings.Contains(folded, "acme/a0 .spec.b would be dropped, owned by kubectl") {
		t.Errorf("the objects are not folded:\n%s", markdown.String())
	}
	if err := f.WriteJSON(&all); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"looked": 2112`, `"name": "a4"`, `"path": ".spec.b"`, `"cluster": "prod"`, `"unknown": "the account may not list the objects"`, `"writers": [`} {
		if !strings.Contains(all.String(), want) {
			t.Errorf("the JSON has no %s", want)
		}
	}
}
