package migrate

import (
	"context"
	"errors"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/conversion/stash"
	"gitopsd.dev/render/manifest"
)

// Forgotten counts objects that keep fields for a version that their CRD no longer has.
type Forgotten struct {
	// Name is the name of the CRD, and Version the removed version.
	Name    string `json:"name"`
	Version string `json:"version"`
	// Objects is the number of objects that keep fields for it, and Done the number of those
	// that no longer do or were deleted meanwhile.
	Objects int `json:"objects"`
	Done    int `json:"done"`
	// Failures are the objects that still do, sorted by name.
	Failures []Failure `json:"failures,omitempty"`
	// Stopped reports whether there were so many failures that objects were left untried.
	Stopped bool `json:"stopped,omitempty"`
}

// Forget removes from the objects of a CRD the fields that conversion rules keep for a version
// that the CRD no longer has. Nothing else removes them, and they would reappear if the
// version did. Fields that are kept for other versions stay. Unless do is set, Forget only
// counts. The error is of class NotFound if there is no such CRD. The result is also valid
// with an error.
func (m *Migrator) Forget(ctx context.Context, name, version string, do bool) (Forgotten, error) {
	f := Forgotten{Name: name, Version: version}
	s, err := m.read(ctx, name)
	switch {
	case err != nil:
		return f, err
	case slices.Contains(s.has, version):
		return f, m.fault(name, fmt.Errorf("it has version %s, which needs what its objects keep for it", version), "remove the version first")
	case s.Blocked != "":
		return f, m.fault(name, errors.New(s.Blocked), "")
	}
	if err := m.aggregated(ctx, s); err != nil {
		return f, err
	}
	all, err := m.names(ctx, s, func(o *metav1.PartialObjectMetadata) bool {
		_, keeps := stash.Without(o.Annotations[manifest.ConversionStashAnnotation], version)
		return keeps
	})
	if f.Objects = len(all); err != nil || !do {
		return f, err
	}
	w := m.writer(s, len(all))
	w.verb = "written without what they kept for " + version
	w.object = func(ctx context.Context, id manifest.ID) error { return m.forget(ctx, s, id, version) }
	err = w.write(ctx, all)
	f.Done = w.done - len(w.failures)
	f.Failures, f.Stopped, err = w.failed(err)
	if errors.Is(err, errMoved) {
		err = m.fault(name, errMoved, "run this again, if it still does not have version "+version)
	}
	return f, err
}

// forget removes from an object the fields that it keeps for a version. The error is of class
// Changed if others keep writing the object.
func (m *Migrator) forget(ctx context.Context, s Storage, id manifest.ID, version string) error {
	const attempts = 5
	for attempt := 1; ; attempt++ {
		meta, err := m.cfg.Cluster.GetMetadata(ctx, s.objects, id)
		if err != nil {
			return err
		}
		left, keeps := stash.Without(meta.Annotations[manifest.ConversionStashAnnotation], version)
		if !keeps {
			return nil
		}
		var value any // null removes it
		if left != "" {
			value = left
		}
		annotations := map[string]any{manifest.ConversionStashAnnotation: value}
		err = m.cfg.Cluster.Patch(ctx, s.objects, id, map[string]any{"metadata": map[string]any{"annotations": annotations}}, meta.ResourceVersion)
		if kube.ClassOf(err) != kube.Changed || attempt == attempts {
			return err
		}
	}
}
