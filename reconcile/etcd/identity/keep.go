package identity

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"gitopsd.dev/reconcile/certs/rotation"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/manifest"
)

// Keep creates and renews the certificates of a namespace. It writes no object that is not gitopsd's. If
// an object cannot be written, the others are. While some records cannot be read or written, it removes
// no CA from a bundle, except those of withdrawn clients. The error is about the cluster, or [ErrChanged].
func (k *Keeper) Keep(ctx context.Context, s Store, w Wanted) (Kept, error) {
	t := &turn{
		keeper: k, store: s, wanted: w, now: time.Now(),
		read: make(map[manifest.ID]Stored), kept: Kept{Expires: make(map[manifest.ID]time.Time)},
	}
	if k.Now != nil {
		t.now = k.Now()
	}
	t.now = t.now.UTC().Truncate(time.Second)
	proxy, err := t.get(ctx, w.Proxy)
	if err != nil {
		return t.kept, err
	}
	t.proxy = make(map[string][]byte)
	t.kept.Proxy = t.proxy
	var trust []byte
	if proxy.Foreign == "" { // otherwise only the CAs of clients are of use
		maps.Copy(t.proxy, proxy.Data)
		if err := t.upstream(ctx); err != nil {
			return t.kept, err
		}
		if trust, err = t.serving(ctx); err != nil {
			return t.kept, err
		}
	}
	clients, err := t.clients(ctx, trust)
	if err != nil {
		return t.kept, err
	}
	// The proxy's Secret first, so that it trusts new clients before they have certificates.
	if t.kept.Written, err = t.put(ctx, w.Proxy, t.proxy); err != nil {
		return t.kept, err
	}
	for _, c := range clients {
		if !t.kept.Written && !issued(c.data[keyCert], proxy.Data["client-ca.crt"]) {
			continue // the proxy may not know its CA
		}
		written, err := t.put(ctx, c.id, c.data)
		if err != nil {
			return t.kept, err
		}
		if written {
			t.expires(c.id, c.data[keyCert])
		}
	}
	_, decided := t.proxy["client-ca.crt"] // it is empty if nobody may connect
	t.kept.Ready = decided && len(t.proxy["server.crt"]) > 0 && len(t.proxy["upstream.crt"]) > 0 && len(t.proxy["upstream-ca.crt"]) > 0
	return t.kept, nil
}

// turn is a call of Keep.
type turn struct {
	keeper *Keeper
	store  Store
	wanted Wanted
	now    time.Time
	// read has the objects that were read, each once.
	read map[manifest.ID]Stored
	// proxy is the wanted content of the proxy's Secret.
	proxy map[string][]byte
	kept  Kept
}

func (t *turn) problem(format string, args ...any) {
	t.kept.Problems = append(t.kept.Problems, fmt.Sprintf(format, args...))
}

func (t *turn) again(at time.Time) {
	if !at.IsZero() && (t.kept.Again.IsZero() || at.Before(t.kept.Again)) {
		t.kept.Again = at
	}
}

// set sets a key of the proxy's Secret. Empty content deletes it.
func (t *turn) set(name string, content []byte) {
	if len(content) == 0 {
		delete(t.proxy, name)
		return
	}
	t.proxy[name] = content
}

// get reads an object, and reports once if it is not gitopsd's.
func (t *turn) get(ctx context.Context, id manifest.ID) (Stored, error) {
	if known, ok := t.read[id]; ok {
		return known, nil
	}
	stored, err := t.store.Get(ctx, id)
	if err != nil {
		return Stored{}, err
	}
	if t.read[id] = stored; stored.Foreign != "" {
		t.problem("%s", stored.Foreign)
	}
	return stored, nil
}

// put writes an object if its content differs, and reports whether it has the content now.
func (t *turn) put(ctx context.Context, id manifest.ID, data map[string][]byte) (bool, error) {
	have := t.read[id]
	switch {
	case have.Foreign != "" || len(data) == 0:
		return false, nil
	case have.Version != "" && maps.EqualFunc(have.Data, data, bytes.Equal):
		return true, nil
	}
	err := t.store.Put(ctx, id, data, have.Version)
	return err == nil, t.kept.Note(err)
}

// rotate keeps one rotation. ok reports whether it has a result; if not, the certificate stays.
func (t *turn) rotate(ctx context.Context, what string, r rotation.Rotation, s *source) (result rotation.Result, ok bool, err error) {
	s.store, r.Now = t.store, t.now
	result, err = r.Keep(ctx, s)
	if why, ok := errors.AsType[foreign](err); ok {
		t.problem("%s", why)
		return rotation.Result{}, false, nil
	}
	switch {
	case errors.Is(err, rotation.ErrContended):
		return rotation.Result{}, false, ErrChanged
	case err != nil:
		return rotation.Result{}, false, t.kept.Note(err)
	}
	t.again(result.Again)
	if !result.Early.IsZero() {
		t.problem("%s", result.Behind(s.record.Namespace+"/"+s.record.Name))
	}
	if result.Restored {
		t.kept.Notes = append(t.kept.Notes, result.Stale(s.record.Namespace+"/"+s.record.Name))
	}
	if len(result.Lacking) > 0 {
		slices.Sort(result.Lacking)
		t.kept.Notes = append(t.kept.Notes, fmt.Sprintf("the new CA of %s waits until all that trust it have it; not yet: %s", what, prose.Some(slices.Compact(result.Lacking), 3)))
	}
	return result, true, nil
}

// expires notes when a client's certificate expires.
func (t *turn) expires(secret manifest.ID, crt []byte) {
	if chain, err := rotation.Parse(crt); err == nil {
		t.kept.Expires[secret] = chain[0].NotAfter
	}
}

// Fingerprint returns the fingerprint of a certificate, as in etcd.Namespace.Revoked.
func Fingerprint(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	return hex.EncodeToString(sum[:])
}

// upstream keeps the proxy's client certificate for etcd, with the namespace's user. The operator's CA,
// which etcd trusts, signs it.
func (t *turn) upstream(ctx context.Context) error {
	w := t.wanted
	if w.NoUpstream != nil {
		t.problem("%s", w.NoUpstream)
		return nil
	}
	profile := rotation.Profile{Name: w.ID.User()}
	authority, err := t.authority(profile)
	if err != nil {
		t.problem("the CA that is to sign for etcd (--etcd-client-ca-cert, --etcd-client-ca-key) %s", err)
		return nil
	}
	if from := rotation.Notice(authority.Cert); t.now.Before(from) {
		t.again(from)
	} else {
		t.kept.Notes = append(t.kept.Notes, fmt.Sprintf("the CA that signs for etcd (--etcd-client-ca-cert) expires on %s; gitopsd does not renew it",
			authority.Cert.NotAfter.UTC().Format(time.RFC3339)))
		t.again(authority.Cert.NotAfter)
	}
	cas, err := rotation.Parse(w.Upstream.CA)
	if err != nil {
		t.problem("the CA of etcd (--etcd-cafile) %s", err)
		return nil
	}
	t.proxy["upstream-ca.crt"] = rotation.Encode(cas...)
	s := &source{record: recordOf(w, "upstream"), leaf: map[string][]byte{keyCert: t.proxy["upstream.crt"], keyKey: t.proxy["upstream.key"]}}
	policy := t.keeper.policy(defaults, 0)
	policy.Settle = 0 // etcd trusts it by now, and perhaps none of before
	r, ok, err := t.rotate(ctx, "the way to etcd", rotation.Rotation{Profile: profile, Policy: policy, Brought: authority}, s)
	if err != nil || !ok {
		return err
	}
	t.set("upstream.crt", r.Cert)
	t.set("upstream.key", r.Key)
	return nil
}

// authority returns the CA that etcd trusts for clients, or an error if it cannot sign.
func (t *turn) authority(p rotation.Profile) (rotation.Authority, error) {
	chain, key, err := rotation.ParsePair(t.wanted.Upstream.ClientCACert, t.wanted.Upstream.ClientCAKey)
	if err != nil {
		return rotation.Authority{}, fmt.Errorf("cannot sign: %w", err)
	}
	a := rotation.Authority{Cert: chain[0], Key: key}
	switch {
	case !rotation.IsCA(a.Cert):
		return a, errors.New("is no CA")
	case t.now.Before(a.Cert.NotBefore) || !t.now.Before(a.Cert.NotAfter):
		return a, fmt.Errorf("is valid from %s to %s; use one that is valid now", a.Cert.NotBefore.UTC().Format(time.RFC3339), a.Cert.NotAfter.UTC().Format(time.RFC3339))
	}
	if err := p.Try(a, t.now); err != nil {
		return a, fmt.Errorf("cannot sign for %s: %w", p.Name, err)
	}
	return a, nil
}

// serving keeps the proxy's serving certificate, and the ConfigMaps with its CAs. It returns these CAs;
// nil if they are not known.
func (t *turn) serving(ctx context.Context) ([]byte, error) {
	w := t.wanted
	name := w.Service.Name + "." + w.Service.Namespace
	s := &source{record: recordOf(w, "server"), leaf: map[string][]byte{keyCert: t.proxy["server.crt"], keyKey: t.proxy["server.key"]}}
	var holders []manifest.ID
	for _, c := range w.Clients {
		holders = append(holders, c.Secret)
	}
	for _, id := range append(holders, w.ConfigMaps...) {
		held, err := t.get(ctx, id)
		if err != nil {
			return nil, err
		}
		if held.Version != "" && held.Foreign == "" {
			s.bundles = append(s.bundles, rotation.Held{Holder: id.String(), PEM: held.Data[keyBundle]})
		}
	}
	r, ok, err := t.rotate(ctx, "the proxy", rotation.Rotation{
		Profile: rotation.Profile{Name: name, DNSNames: []string{name, name + ".svc", name + ".svc.cluster.local"}, Host: name + ".svc"},
		Policy:  t.keeper.policy(serving, 0),
	}, s)
	if err != nil || !ok {
		return nil, err
	}
	if !r.Signs.IsZero() {
		t.kept.Notes = append(t.kept.Notes, fmt.Sprintf("from %s on the proxy's certificate is signed by a new CA, which is in ca.crt by now: restart API servers before, since they read it (--etcd-cafile) only when they start",
			r.Signs.UTC().Format(time.RFC3339)))
	}
	t.set("server.crt", r.Cert)
	t.set("server.key", r.Key)
	trust := r.Bundle
	if len(w.Trust) > 0 {
		trust = union(trust, w.Trust)
	}
	for _, id := range w.ConfigMaps {
		if _, err := t.put(ctx, id, map[string][]byte{keyBundle: trust}); err != nil {
			return nil, err
		}
	}
	return trust, nil
}

// written is an object to write.
type written struct {
	id   manifest.ID
	data map[string][]byte
}

// clients keeps the clients' certificates, and the proxy's bundle of their CAs.
func (t *turn) clients(ctx context.Context, trust []byte) ([]written, error) {
	var all []written
	var bundle []byte
	complete := true
	for _, c := range t.wanted.Clients {
		stored, err := t.get(ctx, c.Secret)
		if err != nil {
			return nil, err
		}
		if stored.Foreign != "" {
			continue // it never had a certificate
		}
		s := &source{record: recordOfClient(t.wanted, c), leaf: stored.Data,
			bundles: []rotation.Held{{Holder: t.wanted.Proxy.String(), PEM: t.read[t.wanted.Proxy].Data["client-ca.crt"]}}}
		r, ok, err := t.rotate(ctx, c.Secret.String(), rotation.Rotation{
			Profile: rotation.Profile{Name: t.wanted.ID.String(), URI: t.wanted.ID.URI()}, Policy: t.keeper.policy(defaults, c.Validity),
		}, s)
		if err != nil {
			return nil, err
		}
		t.expires(c.Secret, stored.Data[keyCert])
		if !ok {
			complete = false
			continue
		}
		bundle = append(bundle, r.Bundle...)
		ca := trust
		if ca == nil {
			ca = stored.Data[keyBundle]
		}
		all = append(all, written{c.Secret, map[string][]byte{keyCert: r.Cert, keyKey: r.Key, keyBundle: ca}})
	}
	before, decided := t.proxy["client-ca.crt"]
	if !complete {
		bundle = union(bundle, without(before, t.wanted.Withdrawn))
		decided = decided || len(bundle) > 0 && t.read[t.wanted.Proxy].Foreign == ""
	}
	if complete || decided {
		// Without the key, proxies could not read their directory, and would go on with the
		// CAs that they have.
		t.proxy["client-ca.crt"] = bundle
	}
	if len(bundle) == 0 && complete {
		t.kept.Notes = append(t.kept.Notes, "nobody may connect, since no client's certificate is declared (spec.clientCertificates)")
	}
	return all, nil
}

// issued reports whether a CA of a bundle signed a certificate.
func issued(crt, bundle []byte) bool {
	chain, err := rotation.Parse(crt)
	cas, _ := rotation.Parse(bundle) // an invalid bundle has no CAs
	return err == nil && slices.ContainsFunc(cas, func(ca *x509.Certificate) bool { return chain[0].CheckSignatureFrom(ca) == nil })
}

// without returns the certificates of a bundle that another does not have.
func without(a, b []byte) []byte {
	certs, _ := rotation.Parse(a) // an invalid bundle has no CAs
	gone, _ := rotation.Parse(b)
	return rotation.Encode(slices.DeleteFunc(certs, func(cert *x509.Certificate) bool { return slices.ContainsFunc(gone, cert.Equal) })...)
}

// union returns the certificates of two bundles, each once.
func union(a, b []byte) []byte {
	certs, _ := rotation.Parse(a) // gitopsd's own
	more, _ := rotation.Parse(b)  // an invalid bundle has no CAs
	for _, cert := range more {
		if !slices.ContainsFunc(certs, cert.Equal) {
			certs = append(certs, cert)
		}
	}
	return rotation.Encode(certs...)
}
