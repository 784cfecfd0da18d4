package certs

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/render/manifest"
)

// attempts bounds how often a journal is read again because another process wrote it.
const attempts = 6

// look is what was found of one Service.
type look struct {
	*service
	state State
	cas   material
	// record is the live Secret with the journal, nil if there is none, and damaged are
	// the CAs in it if it is damaged.
	record  map[string]any
	damaged []CA
	// leaf is the content of the Secret with the certificate. It can serve unless
	// state.Leaf is zero.
	leaf map[string][]byte
}

// keep keeps a certificate that gitopsd makes, live as it was just read. frozen is why the rotation cannot go on;
// what is there stays then.
func (w *work) keep(ctx context.Context, s *service, live map[string]any, brought authority, frozen string) (trust, error) {
	for attempt := range attempts {
		if attempt > 0 {
			var err error
			if live, _, err = w.get(ctx, s.secret); err != nil {
				return trust{}, err
			}
		}
		l, err := w.look(ctx, s, live, brought)
		if err != nil {
			return trust{}, err
		}
		if frozen != "" {
			if l.state.Journal == nil {
				return trust{why: frozen}, w.offer(l, nil, nil)
			}
			t, err := w.settle(l, Decision{Journal: *l.state.Journal})
			t.why = frozen
			return t, err
		}
		d := Decide(l.state, w.now, w.cfg.Policy)
		if d.Look {
			if err := w.lookAtBundles(ctx, l); err != nil {
				return trust{}, err
			}
			d = Decide(l.state, w.now, w.cfg.Policy)
		}
		switch {
		case l.state.Journal != nil && d.Journal.Equal(l.state.Journal):
			return w.settle(l, d)
		case w.Preview:
			return trust{}, w.offer(l, nil, nil)
		}
		// From here on the CAs are durable, or somebody else's are.
		if err := w.record(ctx, l, d.Journal); err != nil {
			return trust{}, err
		}
		w.again(w.now.Add(soon))
	}
	return trust{}, fmt.Errorf("others write %s all the time; only gitopsd may write it", s.journal)
}

// look reads the Secret of a Service's CA, and finds out about both Secrets.
func (w *work) look(ctx context.Context, s *service, live map[string]any, brought authority) (*look, error) {
	l := &look{service: s, cas: make(material), leaf: contents(live)}
	record, meta, err := w.get(ctx, s.journal)
	if err != nil {
		return nil, err
	}
	// Until it is in the inventory, it has no label.
	if l.record = record; record != nil && meta.Labels[plan.PartOfLabel] != "" && !w.Owns(s.journal, meta) {
		return nil, fmt.Errorf("%s belongs to another inventory (label %s: %s), which keeps the certificate; have only one cluster of one fleet declare %s",
			s.journal, plan.PartOfLabel, meta.Labels[plan.PartOfLabel], s.object.ID())
	}
	w.rely(s.secret, live)
	w.rely(s.journal, record)
	if brought.cert != nil {
		l.state.Brought = l.cas.add(brought, false)
	}
	if l.record != nil {
		l.state.Journal, l.damaged = l.cas.read(contents(l.record), s.object.ID())
	}
	l.assess()
	return l, nil
}

// assess finds out whether the certificate that is there can serve, and who signed it.
func (l *look) assess() {
	chain, _, err := parsePair(l.leaf[keyCert], l.leaf[keyKey])
	if err != nil || servesFor(chain[0], l.object.ID()) != nil {
		return
	}
	l.state.Leaf = Leaf{Issuer: l.cas.issuer(chain[0]), NotBefore: chain[0].NotBefore, NotAfter: chain[0].NotAfter}
}

// lookAtBundles reads the bundles in force, and the CAs in them that may have signed
// what serves. It costs a request for each consumer, and is done only while CAs change.
func (w *work) lookAtBundles(ctx context.Context, l *look) error {
	for _, c := range l.consumers {
		id := c.object.ID()
		t, err := w.Client.Type(ctx, c.object.APIVersion(), id.Kind)
		var live map[string]any
		if err == nil {
			live, _, err = w.Client.Get(ctx, t, id)
		}
		switch kube.ClassOf(err) {
		case "":
			if err != nil {
				return err
			}
			w.rely(id, live)
			l.state.Bundles = append(l.state.Bundles, l.cas.inForce(id, live)...)
		case kube.NotFound, kube.NoSuchType: // not in force
		default:
			return err
		}
	}
	l.state.Looked = true
	l.assess() // it may be signed by one of these
	candidates := l.damaged
	for _, b := range l.state.Bundles {
		for _, id := range b.CAs {
			cert := l.cas[id].cert
			candidates = append(candidates, CA{ID: id, NotBefore: cert.NotBefore, NotAfter: cert.NotAfter})
		}
	}
	for _, ca := range candidates { // one of somebody else's is not trusted any longer
		cert := l.cas[ca.ID].cert
		known := slices.ContainsFunc(l.state.Found, func(f CA) bool { return f.ID == ca.ID })
		if !known && isCA(cert) && (ca.ID == l.state.Leaf.Issuer || cert.Subject.CommonName == authorityName(l.object.ID())) {
			l.state.Found = append(l.state.Found, ca)
		}
	}
	return nil
}

// record makes a journal durable, if the one that was read is still the one that is
// there. That it is not is no error: the caller reads it again, and uses what is there.
func (w *work) record(ctx context.Context, l *look, j Journal) error {
	if l.record == nil {
		if err := w.createRecord(ctx, l); err != nil {
			return err
		}
		live, _, err := w.get(ctx, l.journal)
		if err != nil || live == nil || len(manifest.Mapping(live, "data")) > 0 {
			return err
		}
		l.record = live
	}
	if j.Next.ID == Unmade || j.Signer.ID == Unmade {
		made := &j.Next
		if j.Signer.ID == Unmade {
			made = &j.Signer
		}
		a, err := mint(l.object.ID(), made.NotBefore, made.NotAfter)
		if err != nil {
			return err
		}
		*made = l.cas.add(a, true)
	}
	data, err := l.cas.write(&j)
	if err != nil {
		return err
	}
	patch := make(map[string]any, len(data))
	for key := range manifest.Mapping(l.record, "data") {
		patch[key] = nil
	}
	for key, value := range data {
		patch[key] = base64.StdEncoding.EncodeToString(value)
	}
	version := manifest.Text(l.record, "metadata", "resourceVersion")
	err = w.Client.Patch(ctx, secrets, l.journal, map[string]any{"data": patch}, version)
	switch kube.ClassOf(err) {
	case kube.Changed, kube.NotFound:
		return nil
	}
	return err
}

// createRecord creates the Secret of a CA without data, as the inventory has it, so
// that it makes no difference which of two processes does.
func (w *work) createRecord(ctx context.Context, l *look) error {
	o, err := l.recordObject()
	if err != nil {
		return err
	}
	body := o.AppendJSON(nil)
	_, err = w.Client.Apply(ctx, secrets, l.journal, body, kube.ApplyOptions{})
	if class := kube.ClassOf(err); class != kube.NoNamespace && class != kube.NotFound {
		return err
	}
	ns := manifest.Namespace.ID("", apply.Namespace)
	space, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": ns.Kind, "metadata": map[string]any{"name": ns.Name}})
	if err != nil {
		return err
	}
	_, err = w.Client.Apply(ctx, kube.Type{Version: "v1", Kind: ns.Kind, Resource: "namespaces"}, ns, space, kube.ApplyOptions{})
	if err == nil {
		_, err = w.Client.Apply(ctx, secrets, l.journal, body, kube.ApplyOptions{})
	}
	return err
}

// settle returns what there should be once the journal is durable.
func (w *work) settle(l *look, d Decision) (trust, error) {
	w.again(d.Again)
	if len(d.Lacking) > 0 {
		slices.Sort(d.Lacking)
		w.note("the new CA of %s waits until all of its bundles have it; not yet: %s", l.object.ID(), prose.Some(slices.Compact(d.Lacking), 3))
	}
	bundle := l.cas.bundle(d.Journal.Trust())
	crt, key := l.leaf[keyCert], l.leaf[keyKey]
	expires := l.state.Leaf.NotAfter
	if d.Issue.By != "" {
		if w.Preview {
			return trust{bundle: bundle}, w.offer(l, bundle, nil)
		}
		var err error
		if crt, key, err = issue(l.cas[d.Issue.By], l.object.ID(), w.now.Add(-skew), d.Issue.NotAfter); err != nil {
			return trust{}, err
		}
		expires = d.Issue.NotAfter
	}
	if !expires.IsZero() {
		w.expires(l.secret, status.Serving, expires, false)
	}
	if signer := d.Journal.Signer; signer.Key {
		w.expires(l.journal, status.Authority, signer.NotAfter, false)
	}
	if len(crt) == 0 || len(key) == 0 {
		return trust{bundle: bundle}, w.offer(l, bundle, nil)
	}
	return trust{bundle: bundle}, w.offer(l, bundle, map[string][]byte{keyCert: crt, keyKey: key})
}

// recordObject returns the Secret of a CA as the inventory has it.
func (s *service) recordObject() (*manifest.Object, error) {
	return manifest.New(s.secretTree(s.journal, "Opaque"), s.object.Origin())
}

// secretTree returns a Secret without data. It is of the Service's package.
func (s *service) secretTree(id manifest.ID, kind string) map[string]any {
	meta := map[string]any{"name": id.Name, "namespace": id.Namespace}
	if pkg := s.object.Label(manifest.PackageLabel); pkg != "" {
		meta["labels"] = map[string]any{manifest.PackageLabel: pkg}
	}
	return map[string]any{"apiVersion": "v1", "kind": id.Kind, "type": kind, "metadata": meta}
}

// offer adds a Service's Secrets to the result. What is nil is not known yet.
func (w *work) offer(l *look, bundle []byte, pair map[string][]byte) error {
	record, err := l.recordObject()
	if err != nil {
		return err
	}
	leaf, err := manifest.New(l.secretTree(l.secret, "kubernetes.io/tls"), l.object.Origin())
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
