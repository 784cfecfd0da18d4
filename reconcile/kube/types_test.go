package kube

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/render/manifest"
)

// discovery answers for the kinds of the group g, by version. It records the requests.
type discovery struct {
	kinds    map[string][]string
	crds     map[string]string // by name
	requests []string
}

func (d *discovery) answer(r *http.Request) (int, io.Reader) {
	d.requests = append(d.requests, r.URL.Path)
	answer := func(format string, args ...any) (int, io.Reader) {
		return http.StatusOK, strings.NewReader(fmt.Sprintf(format, args...))
	}
	list := func(kinds []string) (int, io.Reader) {
		var parts []string
		for _, k := range kinds {
			parts = append(parts, fmt.Sprintf(`{"name":%q,"kind":%q,"verbs":["list","patch","delete"]}`, strings.ToLower(k)+"s", k))
		}
		return answer(`{"kind":"APIResourceList","resources":[%s]}`, strings.Join(parts, ","))
	}
	const crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	version, isVersion := strings.CutPrefix(r.URL.Path, "/apis/g.io/")
	switch {
	case r.URL.Path == "/apis/g.io" && len(d.kinds) > 0:
		var versions []string
		for _, v := range slices.Sorted(maps.Keys(d.kinds)) {
			versions = append(versions, fmt.Sprintf(`{"version":%q}`, v))
		}
		return answer(`{"kind":"APIGroup","name":"g.io","versions":[%s]}`, strings.Join(versions, ","))
	case isVersion && d.kinds[version] != nil:
		return list(d.kinds[version])
	case r.URL.Path == "/apis/apiextensions.k8s.io":
		return answer(`{"kind":"APIGroup","name":"apiextensions.k8s.io","versions":[{"version":"v1"}]}`)
	case r.URL.Path == "/apis/apiextensions.k8s.io/v1":
		return list([]string{manifest.CRD.Kind})
	case r.URL.Path == crds:
		var items []string
		for name := range d.crds {
			items = append(items, fmt.Sprintf(`{"metadata":{"name":%q}}`, name))
		}
		return answer(`{"kind":"PartialObjectMetadataList","metadata":{},"items":[%s]}`, strings.Join(items, ","))
	case strings.HasPrefix(r.URL.Path, crds+"/"):
		return answer("%s", d.crds[strings.TrimPrefix(r.URL.Path, crds+"/")])
	}
	return http.StatusNotFound, strings.NewReader("404 page not found")
}

// take returns the requests since the last call.
func (d *discovery) take() []string {
	list := d.requests
	d.requests = nil
	return list
}

// A kind that comes in a new version of a known group is found in the next pass. Kinds
// that do not come cost one request for their group and for each version in a pass; known
// kinds cost none.
func TestNewVersion(t *testing.T) {
	t.Parallel()
	d := &discovery{kinds: map[string][]string{"v1": {"Foo"}}}
	c := answering(t, d.answer)
	pass := func() {
		c.Refresh()
		d.take()
	}
	found := func(kind string) bool {
		_, err := c.Kind(t.Context(), "g.io", kind)
		_, byPlural := c.Resource(t.Context(), "g.io", strings.ToLower(kind)+"s")
		if ClassOf(err) != ClassOf(byPlural) || err != nil && ClassOf(err) != NoSuchType {
			t.Fatal(kind, err, byPlural)
		}
		return err == nil
	}
	if !found("Foo") || found("Bar") {
		t.Fatal("not Foo alone is served")
	}
	pass()
	if found("Bar") || found("Baz") {
		t.Fatal("Bar or Baz is served")
	}
	if have, want := d.take(), []string{"/apis/g.io/v1", "/apis/g.io"}; !slices.Equal(have, want) {
		t.Errorf("two kinds that are not served cost %q, want %q", have, want)
	}
	d.kinds["v2"] = []string{"Bar"}
	pass()
	if !found("Bar") {
		t.Error("Bar is not found, although it is served in v2")
	}
	pass()
	if !found("Foo") {
		t.Error("Foo is no longer found")
	}
	if have := d.take(); len(have) > 0 {
		t.Errorf("a known kind costs %q", have)
	}
}

// Kubernetes' own kinds that are listed may have objects, whatever a request for them was answered.
func TestHiddenBuiltin(t *testing.T) {
	t.Parallel()
	d := new(discovery)
	answer := func(r *http.Request) (int, io.Reader) {
		switch r.URL.Path {
		case "/apis/rbac.authorization.k8s.io":
			return http.StatusOK, strings.NewReader(`{"kind":"APIGroup","name":"rbac.authorization.k8s.io","versions":[{"version":"v1"}]}`)
		case "/apis/rbac.authorization.k8s.io/v1":
			return http.StatusOK, strings.NewReader(`{"kind":"APIResourceList","resources":[{"name":"rolebindings","kind":"RoleBinding","verbs":["list","patch","delete"]}]}`)
		}
		return d.answer(r)
	}
	binding := schema.GroupKind(manifest.RoleBinding)
	hidden, err := answering(t, answer).Hidden(t.Context(), []schema.GroupKind{binding})
	if want := "the API server lists it in rbac.authorization.k8s.io/v1, and answered that there is no such kind"; err != nil || hidden[binding] != want {
		t.Errorf("have %q, %v, want %q", hidden[binding], err, want)
	}
}

// A kind that was not served a moment ago may have objects as long as its CRD exists.
func TestHidden(t *testing.T) {
	t.Parallel()
	foo := schema.GroupKind{Group: "g.io", Kind: "Foo"}
	crd := func(kind string) string {
		return fmt.Sprintf(`{"kind":"CustomResourceDefinition","metadata":{"name":"foos.g.io"},"spec":{"group":"g.io","names":{"kind":%q},"versions":[{"name":"v1"}]}}`, kind)
	}
	for _, tt := range []struct {
		name   string
		served map[string][]string
		crds   map[string]string
		want   string
	}{
		{"no definition", nil, nil, ""},
		{"another kind's definition", nil, map[string]string{"foos.g.io": crd("Other")}, ""},
		{"not served", nil, map[string]string{"foos.g.io": crd("Foo")}, "customresourcedefinition.apiextensions.k8s.io/foos.g.io exists, and the cluster serves no version of its type"},
		{"served again", map[string][]string{"v1": {"Foo", "Bar"}}, map[string]string{"foos.g.io": crd("Foo"), "bars.g.io": "not read"}, "customresourcedefinition.apiextensions.k8s.io/foos.g.io exists, and the versions of its type have just changed"},
		{"its definition is gone, and discovery lags", map[string][]string{"v1": {"Foo"}}, nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := &discovery{kinds: tt.served, crds: tt.crds}
			hidden, err := answering(t, d.answer).Hidden(t.Context(), []schema.GroupKind{foo})
			if err != nil {
				t.Fatal(err)
			}
			if hidden[foo] != tt.want {
				t.Errorf("have %q, want %q", hidden[foo], tt.want)
			}
		})
	}
}
