// Package prose puts together what people read: numbers with what they count,
// lists that are cut short, and sentences that fit a terminal.
//
// The texts themselves are their packages': the reasons of reconcile/plan, the
// messages of reconcile, the output of the command line.
package prose

import (
	"fmt"
	"strings"
)

// Count returns a number of things: "1 type", "2 types".
func Count(n int, thing string) string { return Agree(n, thing, thing+"s") }

// Agree returns a number with the words for one or for many of a thing:
// "1 pin stays", "2 pins stay".
func Agree(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// Some lists the first of many names, and says how many more there are:
// "a, b and 3 more".
func Some(names []string, most int) string {
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}

// narrowest is the least room for words, in columns. Where a terminal leaves less
// beside the indentation, lines are longer than the terminal is wide.
const narrowest = 20

// Wrap breaks a sentence into lines of at most width columns, at spaces. A longer
// word, such as an object's name, stays whole, and a mark of one character stays
// with the word after it. The lines after the first are indented by two more
// columns. A width of 0 does not break the sentence.
func Wrap(text string, width int) []string {
	if width <= 0 {
		return []string{text}
	}
	words := strings.TrimLeft(text, " ")
	indent := text[:len(text)-len(words)]
	var lines []string
	for {
		part := words[:fitting(words, max(width-len(indent), narrowest))]
		lines = append(lines, indent+part)
		if len(lines) == 1 {
			indent += "  "
		}
		if words = strings.TrimLeft(words[len(part):], " "); words == "" {
			return lines
		}
	}
}

// fitting returns how many bytes of words fit a line of so many columns; at least
// one word does.
func fitting(words string, columns int) int {
	end, column := 0, 0
	for i, r := range words {
		if r == ' ' && column > 1 && (column <= columns || end == 0) {
			end = i
		}
		if column >= columns && end > 0 {
			return end
		}
		column++
	}
	return len(words)
}
