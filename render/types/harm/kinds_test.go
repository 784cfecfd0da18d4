package harm_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"gitopsd.dev/render/conversion"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/render/types/compat"
	"gitopsd.dev/render/types/harm"
	"gitopsd.dev/render/validate"
)

// A manager that has not written an object of the type for long is not live. A manager
// without a known time is live.
func TestLive(t *testing.T) {
	now := time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
	written := func(name, manager, when string) string {
		text := strings.Replace(thing(name, "{size: 1}", `{"f:spec": {"f:size": {}}}`), "manager: kubectl", "manager: "+manager, 1)
		if when != "" {
			text = strings.Replace(text, "operation: Update", "operation: Update, time: '"+when+"'", 1)
		}
		return text
	}
	const old, recent = "2025-01-01T00:00:00Z", "2026-05-01T00:00:00Z"
	for _, tt := range []struct {
		name    string
		now     time.Time
		objects []string
		want    string
	}{
		{"live", now, []string{written("a", "app", recent)}, "maximum-added .spec.size: written by app, whose next write counts"},
		{"gone", now, []string{written("a", "app", old)}, "maximum-added .spec.size: written by app, not for 90 days"},
		{"both", now, []string{written("a", "left", old), written("b", "app", recent)}, "maximum-added .spec.size: written by app, whose next write counts, and by left, not for 90 days"},
		{"it wrote another object since", now, []string{written("a", "app", recent), written("b", "app", old)}, "maximum-added .spec.size: written by app, whose next write counts"},
		{"later", now, []string{written("a", "app", old), written("b", "app", recent)}, "maximum-added .spec.size: written by app, whose next write counts"},
		{"not known", now, []string{written("a", "app", "")}, "maximum-added .spec.size: written by app, whose next write counts"},
		{"garbled", now, []string{written("a", "app", old), written("b", "app", "yesterday")}, "maximum-added .spec.size: written by app, whose next write counts"},
		{"no clock", time.Time{}, []string{written("a", "app", old)}, "maximum-added .spec.size: written by app, whose next write counts"},
	} {
		judges, findings := compared(t, definition("{type: object, properties: {size: {type: integer}}}"), definition("{type: object, properties: {size: {type: integer, maximum: 3}}}"), harm.Options{Now: tt.now})
		look(t, judges[0], harm.Fate{}, tt.objects...)
		s := judges[0].Done(nil)
		if have := strings.Join(s.Warnings(), "; "); have != tt.want || !s.Clears(findings[0], false) {
			t.Errorf("%s: %q, want %q", tt.name, have, tt.want)
		}
	}
}

// composite returns an XRD with a schema for the spec of its composites and claims.
func composite(spec string) string {
	return `
apiVersion: apiextensions.crossplane.io/v1
kind: CompositeResourceDefinition
metadata: {name: xthings.example.org}
spec:
  group: example.org
  names: {kind: XThing, plural: xthings}
  claimNames: {kind: Thing, plural: things}
  versions:
  - {name: v1, served: true, referenceable: true, schema: {openAPIV3Schema: {type: object, properties: {spec: ` + spec + `, status: {type: object, properties: {address: {type: string}}}}}}}
`
}

// Composites and claims are judged by the types that Crossplane makes of their definition,
// with the fields that it adds itself.
func TestComposites(t *testing.T) {
	const wide, narrow = "{type: object, properties: {size: {type: integer}, colour: {type: string}}}", "{type: object, properties: {size: {type: integer, maximum: 3}}}"
	xr := func(name, spec string) string {
		return "{apiVersion: example.org/v1, kind: XThing, metadata: {name: " + name + "}, spec: " + spec + ", status: {address: a, conditions: [{type: Ready}]}}"
	}
	sum := func(judges []*harm.Judge, composites, claims []string) *harm.Survey {
		t.Helper()
		if len(judges) != 2 || judges[0].Kind() != "XThing" || judges[0].Namespaced() || judges[1].Plural() != "things" || !judges[1].Namespaced() {
			t.Fatalf("%d judges", len(judges))
		}
		look(t, judges[0], harm.Fate{}, composites...)
		look(t, judges[1], harm.Fate{}, claims...)
		return harm.Sum([]*harm.Survey{judges[0].Done(nil), judges[1].Done(nil)})
	}
	clears := func(s *harm.Survey, findings []compat.Finding) (n int) {
		for _, f := range findings {
			if s.Clears(f, false) {
				n++
			}
		}
		return n
	}
	judges, findings := compared(t, composite(wide), composite(narrow), harm.Options{})
	s := sum(judges, []string{xr("a", "{size: 1, resourceRefs: [{name: r}], claimRef: {name: c}}"), xr("b", "{size: 9}")}, []string{thing("c", "{size: 2, colour: red}", `{"f:spec": {"f:colour": {}}}`)})
	const want = "harms 2 of 3 objects: XThing b .spec.size is not valid any more: should be less than or equal to 3; Thing default/c .spec.colour would be dropped, owned by kubectl"
	if have := s.Text(5); have != want || clears(s, findings) != 0 {
		t.Errorf("%d cleared: %s", clears(s, findings), have)
	}
	judges, findings = compared(t, composite(wide), composite(narrow), harm.Options{})
	s = sum(judges, []string{xr("a", "{size: 1, resourceRefs: [{name: r}]}")}, []string{thing("c", "{size: 2, resourceRef: {name: a}}", "")})
	if have := s.Text(5); have != "harms nobody today (2 objects looked at)" || clears(s, findings) != len(findings) {
		t.Errorf("%d of %d cleared: %s", clears(s, findings), len(findings), have)
	}

	// Names may be shorter than Crossplane allows, but not longer.
	for n, want := range map[int]string{5: "harms 2 of 2 objects: XThing a-long-name .metadata.name is not valid any more: may not be more than 5 bytes; " +
		"Thing default/a-long-name .metadata.name is not valid any more: may not be more than 5 bytes", 90: "harms nobody today (2 objects looked at)"} {
		shorter := strings.Replace(composite(wide), "properties: {spec:", fmt.Sprintf("properties: {metadata: {type: object, properties: {name: {type: string, maxLength: %d}}}, spec:", n), 1)
		judges, _ = compared(t, composite(wide), shorter, harm.Options{})
		s = sum(judges, []string{xr("a-long-name", "{}")}, []string{thing("a-long-name", "{}", "")})
		if have := s.Text(5); have != want {
			t.Errorf("names of %d: %s", n, have)
		}
	}

	// A field of the status is removed.
	judges, _ = compared(t, composite(wide), strings.Replace(composite(wide), "{address: {type: string}}", "{}", 1), harm.Options{})
	s = sum(judges, []string{xr("a", "{}")}, nil)
	if have := s.Text(5); have != "harms 1 of 1 object: XThing a .status.address would be dropped" {
		t.Error(have)
	}

	// Claims that are no longer offered are deleted, and so are the objects of a removed
	// definition.
	judges, _ = compared(t, composite(wide), strings.Replace(composite(wide), "  claimNames: {kind: Thing, plural: things}\n", "", 1), harm.Options{})
	s = sum(judges, []string{xr("a", "{}")}, []string{thing("c", "{}", "")})
	if have := s.Text(5); have != "harms 1 of 2 objects: Thing default/c would be deleted with its type" {
		t.Error(have)
	}
	judges, _ = compared(t, composite(wide), "", harm.Options{})
	s = sum(judges, []string{xr("a", "{}")}, []string{thing("c", "{}", "")})
	if have := s.Text(5); have != "harms 2 of 2 objects: XThing a would be deleted with its type; Thing default/c would be deleted with its type" {
		t.Error(have)
	}

	// Objects that Crossplane may have stored in another version do not show.
	two := strings.Replace(composite(wide), "  versions:\n", "  versions:\n  - {name: v2, served: true, referenceable: false, schema: {openAPIV3Schema: {type: object, properties: {spec: "+wide+"}}}}\n", 1)
	less := strings.Replace(composite(wide), "  versions:\n", "  versions:\n  - {name: v2, served: true, referenceable: false, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer}}}}}}}\n", 1)
	for stored, want := range map[string]bool{"v1": true, "v2": false} {
		judges, findings = compared(t, two, less, harm.Options{Stored: map[string][]string{"xthings": {stored}, "things": {"v1"}}})
		s = sum(judges, []string{xr("a", "{size: 1}")}, nil)
		for _, f := range findings {
			if f.Version == "v2" && s.Clears(f, false) != want {
				t.Errorf("stored in %s: %s is cleared: %v", stored, f, !want)
			}
		}
	}
}

// If conversion rules convert, the objects are read in every version that findings are
// about.
func TestConversionRules(t *testing.T) {
	crd := func(v1, v2 string) string {
		return `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.org}
spec:
  group: example.org
  scope: Namespaced
  names: {kind: Thing, plural: things}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: ` + v1 + `}}}}}
  - {name: v2, served: true, storage: false, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: ` + v2 + `}}}}}
  conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1], clientConfig: {url: 'https://example.org'}}}
`
	}
	const title, name, extra = "{title: {type: string}}", "{name: {type: string}, extra: {type: string}}", "{name: {type: string, maxLength: 5}}"
	old, now := crd(title, name), crd(title, extra)
	set, err := conversion.Compile(manifesttest.Tree(t, now), []conversion.Document{{Tree: manifesttest.Tree(t, `
apiVersion: apis.kcp.dev/v1alpha1
kind: APIConversionRules
metadata: {name: things.example.org}
spec:
  conversions:
  - {from: v1, to: v2, rules: [{from: v1.spec.title, to: spec.name}]}
  - {from: v2, to: v1, rules: [{from: v2.spec.name, to: spec.title}]}
`)}})
	if err != nil {
		t.Fatal(err)
	}
	rules := harm.Options{Convert: func(object map[string]any, to string) (map[string]any, error) {
		converted, _, err := set.Convert(object, to)
		if err != nil {
			return nil, err
		}
		return validate.Decoded(converted)
	}}
	v2 := func(name, spec, fields string) string {
		return strings.ReplaceAll(thing(name, spec, fields), "example.org/v1", "example.org/v2")
	}
	cleared := func(s *harm.Survey, findings []compat.Finding) string {
		var names []string
		for _, f := range findings {
			if s.Clears(f, false) {
				names = append(names, f.Name)
			}
		}
		return strings.Join(names, " ")
	}
	for _, tt := range []struct {
		name            string
		opts            harm.Options
		first, second   []string // as they are listed in v1 and v2
		versions        string
		harmed, cleared string
	}{
		{
			"nobody is harmed", rules,
			[]string{thing("a", "{title: a}", "")}, []string{v2("a", "{name: a}", "")},
			"v1 v2", "harms nobody today (1 object looked at)", "field-removed max-length-added",
		},
		{
			"what v2 alone shows goes", rules,
			[]string{thing("a", "{title: a}", "")}, []string{v2("a", "{name: a, extra: red}", `{"f:spec": {"f:extra": {}}}`)},
			"v1 v2", "harms 1 of 1 object: default/a .spec.extra would be dropped, owned by kubectl", "max-length-added",
		},
		{
			"what the rules make is not valid", rules,
			[]string{thing("a", "{title: hunter2}", "")}, []string{v2("a", "{name: hunter2}", "")},
			"v1 v2", "harms 1 of 1 object: default/a .spec.name is not valid any more: may not be more than 5 bytes", "field-removed",
		},
		{
			"both, in one object", rules,
			[]string{thing("a", "{title: hunter2}", "")}, []string{v2("a", "{name: hunter2, extra: red}", "")},
			"v1 v2", "harms 1 of 1 object: default/a .spec.name is not valid any more: may not be more than 5 bytes, and 1 more", "",
		},
		{
			"only v1 was read", rules,
			[]string{thing("a", "{title: a}", "")}, nil,
			"v1 v2", "harms nobody today (1 object looked at), but field-removed is about v2, in which the objects were not read; max-length-added is about v2, in which the objects were not read", "",
		},
	} {
		judges, findings := compared(t, old, now, tt.opts)
		j := judges[0]
		if have := strings.Join(j.Versions(), " "); have != tt.versions {
			t.Errorf("%s: listed in %s", tt.name, have)
		}
		for range 2 { // the list starts over
			j.Restart()
			look(t, j, harm.Fate{}, tt.first...)
		}
		if tt.second != nil {
			j.Begin("v2")
			for range 2 {
				j.Restart()
				look(t, j, harm.Fate{}, tt.second...)
			}
		}
		s := j.Done(nil)
		if have := s.Text(5); have != tt.harmed {
			t.Errorf("%s: %s", tt.name, have)
		}
		if have := cleared(s, findings); have != tt.cleared {
			t.Errorf("%s: %q is cleared", tt.name, have)
		}
	}

	// Versions without conversion rules, and versions that objects may be stored in, are not
	// judged.
	for name, tt := range map[string]struct {
		old  string
		opts harm.Options
	}{
		"a webhook":            {old, harm.Options{}},
		"stored in v2 as well": {old + "status: {storedVersions: [v1, v2]}\n", rules},
	} {
		judges, findings := compared(t, tt.old, now, tt.opts)
		j := judges[0]
		listed := j.Versions()
		object := thing("a", "{title: a}", "")
		if listed[0] == "v2" {
			object = v2("a", "{name: a}", "")
		}
		look(t, j, harm.Fate{}, object)
		if s := j.Done(nil); len(listed) != 1 || listed[0] == "v1" && cleared(s, findings) != "" {
			t.Errorf("%s: listed in %s, cleared %s: %s", name, listed, cleared(s, findings), s.Text(5))
		}
	}
}
