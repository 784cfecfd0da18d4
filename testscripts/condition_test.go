package testscripts

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// eventually runs a command until it succeeds, or fails after `!`, and its output
// matches.
func eventually(ctx context.Context, s *scenario, c *call) error {
	var timeout time.Duration
	var stdout string
	err := c.flags(func(f *flag.FlagSet) {
		f.DurationVar(&timeout, "timeout", time.Minute, "")
		f.StringVar(&stdout, "stdout", "", "")
	}, 1, -1)
	if err != nil {
		return err
	}
	line, negated := c.args, false
	if line[0] == "!" {
		line, negated = line[1:], true
	}
	re, err := regexp.Compile(`(?m)` + stdout)
	if err != nil {
		return err
	}
	all := ctx
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var out, errOut bytes.Buffer
	try := func() error {
		out.Reset()
		errOut.Reset()
		err := s.run(ctx, c.ts, line, &out, &errOut)
		switch {
		case err == nil && negated:
			return errors.New("it succeeds")
		case err != nil && !negated:
			return err
		case !re.Match(out.Bytes()):
			return fmt.Errorf("its output does not match %#q", stdout)
		}
		return nil
	}
	err = s.repeat(ctx, try)
	io.Copy(c.out, &out)
	io.Copy(c.errOut, &errOut)
	switch {
	case err == nil:
		return nil
	case all.Err() != nil:
		return fmt.Errorf("not before the tests ran out of time: %s\n%w", strings.Join(c.args, " "), err)
	}
	return fmt.Errorf("not within %s: %s\n%w", timeout, strings.Join(c.args, " "), err)
}

// repeat calls try until it succeeds, with growing pauses. Otherwise it returns the
// last error from before the context ended. It gives up early when a process that the
// script started ends.
func (s *scenario) repeat(ctx context.Context, try func() error) error {
	last := errors.New("no time to try")
	pause := 100 * time.Millisecond
	for {
		err := try()
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err
		}
		for _, p := range s.running {
			select {
			case <-p.done:
				return fmt.Errorf("%w\nand %s has ended: %v", last, p.name, p.err)
			default:
			}
		}
		select {
		case <-ctx.Done():
			return last
		case <-time.After(pause):
		}
		pause = min(pause*3/2, 500*time.Millisecond)
	}
}

// changes prints what a command changes in the script's clusters and
// repository.
func changes(ctx context.Context, s *scenario, c *call) error {
	var wanted bool
	if err := c.flags(func(f *flag.FlagSet) { f.BoolVar(&wanted, "wanted", false, "") }, 1, -1); err != nil {
		return err
	}
	diff, err := s.changesBy(ctx, c)
	if wanted {
		diff = slices.DeleteFunc(diff, func(line string) bool {
			return strings.Contains(line, repositoryMark) || strings.Contains(line, inventoryMark)
		})
	}
	io.WriteString(c.out, strings.Join(diff, ""))
	return err
}

// unchanged runs a command that must change nothing. It removes the checkpoints
// first, so that the command computes the desired state again.
func unchanged(ctx context.Context, s *scenario, c *call) error {
	if err := os.RemoveAll(filepath.Join(c.ts.Getenv("XDG_CACHE_HOME"), "gitopsd", "checkpoints")); err != nil {
		return err
	}
	diff, err := s.changesBy(ctx, c)
	if err == nil && len(diff) > 0 {
		err = fmt.Errorf("%s has changed:\n%s", strings.Join(c.args, " "), strings.Join(diff, ""))
	}
	return err
}

// changesBy runs the command in c's arguments and returns what it changed. The
// command's output goes to the script's stderr.
func (s *scenario) changesBy(ctx context.Context, c *call) ([]string, error) {
	before, err := s.settled(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.run(ctx, c.ts, c.args, c.errOut, c.errOut); err != nil {
		return nil, err
	}
	after, err := s.observe(ctx)
	if err != nil {
		return nil, err
	}
	return compare(before, after), nil
}

// settled observes until nothing changes any more, since controllers may still
// act on earlier commands. If changes never stop, it returns the last state.
func (s *scenario) settled(ctx context.Context) (map[string]string, error) {
	const looks, pause = 50, 200 * time.Millisecond
	last, err := s.observe(ctx)
	for range looks {
		if err != nil {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
		before := last
		if last, err = s.observe(ctx); err == nil && maps.Equal(before, last) {
			break
		}
	}
	return last, err
}

// compare lists new (+), removed (-) and changed (~) names.
func compare(before, after map[string]string) (diff []string) {
	names := maps.Clone(before)
	maps.Copy(names, after)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		was, had := before[name]
		is, has := after[name]
		switch {
		case !had:
			diff = append(diff, "+ "+name+"\n")
		case !has:
			diff = append(diff, "- "+name+"\n")
		case was != is:
			diff = append(diff, "~ "+name+"\n")
		}
	}
	return diff
}

// repositoryMark starts the keys of the repository in what observe returns; no
// cluster can have that name.
const repositoryMark = "(repository) "

// inventoryMark is in the names of gitopsd's own objects in a cluster.
const inventoryMark = " ConfigMap gitopsd-system/inventory-"

// observe returns the state of the script's clusters and repository: a fingerprint,
// which every write changes, for each object (by cluster, kind and name), each file of
// the main branch, and each ref.
func (s *scenario) observe(ctx context.Context) (map[string]string, error) {
	state := make(map[string]string)
	for name, l := range s.clusters {
		if l.plane.stopped {
			continue
		}
		objects, err := l.plane.list(ctx)
		if err != nil {
			return nil, fmt.Errorf("looking at cluster %s: %w", name, err)
		}
		for _, o := range objects {
			state[name+" "+o.String()] = o.fingerprint()
		}
	}
	if s.repo == nil {
		return state, nil
	}
	files, err := s.repo.Git(ctx, "ls-tree", "-r", "main")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(files) {
		blob, file, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		state[repositoryMark+"file "+file] = blob
	}
	refs, err := s.repo.Git(ctx, "for-each-ref", "--format=%(refname) %(objectname)")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(refs) {
		ref, hash, _ := strings.Cut(strings.TrimSpace(line), " ")
		state[repositoryMark+ref] = hash
	}
	return state, nil
}

// planned prints the changes in a plan in JSON, in the form of [compare].
func planned(_ context.Context, _ *scenario, c *call) error {
	var plan struct {
		Clusters []struct {
			Name  string
			Steps []struct{ Action, Kind, Namespace, Name string }
		}
	}
	if err := json.Unmarshal([]byte(c.ts.ReadFile(c.args[0])), &plan); err != nil {
		return fmt.Errorf("%s: %w", c.args[0], err)
	}
	signs := map[string]string{"create": "+", "configure": "~", "prune": "-"}
	lines := make(map[string]string)
	for _, cluster := range plan.Clusters {
		for _, step := range cluster.Steps {
			name := cluster.Name + " " + step.Kind + " " + path.Join(step.Namespace, step.Name)
			if sign := signs[step.Action]; sign != "" {
				lines[name] = sign + " " + name + "\n"
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		io.WriteString(c.out, lines[name])
	}
	return nil
}

// mask runs a command and masks its output.
func mask(ctx context.Context, s *scenario, c *call) error {
	var out, errOut bytes.Buffer
	err := s.run(ctx, c.ts, c.args, &out, &errOut)
	io.WriteString(c.out, masked(out.String(), c.ts.Getenv))
	io.WriteString(c.errOut, masked(errOut.String(), c.ts.Getenv))
	return err
}

// masked replaces the parts of a text that differ from run to run.
func masked(text string, getenv func(string) string) string {
	for _, name := range []string{"REPOSITORY", "REGISTRY", "BASES", "WORK"} {
		if value := getenv(name); value != "" {
			text = strings.ReplaceAll(text, value, "$"+name)
		}
	}
	for _, v := range varying {
		text = v.pattern.ReplaceAllString(text, v.name)
	}
	return text
}

// varying lists the patterns that masked replaces. Digests are not among them:
// packages are built reproducibly.
var varying = []struct {
	pattern *regexp.Regexp
	name    string
}{
	{regexp.MustCompile(`\b127\.0\.0\.1:[0-9]+`), "127.0.0.1:PORT"},
	{regexp.MustCompile(`-[bcdfghjklmnpqrstvwxz2456789]{8,10}-[bcdfghjklmnpqrstvwxz2456789]{5}\b`), "-POD"},
	{regexp.MustCompile(`\b[0-9a-f]{40}\b|\b[0-9a-f]{10}\b`), "COMMIT"}, // whole, or as short as gitopsd writes it
	{regexp.MustCompile(`\b20[0-9]{2}-[0-9]{2}-[0-9]{2}([T ][0-9:.]+(Z|[ +-][0-9:+-]+)?)?`), "TIME"},
}
