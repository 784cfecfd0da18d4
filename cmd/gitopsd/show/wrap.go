package show

import "strings"

// narrowest is the least room for words, in columns. If the indentation leaves less, lines are
// longer than the terminal is wide.
const narrowest = 20

// wrap breaks a sentence at spaces into lines of at most width columns. A longer word stays
// whole, and a mark of one character stays with its word. Lines after the first are indented
// two columns more. A width of 0 leaves the sentence as it is.
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

// fitting returns how many bytes of words fit into a line of so many columns, at least one word.
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
