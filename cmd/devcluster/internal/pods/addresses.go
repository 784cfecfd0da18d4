package pods

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"syscall"
)

// addresses hands out addresses in 127.0.0.0/8 that no other devcluster on this machine
// uses at the same time, whatever its directory or user.
//
// It claims a block of 256 addresses by listening on an abstract Unix socket that is named
// after the block. Like loopback addresses, such names are shared by all processes of a
// network namespace, and the kernel releases them when the process ends in any way. The
// zero value has no block. It is not safe for concurrent use.
type addresses struct {
	blocks []*block
}

type block struct {
	first netip.Addr // ends in .0, which is not handed out
	claim net.Listener
	taken [256]bool
	last  int
}

// take returns a free address. A released address is reused as late as possible.
func (a *addresses) take() (netip.Addr, error) {
	for _, b := range a.blocks {
		if addr, ok := b.take(); ok {
			return addr, nil
		}
	}
	b, err := claimBlock()
	if err != nil {
		return netip.Addr{}, err
	}
	a.blocks = append(a.blocks, b)
	addr, _ := b.take()
	return addr, nil
}

// claimBlock claims a block from 127.1.0.0 upwards: other programs use those below.
func claimBlock() (*block, error) {
	const tries = 100
	for range tries {
		first := netip.AddrFrom4([4]byte{127, byte(1 + rand.IntN(254)), byte(rand.IntN(256)), 0})
		l, err := net.Listen("unix", "@devcluster-pods-"+first.String())
		if err == nil {
			return &block{first: first, claim: l}, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("addresses for pods: %w", err)
		}
	}
	return nil, errors.New("no addresses for pods: all of 127.0.0.0/8 seems to be claimed by devclusters of this machine")
}

func (b *block) take() (netip.Addr, bool) {
	const usable = 254 // without .0 and .255
	for range usable {
		b.last = b.last%usable + 1
		if !b.taken[b.last] {
			b.taken[b.last] = true
			four := b.first.As4()
			four[3] = byte(b.last)
			return netip.AddrFrom4(four), true
		}
	}
	return netip.Addr{}, false
}

func (a *addresses) release(addr netip.Addr) {
	four := addr.As4()
	last := four[3]
	four[3] = 0
	for _, b := range a.blocks {
		if b.first == netip.AddrFrom4(four) {
			b.taken[last] = false
		}
	}
}

func (a *addresses) close() {
	for _, b := range a.blocks {
		b.claim.Close()
	}
}
