package testscripts

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// README.md documents exactly the commands that exist.
func TestReadmeDocumentsTheCommands(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented, registered []string
	for _, m := range regexp.MustCompile("(?m)^### `(.*)`$").FindAllStringSubmatch(string(text), -1) {
		documented = append(documented, m[1])
	}
	for _, c := range commands() {
		registered = append(registered, c.usage)
	}
	for _, usage := range registered {
		if !slices.Contains(documented, usage) {
			t.Errorf("README.md does not have the command `%s`", usage)
		}
	}
	for _, usage := range documented {
		if !slices.Contains(registered, usage) {
			t.Errorf("README.md has `%s`, which is not a command", usage)
		}
	}
	if !t.Failed() && !slices.Equal(documented, registered) {
		t.Error("README.md lists the commands in a different order than the table of commands")
	}
}

// Each script starts with a sentence that says what it shows, and ends with a second
// run that changes nothing.
func TestScriptsAreSpecifications(t *testing.T) {
	t.Parallel()
	scripts, err := filepath.Glob("*.txtar")
	if err != nil || len(scripts) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, name := range scripts {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		script, _, _ := strings.Cut(string(text), "\n-- ")
		first, _, _ := strings.Cut(script, "\n")
		if !regexp.MustCompile(`^# \S.*[.:]$`).MatchString(first) {
			t.Errorf("%s:1: %q is not a comment with a sentence that says what the script shows", name, first)
		}
		last := strings.LastIndex(script, "\nunchanged ")
		if last < 0 {
			t.Errorf("%s: no second run that changes nothing: `unchanged COMMAND`", name)
			continue
		}
		for i, line := range strings.Split(script[last+1:], "\n")[1:] {
			words := strings.Fields(strings.TrimPrefix(line, "!"))
			if len(words) > 0 && words[0][0] != '#' && !slices.Contains(looking, words[0]) && !slices.Contains(words, "requests") {
				t.Errorf("%s: %q comes %d lines after the last `unchanged`; a second run that changes nothing is the end", name, line, i+1)
			}
		}
	}
}

// looking lists the commands that may follow the last run, since they change nothing.
var looking = []string{"cmp", "cmpenv", "end", "grep", "stderr", "stdout"}
