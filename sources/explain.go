package sources

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// maxTabs bounds the lines with tabs that are remembered.
const maxTabs = 1000

// notSpaces matches the parser's errors about a tab in place of spaces. Their line is the
// first of the value that the tab is in.
var notSpaces = regexp.MustCompile(`^line (\d+): (?:found character that cannot start any token|found a tab character .*)$`)

// aboutTabs replaces a parser's error about a tab in the indentation by one that says so
// and has the line of the tab. Lines are the lines with such tabs.
func aboutTabs(text string, lines []int) string {
	m := notSpaces.FindStringSubmatch(text)
	if m == nil {
		return text
	}
	from, _ := strconv.Atoi(m[1])
	i, _ := slices.BinarySearch(lines, from)
	if i == len(lines) {
		return text
	}
	return fmt.Sprintf("line %d: the indentation has a tab; YAML takes spaces alone", lines[i])
}

// conflictMarks are the beginnings of lines that Git leaves where a merge or rebase needs a
// person. The line between the two sides has no mark that is Git's alone.
var conflictMarks = []string{"<<<<<<< ", ">>>>>>> "}

// longestMark is the length of a mark with the end of the line before it.
const longestMark = 9

// aboutConflict is an error about a line with a mark.
func aboutConflict(line int) string {
	return fmt.Sprintf("line %d: Git left a merge conflict here; keep one of the two sides, and complete the merge or rebase", line)
}

// ExplainYAML returns the text of the parser's error about text. It may begin with
// "line N: ". If Git left a conflict in text, the error is about that.
func ExplainYAML(text string, err error) string {
	var tabs []int
	n := 0
	for line := range strings.Lines(text) {
		n++
		for _, mark := range conflictMarks {
			if strings.HasPrefix(line, mark) {
				return aboutConflict(n)
			}
		}
		if strings.HasPrefix(strings.TrimLeft(line, " "), "\t") {
			tabs = append(tabs, n)
		}
	}
	return aboutTabs(syntax(err), tabs)
}
