package lockfile

import (
	"iter"
	"maps"
)

// ofClusters has the lines that belong to clusters, by cluster, with their line in the parsed
// file, from 1; 0 if they were added since. No cluster's map is empty.
type ofClusters[L comparable] map[string]map[L]int

// all yields every line, in no order.
func (o ofClusters[L]) all() iter.Seq2[L, int] {
	return func(yield func(L, int) bool) {
		for _, lines := range o {
			for l, at := range lines {
				if !yield(l, at) {
					return
				}
			}
		}
	}
}

func (o ofClusters[L]) clone() ofClusters[L] {
	c := make(ofClusters[L], len(o))
	for cluster, lines := range o {
		c[cluster] = maps.Clone(lines)
	}
	return c
}

// add adds a line. One that is there keeps its place.
func (o *ofClusters[L]) add(cluster string, l L, at int) {
	if *o == nil {
		*o = make(ofClusters[L])
	}
	lines := (*o)[cluster]
	if lines == nil {
		lines = make(map[L]int)
		(*o)[cluster] = lines
	}
	if _, there := lines[l]; !there {
		lines[l] = at
	}
}

// remove removes a line.
func (o ofClusters[L]) remove(cluster string, l L) {
	delete(o[cluster], l)
	if len(o[cluster]) == 0 {
		delete(o, cluster)
	}
}
