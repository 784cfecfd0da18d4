package sources

import (
	"encoding/binary"
	"math"
)

// sharing keeps one copy of each value that is repeated in the streams of a
// Decoder. In the schemas of a large package four mappings in five are equal to
// an earlier one, and more than nineteen scalars in twenty. A shared value costs
// neither memory nor garbage collection.
//
// Each value has a number. Values with the same number are equal; equal values may
// have different numbers if one was forgotten. Lists and mappings are looked up by
// the numbers of their items.
type sharing struct {
	last     uint64 // the last number given out
	strings  map[string]numbered
	scalars  map[any]numbered    // null, booleans, integers, and floats by their bits
	branches map[string]numbered // lists and mappings, by their kind and the numbers in them
	key      []byte              // of a branch, reused
	cost     int64               // approximate bytes of all values made
}

// Approximate costs of values in memory, in bytes, with their entries in the maps of
// sharing: a boxed scalar, a string without its bytes, a list, an item of a list, a
// mapping with up to eight entries, and each further entry.
const (
	scalarCost  = 96
	stringCost  = 112
	listCost    = 140
	itemCost    = 16
	mappingCost = 452
	entryCost   = 48
)

// numbered is a value with the number that stands for it.
type numbered struct {
	value  any
	number uint64
}

// Remembered values are bounded, since their entries cost memory. The largest package
// known has 65,000 different values.
const (
	maxShared = 200_000 // values; at more, all are forgotten
	maxBranch = 500     // values in a remembered list, or keys and values in a mapping
)

// fresh numbers a value that no other will equal.
func (s *sharing) fresh(v any) numbered {
	s.last++
	return numbered{v, s.last}
}

// remember makes room for one more value.
func (s *sharing) remember() {
	if s.strings == nil || len(s.strings)+len(s.scalars)+len(s.branches) >= maxShared {
		s.strings = make(map[string]numbered)
		s.scalars = make(map[any]numbered)
		s.branches = make(map[string]numbered)
	}
}

func (s *sharing) string(text string) numbered {
	if known, ok := s.strings[text]; ok {
		return known
	}
	s.remember()
	s.cost += stringCost + int64(len(text))
	n := s.fresh(text)
	s.strings[text] = n
	return n
}

// float64Bits distinguishes 0 from -0, and a float from an integer.
type float64Bits uint64

// scalar takes null, a boolean, an int64 or a float64.
func (s *sharing) scalar(v any) numbered {
	key := v
	if f, ok := v.(float64); ok {
		key = float64Bits(math.Float64bits(f))
	}
	if known, ok := s.scalars[key]; ok {
		return known
	}
	s.remember()
	s.cost += scalarCost
	n := s.fresh(v)
	s.scalars[key] = n
	return n
}

// The kinds of branches.
const (
	aList    = 'l'
	aMapping = 'm'
)

// list returns the list of items.
func (s *sharing) list(items []numbered) numbered {
	if known, ok := s.find(aList, items); ok {
		return known
	}
	s.cost += listCost + itemCost*int64(len(items))
	l := make([]any, len(items))
	for i, item := range items {
		l[i] = item.value
	}
	return s.add(items, l)
}

// mapping returns the mapping of parts, which are keys (strings) and values in turn.
// If a key is repeated, it returns the index of the second among the keys,
// otherwise -1.
func (s *sharing) mapping(parts []numbered) (numbered, int) {
	if known, ok := s.find(aMapping, parts); ok {
		return known, -1
	}
	s.cost += mappingCost + entryCost*int64(max(0, len(parts)/2-8))
	m := make(map[string]any, len(parts)/2)
	for i := 0; i < len(parts); i += 2 {
		m[parts[i].value.(string)] = parts[i+1].value
		if len(m) == i/2 {
			return numbered{}, i / 2
		}
	}
	return s.add(parts, m), -1
}

// find returns the branch of a kind with the given parts, if there is one.
func (s *sharing) find(kind byte, parts []numbered) (numbered, bool) {
	if len(parts) > maxBranch {
		return numbered{}, false
	}
	s.key = append(s.key[:0], kind)
	for _, p := range parts {
		s.key = binary.AppendUvarint(s.key, p.number)
	}
	known, ok := s.branches[string(s.key)]
	return known, ok
}

// add remembers the branch v under the parts of the last find.
func (s *sharing) add(parts []numbered, v any) numbered {
	n := s.fresh(v)
	if len(parts) <= maxBranch {
		s.remember()
		s.branches[string(s.key)] = n
	}
	return n
}
