package problem

import (
	"regexp"
	"slices"
)

// place matches a file of a repository with a line after it, in a text for people.
var place = regexp.MustCompile(`([^\s:()]+\.(?:yaml|yml|json|lock)|kustomization|Kustomization):[0-9]+`)

// Same reports whether two texts are equal but for the lines that they name in files.
func Same(a, b string) bool { return a == b || withoutLines(a) == withoutLines(b) }

func withoutLines(text string) string { return place.ReplaceAllString(text, "$1") }

// News returns the elements of now whose texts are not among those of before. Lines in files
// are ignored, so a commit that moves lines has no news; equal texts count as often as they
// occur.
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

// Unchanged reports whether two lists have the same problems in the same order, ignoring
// lines in files.
func Unchanged(now, before []Problem) bool {
	return slices.EqualFunc(now, before, func(a, b Problem) bool { return Same(a.String(), b.String()) })
}
