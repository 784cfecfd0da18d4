package namespaces

import (
	"net/url"

	"gitopsd.dev/reconcile/home"
	"gitopsd.dev/render/etcd"
)

// served returns where the API servers of a home reach the daemon, which serves the
// namespaces of the home then; empty if proxies in the home do.
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

// serve has the daemon serve a namespace, if the home is to reach it there. directory is
// what the proxy's Secret has, and complete reports whether that is all it needs. Prefix,
// number and limits in it are as the daemon decided, whatever somebody wrote there; by the
// rest, who can write the Secret can harm no namespace but this one.
func (p *pass) serve(t *task, directory map[string][]byte, complete bool, s *state) {
	proxy := p.cfg.Etcd.Proxy
	switch {
	case p.url == "":
		p.withdraw(t)
		return
	case proxy == nil:
		s.set(servedCondition, false, NotServed, "the Cluster says that the daemon serves it (spec.etcd.proxy.url), and the daemon serves none: start it with --etcd-proxy-listen")
		return
	case directory == nil || !complete:
		return // what is served stays, and another condition says what is missing
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
		s.set(servedCondition, false, NotServed, err.Error())
		return
	}
	s.set(servedCondition, true, Available, "")
}

// withdraw has the daemon serve a namespace no longer.
func (p *pass) withdraw(t *task) {
	if e := p.cfg.Etcd; e != nil && e.Proxy != nil {
		id := p.id(t)
		e.Proxy.Withdraw(func(other etcd.ID) bool { return other == id })
	}
}

// size says what a namespace holds: by the daemon's own proxy, or by etcd. Where nobody
// knows, what was known before stands.
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
