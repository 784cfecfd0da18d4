package limit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"gitopsd.dev/render/etcd"
)

func putRequest(key string, value int) *pb.PutRequest {
	return &pb.PutRequest{Key: []byte(key), Value: []byte(strings.Repeat("v", value))}
}

func putOp(key string, value int) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: putRequest(key, value)}}
}

func deleteOp(key string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(key)}}}
}

func txnOp(r *pb.TxnRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: r}}
}

func txnRequest(success, failure []*pb.RequestOp) *pb.TxnRequest {
	return &pb.TxnRequest{Success: success, Failure: failure}
}

func txnWrite(success, failure []*pb.RequestOp) Write {
	return txnOf(txnRequest(success, failure))
}

// putOf and txnOf return what requests may put.
func putOf(r *pb.PutRequest) (w Write) {
	w.Put(string(r.GetKey()), len(r.GetValue()), r.GetIgnoreValue())
	return w
}

func txnOf(r *pb.TxnRequest) (w Write) {
	var branches [2]Write
	for i, ops := range [][]*pb.RequestOp{r.GetSuccess(), r.GetFailure()} {
		for _, op := range ops {
			if p := op.GetRequestPut(); p != nil {
				branches[i].puts = append(branches[i].puts, putOf(p).puts...)
			}
			if t := op.GetRequestTxn(); t != nil {
				branches[i].either = append(branches[i].either, txnOf(t).either...)
			}
		}
	}
	w.Either(branches[0], branches[1])
	return w
}

// counted returns a Usage that holds the keys given, with values of so many bytes.
func counted(q etcd.Quota, keys map[string]int) *Usage {
	u := NewUsage(q)
	s := u.Scan()
	for key, value := range keys {
		s.Add([]byte(key), value)
	}
	u.Replace(s, 10)
	u.SetCurrent(true)
	return u
}

// What grows is refused when it does not fit, what does not grow never is.
func TestAdmit(t *testing.T) {
	t.Parallel()
	ops := func(ops ...*pb.RequestOp) []*pb.RequestOp { return ops }
	holds := map[string]int{"a": 39, "b": 49} // 90 of 100 bytes, 2 of 3 keys
	quota := etcd.Quota{Storage: 100, Keys: 3}
	for _, tt := range []struct {
		name  string
		quota etcd.Quota
		write Write
		want  error
	}{
		{"a key that fits exactly", quota, putOf(putRequest("c", 9)), nil},
		{"a byte too many", quota, putOf(putRequest("c", 10)), ErrNoSpace},
		{"an update that fits", quota, putOf(putRequest("a", 49)), nil},
		{"an update that does not", quota, putOf(putRequest("a", 50)), ErrNoSpace},
		{"an update of the same size", etcd.Quota{Storage: 90, Keys: 2}, putOf(putRequest("a", 39)), nil},
		{"a shrinking update far above the quota", etcd.Quota{Storage: 1, Keys: 1}, putOf(putRequest("a", 38)), nil},
		{"a key too many", etcd.Quota{Keys: 2}, putOf(putRequest("c", 0)), ErrNoSpace},
		{"growth of a key, keys full", etcd.Quota{Keys: 2}, putOf(putRequest("a", 5000)), nil},
		{"no quota", etcd.Quota{}, putOf(putRequest("c", 5000)), nil},
		{"another lease for a key", etcd.Quota{Storage: 1}, putOf(&pb.PutRequest{Key: []byte("a"), IgnoreValue: true}), nil},
		{"the compaction key", etcd.Quota{Storage: 1}, putOf(putRequest(CompactKey, 10)), nil},
		{"no revision in the compaction key", etcd.Quota{Storage: 1}, putOf(putRequest(CompactKey, 100)), ErrNoSpace},
		{"deletions", etcd.Quota{Storage: 1}, txnWrite(ops(deleteOp("a")), ops(deleteOp("b"))), nil},
		{"both branches fit", quota, txnWrite(ops(putOp("c", 9)), ops(putOp("d", 9))), nil},
		{"the second branch does not", quota, txnWrite(ops(putOp("c", 1)), ops(putOp("d", 10))), ErrNoSpace},
		{"two puts in one branch", quota, txnWrite(ops(putOp("a", 44), putOp("b", 54)), nil), nil},
		{"two puts too many", quota, txnWrite(ops(putOp("a", 44), putOp("b", 55)), nil), ErrNoSpace},
		{"inside of a transaction", quota, txnWrite(ops(putOp("a", 44), txnOp(txnRequest(nil, ops(putOp("b", 55))))), nil), ErrNoSpace},
		{"the compaction key and another", etcd.Quota{Storage: 1}, txnWrite(ops(putOp(CompactKey, 5), putOp("c", 1)), nil), ErrNoSpace},
		{"the compaction key in a transaction", etcd.Quota{Storage: 1}, txnWrite(ops(putOp(CompactKey, 5)), nil), nil},
	} {
		_, err := counted(tt.quota, holds).Admit(t.Context(), tt.write)
		if !errors.Is(err, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, err, tt.want)
		}
	}
}

// A place is kept until the write is counted, is given back when nothing was written, and
// ends by itself when nobody knows.
func TestHolds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := counted(etcd.Quota{Storage: 20}, nil)
		full := func(when string) {
			t.Helper()
			if _, err := u.Admit(t.Context(), putOf(putRequest("z", 0))); !errors.Is(err, ErrNoSpace) {
				t.Errorf("%s: got %v, want no space", when, err)
			}
		}
		admit := func(when string) *Hold {
			t.Helper()
			h, err := u.Admit(t.Context(), putOf(putRequest("k", 19)))
			if err != nil {
				t.Fatalf("%s: %v", when, err)
			}
			return h
		}
		h := admit("empty")
		full("in flight")
		again := admit("the same key by two writers")
		again.Release()
		full("one of two in flight")
		h.Release()

		h = admit("given back")
		h.Written(12)
		full("written, not counted")
		u.Apply(nil, 11)
		full("the revision before")
		if !u.Waits() {
			t.Error("nothing waits for the revision of the write")
		}
		u.Apply([]Change{{Key: []byte("k"), Value: 19, Revision: 12}}, 12)
		full("counted")
		u.Apply([]Change{{Key: []byte("k"), Deleted: true, Revision: 13}}, 13)
		h = admit("deleted")
		h.Written(13)

		h = admit("counted before the answer came")
		h.Unknown()
		time.Sleep(unknownFor - time.Second)
		full("unknown")
		time.Sleep(2 * time.Second)
		h = admit("long unknown")
		h.Release()
		if s := u.State(); s.Reserved != 0 || s.Bytes != 0 || s.Keys != 0 {
			t.Errorf("the state at the end is %+v", s)
		}
	})
}

// Writes that grow wait for the count, and are told when it takes too long; those that
// cannot grow do not wait.
func TestCounting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := NewUsage(etcd.Quota{Storage: 100})
		if _, err := u.Admit(t.Context(), txnWrite([]*pb.RequestOp{deleteOp("a")}, nil)); err != nil {
			t.Errorf("a deletion waits: %v", err)
		}
		if _, err := u.Admit(t.Context(), putOf(putRequest("a", 1))); !errors.Is(err, ErrCounting) {
			t.Errorf("got %v, want that it is being counted", err)
		}
		done := make(chan error)
		go func() {
			_, err := u.Admit(t.Context(), putOf(putRequest("a", 1)))
			done <- err
		}()
		synctest.Wait()
		u.Replace(u.Scan(), 5)
		u.SetCurrent(true)
		if err := <-done; err != nil {
			t.Errorf("after the count: %v", err)
		}
		u.SetCurrent(false)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := u.Admit(ctx, putOf(putRequest("a", 1))); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want the context's", err)
		}
	})
}

// A client that made room may use it at once: a write waits until the room is counted.
func TestRoomMade(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := counted(etcd.Quota{Storage: 50}, map[string]int{"a": 49})
		u.Done(12) // which is that of a deletion
		done := make(chan error)
		go func() {
			_, err := u.Admit(t.Context(), putOf(putRequest("b", 40)))
			done <- err
		}()
		synctest.Wait()
		u.Apply(nil, 11)
		synctest.Wait()
		if !u.Waits() {
			t.Error("nothing waits for the deletion")
		}
		u.Apply([]Change{{Key: []byte("a"), Deleted: true, Revision: 12}}, 12)
		if err := <-done; err != nil {
			t.Errorf("into the room that was made: %v", err)
		}
		begun := time.Now()
		if _, err := u.Admit(t.Context(), putOf(putRequest("c", 40))); !errors.Is(err, ErrNoSpace) || time.Since(begun) != 0 {
			t.Errorf("with nothing to wait for: %v", err)
		}
		u.Done(20)
		if _, err := u.Admit(t.Context(), putOf(putRequest("c", 40))); !errors.Is(err, ErrNoSpace) || time.Since(begun) != MaxCountWait {
			t.Errorf("when the count does not come: %v", err)
		}
	})
}

// store is what etcd holds, for the model.
type store struct {
	keys     map[string]int
	revision int64
	events   []Change
}

func (s *store) apply(r *pb.TxnRequest, succeeded func() bool) (wrote, took bool) {
	s.revision++
	took = s.branch(r, succeeded)
	wrote = len(s.events) > 0 && s.events[len(s.events)-1].Revision == s.revision
	if !wrote {
		s.revision--
	}
	return wrote, took
}

func (s *store) branch(r *pb.TxnRequest, succeeded func() bool) bool {
	ops, took := r.GetFailure(), succeeded()
	if took {
		ops = r.GetSuccess()
	}
	for _, op := range ops {
		if p := op.GetRequestPut(); p != nil {
			s.keys[string(p.Key)] = len(p.Key) + len(p.Value)
			s.events = append(s.events, Change{Key: p.Key, Value: len(p.Value), Revision: s.revision})
		}
		if d := op.GetRequestDeleteRange(); d != nil {
			if _, exists := s.keys[string(d.Key)]; exists {
				delete(s.keys, string(d.Key))
				s.events = append(s.events, Change{Key: d.Key, Deleted: true, Revision: s.revision})
			}
		}
		if t := op.GetRequestTxn(); t != nil {
			s.branch(t, succeeded)
		}
	}
	return took
}

func (s *store) sum() (bytes, keys int64) {
	for _, size := range s.keys {
		bytes += int64(size)
	}
	return bytes, int64(len(s.keys))
}

// Whatever is admitted, in whatever order etcd does it, answers, or is counted, the quota
// holds at every revision, nothing stays reserved, and the count comes out right.
func TestUsageModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		model(t, rand.New(rand.NewPCG(seed, 1)))
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func model(t *testing.T, r *rand.Rand) {
	quota := etcd.Quota{Storage: 400, Keys: 6}
	u := counted(quota, nil)
	s := &store{keys: map[string]int{}, revision: 10}
	type flight struct {
		request  *pb.TxnRequest
		write    Write
		hold     *Hold
		done     bool
		wrote    bool
		took     bool
		revision int64
	}
	var flights []*flight
	admitted, refused := 0, 0
	answer := func(i int) {
		f := flights[i]
		flights = append(flights[:i], flights[i+1:]...)
		switch {
		case !f.done: // etcd refused it
			f.hold.Release()
		case !f.write.Took(f.took).Puts():
			f.hold.Release()
		default:
			f.hold.Written(f.revision)
		}
	}
	count := func() {
		if n := len(s.events); n > 0 {
			u.Apply(s.events, s.events[n-1].Revision)
			s.events = nil
		}
	}
	for range 200 {
		switch n := r.IntN(10); {
		case n < 4:
			request := randomTxn(r, 2)
			w := txnOf(request)
			hold, err := u.Admit(t.Context(), w)
			if err != nil {
				refused++
				continue
			}
			admitted++
			flights = append(flights, &flight{request: request, write: w, hold: hold})
		case n < 7 && len(flights) > 0:
			f := flights[r.IntN(len(flights))]
			if f.done {
				continue
			}
			f.done = true
			f.wrote, f.took = s.apply(f.request, func() bool { return r.IntN(2) == 0 })
			f.revision = s.revision
			if bytes, keys := s.sum(); bytes > quota.Storage || keys > quota.Keys {
				t.Errorf("etcd holds %d bytes and %d keys, more than the quota", bytes, keys)
				return
			}
		case n < 9 && len(flights) > 0:
			answer(r.IntN(len(flights)))
		default:
			count()
		}
	}
	for len(flights) > 0 {
		answer(0)
	}
	count()
	u.Apply(nil, s.revision+1)
	bytes, keys := s.sum()
	if got := u.State(); got.Bytes != bytes || got.Keys != keys || got.Reserved != 0 || u.pinned != (amount{}) || len(u.pins) > 0 {
		t.Errorf("counted %+v, and etcd holds %d bytes and %d keys", got, bytes, keys)
	}
	if admitted < 20 || refused < 5 {
		t.Errorf("%d were admitted and %d refused: too few to show anything", admitted, refused)
	}
}

func randomTxn(r *rand.Rand, depth int) *pb.TxnRequest {
	ops := func() []*pb.RequestOp {
		var ops []*pb.RequestOp
		for range r.IntN(3) {
			key := string(rune('a' + r.IntN(8)))
			switch n := r.IntN(5); {
			case n < 3:
				ops = append(ops, putOp(key, r.IntN(150)))
			case n < 4 || depth == 0:
				ops = append(ops, deleteOp(key))
			default:
				ops = append(ops, txnOp(randomTxn(r, depth-1)))
			}
		}
		return ops
	}
	return txnRequest(ops(), ops())
}

// Concurrent writers do not pass the quota together.
func TestAdmitConcurrently(t *testing.T) {
	t.Parallel()
	u := counted(etcd.Quota{Storage: 1000}, nil)
	var all sync.WaitGroup
	admitted := make(chan *Hold, 1000)
	for i := range 100 {
		all.Go(func() {
			for j := range 10 {
				if h, err := u.Admit(t.Context(), putOf(putRequest(fmt.Sprintf("%03d-%d", i, j), 5))); err == nil {
					admitted <- h
				}
			}
		})
	}
	all.Wait()
	if len(admitted) != 100 {
		t.Errorf("%d writes of 10 bytes were admitted to 1000", len(admitted))
	}
}

// A put that keeps the value of a key costs the value, and the largest one while it is not certain.
func TestKeptValue(t *testing.T) {
	t.Parallel()
	const prefix, each = 10, 1 + 2*(revisionBytes+10) // of keys of one byte
	const largest = each + 1 + maxValue
	keep := putOf(&pb.PutRequest{Key: []byte("a"), IgnoreValue: true})
	op := &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte("a"), IgnoreValue: true}}}
	for _, quota := range []etcd.Quota{{WriteBytesPerSecond: 1}, {Storage: 1 << 30}} {
		u := counted(quota, map[string]int{"a": 4999})
		costs := func(when string, w Write, want int64) *Hold {
			t.Helper()
			h, err := u.Admit(t.Context(), w)
			if err != nil {
				t.Fatalf("%s: %v", when, err)
			}
			if got := w.Bytes(prefix, h); got != want {
				t.Errorf("%s it costs %d, want %d", when, got, want)
			}
			return h
		}
		costs("known", keep, each+5000).Release()
		costs("in a transaction", txnWrite([]*pb.RequestOp{op}, []*pb.RequestOp{putOp("b", 7)}), each+5000).Release()
		costs("of the compaction key", putOf(&pb.PutRequest{Key: []byte(CompactKey), IgnoreValue: true}), each+1+2*int64(len(CompactKey)-1)).Release()

		// Without a value etcd refuses it, but another write may put one before.
		missing := putOf(&pb.PutRequest{Key: []byte("c"), IgnoreValue: true})
		one := costs("without a value", missing, each+1)
		costs("beside the same without a value", missing, largest).Release()
		one.Release()
		for name, w := range map[string]Write{
			"a new key":         putOf(putRequest("c", 10)),
			"perhaps a new key": txnWrite([]*pb.RequestOp{putOp("c", 10)}, []*pb.RequestOp{putOp("b", 10)}),
		} {
			h := costs(name, w, each+11)
			costs("beside "+name, missing, largest).Release()
			h.Release()
		}
		if s := u.State(); s.Reserved != 0 || u.pinned != (amount{}) {
			t.Errorf("something is reserved: %+v", s)
		}
		costs("without a value again", missing, each+1).Release()

		first := costs("before another", keep, each+5000)
		costs("beside the same", keep, largest).Release()
		first.Release()
		large := costs("another", putOf(putRequest("a", 1<<20)), each+1+1<<20)
		costs("beside another", keep, largest).Release()
		large.Written(12)
		costs("before another is counted", keep, largest).Release()
		u.Apply([]Change{{Key: []byte("a"), Value: 1 << 20, Revision: 12}}, 12)
		costs("once it is", keep, each+1+1<<20).Release()
		either := costs("perhaps another", txnWrite([]*pb.RequestOp{putOp("a", 2)}, []*pb.RequestOp{putOp("b", 1)}), each+3)
		costs("beside it", keep, largest).Release()
		either.Release()
		u.SetCurrent(false)
		if quota.Storage == 0 {
			costs("while nothing is counted", keep, largest).Release()
		}
		if len(u.pins) > 0 {
			t.Errorf("%d keys are pinned at the end", len(u.pins))
		}
	}
}

// A put that keeps the value of a key that does not exist takes no room: etcd refuses it.
func TestKeptNothing(t *testing.T) {
	t.Parallel()
	u := counted(etcd.Quota{Storage: 100, Keys: 2}, map[string]int{"a": 1})
	keep, err := u.Admit(t.Context(), putOf(&pb.PutRequest{Key: []byte("b"), IgnoreValue: true}))
	if err != nil {
		t.Fatal(err)
	}
	put, err := u.Admit(t.Context(), putOf(putRequest("c", 97-1)))
	if err != nil {
		t.Fatalf("beside it there is no room: %v", err)
	}
	if _, err := u.Admit(t.Context(), putOf(putRequest("b", 1))); !errors.Is(err, ErrNoSpace) {
		t.Errorf("it made the key one that exists: %v", err)
	}
	keep.Release()
	put.Release()
	if u.pinned != (amount{}) || len(u.pins) > 0 {
		t.Errorf("at the end %+v is reserved", u.pinned)
	}
}

// A put costs what etcd stores for it, besides its value.
func TestBytes(t *testing.T) {
	t.Parallel()
	const each = 2 * (revisionBytes + 20) // with a prefix of 20
	for _, tt := range []struct {
		name  string
		write Write
		want  int64
	}{
		{"a put", putOf(putRequest("key", 7)), each + 2*3 + 7},
		{"nothing", txnWrite(nil, []*pb.RequestOp{deleteOp("k")}), 0},
		{"two puts", txnWrite([]*pb.RequestOp{putOp("a", 0), putOp("b", 5)}, nil), 2*(each+2) + 5},
		{"the larger branch", txnWrite([]*pb.RequestOp{putOp("a", 100)}, []*pb.RequestOp{putOp("b", 0), putOp("c", 0)}), 2 * (each + 2)},
	} {
		if got := tt.write.Bytes(20, nil); got != tt.want {
			t.Errorf("%s costs %d, want %d", tt.name, got, tt.want)
		}
	}
}
