package wire

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// programTransport runs Git's services on a repository on this machine, as git does for
// a directory, with the repository's hooks and safe.directory. A work tree with the
// branch of a push checked out follows it. The push is refused if the work tree has
// uncommitted changes, or if the branch is being rebased or bisected.
type programTransport struct {
	git, dir string
}

func newProgramTransport(dir string) (*programTransport, error) {
	git, err := exec.LookPath("git")
	if err != nil {
		return nil, fmt.Errorf("a repository in a directory needs git on this machine: %w", err)
	}
	return &programTransport{git: git, dir: dir}, nil
}

func (t *programTransport) stateless() bool { return false }
func (t *programTransport) close()          {}

func (t *programTransport) open(ctx context.Context, service string, alive func()) (session, error) {
	// If there is no such directory, git would append ".git".
	if _, err := os.Stat(t.dir); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: it does not appear to be a git repository: the directory does not exist", ErrNotFound)
	}
	var args []string
	if service == receivePack {
		args = []string{"-c", "receive.denyCurrentBranch=" + t.currentBranch(ctx)}
	}
	cmd := t.command(ctx, append(args, strings.TrimPrefix(service, "git-"), t.dir)...)
	if service == uploadPack {
		cmd.Env = append(cmd.Env, "GIT_PROTOCOL=version=2")
	}
	s := &streamSession{alive: alive}
	cmd.Stderr = &s.stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s.stdin, s.out = stdin, newPktReader(stdout, alive)
	s.wait = func() { cmd.Wait() } // stderr says more than the status
	s.stop = func() {
		stdin.Close()
		stdout.Close()
		cmd.Wait()
	}
	return s, nil
}

// Uncommitted reports whether a work tree has changes, by git status. It fails if git does.
func Uncommitted(ctx context.Context, dir string) (bool, error) {
	t, err := newProgramTransport(dir)
	if err != nil {
		return false, err
	}
	out, err := t.command(ctx, "--no-optional-locks", "-c", "core.fsmonitor=false", "-C", dir, "status", "--porcelain").Output()
	return len(out) > 0, err
}

// Sparse reports whether a work tree may lack files of its commit, by git-sparse-checkout(1).
// It fails if git does.
func Sparse(ctx context.Context, dir string) (bool, error) {
	t, err := newProgramTransport(dir)
	if err != nil {
		return false, err
	}
	out, err := t.command(ctx, "-C", dir, "config", "--type=bool", "--default=false", "--get", "core.sparseCheckout").Output()
	return strings.TrimSpace(string(out)) == "true", err
}

// Ignored returns the files and directories of a work tree that git ignores: that match
// gitignore(5), and have nothing that is tracked. Of a directory it may name the entries too. It
// fails if git does.
func Ignored(ctx context.Context, dir string) ([]string, error) {
	t, err := newProgramTransport(dir)
	if err != nil {
		return nil, err
	}
	out, err := t.command(ctx, "--no-optional-locks", "-c", "core.fsmonitor=false", "-C", dir,
		"ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z").Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		text, _, _ := strings.Cut(strings.TrimSpace(string(exit.Stderr)), "\n")
		return nil, fmt.Errorf("git ls-files: %s (%w)", text, err)
	}
	names := strings.FieldsFunc(string(out), func(r rune) bool { return r == 0 })
	for i, name := range names {
		names[i] = strings.TrimSuffix(name, "/") // a directory
	}
	return names, err
}

// WouldIgnore returns those of the names that git ignores in a work tree, or would if there were
// such files. It fails if git does.
func WouldIgnore(ctx context.Context, dir string, names []string) ([]string, error) {
	t, err := newProgramTransport(dir)
	if err != nil {
		return nil, err
	}
	cmd := t.command(ctx, "--no-optional-locks", "-c", "core.fsmonitor=false", "-C", dir, "check-ignore", "-z", "--stdin")
	cmd.Stdin = strings.NewReader(strings.Join(names, "\x00"))
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 1 { // none
		err = nil
	}
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == 0 }), err
}

// RemoteURLs returns the URLs that git fetches a repository's remotes from, as git's whole
// configuration has them. It fails if git does.
func RemoteURLs(ctx context.Context, dir string) ([]string, error) {
	t, err := newProgramTransport(dir)
	if err != nil {
		return nil, err
	}
	out, err := t.command(ctx, "-C", dir, "remote", "-v").Output()
	if err != nil {
		return nil, fmt.Errorf("git remote: %w", err)
	}
	var urls []string
	for line := range strings.Lines(string(out)) { // origin<TAB>URL (fetch)
		_, rest, _ := strings.Cut(line, "\t")
		if u, _, fetch := strings.Cut(rest, " (fetch)"); fetch {
			urls = append(urls, u)
		}
	}
	return urls, nil
}

// command returns a command of git, which is terminated when ctx ends.
func (t *programTransport) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, t.git, args...)
	cmd.Env = programEnv(os.Environ())
	terminate(cmd)
	// Time for git to end, and for a hook's processes that keep its output open.
	cmd.WaitDelay = time.Second
	return cmd
}

// currentBranch returns the setting for a branch that is checked out
// (receive.denyCurrentBranch in git-config(1)). During a rebase or bisect the branch counts
// as checked out, but HEAD is another commit, on which updateInstead would stage the
// push.
func (t *programTransport) currentBranch(ctx context.Context) string {
	out, err := t.command(ctx, "-C", t.dir, "rev-parse", "--git-common-dir").Output()
	if err != nil {
		return "refuse"
	}
	common := strings.TrimSuffix(string(out), "\n")
	if !filepath.IsAbs(common) {
		common = filepath.Join(t.dir, common)
	}
	trees, _ := os.ReadDir(filepath.Join(common, "worktrees")) // exists if there are linked ones
	dirs := []string{common}
	for _, tree := range trees {
		dirs = append(dirs, filepath.Join(common, "worktrees", tree.Name()))
	}
	for _, dir := range dirs {
		for _, state := range []string{"rebase-merge", "rebase-apply", "BISECT_LOG"} {
			if _, err := os.Lstat(filepath.Join(dir, state)); !errors.Is(err, fs.ErrNotExist) {
				return "refuse"
			}
		}
	}
	return "updateInstead"
}

// programEnv returns the environment for Git's services, without gitopsd's settings, which
// may be secret, and without variables that name a repository (git rev-parse
// --local-env-vars).
func programEnv(env []string) []string {
	return slices.DeleteFunc(env, func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		switch name {
		case "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_CONFIG", "GIT_OBJECT_DIRECTORY", "GIT_DIR", "GIT_WORK_TREE",
			"GIT_IMPLICIT_WORK_TREE", "GIT_GRAFT_FILE", "GIT_INDEX_FILE", "GIT_NO_REPLACE_OBJECTS", "GIT_REPLACE_REF_BASE",
			"GIT_PREFIX", "GIT_SHALLOW_FILE", "GIT_COMMON_DIR", "GIT_NAMESPACE", "GIT_PROTOCOL":
			return true
		}
		return strings.HasPrefix(name, "GITOPSD_")
	})
}
