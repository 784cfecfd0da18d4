package limit

// CompactKey is the key by which kube-apiservers agree who compacts. It is outside their prefix. The quota
// exempts it: a full namespace must be able to compact.
const CompactKey = "compact_rev_key"

// maxCompactValue is the largest exempt value of CompactKey. Values are revisions.
const maxCompactValue = 64

// maxValue is the size of the largest value: the largest request that etcd takes by default.
const maxValue = 3 << 19

// revisionBytes is what a revision takes in etcd's database beside key and value: measured, 50 to 60 bytes.
const revisionBytes = 64

// Write is what a call may put. The zero Write puts nothing.
type Write struct {
	puts   []put
	either [][2]Write // the branches of transactions
}

// put sets one key.
type put struct {
	key  string
	size int64 // of key and value
	keep bool  // an existing value stays
}

// Put adds a put of a key without the prefix. keep says that an existing value stays.
func (w *Write) Put(key string, value int, keep bool) {
	w.puts = append(w.puts, put{key: key, size: int64(len(key) + value), keep: keep})
}

// Either adds a transaction with its two branches.
func (w *Write) Either(then, otherwise Write) {
	if then.Puts() || otherwise.Puts() {
		w.either = append(w.either, [2]Write{then, otherwise})
	}
}

// Puts reports whether the call may put anything.
func (w Write) Puts() bool {
	return len(w.puts) > 0 || len(w.either) > 0
}

// Took returns the Write of the branch that a transaction took; w itself if it is not a transaction.
func (w Write) Took(succeeded bool) Write {
	switch {
	case len(w.either) != 1:
		return w
	case succeeded:
		return w.either[0][0]
	}
	return w.either[0][1]
}

// Bytes returns how many bytes the call adds to etcd's history at most, with a prefix of some length before each
// key. A put pays for the deletion of its key, too: there is at most one for each put, and a range may delete any
// number of keys. A put that keeps the value writes it again; hold, which may be nil, may know its size.
func (w Write) Bytes(prefix int, hold *Hold) int64 {
	var n int64
	for _, p := range w.puts {
		size := p.size
		if p.keep {
			size = max(size, hold.kept(p.key))
		}
		n += size + int64(len(p.key)) + 2*int64(revisionBytes+prefix)
	}
	for _, e := range w.either {
		n += max(e[0].Bytes(prefix, hold), e[1].Bytes(prefix, hold))
	}
	return n
}

// chooses reports whether a comparison decides which keys are put.
func (w Write) chooses() bool {
	for _, e := range w.either {
		if e[0].Puts() && e[1].Puts() || e[0].chooses() || e[1].chooses() {
			return true
		}
	}
	return false
}

// each calls yield for every put of every branch until it returns false, and reports whether it never did.
func (w Write) each(yield func(put) bool) bool {
	for _, p := range w.puts {
		if !yield(p) {
			return false
		}
	}
	for _, e := range w.either {
		if !e[0].each(yield) || !e[1].each(yield) {
			return false
		}
	}
	return true
}

// exempt reports whether the Write only puts a revision at CompactKey.
func (w Write) exempt() bool {
	return w.each(func(p put) bool {
		return p.key == CompactKey && !p.keep && p.size <= int64(len(CompactKey)+maxCompactValue)
	})
}
