package sources

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// maxTabs bounds how many lines with tabs are remembered for an error.
const maxTabs = 1000

// notSpaces matches the parser's errors about a tab where it wants spaces, with the line
// of what the tab is in.
var notSpaces = regexp.MustCompile(`^line (\d+): (?:found character that cannot start any token|found a tab character .*)$`)

// aboutTabs replaces a parser's error about a tab in the indentation by one that says so,
// with the line of the tab. The lines are those with such a tab.
func aboutTabs(text string, lines []int) string {
	m := notSpaces.FindStringSubmatch(text)
	if m == nil {
		return text
	}
	from, _ := strconv.Atoi(m[1])
	for _, line := range lines {
		if line >= from {
			return fmt.Sprintf("line %d: the indentation has a tab; YAML takes spaces alone", line)
		}
	}
	return text
}

// ExplainYAML returns the text of a parser's error about a YAML text, which may begin with
// "line N: ".
func ExplainYAML(text string, err error) string {
	var tabs []int
	n := 0
	for line := range strings.Lines(text) {
		n++
		if strings.HasPrefix(strings.TrimLeft(line, " "), "\t") {
			tabs = append(tabs, n)
		}
	}
	return aboutTabs(strings.TrimPrefix(err.Error(), "yaml: "), tabs)
}
