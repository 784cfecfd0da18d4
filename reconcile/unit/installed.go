package unit

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
)

// Installed is the installed version of a package; the zero value means that the cluster
// does not have the package.
type Installed struct {
	// Revision is the name of the revision of the controller's pods.
	Revision string
	// Reference is the package's reference in Crossplane's object in the cluster.
	Reference string
}

// Installed returns the installed versions of the packages of a plan, by name. It leaves
// out packages whose objects in the cluster do not tell the version, or could not be read.
func (c *Connection) Installed(ctx context.Context, want *desired.Unit, p *plan.Plan) map[string]Installed {
	all := make(map[string]Installed)
	for _, s := range want.Packages {
		name := s.Declaration.Name
		if found, ok := c.installed(ctx, p, name); ok {
			all[name] = found
		}
	}
	return all
}

func (c *Connection) installed(ctx context.Context, p *plan.Plan, name string) (found Installed, ok bool) {
	absent := true
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.Package != name {
			continue
		}
		absent = absent && s.UID == "" && p.Unreadable[schema.GroupKind(s.ID.GroupKind())] == ""
		if s.Object == nil || s.UID == "" || s.Action == plan.Conflict {
			continue
		}
		path := []string{"spec", "template", "metadata", "labels", manifest.RevisionLabel}
		if s.ID.Group == manifest.GroupPackages {
			path = []string{"spec", "package"}
		}
		wanted := manifest.Text(s.Object.Tree(), path...)
		if wanted == "" {
			continue
		}
		text := wanted
		if s.Action != plan.Unchanged {
			var err error
			if text, err = c.live(ctx, s, path); err != nil || text == "" {
				continue
			}
		}
		if s.ID.Group == manifest.GroupPackages {
			return Installed{Reference: text}, true
		}
		return Installed{Revision: text}, true
	}
	return Installed{}, absent
}

// live returns a text in the live object of a step.
func (c *Connection) live(ctx context.Context, s *plan.Step, path []string) (string, error) {
	t, err := c.client.Type(ctx, s.Object.APIVersion(), s.ID.Kind)
	if err != nil {
		return "", err
	}
	tree, _, err := c.client.Get(ctx, t, s.ID)
	if kube.ClassOf(err) == kube.NotFound {
		return "", nil
	}
	return manifest.Text(tree, path...), err
}
