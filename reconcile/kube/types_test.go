package kube

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// discovery answers for the kinds of the group g, by version. It records the requests.
type discovery struct {
	kinds    map[string][]string
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
	version, isVersion := strings.CutPrefix(r.URL.Path, "/apis/g/")
	switch {
	case r.URL.Path == "/apis/g" && len(d.kinds) > 0:
		var versions []string
		for _, v := range slices.Sorted(maps.Keys(d.kinds)) {
			versions = append(versions, fmt.Sprintf(`{"version":%q}`, v))
		}
		return answer(`{"kind":"APIGroup","name":"g","versions":[%s]}`, strings.Join(versions, ","))
	case isVersion && d.kinds[version] != nil:
		return list(d.kinds[version])
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
		_, err := c.Kind(t.Context(), "g", kind)
		_, byPlural := c.Resource(t.Context(), "g", strings.ToLower(kind)+"s")
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
	if have, want := d.take(), []string{"/apis/g/v1", "/apis/g"}; !slices.Equal(have, want) {
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
