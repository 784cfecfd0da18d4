package apply_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/pins"
	"gitopsd.dev/render/types"
)

// parcels has two served versions and no status subresource.
const parcels = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: parcels.$NAME.example.org, labels: {gitopsd.dev/package: $NAME}}
spec:
  group: $NAME.example.org
  scope: Cluster
  names: {kind: Parcel, plural: parcels}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {a: {type: integer}}}, other: {type: string}, status: {type: object, properties: {a: {type: integer}}}}}}}
  - {name: v1beta1, served: true, storage: false, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {a: {type: integer}}}, other: {type: string}, status: {type: object, properties: {a: {type: integer}}}}}}}
`

// enforced is a set with the policies for its types; a package's controller is run of
// its name.
func (b *bed) enforced(text string) *manifest.Set {
	b.t.Helper()
	set := b.set(text)
	more, err := pins.Objects(set, func(o *manifest.Object) (*behaviour.Identity, error) {
		return &behaviour.Identity{Images: []behaviour.Part{{Name: "c", Value: o.Label(manifest.PackageLabel)}}}, nil
	})
	if err != nil {
		b.t.Fatal(err)
	}
	all, _ := manifest.NewSet(append(more, set.All()...))
	return all
}

// The API server refuses objects that are pinned to something else, but not a
// controller's changes to objects that were pinned before.
func TestPinsAreEnforced(t *testing.T) {
	b := newBed(t)
	digests := func(text string) map[string]string {
		all, err := types.Of(b.set(text).All()[0].Tree())
		if err != nil {
			t.Fatal(err)
		}
		m := make(map[string]string)
		for _, v := range all {
			m[v.Version] = v.Digest
		}
		return m
	}
	now := digests(parcels)
	changed := strings.ReplaceAll(parcels, "other: {type: string}", "other: {type: string}, more: {type: string}")
	next := digests(changed)
	parcel := func(name, annotations, rest string) string {
		return fmt.Sprintf("{apiVersion: $NAME.example.org/v1, kind: Parcel, metadata: {name: %s, annotations: {%s}}%s}", name, annotations, rest)
	}
	pinned := func(digest string) string { return "gitopsd.dev/type: '" + digest + "'" }
	acting := (&behaviour.Identity{Images: []behaviour.Part{{Name: "c", Value: b.name}}}).Digest()
	behind := func(digest string) string { return "gitopsd.dev/controller: '" + digest + "'" }
	create := func(object string) int {
		o := b.set(object).All()[0]
		code, answer := b.send(http.MethodPatch, o, "", "fieldManager=somebody&force=true", "application/apply-patch+yaml", o.AppendJSON(nil))
		if code >= 400 && !strings.Contains(fmt.Sprint(answer["message"]), "ValidatingAdmissionPolicy 'gitopsd-pins-"+b.name+"'") {
			t.Fatalf("%s: %v", object, answer["message"])
		}
		return code
	}
	edit := func(name, patch string) int {
		code, answer := b.send(http.MethodPatch, b.set(parcel(name, "", "")).All()[0], "", "fieldManager=somebody", "application/merge-patch+json", []byte(patch))
		if code >= 400 && !strings.Contains(fmt.Sprint(answer["message"]), "denied request: it is pinned to another") {
			t.Fatalf("%s: %v", patch, answer["message"])
		}
		return code
	}

	set := b.enforced(parcels)
	b.applied(set)
	eventually(t, "pins are enforced", func(context.Context) bool {
		o := b.set(parcel("probe", pinned(next["v1"]), "")).All()[0]
		code, _ := b.send(http.MethodPatch, o, "", "fieldManager=somebody&dryRun=All", "application/apply-patch+yaml", o.AppendJSON(nil))
		return code == http.StatusUnprocessableEntity
	})
	const created, refused, fine = http.StatusCreated, http.StatusUnprocessableEntity, http.StatusOK
	for _, tt := range []struct {
		name, annotations string
		want              int
	}{
		{"none", "", created},
		{"other-annotations", "a: b", created},
		{"right", pinned(now["v1"]), created},
		{"other-version", pinned(now["v1beta1"]), created},
		{"both", pinned(now["v1"]) + ", " + behind(acting), created},
		{"wrong", pinned(next["v1"]), refused},
		{"empty", pinned(""), refused},
		{"both-at-once", pinned(now["v1"] + " " + now["v1beta1"]), refused},
		{"wrong-controller", behind(now["v1"]), refused},
		{"one-wrong", pinned(now["v1"]) + ", " + behind(next["v1"]), refused},
	} {
		if have := create(parcel(tt.name, tt.annotations, ", spec: {a: 1}, status: {a: 1}")); have != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, have, tt.want)
		}
	}

	// The type changes, and objects stay that are pinned to it as it was.
	set = b.enforced(changed)
	steps, results := b.apply(set)
	b.want("steps", steps, "configure customresourcedefinition.apiextensions.k8s.io/parcels.$NAME.example.org changed in the repository", "configure validatingadmissionpolicy.admissionregistration.k8s.io/gitopsd-pins-$NAME changed in the repository")
	b.wantNothing("results", results)
	own := b.enforced(changed + "---\n" + parcel("own", pinned(next["v1"]), ""))
	steps, results = b.apply(own)
	b.want("steps", steps, "create parcel.$NAME.example.org/own")
	b.wantNothing("results", results)
	for _, tt := range []struct {
		object, patch string
		want          int
	}{
		{"right", `{"metadata":{"finalizers":["acme.example/wait"]}}`, fine},
		{"right", `{"metadata":{"annotations":{"a":"b"}}}`, fine},
		{"right", `{"status":{"a":2}}`, fine},
		{"right", `{"spec":{"a":2}}`, refused},
		{"right", `{"spec":null}`, refused},
		{"right", `{"other":"b"}`, refused},
		{"right", `{"metadata":{"annotations":{"gitopsd.dev/controller":"h1:x"}}}`, refused},
		{"right", `{"metadata":{"annotations":{"gitopsd.dev/type":"` + next["v1"] + `"}},"spec":{"a":2}}`, fine},
		{"other-version", `{"metadata":{"annotations":{"gitopsd.dev/type":null}},"spec":{"a":2}}`, fine},
		{"none", `{"spec":{"a":2}}`, fine},
		{"both", `{"metadata":{"finalizers":["acme.example/wait"]}}`, fine},
	} {
		if have := edit(tt.object, tt.patch); have != tt.want {
			t.Errorf("%s: %s: %d, want %d", tt.object, tt.patch, have, tt.want)
		}
	}
	// Whoever finishes a deletion may change anything.
	b.delete(parcel("both", "", ""))
	for _, patch := range []string{`{"spec":{"a":3}}`, `{"metadata":{"finalizers":null}}`} {
		if have := edit("both", patch); have != fine {
			t.Errorf("of an object that is being deleted: %s: %d", patch, have)
		}
	}
	if b.get(parcel("both", "", "")) != nil {
		t.Error("it cannot be deleted")
	}

	// Without the setting, everything is as before.
	_, results = b.apply(b.set(changed + "---\n" + parcel("own", pinned(next["v1"]), "")))
	b.wantNothing("results", results)
	eventually(t, "pins are not enforced", func(context.Context) bool {
		o := b.set(parcel("probe", pinned(now["v1"]), "")).All()[0]
		code, _ := b.send(http.MethodPatch, o, "", "fieldManager=somebody&dryRun=All", "application/apply-patch+yaml", o.AppendJSON(nil))
		return code == created
	})
}

// Somebody else's digests are not waited for once for each object.
func TestPinsToOtherDigests(t *testing.T) {
	b := newBed(t)
	_, results := b.apply(b.enforced(parcels))
	b.wantNothing("results", results)
	others := strings.NewReplacer("gitopsd.dev/package: $NAME", "gitopsd.dev/package: $NAME-other", "other: {type: string}", "another: {type: string}")
	for _, o := range b.enforced(others.Replace(parcels)).All() {
		if pins.Of(o) {
			b.as("somebody", string(o.AppendJSON(nil)))
		}
	}
	changed := strings.ReplaceAll(parcels, "other: {type: string}", "other: {type: string}, more: {type: string}")
	before, err := types.Of(b.set(parcels).All()[0].Tree())
	if err != nil {
		t.Fatal(err)
	}
	all, err := types.Of(b.set(changed).All()[0].Tree())
	if err != nil {
		t.Fatal(err)
	}
	var code int
	var answer map[string]any
	t.Cleanup(func() {
		if t.Failed() {
			t.Log("the last answer:", code, answer)
		}
	})
	eventually(t, "they are known", func(context.Context) bool {
		o := b.set(fmt.Sprintf("{apiVersion: $NAME.example.org/v1, kind: Parcel, metadata: {name: p, annotations: {gitopsd.dev/type: '%s'}}}", before[0].Digest)).All()[0]
		code, answer = b.send(http.MethodPatch, o, "", "fieldManager=somebody&dryRun=All", "application/apply-patch+yaml", o.AppendJSON(nil))
		return code == http.StatusUnprocessableEntity
	})
	const n = 40
	for i := range n {
		changed += fmt.Sprintf("---\n{apiVersion: $NAME.example.org/v1, kind: Parcel, metadata: {name: p%d, annotations: {gitopsd.dev/type: '%s'}}}\n", i, all[0].Digest)
	}
	b.requests.take()
	_, results = b.apply(b.enforced(changed))
	if len(results) != n || !strings.Contains(results[0], "it is pinned to another type") {
		t.Fatalf("%d failures: %.1000q", len(results), results)
	}
	sent := 0
	for _, r := range b.requests.take() {
		if strings.HasPrefix(r, "PATCH /apis/"+b.name+".example.org/v1/parcels/") {
			sent++
		}
	}
	if sent > 3*n {
		t.Errorf("%d requests for %d objects", sent, n)
	}
}

// The digests of a type that could not be installed are not the cluster's.
func TestPinsOfTypesThatFail(t *testing.T) {
	b := newBed(t)
	set := b.enforced(strings.Replace(parcels, "metadata: {name: parcels.", "metadata: {name: packets.", 1))
	_, results := b.apply(set)
	var skipped bool
	for _, r := range results {
		skipped = skipped || strings.HasPrefix(r, "skipped validatingadmissionpolicy.admissionregistration.k8s.io/gitopsd-pins-$NAME: it has the digests of customresourcedefinition.apiextensions.k8s.io/packets.$NAME.example.org, which is as it was: ")
	}
	if !skipped {
		t.Errorf("%q", results)
	}
}

// The same goes for composite types: the digests are written once the XRD is, and in
// the same pass if the XRD waits for something.
func TestPinsOfCompositeTypes(t *testing.T) {
	b := newBed(t)
	b.as("crossplane", xrds)
	b.serves("apiextensions.crossplane.io", "CompositeResourceDefinition")
	const policy = "{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicy, metadata: {name: gitopsd-pins.xdatabases.$NAME.example.org}}"
	digest := func() string { return fmt.Sprint(manifest.List(b.get(policy), "spec", "variables")) }
	waiting := strings.Replace(databases, "metadata: {", "metadata: {annotations: {gitopsd.dev/depends-on: configmap/default/$NAME}, ", 1)
	set := b.enforced("{apiVersion: v1, kind: ConfigMap, metadata: {name: $NAME, namespace: default}}\n---" + waiting)
	b.applied(set)
	before := digest()

	changed := strings.ReplaceAll(databases, "size: {type: integer}", "size: {type: integer}, colour: {type: string}")
	_, results := b.apply(b.enforced(strings.Replace(changed, "metadata: {", "metadata: {labels: {a: 'no value of a label'}, ", 1)))
	var skipped bool
	for _, r := range results {
		skipped = skipped || strings.HasPrefix(r, "skipped validatingadmissionpolicy.admissionregistration.k8s.io/gitopsd-pins.xdatabases.$NAME.example.org: it has the digests of compositeresourcedefinition.apiextensions.crossplane.io/xdatabases.$NAME.example.org, which is as it was: ")
	}
	if !skipped || digest() != before {
		t.Errorf("%v, before %v: %q", digest(), before, results)
	}
	set = b.enforced(changed)
	_, results = b.apply(set)
	b.wantNothing("results", results)
	if digest() == before {
		t.Error("the digest is as it was")
	}
	b.settled(set)
}
