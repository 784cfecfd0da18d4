package namespaces

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/certs/rotation"
	admin "gitopsd.dev/reconcile/etcd"
	"gitopsd.dev/reconcile/etcd/identity"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/render/etcd"
	"gitopsd.dev/render/manifest"
)

// mostRevoked bounds the fingerprints of a namespace; the newest are kept.
const mostRevoked = 100

// provision provisions the objects to keep in etcd, and sets p.there. The error is about the etcd.
func (p *pass) provision(ctx context.Context, due []*task) (map[etcd.ID]admin.Provisioned, error) {
	var wanted []admin.Wanted
	asked := false
	for _, t := range due {
		do, _ := decide(t.subject)
		asked = asked || do == keep || do == remove || do == release && p.cfg.Etcd != nil || do == leave && p.resumes(t)
		if do != keep || p.refusedPrefix(t.declaration) {
			continue
		}
		if err := p.finalize(ctx, t); err != nil {
			if kube.IsClusterWide(err) {
				return nil, err
			}
			t.unfinalized = err
			continue
		}
		w, err := p.wanted(ctx, t)
		if err != nil {
			return nil, err
		}
		wanted = append(wanted, w)
	}
	if !asked {
		return nil, nil
	}
	provisioned := make(map[etcd.ID]admin.Provisioned)
	if len(wanted) > 0 {
		all, err := p.cfg.Etcd.Admin.Provision(ctx, wanted)
		for _, one := range all {
			provisioned[one.ID] = one
		}
		if err != nil {
			return provisioned, err
		}
	}
	all, err := p.cfg.Etcd.Admin.Overview(ctx)
	if err != nil {
		if len(provisioned) > 0 { // they do not say so
			p.etcdProblems = []string{err.Error()}
		}
		return provisioned, err
	}
	p.etcdProblems = all.Problems
	p.there, p.damaged = make(map[etcd.ID]admin.Status, len(all.Namespaces)), all.Damaged
	for _, one := range all.Namespaces {
		p.there[one.ID] = one
	}
	return provisioned, nil
}

// wanted returns what to provision for an object.
func (p *pass) wanted(ctx context.Context, t *task) (admin.Wanted, error) {
	if err := p.identify(ctx); err != nil {
		return admin.Wanted{}, err
	}
	w := admin.Wanted{ID: p.id(t), UID: p.cluster, Adopt: t.adopt}
	if t.declaration != nil {
		w.Prefix = t.declaration.Prefix
	}
	return w, nil
}

// identify reads p.cluster.
func (p *pass) identify(ctx context.Context) error {
	if p.cluster != "" {
		return nil
	}
	system := kube.Type{Version: "v1", Kind: manifest.Namespace.Kind, Resource: "namespaces"}
	meta, err := p.Client.GetMetadata(ctx, system, system.ID("", "kube-system"))
	if err != nil {
		return err
	}
	p.cluster = string(meta.UID)
	return nil
}

// refusedPrefix reports whether a declaration names a prefix that the daemon does not allow, since it
// may have keys of others.
func (p *pass) refusedPrefix(d *etcd.Declaration) bool {
	return d.Prefix != "" && !slices.ContainsFunc(p.cfg.Etcd.Prefixes, func(allowed string) bool { return strings.HasPrefix(d.Prefix, allowed) })
}

// keep keeps a declared object. trouble is why the etcd cannot be used, or not for all objects: made is
// zero for those that it is about.
func (p *pass) keep(ctx context.Context, t *task, made admin.Provisioned, trouble error) error {
	p.next(t, p.now.Add(countPause))
	d, s := t.declaration, new(state)
	s.address = d.Address()
	if p.url != "" {
		s.address = p.url
	}
	switch {
	case p.refusedPrefix(d):
		s.set(readyCondition, false, prefixRefused, fmt.Sprintf("the prefix %s may hold keys of others, and the daemon does not allow it (--etcd-allow-prefixes); leave spec.prefix out for one that gitopsd chooses", d.Prefix))
		return p.show(ctx, t, s)
	case kube.ClassOf(t.unfinalized) == kube.Changed:
		return t.unfinalized
	case t.unfinalized != nil:
		s.set(readyCondition, false, notProvisioned, problem.Message(t.unfinalized))
		return errors.Join(t.unfinalized, p.show(ctx, t, s))
	case p.left(t):
		return p.finish(ctx, t)
	case trouble != nil && made.Number == 0 && made.Err == nil:
		s.set(provisionedCondition, false, etcdUnavailable, trouble.Error())
		p.next(t, p.now.Add(firstRetry*10))
	case made.Err != nil:
		s.set(provisionedCondition, false, notProvisioned, made.Err.Error())
	case made.Number == 0:
		// The object was deleted or changed meanwhile.
		return cmp.Or(ctx.Err(), fmt.Errorf("%s: %w", t.object(), identity.ErrChanged))
	default:
		s.set(provisionedCondition, true, available, "")
		s.prefix = made.Prefix
	}
	p.size(t, s)
	for _, what := range made.Repaired {
		p.Log.Warn("somebody had changed what an etcd namespace has in etcd; it was changed back", "namespace", made.ID.String(), "what", what)
	}
	failed, err := p.certify(ctx, t, made, s)
	if err != nil {
		return err
	}
	s.conclude()
	return errors.Join(p.show(ctx, t, s), failed)
}

// certify keeps the certificates of a namespace, and its proxy's directory. failed has the errors of
// objects that could not be written.
func (p *pass) certify(ctx context.Context, t *task, made admin.Provisioned, s *state) (failed, err error) {
	d, st := t.declaration, p.store(t)
	w := p.certificates(d, st.proxy)
	withdrawn, err := p.withdrawn(ctx, st, t, &w)
	if err != nil {
		return nil, err
	}
	if made.Number != 0 && made.Err == nil {
		if err := p.direct(ctx, st, t, made, withdrawn); err != nil {
			return nil, err
		}
	}
	kept, err := p.cfg.Etcd.Keeper.Keep(ctx, st, w)
	if err != nil {
		return nil, err
	}
	revoked := kept.Written
	if revoked {
		err := st.finish(ctx)
		if revoked = err == nil; kept.Note(err) != nil {
			return nil, err
		}
	}
	p.serve(t, kept, st.want, s)
	// The proxy's Secret revokes them; a kubelet takes a minute to bring it to the proxy.
	if revoked {
		for id := range withdrawn {
			if err := kept.Note(refused(p.delete(ctx, id, t.uids[id]))); err != nil {
				return nil, err
			}
		}
	}
	if !kept.Again.IsZero() && kept.Again.Before(t.known.next) {
		p.next(t, kept.Again)
	}
	before := t.known.shown
	s.certify(d, kept, t.failures > 0 || before == nil || before.trouble() != "")
	return errors.Join(kept.Refused...), nil
}

// certificates returns the certificates of a declaration.
func (p *pass) certificates(d *etcd.Declaration, proxy manifest.ID) identity.Wanted {
	w := identity.Wanted{ID: d.Of(p.Cluster), Service: d.Service(), Proxy: proxy}
	w.Upstream, w.NoUpstream = p.cfg.Etcd.Upstream()
	if p.url != "" && p.cfg.Etcd.Proxy != nil {
		w.Trust = p.cfg.Etcd.Proxy.Trust()
	}
	for _, c := range d.Certificates {
		w.Clients = append(w.Clients, identity.Client{Secret: manifest.Secret.ID(d.Namespace, c.Secret), Validity: c.Validity})
	}
	for _, name := range d.CAConfigMaps {
		w.ConfigMaps = append(w.ConfigMaps, manifest.ConfigMap.ID(d.Namespace, name))
	}
	return w
}

// direct sets the files of the proxy's directory other than certificates.
func (p *pass) direct(ctx context.Context, st *store, t *task, made admin.Provisioned, withdrawn map[manifest.ID]string) error {
	d := t.declaration
	if _, err := st.Get(ctx, st.proxy); err != nil {
		return err
	}
	n := etcd.Namespace{ID: made.ID, Number: made.Number, Prefix: made.Prefix, Quota: d.Quota, Throttle: d.Throttle}
	var before etcd.Namespace
	if json.Unmarshal(st.files[etcd.NamespaceFile], &before) == nil && before.ID == n.ID {
		n.Revoked = before.Revoked
	}
	for _, fingerprint := range withdrawn {
		if fingerprint != "" && !slices.Contains(n.Revoked, fingerprint) {
			n.Revoked = append(n.Revoked, fingerprint)
		}
	}
	n.Revoked = n.Revoked[max(0, len(n.Revoked)-mostRevoked):]
	text, err := json.Marshal(n)
	if err != nil {
		return err
	}
	st.want = map[string][]byte{
		etcd.NamespaceFile: append(text, '\n'),
		etcd.EndpointsFile: p.endpoints(),
	}
	return nil
}

// endpoints returns the content of [etcd.EndpointsFile].
func (p *pass) endpoints() []byte { return []byte(strings.Join(p.cfg.Etcd.Endpoints, "\n") + "\n") }

// withdrawn returns the written objects, including the records of CAs, that a declaration no longer
// names, with the fingerprints of the certificates in them. It sets w.Withdrawn.
func (p *pass) withdrawn(ctx context.Context, st *store, t *task, w *identity.Wanted) (map[manifest.ID]string, error) {
	all := make(map[manifest.ID]string)
	wanted := append(t.declaration.Writes(), identity.Records(*w)...)
	for _, id := range t.written {
		if slices.Contains(wanted, id) {
			continue
		}
		had, err := st.Get(ctx, id)
		if err != nil {
			return nil, err
		}
		all[id] = fingerprint(had.Data["tls.crt"])
		if id.Namespace == apply.Namespace { // a record
			w.Withdrawn = append(w.Withdrawn, identity.Recorded(had.Data)...)
		}
	}
	return all, nil
}

// fingerprint returns the fingerprint of a certificate in PEM; empty for none.
func fingerprint(text []byte) string {
	chain, err := rotation.Parse(text)
	if err != nil {
		return ""
	}
	return identity.Fingerprint(chain[0])
}
