package pins

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/render/types"
)

func crd(plural, group, pkg string, versions ...string) string {
	var list []string
	for i, v := range versions {
		list = append(list, fmt.Sprintf("{name: %s, served: true, storage: %t, schema: {openAPIV3Schema: {type: object, properties: {%s: {type: string}}}}}", v, i == 0, v))
	}
	labels := ""
	if pkg != "" {
		labels = ", labels: {gitopsd.dev/package: " + pkg + "}"
	}
	return fmt.Sprintf("---\n{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: %s.%s%s}, spec: {group: %[2]s, scope: Namespaced, names: {kind: %[4]s, plural: %[1]s}, versions: [%[5]s]}}\n",
		plural, group, labels, strings.ToUpper(plural[:1])+plural[1:len(plural)-1], strings.Join(list, ", "))
}

const xrd = `---
apiVersion: apiextensions.crossplane.io/v1
kind: CompositeResourceDefinition
metadata: {name: xstores.acme.example, labels: {gitopsd.dev/package: stores}}
spec:
  group: acme.example
  names: {kind: XStore, plural: xstores}
  claimNames: {kind: Store, plural: stores}
  versions: [{name: v1, served: true, referenceable: true, schema: {openAPIV3Schema: {type: object}}}]
`

// Pins on Crossplane's own definitions are not enforced: on XRDs the annotation names a
// controller.
const ofXRDs = `---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: compositeresourcedefinitions.apiextensions.crossplane.io}
spec:
  group: apiextensions.crossplane.io
  scope: Cluster
  names: {kind: CompositeResourceDefinition, plural: compositeresourcedefinitions}
  versions: [{name: v2, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
`

func TestObjects(t *testing.T) {
	acting := &behaviour.Identity{Images: []behaviour.Part{{Name: "c", Value: "i"}}}
	of := func(o *manifest.Object) (*behaviour.Identity, error) {
		switch o.Label(manifest.PackageLabel) {
		case "widgets":
			return acting, nil
		case "":
			return nil, errors.New("there is no such Deployment")
		}
		return nil, nil
	}
	set := manifesttest.Set(t, strings.TrimPrefix(crd("widgets", "acme.example", "widgets", "v1", "v1beta1")+crd("sprockets", "b.acme.example", "widgets", "v1")+
		crd("plains", "acme.example", "", "v1")+crd("others", "acme.example", "", "v1")+xrd+ofXRDs, "---\n"))
	all, err := Objects(set, of)
	if err != nil {
		t.Fatal(err)
	}
	digests := make(map[string]string)
	for _, o := range set.All() {
		list, err := types.Of(o.Tree())
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range list {
			digests[v.Kind] = strings.TrimSpace(digests[v.Kind] + " " + v.Digest)
		}
	}
	data := make(map[string]string)
	groups := make(map[string]string)
	bindings := 0
	for _, o := range all {
		if !Of(o) || !Policy(o.ID().Name) {
			t.Errorf("%s is not known as one of ours", o.ID())
		}
		if o.ID().Is(manifest.ValidatingPolicyBinding) {
			bindings++
			if manifest.Text(o.Tree(), "spec", "policyName") != o.ID().Name {
				t.Errorf("%s is for another policy", o.ID())
			}
			continue
		}
		data[o.ID().Name] = dataOf(o)
		rules := manifest.List(o.Tree(), "spec", "matchConstraints", "resourceRules")
		groups[o.ID().Name] = strings.Join(manifest.Texts(rules[0].(map[string]any), "apiGroups"), " ")
		for _, definition := range set.All() {
			_, plain := strings.CutPrefix(o.ID().Name, name+"."+definition.ID().Name)
			if want := plain || o.Label(manifest.PackageLabel) != "" && o.Label(manifest.PackageLabel) == definition.Label(manifest.PackageLabel); Has(o, definition) != want {
				t.Errorf("%s has the digests of %s: %t", o.ID(), definition.ID(), !want)
			}
		}
	}
	if bindings != len(data) {
		t.Errorf("%d bindings of %d policies", bindings, len(data))
	}
	for name, want := range map[string][]string{
		"gitopsd-pins-widgets": {
			"controller.sprockets.b.acme.example", acting.Digest(), "controller.widgets.acme.example", acting.Digest(),
			"type.sprockets.b.acme.example", digests["Sprocket"], "type.widgets.acme.example", digests["Widget"],
		},
		"gitopsd-pins-stores":              {"type.stores.acme.example", digests["Store"], "type.xstores.acme.example", digests["XStore"]},
		"gitopsd-pins.plains.acme.example": {"type.plains.acme.example", digests["Plain"]},
		"gitopsd-pins.others.acme.example": {"type.others.acme.example", digests["Other"]},
	} {
		var lines []string
		for pair := range slices.Chunk(want, 2) {
			lines = append(lines, fmt.Sprintf("%q: %q", pair[0], pair[1]))
		}
		if text := "{\n" + strings.Join(lines, ",\n") + "\n}"; data[name] != text {
			t.Errorf("%s: %s, want %s", name, data[name], text)
		}
		delete(data, name)
	}
	if len(data) > 0 {
		t.Errorf("further policies: %v", data)
	}
	if have := fmt.Sprint(groups); have != "map[gitopsd-pins-stores:acme.example gitopsd-pins-widgets:acme.example b.acme.example gitopsd-pins.others.acme.example:acme.example gitopsd-pins.plains.acme.example:acme.example]" {
		t.Errorf("groups %s", have)
	}
	for _, o := range manifesttest.Objects(t, "{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicy, metadata: {name: gitopsd-pins-x, labels: {gitopsd.dev/pins: x}}}") {
		if Of(o) {
			t.Error("somebody's policy with our label is one of ours, and verify would not show it")
		}
	}
	again, err := Objects(set, of)
	if err != nil || !slices.EqualFunc(all, again, func(a, b *manifest.Object) bool { return a.Hash() == b.Hash() }) {
		t.Errorf("a second time it is something else: %v", err)
	}
}

// The largest packages have more types than fit into one policy. No other package's policy has the
// name of a further one.
func TestManyTypes(t *testing.T) {
	var text strings.Builder
	const n = 1500
	for i := range n {
		text.WriteString(crd(fmt.Sprintf("things%ds", i), "acme.example", "large", "v1"))
	}
	text.WriteString(crd("others", "acme.example", "2-large", "v1"))
	set := manifesttest.Set(t, strings.TrimPrefix(text.String(), "---\n"))
	all, err := Objects(set, func(*manifest.Object) (*behaviour.Identity, error) { return nil, nil })
	if err != nil {
		t.Fatal(err)
	}
	keys := 0
	var policies []string
	for _, o := range all {
		if !o.ID().Is(manifest.ValidatingPolicy) {
			continue
		}
		policies = append(policies, o.ID().Name)
		data := dataOf(o)
		keys += strings.Count(data, `"type.`)
		if len(data) > maxData+10 {
			t.Errorf("%s has %d bytes", o.ID(), len(data))
		}
	}
	if want := []string{"gitopsd-pins-2-large", "gitopsd-pins-large", "gitopsd-pins2-large"}; keys != n+1 || !slices.Equal(policies, want) {
		t.Errorf("%d types in %q, want %d in %q", keys, policies, n+1, want)
	}
}
