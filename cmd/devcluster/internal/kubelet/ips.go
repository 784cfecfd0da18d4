package kubelet

import (
	"net/netip"
	"sync"
)

// podCIDR is the range of pod addresses. Nothing answers there.
var podCIDR = netip.MustParsePrefix("10.244.0.0/16")

// ipPool gives each pod, by namespace and name, an address of its own.
type ipPool struct {
	mu    sync.Mutex
	byPod map[string]netip.Addr
	taken map[netip.Addr]bool
	last  netip.Addr
}

func newIPPool() *ipPool {
	return &ipPool{byPod: map[string]netip.Addr{}, taken: map[netip.Addr]bool{}, last: podCIDR.Addr()}
}

// take records the address that a pod already has.
func (p *ipPool) take(pod, ip string) {
	addr, err := netip.ParseAddr(ip)
	if err != nil || !podCIDR.Contains(addr) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.byPod[pod], p.taken[addr] = addr, true
}

// of returns the pod's address, or "" if all are in use. A released address is reused as
// late as possible.
func (p *ipPool) of(pod string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if addr, ok := p.byPod[pod]; ok {
		return addr.String()
	}
	size := 1 << (podCIDR.Addr().BitLen() - podCIDR.Bits())
	for range size {
		p.last = p.last.Next()
		if !podCIDR.Contains(p.last) {
			p.last = podCIDR.Addr().Next()
		}
		if !p.taken[p.last] {
			p.byPod[pod], p.taken[p.last] = p.last, true
			return p.last.String()
		}
	}
	return ""
}

// release returns a pod's address to the pool.
func (p *ipPool) release(pod string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if addr, ok := p.byPod[pod]; ok {
		delete(p.byPod, pod)
		delete(p.taken, addr)
	}
}
