package apply

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/apply/managed"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources/errgroup"
)

// How drift is detected.
//
// As long as we own every field that was applied ([managed.Find]) and people added
// none ([managed.FindEdits]), the object is as it was applied, and no value needs to
// be read. Otherwise one dry run of applying it decides: if our fields would stay as
// they are, there is nothing to correct. Either answer is remembered, with a
// fingerprint of the metadata that changes whenever somebody other than a status
// writer writes.

// fingerprint is a hash of an object's metadata at one moment, the same in every process.
// Other metadata with the same fingerprint cannot be constructed.
type fingerprint [16]byte

// fingerprintOf leaves out fields that status writers change. If the kind has no
// generation, the times of the managers' writes show that something was written; if it
// has no status either, so does resourceVersion.
func fingerprintOf(t kube.Type, m *metav1.ObjectMeta) fingerprint {
	buf := make([]byte, 0, 2<<10)
	put := func(parts ...string) {
		for _, s := range parts {
			// With its length, so that no two lists of parts read the same.
			buf = binary.AppendUvarint(buf, uint64(len(s)))
			buf = append(buf, s...)
		}
	}
	put(string(m.UID), strconv.FormatInt(m.Generation, 10))
	if m.Generation == 0 && !t.HasStatus {
		put(m.ResourceVersion)
	}
	for _, values := range []map[string]string{m.Labels, m.Annotations} {
		put(strconv.Itoa(len(values)))
		for _, k := range slices.Sorted(maps.Keys(values)) {
			put(k, values[k])
		}
	}
	put(strconv.Itoa(len(m.OwnerReferences)))
	for _, o := range m.OwnerReferences {
		put(string(o.UID))
	}
	for i := range m.ManagedFields {
		e := &m.ManagedFields[i]
		if e.Subresource == "status" {
			continue
		}
		put(e.Manager, string(e.Operation), e.Subresource, e.APIVersion)
		if e.Time != nil {
			put(e.Time.UTC().Format(time.RFC3339))
		}
		if e.FieldsV1 != nil {
			put(e.FieldsV1.GetRawString())
		}
	}
	sum := sha256.Sum256(buf)
	return fingerprint(sum[:16])
}

// findDrift notes which applied members have drifted, and which objects lost only their label.
func (a *Applier) findDrift(ctx context.Context, v *view) error {
	var mu sync.Mutex
	note := func(id manifest.ID, drift string) {
		mu.Lock()
		defer mu.Unlock()
		v.live.Drifted[id] = drift
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(concurrency)
	for _, o := range v.desired.All() {
		id := o.ID()
		if meta := v.live.Objects[id]; meta != nil {
			if unlabelled := a.inv.Unlabelled(id, meta); unlabelled != "" {
				// What else may differ is told with it, unproven: the label is put back in any case.
				note(id, joined(unlabelled, managed.Find(o, meta).Blame(meta), added(o, meta)))
				continue
			}
		}
		meta, print, drift := a.suspect(id)
		if meta == nil || v.live.Objects[id] == nil {
			continue
		}
		// The look may have used the short form of the metadata, from before a write.
		v.live.Objects[id] = meta
		if meta.DeletionTimestamp != nil || meta.Labels[plan.PartOfLabel] != a.set.id ||
			meta.Annotations[manifest.AppliedAnnotation] != a.inv.Applied(o) {
			continue
		}
		if drift != "" {
			note(id, drift) // it is only reported, or waits
			continue
		}
		lost, edited := managed.Find(o, meta), added(o, meta)
		switch {
		case len(lost) > 0:
		case edited == "":
			a.approve(id, print)
			continue
		default:
			a.convict(id, print, edited)
			note(id, edited)
			continue
		}
		g.Go(func() error {
			drifted, sure, err := a.verify(gctx, o, meta)
			switch {
			case err != nil:
				return err
			case !drifted && edited == "":
				a.approve(id, print)
				return nil
			}
			drift := edited
			if drifted {
				drift = joined(lost.Blame(meta), edited)
			}
			if sure {
				a.convict(id, print, drift)
			}
			note(id, drift)
			return nil
		})
	}
	return g.Wait()
}

func joined(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(p string) bool { return p == "" }), "; ")
}

// verify asks the API server what applying the object again would change. Without an
// answer, the object counts as drifted for now.
func (a *Applier) verify(ctx context.Context, o *manifest.Object, meta *metav1.ObjectMeta) (drifted, sure bool, err error) {
	t, err := a.cluster.Type(ctx, o.APIVersion(), o.ID().Kind)
	if err == nil {
		var answer *kube.Applied
		answer, err = a.cluster.Apply(ctx, t, o.ID(), a.member(o).AppendJSON(nil), kube.ApplyOptions{Force: true, DryRun: true})
		if err == nil {
			return !managed.OwnSame(meta, &answer.Meta.ObjectMeta), true, nil
		}
	}
	if kube.IsClusterWide(err) {
		return false, false, err
	}
	a.log.Debug("a dry run that would have verified drift failed", "object", o.ID().String(), "error", err)
	return true, false, nil
}
