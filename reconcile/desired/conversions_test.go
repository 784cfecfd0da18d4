package desired

import (
	"strings"
	"testing"

	"gitopsd.dev/render/manifest"
)

const converted = `---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.acme.example}
spec:
  group: acme.example
  scope: Cluster
  names: {kind: Thing, plural: things}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {old: {type: string}}}}}
  - {name: v2, served: true, storage: false, schema: {openAPIV3Schema: {type: object, properties: {new: {type: string}}}}}
---
apiVersion: apis.kcp.dev/v1alpha1
kind: APIConversionRules
metadata: {name: things.acme.example}
spec:
  conversions:
  - {from: v1, to: v2, rules: [{from: v1.old, to: new}]}
  - {from: v2, to: v1, rules: [{from: v2.new, to: old}]}
`

// The lock has the rules of every cluster: as they are rendered, or as they were where
// that cannot be told.
func TestConversionsInLock(t *testing.T) {
	var fetched int
	registry := strings.ReplaceAll(cluster("dev")+cluster("prod"), "spec: {", "spec: {conversion: {url: 'https://gitopsd.example.org'}, ")
	c := New(Config{Resolve: shelf(&fetched)})
	lock := func(registry, dev, prod, before string) (*State, string) {
		t.Helper()
		s, err := c.Compute(t.Context(), files{"clusters.yaml": registry, "c/dev/a.yaml": dev, "c/prod/a.yaml": prod, "clusters.lock": before}.commit(), Earlier{})
		if err != nil {
			t.Fatal(err)
		}
		return s, string(s.Lock.Format())
	}
	s, first := lock(registry, converted, configMap+converted, "")
	v := s.Get("dev").Conversions["things.acme.example"]
	if v == nil || v.Set.Digest() != s.Get("prod").Conversions["things.acme.example"].Set.Digest() || !s.Get("dev").Complete() {
		t.Fatalf("conversions %v, problems %v", s.Get("dev").Conversions, s.Problems())
	}
	digest := v.Set.Digest()
	if want := "@dev things.acme.example conversion " + digest + "\n@prod things.acme.example conversion " + digest + "\n"; first != want {
		t.Fatalf("have\n%s\nwant\n%s", first, want)
	}
	if s, again := lock(registry, converted, configMap+converted, first); again != first || s.LockChanged() {
		t.Errorf("computed again\n%s", again)
	}
	other := strings.Replace(converted, "to: new}", "to: new}, {from: 'v1.old == null ? \"x\" : \"y\"', to: new}", 1)
	for _, tt := range []struct{ name, registry, dev, before, want string }{
		{"another digest in the lock", registry, converted, strings.Replace(first, digest, "h1:"+strings.Repeat("A", 43)+"=", 1), first},
		{"two lines that a merge left", registry, converted, first + "@dev things.acme.example conversion h1:" + strings.Repeat("A", 43) + "=\n", first},
		{"rules with errors", registry, other, first, first},
		{"a definition with errors", registry, converted + converted[:strings.Index(converted, "---\napiVersion: apis")], first, first},
		{"a cluster that does not build", registry, "a: [", first, first},
		{"no rules", registry, configMap, first, strings.SplitAfter(first, "\n")[1]},
		{"a directory that renders nothing", registry, "", first, first},
		{"a package that is missing", registry, configMap + configuration("a", "reg.io/a:missing"), first, first},
		{"a cluster to be emptied", strings.Replace(registry, "name: dev", "name: dev, annotations: {gitopsd.dev/remove: dev}", 1), converted, first, strings.SplitAfter(first, "\n")[1]},
		{"a cluster that left", registry[strings.LastIndex(registry, "---"):], converted, first, strings.SplitAfter(first, "\n")[1]},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, have := lock(tt.registry, tt.dev, configMap+converted, tt.before)
			if have != tt.want {
				t.Errorf("have\n%s\nwant\n%s\n%v", have, tt.want, s.Problems())
			}
		})
	}
	s, _ = lock(cluster("dev"), converted, "", "")
	id := manifest.CRD.ID("", "things.acme.example")
	if d := s.Get("dev"); d.Objects.Get(id) != nil || !d.Keeps(id, "") || len(d.Faults) != 1 || d.Faults[0].Object != id.String() || !strings.Contains(d.Faults[0].Reason, "spec.conversion") {
		t.Errorf("without a server: %v", s.Get("dev").Faults)
	}
}
