package why

import (
	"testing"
	"testing/fstest"

	"gitopsd.dev/render/manifest"
)

// A field that is wrong is found in the file of its object, though others there are of the
// same kind, and kustomize has added to the name.
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
`)}}
	at := func(file string, line int) *manifest.Object {
		o, err := manifest.New(map[string]any{"apiVersion": "v1", "kind": "Service", "metadata": map[string]any{"name": "eu-web", "namespace": "a"}}, manifest.Origin{File: file, Line: line})
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
		{"a/web.yaml", 9, "spec.selectr", 0},
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
