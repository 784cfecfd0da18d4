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

// Forgotten is what objects keep, or kept, for a version that their CRD no longer has.
type Forgotten struct {
	// Name is the CRD's, and Version the removed version.
	Name    string `json:"name"`
	Version string `json:"version"`
	// Objects is how many objects keep something for it, and Done how many of them do no
	// more, or were deleted meanwhile.
	Objects int `json:"objects"`
	Done    int `json:"done"`
	// Failures are the objects that still do, in the order of the list.
	Failures []Failure `json:"failures,omitempty"`
	// Stopped says that there were so many failures that objects were left untried.
	Stopped bool `json:"stopped,omitempty"`
}

// Forget takes off the objects of a CRD what conversion rules kept for a version that the
// CRD had. It is of no use any more, and nothing else takes it off: should the version
// come back, so does what the objects keep for it. What they keep for other versions
// stays. Unless do is set, it only counts. The error is of class NotFound if there is no
// such CRD. What was done is returned with an error, too.
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

// forget takes off one object what it keeps for a version. The error is of class Changed
// if somebody else writes the object all the time.
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
