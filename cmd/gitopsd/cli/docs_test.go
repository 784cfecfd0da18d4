package cli

import (
	"os"
	"os/exec"
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

// The README's first package can be pasted: the files that its commands write are a package.
func TestReadmePackage(t *testing.T) {
	t.Parallel()
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "```\nmkdir -p my-types\n")
	files, _, ok := strings.Cut(rest, "gitopsd package build ")
	if !ok {
		t.Fatal("the README makes no package")
	}
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), shell, "-e", "-c", "mkdir -p my-types\n"+files)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	code, _, stderr := gitopsd(t, nil, "package", "build", filepath.Join(dir, "my-types"), "-o", filepath.Join(dir, "my-types.xpkg"), "--cache-dir", t.TempDir())
	if code != 0 || !strings.HasPrefix(stderr, "types alone are packed") {
		t.Errorf("status %d: %s", code, stderr)
	}
	// Kubeconfigs with a cluster's token are readable for their owner alone.
	for line := range strings.Lines(string(text)) {
		before, _, _ := strings.Cut(string(text), line)
		if strings.Contains(line, ">prod.yaml") && !strings.Contains(line, "umask 077") && !strings.Contains(before[strings.LastIndex(before, "```"):], "umask 077") {
			t.Errorf("%s writes a kubeconfig that others may read", strings.TrimSpace(line))
		}
	}
}
