package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

var (
	// shownLine matches a command line of gitopsd in a code span or block.
	shownLine       = regexp.MustCompile("(?m)(?:`|^\\$ |```\n)gitopsd ([a-z][^`\n|]*)")
	longFlag        = regexp.MustCompile(`(?:^|[ \[])--([a-z][a-z-]*)`)
	environmentName = regexp.MustCompile(`\bGITOPSD_[A-Z_]+\b`)
)

// The commands, flags and environment variables in README and the pages below docs exist.
func TestPagesShowCommands(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../../../docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatal("no pages", err)
	}
	root := newRoot(&Env{LookupEnv: noVariables})
	root.InitDefaultCompletionCmd()
	variables := make(map[string]bool)
	var collect func(c *cobra.Command)
	collect = func(c *cobra.Command) {
		add := func(f *pflag.Flag) {
			variables["GITOPSD_"+strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))] = true
		}
		c.Flags().VisitAll(add)
		c.PersistentFlags().VisitAll(add)
		for _, sub := range c.Commands() {
			collect(sub)
		}
	}
	collect(root)
	lines := 0
	for _, page := range append(pages, "../../../README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Base(page)
		for _, v := range environmentName.FindAllString(string(text), -1) {
			if !variables[v] {
				t.Errorf("%s names %s, which sets no flag", name, v)
			}
		}
		for _, m := range shownLine.FindAllStringSubmatch(string(text), -1) {
			lines++
			words := strings.Fields(m[1])
			c, _, err := root.Find(words)
			if err != nil || c == root {
				t.Errorf("%s shows `gitopsd %s`: there is no such command", name, m[1])
				continue
			}
			c.InitDefaultHelpFlag()
			for _, f := range longFlag.FindAllStringSubmatch(m[1], -1) {
				if c.Flags().Lookup(f[1]) == nil && c.InheritedFlags().Lookup(f[1]) == nil {
					t.Errorf("%s shows `gitopsd %s`: %s has no flag --%s", name, m[1], c.CommandPath(), f[1])
				}
			}
		}
	}
	if lines < 40 {
		t.Errorf("only %d command lines were found", lines)
	}
}
