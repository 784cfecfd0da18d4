package linearizability

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"
)

// request is a transaction; a single get, put or delete is one without conditions.
type request struct {
	conditions []condition
	then, or   []op
}

// condition compares a key's mod revision, which is 0 for a missing key.
type condition struct {
	key string
	mod int64
}

// op is a step of a request.
type op struct {
	kind kind
	key  string
	// end makes a get or a delete one of a range, up to end.
	end string
	// value is what a put writes. No two puts of a history write the same.
	value string
}

type kind string

const (
	get    kind = "get"
	put    kind = "put"
	remove kind = "delete"
)

func (r request) String() string {
	text := fmt.Sprint(r.then)
	if r.conditions != nil {
		text = fmt.Sprintf("if %v then %v or %v", r.conditions, r.then, r.or)
	}
	return text
}

// response is the answer of etcd, or what is known without one.
type response struct {
	// lost is set if there was no answer. The request was carried out nevertheless, at
	// revision, and after is that of the namespace's write before.
	lost     bool
	revision int64
	after    int64
	// held reports whether the conditions held.
	held    bool
	results []result
}

// result is of one op.
type result struct {
	found   []found // of a get
	deleted int64
}

// found is a key as etcd returns it.
type found struct {
	key                   string
	value                 string
	create, mod, versions int64
}

// store is a namespace: the state of the model. It is immutable. The revision is at
// least this, since others write to the same etcd.
type store struct {
	revision int64
	keys     map[string]found
}

// apply applies a request, and reports whether the response is possible.
func (s store) apply(in request, out response) (store, bool) {
	branch, held := in.then, true
	for _, c := range in.conditions {
		held = held && s.keys[c.key].mod == c.mod
	}
	if !held {
		branch = in.or
	}
	if held != out.held || s.revision < out.after {
		return s, false
	}
	keys, wrote := s.keys, false
	change := func() {
		if !wrote {
			keys, wrote = maps.Clone(keys), true
		}
	}
	revision := out.revision
	for i, o := range branch {
		var r result
		switch o.kind {
		case get:
			r.found = within(keys, o)
		case put:
			change()
			was := keys[o.key]
			now := found{key: o.key, value: o.value, create: was.create, mod: revision, versions: was.versions + 1}
			if was.versions == 0 {
				now.create = revision
			}
			keys[o.key] = now
		case remove:
			for _, f := range within(keys, o) {
				change()
				delete(keys, f.key)
				r.deleted++
			}
		}
		if !out.lost && (i >= len(out.results) || !slices.Equal(r.found, out.results[i].found) || r.deleted != out.results[i].deleted) {
			return s, false
		}
	}
	switch {
	case out.lost && !wrote:
		return s, false
	case wrote && revision <= s.revision, revision < s.revision:
		return s, false
	}
	return store{revision: revision, keys: keys}, true
}

// within returns the keys of a get or delete, in order.
func within(keys map[string]found, o op) (in []found) {
	for _, name := range slices.Sorted(maps.Keys(keys)) {
		if name == o.key || o.end != "" && name >= o.key && name < o.end {
			in = append(in, keys[name])
		}
	}
	return in
}

func (s store) equal(other store) bool {
	return s.revision == other.revision && maps.Equal(s.keys, other.keys)
}

// model is the porcupine model of a namespace.
var model = porcupine.Model{
	Init: func() any { return store{keys: map[string]found{}} },
	Step: func(state, in, out any) (bool, any) {
		next, ok := state.(store).apply(in.(request), out.(response))
		return ok, next
	},
	Equal:             func(a, b any) bool { return a.(store).equal(b.(store)) },
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%v: %+v", in, out) },
	DescribeState: func(state any) string {
		var b strings.Builder
		s := state.(store)
		fmt.Fprintf(&b, "revision %d", s.revision)
		for _, name := range slices.Sorted(maps.Keys(s.keys)) {
			fmt.Fprintf(&b, ", %+v", s.keys[name])
		}
		return b.String()
	},
}
