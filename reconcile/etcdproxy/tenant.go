package etcdproxy

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"gitopsd.dev/reconcile/etcdproxy/wire"
	"gitopsd.dev/render/etcd"
)

// tenant is a namespace that is served. Its clients and its way to etcd may change meanwhile, its prefix and
// number do not.
type tenant struct {
	id       etcd.ID
	prefix   string
	number   int64
	space    *wire.Space
	upstream *upstream
	counts   counts
	quota    atomic.Int64 // in bytes; 0 for none
	unread   atomic.Int64 // bytes of unread responses
	asked    atomic.Int64 // bytes of requests in progress
	alarmed  atomic.Int64 // Unix time of the last alarm

	mu       sync.Mutex
	clients  clients
	sessions map[*session]struct{}
	leases   map[int64]struct{} // the tenant's IDs of leases granted by this proxy
}

// Set replaces the tenants. Calls and connections of tenants that stay go on, except those of clients that
// are no longer trusted. A tenant that is invalid or overlaps another is not served; the error names it, and
// the others are served. A tenant that is served already keeps its [Upstream] if the new one is invalid; the
// error names it, too.
func (p *Proxy) Set(tenants []Tenant) error {
	p.setting.Lock()
	defer p.setting.Unlock()
	var errs []error
	old, next := p.tenants, make(map[string]*tenant)
	for i, t := range tenants {
		uri := t.ID.URI().String()
		serving := old[uri]
		err := check(t, i, tenants)
		switch {
		case err != nil:
			serving = nil
		case serving == nil || serving.prefix != t.Prefix || serving.number != t.Number:
			serving, err = p.newTenant(t)
		default:
			err = serving.upstream.set(t.Upstream)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("etcd namespace %s: %w", t.ID, err))
		}
		if serving == nil {
			continue
		}
		serving.quota.Store(t.Quota.Storage)
		p.cfg.Gate.Open(t.Namespace, t.Upstream.Endpoints, serving.upstream.conn)
		next[uri] = serving
	}
	p.mu.Lock()
	p.tenants = next
	p.served.Store(int64(len(next)))
	p.mu.Unlock()

	// From here on new connections are judged by the new tenants; earlier ones are judged again.
	for _, t := range tenants {
		if serving := next[t.ID.URI().String()]; serving != nil {
			serving.admit(clientsOf(t))
		}
	}
	for uri, t := range old {
		if next[uri] != t {
			if next[uri] == nil {
				p.cfg.Gate.Close(t.id)
			}
			t.close()
		}
	}
	return errors.Join(errs...)
}

func (p *Proxy) newTenant(t Tenant) (*tenant, error) {
	up, err := newUpstream(t.Upstream, p.cfg)
	if err != nil {
		return nil, err
	}
	return &tenant{
		id: t.ID, prefix: t.Prefix, number: t.Number,
		space:    wire.NewSpace(t.Prefix, t.Number),
		upstream: up,
		clients:  clientsOf(t),
		sessions: make(map[*session]struct{}),
		leases:   make(map[int64]struct{}),
	}, nil
}

// close ends the connections of a tenant, and their calls.
func (t *tenant) close() {
	t.admit(clients{})
	t.upstream.close()
}

// admit replaces the clients, and closes the connections of those no longer trusted.
func (t *tenant) admit(c clients) {
	t.mu.Lock()
	t.clients = c
	sessions := slices.Collect(maps.Keys(t.sessions))
	t.mu.Unlock()
	for _, s := range sessions {
		if c.verify(s.chain) != nil {
			s.close()
		}
	}
}

// check returns an error if tenant i of all cannot be served beside the others.
func check(t Tenant, i int, all []Tenant) error {
	if err := valid(t); err != nil {
		return err
	}
	for j, other := range all {
		switch {
		case j == i:
		case other.ID == t.ID:
			return errors.New("is named twice")
		case valid(other) != nil: // it is not served
		case strings.HasPrefix(other.Prefix, t.Prefix) || strings.HasPrefix(t.Prefix, other.Prefix):
			return fmt.Errorf("prefix %s overlaps %s of %s", t.Prefix, other.Prefix, other.ID)
		case other.Number == t.Number:
			return fmt.Errorf("number %d is that of %s, too", t.Number, other.ID)
		}
	}
	return nil
}

// valid returns an error if a tenant cannot be served.
func valid(t Tenant) error {
	switch {
	case t.ID.Cluster == "":
		return errors.New("no name")
	case len(t.Prefix) < 2 || !strings.HasSuffix(t.Prefix, "/"):
		return fmt.Errorf("prefix %q does not end with / after a name", t.Prefix)
	case t.Number < 1 || t.Number > etcd.MaxNumber:
		return fmt.Errorf("number %d is not between 1 and %d", t.Number, etcd.MaxNumber)
	case t.ClientCAs == nil:
		return errors.New("no certificate authority for its clients")
	}
	return nil
}
