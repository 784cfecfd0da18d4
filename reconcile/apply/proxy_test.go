package apply_test

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// A page of something in front of the API server says nothing about objects, even if its text
// is the one of an API server that serves no such path: neither are objects of others deleted
// with their namespace, nor is an object of ours left behind.
func TestPagesOfProxies(t *testing.T) {
	t.Parallel()
	const binding = "{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: access, namespace: $NAME}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}, subjects: [{kind: User, name: eve, apiGroup: rbac.authorization.k8s.io}]}"
	const other = "{apiVersion: v1, kind: Namespace, metadata: {name: $NAME-b}}"
	for name, page := range map[string]string{"html": "<html>404</html>", "go": "404 page not found\n"} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			f := newFaulty(b, 5*time.Second)
			fails := func(method, suffix string, times int32) {
				var n atomic.Int32
				f.breaks(func(r *http.Request) bool {
					return r.Method == method && strings.HasSuffix(r.URL.Path, suffix) && n.Add(1) <= times
				}, answers(http.StatusNotFound, nil, page))
			}
			space := strings.Split(everything, "---")[0]
			b.apply(b.set(space + "\n---\n" + binding + "\n---\n" + other))
			b.as("somebody", cm("data"))

			fails(http.MethodDelete, "/rolebindings/access", 1)
			for range 3 {
				b.apply(b.set(space + "\n---\n" + other))
			}
			if b.get(binding) != nil {
				t.Error("the binding is left behind after a page for its deletion")
			}
			b.apply(b.set(space + "\n---\n" + binding + "\n---\n" + other))
			b.restart()
			fails(http.MethodGet, "/rolebindings", 2)
			for range 3 {
				b.apply(b.set(space + "\n---\n" + other))
			}
			if b.get(binding) != nil {
				t.Error("the binding is left behind after pages for its list")
			}
			b.restart()
			fails(http.MethodGet, "/configmaps", 2)
			b.apply(b.set(other))
			if b.get(cm("data")) == nil {
				t.Error("the namespace is deleted with somebody's object")
			}
		})
	}
}
