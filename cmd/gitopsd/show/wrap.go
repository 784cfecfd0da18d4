package show

import "strings"

// narrowest is the least room for words, in columns: on a terminal that leaves
// less of it beside the indentation, lines are longer than the terminal is wide.
const narrowest = 20

// wrap breaks a sentence into lines of at most width columns, at spaces: a word
// that is longer, as the name of an object may be, stays whole, and a mark of one
// character stays with the word that it is for. What comes behind the first line
// is indented two columns more than that is. A width of 0 leaves the sentence as
// it is.
func wrap(text string, width int) []string {
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

// fitting is how many bytes of some words go into a line of so many columns; one
// word goes into any.
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
