// Package prose formats parts of texts for people: numbers with nouns, and lists that are
// cut short.
package prose

import (
	"fmt"
	"strings"
)

// Count returns a number of things: "1 type", "2 types".
func Count(n int, thing string) string { return Agree(n, thing, thing+"s") }

// Agree returns a number with the words for one or for many things:
// "1 pin stays", "2 pins stay".
func Agree(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// Some returns the first of many names, and the number of the others:
// "a, b and 3 more".
func Some(names []string, most int) string {
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}
