package show

import "iter"

// Groups collects values by key. The keys stay in the order in which they were first added.
// The zero value is empty.
type Groups[K comparable, V any] struct {
	// Keys must not be changed.
	Keys []K

	values map[K][]V
}

// Add adds values to the group of a key.
func (g *Groups[K, V]) Add(key K, values ...V) {
	if _, known := g.values[key]; !known {
		g.Keys = append(g.Keys, key)
	}
	if g.values == nil {
		g.values = make(map[K][]V)
	}
	g.values[key] = append(g.values[key], values...)
}

// Of returns the values of a key, nil if it was never added.
func (g *Groups[K, V]) Of(key K) []V { return g.values[key] }

// All iterates over the groups.
func (g *Groups[K, V]) All() iter.Seq2[K, []V] {
	return func(yield func(K, []V) bool) {
		for _, key := range g.Keys {
			if !yield(key, g.values[key]) {
				return
			}
		}
	}
}
