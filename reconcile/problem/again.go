package problem

import (
	"regexp"
	"slices"
)

// place matches a file of a repository with a line after it, in a text for people.
var place = regexp.MustCompile(`([^\s:()]+\.(?:yaml|yml|json|lock)|kustomization|Kustomization):[0-9]+`)

// Same reports whether two texts say the same of the same file, be it in other lines.
func Same(a, b string) bool { return a == b || withoutLines(a) == withoutLines(b) }

func withoutLines(text string) string { return place.ReplaceAllString(text, "$1") }

// News returns what of now before did not say, by the texts of both. A commit that moves
// lines says nothing new; what is said of two places of a file is said twice.
func News[T any](now, before []T, text func(T) string) []T {
	said := make(map[string]int)
	for _, b := range before {
		said[withoutLines(text(b))]++
	}
	var news []T
	for _, n := range now {
		key := withoutLines(text(n))
		if said[key]--; said[key] < 0 {
			news = append(news, n)
		}
	}
	return news
}

// Unchanged reports whether two lists have the same problems in the same order, be it in
// other lines.
func Unchanged(now, before []Problem) bool {
	return slices.EqualFunc(now, before, func(a, b Problem) bool { return Same(a.String(), b.String()) })
}
