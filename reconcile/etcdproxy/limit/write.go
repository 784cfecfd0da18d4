package limit

// CompactKey is the key in which kube-apiservers agree who compacts. It lies beside their
// prefix, and the quota does not stop it: a namespace that is full has to be able to
// compact.
const CompactKey = "compact_rev_key"

// maxCompactValue is how long a value of CompactKey may be; it is a revision.
const maxCompactValue = 64

// Write is what a call may put. The zero Write puts nothing.
type Write struct {
	puts []put
	// either are the transactions inside: of each, one branch is taken.
	either [][2]Write
}

// put sets one key. Its size is that of key and value together.
type put struct {
	key  string
	size int64
	// keep says that the value stays as it is, if there is one.
	keep bool
}

// Put adds a put of a key, which is the tenant's, without the prefix. Keep says that the value stays
// if there is one.
func (w *Write) Put(key string, value int, keep bool) {
	w.puts = append(w.puts, put{key: key, size: int64(len(key) + value), keep: keep})
}

// Either adds a transaction with its two branches: what is put if its comparisons hold, and else.
func (w *Write) Either(then, otherwise Write) {
	if then.Puts() || otherwise.Puts() {
		w.either = append(w.either, [2]Write{then, otherwise})
	}
}

// Puts reports whether the call may put anything.
func (w Write) Puts() bool {
	return len(w.puts) > 0 || len(w.either) > 0
}

// Took returns what is left of a transaction's Write once it is known which branch was
// taken.
func (w Write) Took(succeeded bool) Write {
	switch {
	case len(w.either) != 1:
		return w
	case succeeded:
		return w.either[0][0]
	default:
		return w.either[0][1]
	}
}

// Bytes returns how many bytes the call adds to the history at most.
func (w Write) Bytes() int64 {
	var n int64
	for _, p := range w.puts {
		n += p.size
	}
	for _, e := range w.either {
		n += max(e[0].Bytes(), e[1].Bytes())
	}
	return n
}

// chooses reports whether it depends on a comparison which keys are put.
func (w Write) chooses() bool {
	for _, e := range w.either {
		if e[0].Puts() && e[1].Puts() || e[0].chooses() || e[1].chooses() {
			return true
		}
	}
	return false
}

// each hands every put of every branch to yield, and reports whether yield always said
// true.
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

// exempt reports whether all that is put is a revision at CompactKey.
func (w Write) exempt() bool {
	return w.each(func(p put) bool {
		return p.key == CompactKey && p.size <= int64(len(CompactKey)+maxCompactValue)
	})
}
