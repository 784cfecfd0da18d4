package behaviour

import (
	"fmt"
	"strings"
	"testing"

	"gitopsd.dev/render/manifest/manifesttest"
)

func TestDifferences(t *testing.T) {
	a, b := "sha256:"+strings.Repeat("a", 64), "sha256:"+strings.Repeat("b", 64)
	for _, tt := range []struct {
		name        string
		before, now Identity
		want        string
	}{
		{"nothing", Identity{Images: []Part{{"c", a}}}, Identity{Images: []Part{{"c", a}}}, ""},
		{"an image", Identity{Images: []Part{{"c", a}}}, Identity{Images: []Part{{"c", b}}}, "image c: sha256:aaaaaaaaaaaa -> sha256:bbbbbbbbbbbb"},
		{"a container more", Identity{}, Identity{Images: []Part{{"c", "x:v1"}}}, "image c added: x:v1"},
		{"a container less", Identity{Images: []Part{{"c", "x:v1"}}}, Identity{}, "image c removed: x:v1"},
		{
			"settings, whose values are not shown",
			Identity{Settings: []Part{{"c argument --a", a}, {"c argument --b", a}, {"c argument --d", a}}},
			Identity{Settings: []Part{{"c argument --a", b}, {"c argument --c", a}, {"c argument --d", b}}},
			"setting c argument --a, c argument --b removed, 2 more",
		},
		{
			"what is behind an XRD",
			Identity{Compositions: []Part{{"small", "h1:x"}}, Functions: []Part{{"patch", a}}},
			Identity{Compositions: []Part{{"small", "h1:y"}}, Functions: []Part{{"patch", ""}}},
			"composition small; function patch: sha256:aaaaaaaaaaaa -> not declared",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			all := Differences(&tt.before, &tt.now)
			if have := Summary(all, 2); have != tt.want {
				t.Errorf("have %q, want %q", have, tt.want)
			}
			if (len(all) == 0) != (tt.before.Digest() == tt.now.Digest()) {
				t.Error("the digests say otherwise")
			}
			if strings.Contains(fmt.Sprint(all), "h1:") {
				t.Errorf("%v shows a hash of a value", all)
			}
		})
	}
}

// The annotation names the controller of a definition, and pins other objects.
func TestPin(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"{apiVersion: acme.example/v1, kind: Widget, metadata: {name: w, annotations: {gitopsd.dev/controller: h1:x}}}", "h1:x"},
		{"{apiVersion: acme.example/v1, kind: Widget, metadata: {name: w}}", ""},
		{"{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: w, annotations: {gitopsd.dev/controller: team/ctl}}}", ""},
		{"{apiVersion: apiextensions.crossplane.io/v2, kind: CompositeResourceDefinition, metadata: {name: w, annotations: {gitopsd.dev/controller: team/ctl}}}", ""},
	} {
		if have := Pin(manifesttest.Set(t, tt.in+"\n").All()[0]); have != tt.want {
			t.Errorf("%s: %q, want %q", tt.in, have, tt.want)
		}
	}
}
