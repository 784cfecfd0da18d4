package why

import (
	"testing"
	"testing/fstest"

	"gitopsd.dev/render/manifest"
)

// An invalid field is found in the file of its object, although the file has other objects
// of the kind, and kustomize has changed the name.
func TestLine(t *testing.T) {
	t.Parallel()
	files := fstest.MapFS{"a/web.yaml": {Data: []byte(`# comment
apiVersion: v1
kind: Service
metadata: {name: other}
spec:
  ports:
  - port: 80
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  prots: []
  ports:
  - name: http
    prot: 80
  - {name: admin, prot: 81}
  - nodePrt: 3
  selector:
    app: web
`)}}
	at := func(file string, line int) *manifest.Object {
		o, err := manifest.New(map[string]any{"apiVersion": "v1", "kind": "Service", "metadata": map[string]any{"name": "eu-web", "namespace": "a"},
			"spec": map[string]any{
				"prots": []any{}, "selector": map[string]any{"app": "web"}, "type": "ClusterIP", "cidr": map[string]any{},
				"ports": []any{map[string]any{"name": "http", "prot": 80}, map[string]any{"name": "admin", "prot": 81}},
			}}, manifest.Origin{File: file, Line: line})
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	for _, tt := range []struct {
		file string
		line int
		path string
		want int
	}{
		{"a/web.yaml", 9, "spec.prots", 13},
		{"a/web.yaml", 9, "spec.ports[0].prot", 16},
		{"a/web.yaml", 9, `spec.ports[name="admin"].prot`, 17},
		{"a/web.yaml", 9, "spec.selectr", 12},
		{"a/web.yaml", 9, "spec.ports[0].port", 15},
		{"a/web.yaml", 9, "spec.ports[3].port", 14},
		{"a/web.yaml", 9, `spec.ports[name="admin"].port`, 17},
		{"a/web.yaml", 9, `spec.ports[port=0,protocol="TCP"].prot`, 14},
		{"a/web.yaml", 9, `spec.ports[port=0,protocol="TCP"].nodePrt`, 18},
		{"a/web.yaml", 9, `spec.ports[port=0,protocol="TCP"].nope`, 14},
		{"a/web.yaml", 9, "spec.selector.tier", 19},
		{"a/web.yaml", 9, "spec.selector.app.more", 20},
		{"a/web.yaml", 9, "status.a", 9},
		{"a/web.yaml", 9, "spec.type", 0},       // a patch sets it
		{"a/web.yaml", 9, "spec.cidr.block", 0}, // a patch sets what lacks it
		{"a/web.yaml", 9, "spec..", 0},
		{"a/web.yaml", 9, "", 0},
		{"a", 0, "spec.prots", 0},
		{"a/none.yaml", 1, "spec.prots", 0},
	} {
		if have := Line(files, at(tt.file, tt.line), tt.path); have != tt.want {
			t.Errorf("%s:%d: %s is in line %d, want %d", tt.file, tt.line, tt.path, have, tt.want)
		}
	}
}
