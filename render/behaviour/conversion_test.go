package behaviour

import (
	"fmt"
	"strings"
	"testing"

	"gitopsd.dev/render/conversion"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
)

// Conversion rules are part of the identity, with or without a controller, if the
// definition has their webhook.
func TestConversionRules(t *testing.T) {
	const one, two = "h1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", "h1:AQECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
	of := func(annotations, address string) *Identity {
		t.Helper()
		set := manifesttest.Set(t, fmt.Sprintf(`apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: as.example.org, annotations: {%s}}
spec:
  group: example.org
  names: {kind: A, plural: as}
  conversion: {strategy: Webhook, webhook: {clientConfig: {url: 'https://example.org%s'}}}
`, annotations, address)+"---\n"+strings.TrimPrefix(workload("Deployment", "team", "ctl", "x"), "---\n"))
		i, err := NewIndex(set, nil).Of(set.Get(manifest.CRD.ID("", "as.example.org")))
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	with := func(digest string) string { return "gitopsd.dev/conversion: '" + digest + "'" }
	path := func(digest string) string { return conversion.Path("dev", "as.example.org", digest) }
	const controller = ", gitopsd.dev/controller: team/ctl"
	if i := of(with(one), path(two)); i != nil {
		t.Errorf("a copied annotation counts: %v", i)
	}
	if i := of("a: b", path(one)); i != nil {
		t.Errorf("an address counts without the annotation: %v", i)
	}
	alone, other := of(with(one), path(one)), of(with(two), path(two))
	if alone == nil || other == nil || alone.Digest() == other.Digest() || alone.String() != "conversion rules" {
		t.Fatalf("rules alone are %v and %v", alone, other)
	}
	if have, want := Summary(Differences(alone, other), 3), "conversion as.example.org: h1:AAECAwQFBgcI -> h1:AQECAwQFBgcI"; have != want {
		t.Errorf("they differ in %q, want %q", have, want)
	}
	plain, converted := of("a: b"+controller, path(one)), of(with(one)+controller, path(one))
	if plain.Digest() == converted.Digest() || converted.String() != plain.String() || len(plain.Conversion) > 0 {
		t.Errorf("with a controller they are %v and %v", plain, converted)
	}
}
