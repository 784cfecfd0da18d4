package namespaces

import (
	"net/url"

	"gitopsd.dev/reconcile/home"
	"gitopsd.dev/render/etcd"
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

// serve makes the daemon serve a namespace, if the home uses the daemon's proxy. directory is the content
// of the proxy's Secret, and complete reports whether nothing is missing. The daemon has just decided on
// prefix, number and limits in it; with the rest, writers of the Secret can harm no other namespace.
func (p *pass) serve(t *task, directory map[string][]byte, complete bool, s *state) {
	proxy := p.cfg.Etcd.Proxy
	switch {
	case p.url == "":
		p.withdraw(t)
		return
	case proxy == nil:
		s.set(servedCondition, false, notServed, "the Cluster says that the daemon serves it (spec.etcd.proxy.url), and the daemon serves none: start it with --etcd-proxy-listen")
		return
	case directory == nil || !complete:
		return // another condition says what is missing; it is served as before
	}
	files := make(map[string][]byte)
	for _, f := range etcd.Files {
		files[f.Path] = directory[f.Key]
	}
	err := proxy.Serve(p.id(t), files)
	if u, _ := url.Parse(p.url); err == nil && u != nil {
		err = proxy.Serves(u.Hostname())
	}
	if err != nil {
		s.set(servedCondition, false, notServed, err.Error())
		return
	}
	s.set(servedCondition, true, available, "")
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
		s.prefix, s.counted, s.keys = there.Prefix, true, there.Keys
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
