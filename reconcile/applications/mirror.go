package applications

import (
	"context"

	"gitopsd.dev/render/application"
	"gitopsd.dev/render/manifest"
)

// Bounds of copied statuses as JSON: of one object, and of an application.
const (
	mostRemote    = 32 << 10
	mostRemoteAll = 256 << 10
)

// copied is the status of a remote object at a resourceVersion; nil if it is too large.
type copied struct {
	version string
	status  map[string]any
	size    int
}

// mirror copies the statuses of the application's objects into its own. A status that cannot be
// read stays as it was, and one that has not changed is not read again.
func (w *worker) mirror(ctx context.Context, l *link, rendered *application.Rendered, s *state) {
	total := 0
	for i := range s.resources {
		r := &s.resources[i]
		if r.state != submitted {
			continue
		}
		object := rendered.Objects.Get(r.id)
		if object == nil {
			continue
		}
		t, err := l.client.Type(ctx, object.APIVersion(), r.id.Kind)
		if err != nil {
			continue
		}
		if !t.HasStatus {
			r.remote = nil
			continue
		}
		id := r.id
		if !t.Namespaced {
			id.Namespace = ""
		}
		c, ok := l.mirrored[id]
		if !ok || !l.IsAt(id, c.version) {
			tree, meta, err := l.client.Get(ctx, t, id)
			if err != nil {
				continue
			}
			c = copied{version: meta.ResourceVersion, status: manifest.Mapping(tree, "status")}
			if c.size = len(manifest.AppendJSON(nil, c.status)); c.size > mostRemote {
				c.status = nil
			}
			l.mirrored[id] = c
		}
		r.remote = c.status
		if total += c.size; c.size > mostRemote || total > mostRemoteAll {
			total -= c.size
			r.remote = nil
			if r.message == "" {
				r.message = "its status is too large to be copied"
			}
		}
	}
}
