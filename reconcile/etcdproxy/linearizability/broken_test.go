package linearizability

import (
	"slices"
	"testing"

	"github.com/anishathalye/porcupine"
)

// at makes an operation from one time to another.
func at(call, end int64, in request, out response) porcupine.Operation {
	return porcupine.Operation{Input: in, Call: call, Output: out, Return: end}
}

func single(o op) request { return request{then: []op{o}} }

// answered is the answer to a request of one op.
func answered(revision int64, found ...found) response {
	return response{revision: revision, held: true, results: []result{{found: found}}}
}

// Impossible histories are detected, and possible ones accepted.
func TestBrokenHistories(t *testing.T) {
	putA := single(op{kind: put, key: "a", value: "1"})
	putAgain := single(op{kind: put, key: "a", value: "2"})
	getA := single(op{kind: get, key: "a"})
	deleteA := single(op{kind: remove, key: "a"})
	a1 := found{key: "a", value: "1", create: 5, mod: 5, versions: 1}
	a2 := found{key: "a", value: "2", create: 5, mod: 7, versions: 2}
	lostDelete := response{lost: true, revision: 8, held: true}
	deleted := response{revision: 8, held: true, results: []result{{deleted: 1}}}
	create := func(value string) request {
		return request{conditions: []condition{{"a", 0}}, then: []op{{kind: put, key: "a", value: value}}, or: []op{{kind: get, key: "a"}}}
	}
	forever := int64(1 << 40)
	for _, tt := range []struct {
		name    string
		history []porcupine.Operation
		ok      bool
	}{
		{"in order", []porcupine.Operation{at(0, 1, putA, answered(5)), at(2, 3, getA, answered(5, a1))}, true},
		{"others write", []porcupine.Operation{at(0, 1, putA, answered(5)), at(2, 3, getA, answered(9, a1))}, true},
		{"a write that is lost", []porcupine.Operation{at(0, 1, putA, answered(5)), at(2, 3, getA, answered(5))}, false},
		{"a write that comes twice", []porcupine.Operation{at(0, 1, putA, answered(5)),
			at(2, 3, getA, answered(6, found{key: "a", value: "1", create: 5, mod: 6, versions: 2}))}, false},
		{"a stale read", []porcupine.Operation{at(0, 1, putA, answered(5)), at(2, 3, putAgain, answered(7)), at(4, 5, getA, answered(7, a1))}, false},
		{"a concurrent read of the old", []porcupine.Operation{at(0, 1, putA, answered(5)), at(2, 5, putAgain, answered(7)), at(3, 4, getA, answered(5, a1))}, true},
		{"a revision that goes back", []porcupine.Operation{at(0, 1, putA, answered(5)), at(2, 3, putAgain, answered(7)), at(4, 5, getA, answered(6, a2))}, false},
		{"two writes of one revision", []porcupine.Operation{at(0, 1, putA, answered(5)), at(2, 3, putAgain, answered(5))}, false},
		{"both create", []porcupine.Operation{at(0, 3, create("1"), answered(5)), at(1, 2, create("2"), answered(7))}, false},
		{"one creates", []porcupine.Operation{at(0, 3, create("1"), answered(5)),
			at(1, 2, create("2"), response{revision: 5, results: []result{{found: []found{a1}}}})}, true},
		{"a lost write that came late", []porcupine.Operation{at(0, forever, putA, response{lost: true, revision: 5, held: true}),
			at(2, 3, getA, answered(4)), at(4, 5, getA, answered(5, a1))}, true},
		{"a lost write that comes and goes", []porcupine.Operation{at(0, forever, putA, response{lost: true, revision: 5, held: true}),
			at(2, 3, getA, answered(5, a1)), at(4, 5, getA, answered(5))}, false},
		{"a lost delete", []porcupine.Operation{at(0, 1, putA, answered(5)), at(2, forever, deleteA, lostDelete),
			at(3, 4, getA, answered(5, a1)), at(5, 6, getA, answered(8))}, true},
		{"a stale read after a lost delete", []porcupine.Operation{at(0, 1, putA, answered(5)), at(2, forever, deleteA, lostDelete),
			at(3, 4, getA, answered(9, a1))}, false},
		{"a lost delete before it was asked for", []porcupine.Operation{at(0, 1, putA, answered(5)), at(2, 3, getA, answered(8)),
			at(4, forever, deleteA, lostDelete)}, false},
		{"two deletes of one key", []porcupine.Operation{at(0, 1, putA, answered(5)), at(2, 3, deleteA, deleted),
			at(4, 5, deleteA, response{revision: 9, held: true, results: []result{{deleted: 1}}})}, false},
		{"half of a transaction", []porcupine.Operation{
			at(0, 1, request{then: []op{{kind: put, key: "a", value: "1"}, {kind: put, key: "b", value: "2"}}},
				response{revision: 5, held: true, results: []result{{}, {}}}),
			at(2, 3, single(op{kind: get, key: "a", end: "c"}), answered(5, a1))}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if ok := porcupine.CheckOperations(model, tt.history); ok != tt.ok {
				t.Errorf("%t, want %t", ok, tt.ok)
			}
		})
	}
}

// It is detected if a watcher missed an event, saw one twice or out of order, or got a progress notification
// too early.
func TestBrokenWatches(t *testing.T) {
	history := []event{
		{revision: 5, key: "a", value: "1"},
		{revision: 6, key: "b", value: "2"},
		{revision: 8, key: "a", value: "3", before: "1"},
		{revision: 9, key: "a", deleted: true, before: "3"},
	}
	from := watched{name: "w", from: 6, key: "a", end: "c", before: true, seen: slices.Clone(history[1:])}
	for _, tt := range []struct {
		name string
		do   func(*watched)
		ok   bool
	}{
		{"as it was", func(*watched) {}, true},
		{"progress in time", func(w *watched) { w.progress = []progress{{8, 2}, {9, 3}} }, true},
		{"from the beginning", func(w *watched) { w.from, w.seen = 0, history }, true},
		{"without previous values", func(w *watched) {
			w.before = false
			for i := range w.seen {
				w.seen[i].before = ""
			}
		}, true},
		{"missed the first", func(w *watched) { w.seen = w.seen[1:] }, false},
		{"missed one between", func(w *watched) { w.seen = slices.Delete(w.seen, 1, 2) }, false},
		{"missed the last", func(w *watched) { w.seen = w.seen[:2] }, false},
		{"twice", func(w *watched) { w.seen = slices.Insert(w.seen, 1, w.seen[0]) }, false},
		{"the last twice", func(w *watched) { w.seen = append(w.seen, w.seen[2]) }, false},
		{"another order", func(w *watched) { w.seen[0], w.seen[1] = w.seen[1], w.seen[0] }, false},
		{"another value", func(w *watched) { w.seen[0].value = "1" }, false},
		{"another previous value", func(w *watched) { w.seen[1].before = "2" }, false},
		{"before its first revision", func(w *watched) { w.seen = slices.Insert(w.seen, 0, history[0]) }, false},
		{"progress too early", func(w *watched) { w.progress = []progress{{8, 1}} }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := from
			w.seen = slices.Clone(from.seen)
			tt.do(&w)
			if err := w.check(history); (err == nil) != tt.ok {
				t.Error(err)
			}
		})
	}
}
