package testscripts

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"gitopsd.dev/testscripts/devcluster"
)

// command is a command of scripts. README.md documents each.
type command struct {
	// usage is the command line: the command's name in lower-case words, then flags
	// and arguments. Brackets enclose the optional ones.
	usage string
	// run is called with as many arguments as usage requires, or more if usage
	// allows more.
	run func(ctx context.Context, s *scenario, c *call) error
}

// commands returns all commands.
func commands() []command {
	return []command{
		{"clusters [-proxy] NAME...", takeClusters},
		{"cluster stop NAME", stopCluster},
		{"cluster start NAME", startCluster},
		{"cluster image NAME REPOSITORY COMMAND [ARG...]", mapImage},
		{"cluster break NAME [FLAGS] PATH FAULT", breakCluster},
		{"cluster heal NAME", healCluster},
		{"cluster requests NAME", clusterRequests},

		{"certificate authority FILE", makeAuthority},
		{"certificate serving FILE AUTHORITY NAME", makeServing},
		{"certificate show CLUSTER NAMESPACE/SECRET", showCertificate},

		{"registry serve [-auth USER:PASSWORD] [-plain]", serveRegistry},
		{"registry login USER:PASSWORD", loginRegistry},
		{"registry break [FLAGS] PATH FAULT", breakRegistry},
		{"registry heal", healRegistry},
		{"registry requests", registryRequests},
		{"package make DIR [FIELD=TYPE]...", makePackage},
		{"package push [-types] DIR REFERENCE", pushPackage},
		{"sign [-bundle] [-issuer URL] SIGNER REFERENCE", signPackage},
		{"upstream PROJECT VERSION DIR [PATTERN]...", upstreamPackage},

		{"repository serve [-auth USER:PASSWORD] [-tls] DIR", serveRepository},
		{"repository password PASSWORD", repositoryPassword},
		{"repository refuse REF", refusePushes},
		{"repository race N", racePushes},
		{"repository heal", healRepository},
		{"repository requests", repositoryRequests},
		{"bases serve DIR", serveBases},
		{"bases stop", stopBases},
		{"bases requests", basesRequests},
		{"git ARGUMENT...", runGit},
		{"commit MESSAGE", commitAll},

		{"workflow [-without STEP]... FILE JOB [NAME=VALUE]...", runWorkflow},
		{"kubectl ARGUMENT...", runKubectl},
		{"exits STATUS COMMAND...", exits},
		{"start NAME COMMAND...", startProcess},
		{"end [-kill] NAME", endProcess},
		{"fetch [-push FILE] NAME PATH", fetch},
		{"serving NAME", serves},

		{"eventually [-timeout DURATION] [-stdout PATTERN] [!] COMMAND...", eventually},
		{"changes [-wanted] COMMAND...", changes},
		{"unchanged COMMAND...", unchanged},
		{"planned FILE", planned},
		{"mask COMMAND...", mask},
	}
}

// name returns the words that start the command in a script.
func (c command) name() string {
	words := strings.Fields(c.usage)
	end := slices.IndexFunc(words, func(w string) bool { return strings.ToLower(w) != w || strings.HasPrefix(w, "[") })
	if end < 0 {
		end = len(words)
	}
	return strings.Join(words[:end], " ")
}

// optional matches an optional part of a command line.
var optional = regexp.MustCompile(`\[[^]]*\](\.\.\.)?`)

// takes reports whether the command can have n arguments.
func (c command) takes(n int) bool {
	least := len(strings.Fields(optional.ReplaceAllString(c.usage, ""))) - len(strings.Fields(c.name()))
	return n == least || n > least && strings.ContainsAny(c.usage, "[.")
}

// lookup returns the command that starts a line of a script.
func lookup(line []string) (command, []string, bool) {
	for words := min(2, len(line)); words > 0; words-- {
		name := strings.Join(line[:words], " ")
		for _, c := range commands() {
			if c.name() == name {
				return c, line[words:], true
			}
		}
	}
	return command{}, nil, false
}

// call is the execution of a command in a script.
type call struct {
	ts   *testscript.TestScript
	args []string
	// out and errOut become the input of the script's stdout and stderr.
	out, errOut io.Writer
}

// scriptCommands returns the commands by first word, as testscript expects them.
func scriptCommands(ctx context.Context) map[string]func(*testscript.TestScript, bool, []string) {
	all := make(map[string]func(*testscript.TestScript, bool, []string))
	for _, c := range commands() {
		word, _, _ := strings.Cut(c.name(), " ")
		all[word] = func(ts *testscript.TestScript, neg bool, args []string) {
			s := ts.Value(scenarioKey{}).(*scenario)
			err := s.run(ctx, ts, append([]string{word}, args...), ts.Stdout(), ts.Stderr())
			if err != nil {
				fmt.Fprintln(ts.Stderr(), err)
			}
			switch {
			case err != nil && !neg:
				ts.Fatalf("%s failed", word)
			case err == nil && neg:
				ts.Fatalf("unexpected success of %s", word)
			}
		}
	}
	return all
}

// errUsage is returned by commands for invalid arguments.
var errUsage = errors.New("usage")

// run runs a line of a script that is one of the commands, a program, or grep.
func (s *scenario) run(ctx context.Context, ts *testscript.TestScript, line []string, out, errOut io.Writer) error {
	if len(line) == 0 {
		return errors.New("no command")
	}
	c := &call{ts: ts, args: line, out: out, errOut: errOut}
	if line[0] == "grep" {
		return c.grep()
	}
	cmd, args, ok := lookup(line)
	if !ok {
		if verbs := verbsOf(line[0]); len(verbs) > 0 {
			return fmt.Errorf("%s: want one of %s", line[0], strings.Join(verbs, ", "))
		}
		return c.program(ctx, line[0], line[1:]...)
	}
	c.args = args
	err := errUsage
	if cmd.takes(len(args)) {
		err = cmd.run(ctx, s, c)
	}
	if errors.Is(err, errUsage) {
		return fmt.Errorf("usage: %s", cmd.usage)
	}
	return err
}

// verbsOf lists the second words of the commands that start with word.
func verbsOf(word string) (verbs []string) {
	for _, c := range commands() {
		if first, verb, ok := strings.Cut(c.name(), " "); ok && first == word {
			verbs = append(verbs, verb)
		}
	}
	return verbs
}

// flags parses the flags that define declares, and requires between least and most
// arguments after them; most < 0 means any number.
func (c *call) flags(define func(*flag.FlagSet), least, most int) error {
	f := flag.NewFlagSet("", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	define(f)
	if err := f.Parse(c.args); err != nil || f.NArg() < least || most >= 0 && f.NArg() > most {
		return errUsage
	}
	c.args = f.Args()
	return nil
}

// environ returns the script's environment, which testscript gives only to the
// programs that it runs.
func (c *call) environ() ([]string, error) {
	file := filepath.Join(c.ts.Getenv("TMPDIR"), "environ")
	if err := c.ts.Exec("sh", "-c", `env -0 >"$TMPDIR/environ"`); err != nil {
		return nil, fmt.Errorf("reading the script's environment: %w", err)
	}
	text, err := os.ReadFile(file)
	return strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00"), err
}

// prepare returns a command that runs a program in the script's directory, with its
// environment.
func (c *call) prepare(ctx context.Context, name string, args ...string) (*exec.Cmd, error) {
	env, err := c.environ()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = c.ts.MkAbs("."), env
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	return cmd, cmd.Err
}

// program runs a program to its end.
func (c *call) program(ctx context.Context, name string, args ...string) error {
	cmd, err := c.prepare(ctx, name, args...)
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = c.out, c.errOut
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", name, cmp.Or(ctx.Err(), err))
	}
	return nil
}

// runKubectl runs devcluster's kubectl.
func runKubectl(ctx context.Context, _ *scenario, c *call) error {
	cmd, err := devcluster.Kubectl(ctx, c.args...)
	if err != nil {
		return err
	}
	return c.program(ctx, cmd.Path, cmd.Args[1:]...)
}

// output runs a program and returns its stdout; an error includes its stderr.
func (c *call) output(ctx context.Context, name string, args ...string) (string, error) {
	var out, errOut bytes.Buffer
	err := (&call{ts: c.ts, out: &out, errOut: &errOut}).program(ctx, name, args...)
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, errOut.Bytes())
	}
	return out.String(), err
}

// grep is testscript's grep, for commands that run other commands.
func (c *call) grep() error {
	if len(c.args) != 3 {
		return errors.New("usage: grep PATTERN FILE")
	}
	re, err := regexp.Compile(`(?m)` + c.args[1])
	if err != nil {
		return err
	}
	text, err := os.ReadFile(c.ts.MkAbs(c.args[2]))
	if err != nil {
		return err
	}
	if !re.Match(text) {
		return fmt.Errorf("no match for %#q in %s, which ends with:\n%s", c.args[1], c.args[2], lastLines(c.ts.MkAbs(c.args[2]), 20))
	}
	return nil
}
