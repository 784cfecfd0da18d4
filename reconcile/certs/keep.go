package certs

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/certs/rotation"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/render/manifest"
)

// source is the [rotation.Source] of a Service's certificate.
type source struct {
	*work
	*service
	// live is the Secret with the certificate. read reports whether Leaf has returned it: then
	// the next call reads it again.
	live map[string]any
	read bool
	// record is the live Secret with the journal; nil if there is none.
	record map[string]any
}

// keep keeps a certificate that gitopsd makes. live is the Secret with it, as it was just read.
// frozen is why the rotation cannot go on: then everything stays as it is.
func (w *work) keep(ctx context.Context, s *service, live map[string]any, brought rotation.Authority, frozen string) (trust, error) {
	turn := rotation.Rotation{
		Profile: profileOf(s.object.ID()), Policy: w.cfg.Policy, Brought: brought, Frozen: frozen != "", Preview: w.Preview, Now: w.now,
	}
	r, err := turn.Keep(ctx, &source{work: w, service: s, live: live})
	if errors.Is(err, rotation.ErrContended) {
		return trust{}, fmt.Errorf("others write %s all the time; only gitopsd may write it", s.journal)
	}
	if err != nil {
		return trust{}, err
	}
	w.again(r.Again)
	if len(r.Lacking) > 0 {
		slices.Sort(r.Lacking)
		w.note("the new CA of %s waits until all of its bundles have it; not yet: %s", s.object.ID(), prose.Some(slices.Compact(r.Lacking), 3))
	}
	if r.Restored {
		w.note("%s", r.Stale(s.journal.Namespace+"/"+s.journal.Name))
	}
	if !r.Expires.IsZero() {
		w.expires(s.secret, status.Serving, r.Expires, false)
	}
	if r.Signer.Key {
		w.expires(s.journal, status.Authority, r.Signer.NotAfter, false)
	}
	t := trust{bundle: r.Bundle, why: frozen}
	if !r.Early.IsZero() {
		t.why = r.Behind(s.journal.Namespace + "/" + s.journal.Name)
	}
	if r.Cert == nil {
		return t, w.offer(s, r.Bundle, nil)
	}
	return t, w.offer(s, r.Bundle, map[string][]byte{keyCert: r.Cert, keyKey: r.Key})
}

// Leaf implements [rotation.Source].
func (s *source) Leaf(ctx context.Context) (map[string][]byte, error) {
	if s.read {
		var err error
		if s.live, _, err = s.get(ctx, s.secret); err != nil {
			return nil, err
		}
	}
	s.read = true
	s.rely(s.secret, s.live)
	return contents(s.live), nil
}

// Journal implements [rotation.Source].
func (s *source) Journal(ctx context.Context) (map[string][]byte, error) {
	record, meta, err := s.get(ctx, s.journal)
	if err != nil {
		return nil, err
	}
	// Until it is in the inventory, it has no label.
	if s.record = record; record != nil && meta.Labels[plan.PartOfLabel] != "" && !s.Owns(s.journal, meta) {
		return nil, fmt.Errorf("%s belongs to another inventory (label %s: %s), which keeps the certificate; have only one cluster of one fleet declare %s",
			s.journal, plan.PartOfLabel, meta.Labels[plan.PartOfLabel], s.object.ID())
	}
	s.rely(s.journal, record)
	if record == nil {
		return nil, nil
	}
	return contents(record), nil
}

// Bundles implements [rotation.Source]. It costs a request for each consumer, and the lists of
// trusting.
func (s *source) Bundles(ctx context.Context) ([]rotation.Held, error) {
	trusting, err := s.trusting(ctx)
	if err != nil {
		return nil, err
	}
	ids := slices.Concat(trusting[s.object.ID()], trusting[s.secret])
	for _, c := range s.consumers {
		if id := c.object.ID(); !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	all := slices.Clone(s.unlisted)
	for _, id := range ids {
		t, err := s.Client.Type(ctx, versionOf(id.GroupKind()), id.Kind)
		var live map[string]any
		if err == nil {
			live, _, err = s.Client.Get(ctx, t, id)
		}
		switch kube.ClassOf(err) {
		case "":
			if err != nil {
				return nil, err
			}
			s.rely(id, live)
			all = append(all, inForce(id, live)...)
		case kube.NotFound, kube.NoSuchType: // not in force
		default:
			return nil, err
		}
	}
	return all, nil
}

// Record implements [rotation.Source].
func (s *source) Record(ctx context.Context, data map[string][]byte) error {
	if s.record == nil {
		if err := s.createRecord(ctx, s.service); err != nil {
			return err
		}
		live, _, err := s.get(ctx, s.journal)
		if err != nil || live == nil || len(manifest.Mapping(live, "data")) > 0 {
			return err
		}
		s.record = live
	}
	patch := make(map[string]any, len(data))
	for key := range manifest.Mapping(s.record, "data") {
		patch[key] = nil
	}
	for key, value := range data {
		patch[key] = base64.StdEncoding.EncodeToString(value)
	}
	version := manifest.Text(s.record, "metadata", "resourceVersion")
	err := s.Client.Patch(ctx, secrets, s.journal, map[string]any{"data": patch}, version)
	if kube.IsStale(err) {
		return nil
	}
	return err
}

// createRecord creates the Secret of a CA without data. It is the same whichever process
// creates it.
func (w *work) createRecord(ctx context.Context, s *service) error {
	o, err := s.recordObject()
	if err != nil {
		return err
	}
	body := o.AppendJSON(nil)
	_, err = w.Client.Apply(ctx, secrets, s.journal, body, kube.ApplyOptions{})
	if !kube.IsMissing(err) {
		return err
	}
	ns := manifest.Namespace.ID("", apply.Namespace)
	space, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": ns.Kind, "metadata": map[string]any{"name": ns.Name}})
	if err != nil {
		return err
	}
	_, err = w.Client.Apply(ctx, kube.Type{Version: "v1", Kind: ns.Kind, Resource: "namespaces"}, ns, space, kube.ApplyOptions{})
	if err == nil {
		_, err = w.Client.Apply(ctx, secrets, s.journal, body, kube.ApplyOptions{})
	}
	return err
}

// recordObject returns the Secret of a CA as the inventory has it.
func (s *service) recordObject() (*manifest.Object, error) {
	return manifest.New(s.secretTree(s.journal, "Opaque"), s.object.Origin())
}

// secretTree returns a Secret without data that belongs to the Service's package.
func (s *service) secretTree(id manifest.ID, kind string) map[string]any {
	meta := map[string]any{"name": id.Name, "namespace": id.Namespace}
	if pkg := s.object.Label(manifest.PackageLabel); pkg != "" {
		meta["labels"] = map[string]any{manifest.PackageLabel: pkg}
	}
	return map[string]any{"apiVersion": "v1", "kind": id.Kind, "type": kind, "metadata": meta}
}

// offer adds a Service's Secrets to the result. Values that are nil are unknown.
func (w *work) offer(s *service, bundle []byte, pair map[string][]byte) error {
	record, err := s.recordObject()
	if err != nil {
		return err
	}
	leaf, err := manifest.New(s.secretTree(s.secret, "kubernetes.io/tls"), s.object.Origin())
	if err != nil {
		return err
	}
	data, unknown := make(map[string]any), []string(nil)
	values := maps.Clone(pair)
	if values == nil {
		values = map[string][]byte{keyCert: nil, keyKey: nil}
	}
	values[keyBundle] = bundle
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if values[key] == nil {
			unknown = append(unknown, fmt.Sprintf("data[%q]", key))
			continue
		}
		data[key] = base64.StdEncoding.EncodeToString(values[key])
	}
	tree := maps.Clone(leaf.Tree())
	if len(data) > 0 {
		tree["data"] = data
	}
	if leaf, err = leaf.Complete(tree, unknown...); err != nil {
		return err
	}
	w.done.Objects = append(w.done.Objects, record, leaf)
	return nil
}
