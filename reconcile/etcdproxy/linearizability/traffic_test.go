package linearizability

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// patience is how long a client waits for a request.
const patience = 10 * time.Second

// keys are what the clients write; last comes after all of them.
var keys = []string{"a", "b", "c", "d", "e"}

const (
	last = "z"
	end  = "z\x00"
)

// recorder collects what clients did.
type recorder struct {
	begun time.Time
	// done counts requests, with and without an answer.
	done atomic.Int64

	mu      sync.Mutex
	history []porcupine.Operation
	lost    []porcupine.Operation // without an answer
}

// wait waits until so many requests are done.
func (r *recorder) wait(ctx context.Context, n int) {
	for r.done.Load() < int64(n) && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
}

// client sends random requests, one after the other.
type client struct {
	id     int
	kv     clientv3.KV
	random *rand.Rand
	known  map[string]int64 // revisions of keys as it saw them last
	puts   int
}

// run sends n requests.
func (c *client) run(ctx context.Context, r *recorder, n int) {
	for range n {
		in := c.request()
		asked, cancel := context.WithTimeout(ctx, patience)
		call := time.Since(r.begun)
		answer, err := c.kv.Do(asked, in.op())
		returned := time.Since(r.begun)
		cancel()
		if ctx.Err() != nil {
			return
		}
		o := porcupine.Operation{ClientId: c.id, Input: in, Call: int64(call), Return: int64(returned)}
		r.mu.Lock()
		if err != nil {
			r.lost = append(r.lost, o)
		} else {
			out := read(in, answer)
			c.learn(out)
			o.Output = out
			r.history = append(r.history, o)
		}
		r.mu.Unlock()
		r.done.Add(1)
	}
}

// request returns a random request.
func (c *client) request() request {
	key, other := keys[c.random.IntN(len(keys))], keys[c.random.IntN(len(keys)-1)]
	if other == key {
		other = keys[len(keys)-1]
	}
	write := func(key string) op {
		c.puts++
		return op{kind: put, key: key, value: fmt.Sprintf("%d/%d", c.id, c.puts)}
	}
	switch c.random.IntN(10) {
	case 0, 1:
		return single(op{kind: get, key: key})
	case 2:
		return single(op{kind: get, key: "a", end: end})
	case 3, 4:
		return single(write(key))
	case 5:
		return single(op{kind: remove, key: key})
	case 6: // as Kubernetes updates an object
		return request{conditions: []condition{{key, c.known[key]}}, then: []op{write(key)}, or: []op{{kind: get, key: key}}}
	case 7: // as Kubernetes deletes one, with a second key to tell whether it did
		return request{conditions: []condition{{key, c.known[key]}}, then: []op{{kind: remove, key: key}, write(other)}, or: []op{{kind: get, key: key}}}
	case 8:
		return request{then: []op{{kind: get, key: "a", end: end}, write(key), write(other), {kind: get, key: other}}}
	default:
		return request{conditions: []condition{{key, c.known[key]}, {other, c.known[other]}}, then: []op{write(key), write(other)},
			or: []op{{kind: get, key: key}, {kind: get, key: other}}}
	}
}

// learn remembers the revisions of keys, for later conditions.
func (c *client) learn(out response) {
	for _, r := range out.results {
		for _, f := range r.found {
			c.known[f.key] = f.mod
		}
	}
}

// op returns the request for etcd's client.
func (r request) op() clientv3.Op {
	ops := func(all []op) (out []clientv3.Op) {
		for _, o := range all {
			out = append(out, o.op())
		}
		return out
	}
	if r.conditions == nil && len(r.then) == 1 {
		return r.then[0].op()
	}
	var conditions []clientv3.Cmp
	for _, c := range r.conditions {
		conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(c.key), "=", c.mod))
	}
	return clientv3.OpTxn(conditions, ops(r.then), ops(r.or))
}

func (o op) op() clientv3.Op {
	var options []clientv3.OpOption
	if o.end != "" {
		options = append(options, clientv3.WithRange(o.end))
	}
	switch o.kind {
	case put:
		return clientv3.OpPut(o.key, o.value)
	case remove:
		return clientv3.OpDelete(o.key, options...)
	default:
		return clientv3.OpGet(o.key, options...)
	}
}

// read converts an answer.
func read(in request, answer clientv3.OpResponse) response {
	txn := answer.Txn()
	if txn == nil {
		out := response{held: true, results: []result{resultOf(answer)}}
		switch in.then[0].kind {
		case put:
			out.revision = answer.Put().Header.Revision
		case remove:
			out.revision = answer.Del().Header.Revision
		default:
			out.revision = answer.Get().Header.Revision
		}
		return out
	}
	out := response{revision: txn.Header.Revision, held: txn.Succeeded}
	for _, r := range txn.Responses {
		var one result
		if g := r.GetResponseRange(); g != nil {
			one = resultOf((*clientv3.GetResponse)(g).OpResponse())
		}
		if d := r.GetResponseDeleteRange(); d != nil {
			one.deleted = d.Deleted
		}
		out.results = append(out.results, one)
	}
	return out
}

func resultOf(answer clientv3.OpResponse) (r result) {
	if g := answer.Get(); g != nil {
		for _, kv := range g.Kvs {
			r.found = append(r.found, found{string(kv.Key), string(kv.Value), kv.CreateRevision, kv.ModRevision, kv.Version})
		}
	}
	if d := answer.Del(); d != nil {
		r.deleted = d.Deleted
	}
	return r
}

// operations returns the whole history for the model. etcd's own history shows whether requests without an
// answer were applied: it has the values that they put, or not. Requests that only delete put none. If no
// other request deleted a key, one of them did: the first one sent is taken for the first deletion, and so
// on. If any order is possible, this one is, since nothing is known about their ends.
func (r *recorder) operations(t *testing.T, history []event) []porcupine.Operation {
	t.Helper()
	puts := make(map[string]int64) // revisions by value
	for _, e := range history {
		if e.deleted {
			continue
		}
		if was, twice := puts[e.value]; twice {
			t.Errorf("%q was put at revision %d and again at %d", e.value, was, e.revision)
		}
		puts[e.value] = e.revision
	}
	claimed := make(map[int64]bool) // revisions of requests that are known
	for _, o := range r.history {
		out := o.Output.(response)
		if slices.ContainsFunc(out.results, func(r result) bool { return r.deleted > 0 }) {
			claimed[out.revision] = true
		}
	}
	for _, revision := range puts {
		claimed[revision] = true
	}
	deletes := make(map[string][]int64) // by key
	before := make(map[int64]int64)     // the revision before each
	previous, now := int64(0), int64(0)
	for _, e := range history {
		if e.revision != now {
			previous, now = now, e.revision
			before[now] = previous
		}
		if e.deleted && !claimed[e.revision] {
			deletes[e.key] = append(deletes[e.key], e.revision)
		}
	}
	all := r.history
	const forever = int64(1) << 62
	slices.SortFunc(r.lost, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	for _, o := range r.lost {
		in := o.Input.(request)
		o.Return = forever
		written := int64(0)
		for _, step := range in.then {
			if step.kind == put {
				written = max(written, puts[step.value])
			}
		}
		only := in.then[0]
		switch {
		case written != 0:
			o.Output = response{lost: true, revision: written, after: before[written], held: true}
		case len(in.then) == 1 && only.kind == remove && len(deletes[only.key]) > 0:
			r := deletes[only.key][0]
			o.Output = response{lost: true, revision: r, after: before[r], held: true}
			deletes[only.key] = deletes[only.key][1:]
		default:
			continue
		}
		all = append(all, o)
	}
	for key, revisions := range deletes {
		if len(revisions) > 0 {
			t.Errorf("%s was deleted at the revisions %d, and there is no request for that", key, revisions)
		}
	}
	return all
}
