package applications

import (
	"context"
	"fmt"
	"slices"

	"gitopsd.dev/render/application"
	"gitopsd.dev/render/manifest"
)

// contained returns the applications among an application's objects.
func contained(app *application.Application) []manifest.ID {
	var all []manifest.ID
	for _, r := range app.Resources {
		if kind := manifest.KindOf(r.Template); kind == manifest.Application {
			all = append(all, kind.ID(manifest.Text(r.Template, "metadata", "namespace"), manifest.Text(r.Template, "metadata", "name")))
		}
	}
	return all
}

// around returns the applications of the home that contain k, directly or through others,
// sorted. k must not contain them.
func (c *Controller) around(k *known) []manifest.ID {
	if len(k.contains) == 0 {
		return nil
	}
	found := []manifest.ID{applicationKind.ID(k.meta.Namespace, k.meta.Name)}
	for i := 0; i < len(found); i++ {
		for _, other := range c.apps {
			id := applicationKind.ID(other.meta.Namespace, other.meta.Name)
			if slices.Contains(other.contains, found[i]) && !slices.Contains(found, id) {
				found = append(found, id)
			}
		}
	}
	found = found[1:]
	slices.SortFunc(found, func(a, b manifest.ID) int { return a.Compare(b) })
	return found
}

// loop returns the error for an application that contains another one, which contains it.
func loop(id manifest.ID) error {
	return fmt.Errorf("%s has this application among its own objects, directly or by others: neither could be deleted before the other; take one of them out", id)
}

// atHome reports whether a connection leads to the home itself, or may do so.
func (w *worker) atHome(ctx context.Context, l *link) bool {
	there, _ := l.identity(ctx)
	if there.system == "" {
		return true
	}
	here, err := systemOf(ctx, w.home)
	return err != nil || here == there.system
}
