package sources

import (
	"cmp"
	"strings"
)

// Distance returns the edit distance of a and b: the number of bytes to add, remove,
// replace or swap with the next.
func Distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			replaced := last[j-1]
			if a[i-1] != b[j-1] {
				replaced++
			}
			row[j] = min(last[j]+1, row[j-1]+1, replaced)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}

// Closest returns the candidate nearest to a misspelt name, ignoring case, or "" if none
// is near. Of equally near candidates it is the first in alphabetical order.
func Closest(name string, candidates []string) string {
	best, least := "", min(3, len(name)/2)+1
	for _, c := range candidates {
		if d := Distance(strings.ToLower(name), strings.ToLower(c)); d < least || d == least && best != "" && c < best {
			best, least = c, d
		}
	}
	return best
}

// Meant returns "; did you mean <closest>?", or "" if no candidate is near.
func Meant(name string, candidates []string) string {
	if c := Closest(name, candidates); c != "" {
		return "; did you mean " + c + "?"
	}
	return ""
}

// MeantOrAll is [Meant], or "; there are <candidates>" if no candidate is near. It is for
// short lists.
func MeantOrAll(name string, candidates []string) string {
	return cmp.Or(Meant(name, candidates), "; there are "+strings.Join(candidates, ", "))
}
