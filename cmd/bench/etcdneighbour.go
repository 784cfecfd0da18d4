package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"gitopsd.dev/reconcile/etcdproxy/proxytest"
	"gitopsd.dev/render/etcd"
)

// The measured namespace sends quietRequests in each of quietTurns turns, half of them
// reads. In every other turn a neighbour sends as many as it can.
const (
	quietRequests = 500
	quietTurns    = 6
)

// noisyThrottle is the neighbour's throttle. The neighbour always asks for more, and is
// throttled once it has used up its burst.
var noisyThrottle = etcd.Throttle{RequestsPerSecond: 200, Concurrent: 8}

// etcdNeighbour compares the latency of a namespace beside a throttled neighbour with its
// latency alone, by the 99th percentile.
func (b *bench) etcdNeighbour(ctx context.Context, f *fixture) error {
	server, _, err := f.etcdServer(ctx)
	if err != nil {
		return err
	}
	quiet, noisy := &etcdSide{name: "quiet"}, &etcdSide{name: "noisy"}
	if err := f.neighbours(ctx, server, quiet, noisy); err != nil {
		return err
	}
	for round := range b.rounds {
		fmt.Fprintf(b.say, "bench: etcd-neighbour, round %d of %d\n", round+1, b.rounds)
		var alone, beside, burst []time.Duration
		for turn := range quietTurns {
			to, stop := &alone, func() {}
			if turn%2 == 1 {
				// After a rest it may burst for a second's worth, which is noted apart.
				to, stop = &beside, noisy.flood(ctx)
				took, err := quiet.latencies(ctx)
				if err != nil {
					stop()
					return err
				}
				burst = append(burst, took...)
			}
			took, err := quiet.latencies(ctx)
			stop()
			if err != nil {
				return err
			}
			*to = append(*to, took...)
		}
		b.add("etcd-neighbour-p99", percentile(beside, 99).Seconds(), percentile(alone, 99).Seconds())
		b.note("etcd-neighbour-p99", "burst", percentile(burst, 99).Seconds())
		b.note("etcd-neighbour-p99", "median", percentile(beside, 50).Seconds())
		b.note("etcd-neighbour-p99", "rival:median", percentile(alone, 50).Seconds())
	}
	return nil
}

// neighbours serves two namespaces by one proxy, and connects their clients.
func (f *fixture) neighbours(ctx context.Context, server *proxytest.Etcd, quiet, noisy *etcdSide) error {
	authority := server.Authority()
	config, err := proxyConfig(authority)
	if err != nil {
		return err
	}
	sides := []*etcdSide{quiet, noisy}
	for i, s := range sides {
		id := etcd.ID{Cluster: s.name}
		ns := etcd.Namespace{ID: id, Number: int64(i + 1), Prefix: id.DefaultPrefix()}
		if s == noisy {
			ns.Throttle = noisyThrottle
		}
		served, err := server.Serve(ctx, ns, authority.PEM())
		if err != nil {
			return err
		}
		config.Tenants = append(config.Tenants, served)
	}
	process, address, err := proxytest.StartProxy(ctx, "127.0.0.1:0", config)
	if err != nil {
		return err
	}
	f.closes = append(f.closes, process.Kill)
	for _, s := range sides {
		if err := f.connect(ctx, s, "https://"+address, "client", authority, etcd.ID{Cluster: s.name}.URI()); err != nil {
			return err
		}
	}
	return nil
}

// latencies sends requests one after the other, and returns how long each took.
func (s *etcdSide) latencies(ctx context.Context) ([]time.Duration, error) {
	took := make([]time.Duration, 0, quietRequests)
	for i := range quietRequests {
		begun := time.Now()
		var err error
		if i%2 == 0 {
			_, err = s.clients[0].Get(ctx, etcdKey(0, i))
		} else {
			_, err = s.clients[0].Put(ctx, etcdKey(0, i), etcdValue)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		took = append(took, time.Since(begun))
	}
	return took, nil
}

// flood makes all clients write as fast as they can until stop is called. Most writes are
// refused.
func (s *etcdSide) flood(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var clients sync.WaitGroup
	for worker, c := range s.clients {
		clients.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				_, _ = c.Put(ctx, etcdKey(worker, i), etcdValue)
			}
		})
	}
	return func() { cancel(); clients.Wait() }
}

// percentile returns a percentile of the values.
func percentile(values []time.Duration, of int) time.Duration {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(len(sorted)*of/100, len(sorted)-1)]
}
