package kube

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A list that starts over yields the objects of the new list only. Without Again it
// fails.
func TestListAgain(t *testing.T) {
	t.Parallel()
	const (
		before = `{"kind":"ServiceList","metadata":{"continue":"x"},"items":[{"metadata":{"name":"gone"}},{"metadata":{"name":"a"}}]}`
		late   = `{"kind":"Status","status":"Failure","reason":"Expired","code":410}`
		after  = `{"kind":"ServiceList","metadata":{"resourceVersion":"9"},"items":[{"metadata":{"name":"a"}},{"metadata":{"name":"new"}}]}`
	)
	for _, drops := range []bool{true, false} {
		first := true
		c := answering(t, func(r *http.Request) (int, io.Reader) {
			switch {
			case r.URL.Query().Get("continue") != "":
				return http.StatusGone, strings.NewReader(late)
			case first:
				first = false
				return http.StatusOK, strings.NewReader(before)
			}
			return http.StatusOK, strings.NewReader(after)
		})
		var names []string
		opts := ListOptions{Page: 2}
		if drops {
			opts.Again = func() { names = nil }
		}
		version, err := c.List(t.Context(), services, opts, func(m *metav1.PartialObjectMetadata) bool {
			names = append(names, m.Name)
			return true
		})
		switch {
		case !drops && ClassOf(err) != Expired:
			t.Errorf("nobody drops what was handed out: %v", err)
		case drops && (err != nil || version != "9" || !slices.Equal(names, []string{"a", "new"})):
			t.Errorf("%v of version %q: %v", names, version, err)
		}
	}
}
