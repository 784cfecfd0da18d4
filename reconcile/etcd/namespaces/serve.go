package namespaces

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"time"

	"gitopsd.dev/reconcile/certs/rotation"
	"gitopsd.dev/reconcile/etcd/identity"
	"gitopsd.dev/reconcile/etcd/registry"
	"gitopsd.dev/reconcile/home"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/etcd"
	"gitopsd.dev/render/manifest"
)

// served returns the URL at which the daemon serves the namespaces of a home; empty if proxies in the
// home do.
func served(v *home.View) string {
	if v.Fleet.Registry == nil {
		return ""
	}
	for _, c := range v.Fleet.Registry.Clusters {
		if c.Name == v.Cluster && c.Spec.Etcd != nil && c.Spec.Etcd.Proxy != nil {
			return c.Spec.Etcd.Proxy.URL
		}
	}
	return ""
}

// serve makes the daemon serve a namespace, if the home uses the daemon's proxy. more has the content of
// the proxy's Secret other than certificates, on which the daemon has just decided; nil if it is not known.
// With the certificates, writers of the Secret can harm no other namespace.
//
// If the namespace cannot be served like this, it is served as before, but only to the clients that
// may connect now.
func (p *pass) serve(t *task, kept identity.Kept, more map[string][]byte, s *state) {
	proxy := p.cfg.Etcd.Proxy
	switch {
	case p.url == "":
		p.withdraw(t)
		return
	case proxy == nil:
		s.set(servedCondition, false, notServed, "the Cluster says that the daemon serves it (spec.etcd.proxy.url), and the daemon serves none: start it with --etcd-proxy-listen")
		return
	}
	var err error
	known := more != nil && kept.Ready // if not, another condition says what is missing
	if known {
		directory := maps.Clone(kept.Proxy)
		maps.Copy(directory, more)
		err = proxy.Serve(p.id(t), files(directory))
	}
	if cas, decided := kept.Proxy["client-ca.crt"]; decided && (!known || err != nil) {
		err = errors.Join(err, proxy.Admit(p.id(t), cas))
	}
	if !known && err == nil {
		return
	}
	if u, _ := url.Parse(p.url); err == nil && u != nil {
		err = proxy.Serves(u.Hostname())
	}
	if err != nil {
		s.set(servedCondition, false, notServed, err.Error())
		return
	}
	s.set(servedCondition, true, available, "")
}

// files returns the files of a proxy's directory by path, from the content of its Secret.
func files(secret map[string][]byte) map[string][]byte {
	files := make(map[string][]byte)
	for _, f := range etcd.Files {
		if text, ok := secret[f.Key]; ok {
			files[f.Path] = text
		}
	}
	return files
}

// resumes reports whether the daemon must begin to serve a namespace although it is not known whether it
// is declared. One that it serves already stays as it is.
func (p *pass) resumes(t *task) bool {
	return t.unclear && t.finalized && p.url != "" && p.cfg.Etcd != nil && p.cfg.Etcd.Proxy != nil && !p.cfg.Etcd.Proxy.Has(p.id(t))
}

// resume serves a namespace as an earlier process did, from the proxy's Secret. What in it would give
// access to keys of others must be as in the record in etcd; the limits may be those of a writer of the
// Secret, until the declaration can be read.
func (p *pass) resume(ctx context.Context, t *task, trouble error) error {
	if trouble != nil {
		return trouble
	}
	p.next(t, p.now.Add(countPause)) // unless it is served below
	record, known := p.there[p.id(t)]
	if !known || record.State != registry.Active {
		return p.damaged[p.id(t)] // if it is not damaged, it never was served, or is not to be any more
	}
	if err := p.identify(ctx); err != nil {
		return err
	}
	if record.Owner.UID != p.cluster {
		return fmt.Errorf("%s has keys in etcd that another cluster of this name declared; they are not served to this one", p.id(t))
	}
	st := p.store(t)
	stored, err := st.Get(ctx, st.proxy)
	switch {
	case err != nil:
		return err
	case stored.Foreign != "":
		return errors.New(stored.Foreign)
	case stored.Version == "":
		return nil // it never was served
	}
	var n etcd.Namespace
	if err := json.Unmarshal(st.files[etcd.NamespaceFile], &n); err != nil || n.ID != record.ID || n.Number != record.Number || n.Prefix != record.Prefix {
		return fmt.Errorf("%s is not as gitopsd wrote it (%s), so that the namespace is not served from it until its declaration can be read", st.proxy, etcd.NamespaceFile)
	}
	maps.Copy(stored.Data, st.files)
	stored.Data[etcd.EndpointsFile] = p.endpoints()
	err = p.cfg.Etcd.Proxy.Serve(p.id(t), files(stored.Data))
	if err == nil {
		p.next(t, time.Time{})
	}
	return err
}

// expiring returns which certificates of a namespace expire soon or have expired, and has it looked at
// again when that changes. It is for a namespace of which it is not known whether it is declared:
// nothing renews its certificates.
func (p *pass) expiring(ctx context.Context, t *task) (string, error) {
	st := p.store(t)
	secrets := []manifest.ID{st.proxy}
	for _, id := range t.written {
		if id.Is(manifest.Secret) && id != st.proxy {
			secrets = append(secrets, id)
		}
	}
	var all []string
	for _, id := range secrets {
		stored, err := st.Get(ctx, id)
		if err != nil {
			return "", err
		}
		for _, key := range []string{"server.crt", "upstream.crt", "tls.crt"} {
			chain, err := rotation.Parse(stored.Data[key])
			if err != nil || stored.Foreign != "" {
				continue // none was made yet
			}
			expires, again, verb := chain[0].NotAfter, rotation.Notice(chain[0]), ""
			if !p.now.Before(again) {
				again, verb = expires, "expires"
			}
			if !p.now.Before(expires) {
				again, verb = time.Time{}, "expired"
			}
			if !again.IsZero() && (t.known.next.IsZero() || again.Before(t.known.next)) {
				p.next(t, again)
			}
			if verb != "" {
				all = append(all, fmt.Sprintf("%s of %s %s on %s", key, id, verb, expires.UTC().Format(time.RFC3339)))
			}
		}
	}
	if len(all) == 0 {
		return "", nil
	}
	return prose.Some(all, 3) + "; nothing is renewed while it is not known whether the repository declares the EtcdNamespace: the cluster is suspended, or its repository has errors", nil
}

// withdraw makes the daemon stop serving a namespace.
func (p *pass) withdraw(t *task) {
	if e := p.cfg.Etcd; e != nil && e.Proxy != nil {
		id := p.id(t)
		e.Proxy.Withdraw(func(other etcd.ID) bool { return other == id })
	}
}

// size sets what a namespace holds, from the daemon's own proxy or from etcd; otherwise from the last
// status.
func (p *pass) size(t *task, s *state) {
	if before := t.known.shown; before != nil {
		s.prefix, s.counted, s.keys, s.sized, s.bytes = before.prefix, before.counted, before.keys, before.sized, before.bytes
	}
	if there, known := p.there[p.id(t)]; known {
		s.prefix = there.Prefix
		if there.Err == nil {
			s.counted, s.keys = true, there.Keys
		}
		if there.Sized {
			s.sized, s.bytes = true, there.Bytes
		}
	}
	if proxy := p.cfg.Etcd.Proxy; proxy != nil {
		if n, known := proxy.Bytes(p.id(t)); known {
			s.sized, s.bytes = true, n
		}
	}
	if quota := t.declaration.Quota.Storage; s.sized && quota > 0 {
		s.used = used(s.bytes, quota)
	}
}
