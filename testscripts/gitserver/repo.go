package gitserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// Repo is a repository that a server serves. Its methods run the git binary in
// it, with Env.
type Repo struct {
	// Dir is the bare repository.
	Dir string

	git  string
	home string
	mu   sync.Mutex // Commit
}

// Create makes an empty bare repository that accepts pushes. Its default branch
// is main.
func (s *Server) Create(ctx context.Context, name string) (*Repo, error) {
	r := &Repo{Dir: filepath.Join(s.cfg.Root, filepath.FromSlash(name)+".git"), git: s.git, home: s.cfg.Root}
	if err := os.MkdirAll(filepath.Dir(r.Dir), 0o755); err != nil {
		return nil, err
	}
	init := exec.CommandContext(ctx, s.git, "init", "--quiet", "--bare", r.Dir)
	init.Env = Env(s.cfg.Root)
	if out, err := init.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("git init %s: %w\n%s", r.Dir, err, out)
	}
	if _, err := r.Git(ctx, "config", "http.receivepack", "true"); err != nil {
		return nil, err
	}
	return r, nil
}

// Git runs git in the repository and returns what it prints, without the
// newline at the end.
func (r *Repo) Git(ctx context.Context, args ...string) (string, error) {
	return r.run(ctx, nil, "", args...)
}

// GitInput is [Repo.Git] with input on standard input.
func (r *Repo) GitInput(ctx context.Context, input string, args ...string) (string, error) {
	return r.run(ctx, nil, input, args...)
}

func (r *Repo) run(ctx context.Context, env []string, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, r.git, args...)
	cmd.Dir = r.Dir
	cmd.Env = append(Env(r.home), env...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("git %s: %w\n%s", strings.Join(args, " "), err, errOut.Bytes())
	}
	return strings.TrimSuffix(out.String(), "\n"), nil
}

// Hook installs a hook (pre-receive, update, …) with the text of an executable
// script; an empty script removes it.
func (r *Repo) Hook(name, script string) error {
	file := filepath.Join(r.Dir, "hooks", name)
	if script == "" {
		return os.Remove(file)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(script), 0o755)
}

// Commit commits files (path to content) on top of branch, which it creates if
// needed, and returns the commit. Other files stay as they are. No work tree is
// involved.
func (r *Repo) Commit(ctx context.Context, branch, message string, files map[string]string) (string, error) {
	var changes strings.Builder // as git update-index --index-info reads them
	for path, content := range files {
		blob, err := r.GitInput(ctx, content, "hash-object", "-w", "--stdin")
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&changes, "100644 %s\t%s\n", blob, path)
	}
	return r.commit(ctx, branch, message, changes.String())
}

// Remove commits the removal of paths from branch.
func (r *Repo) Remove(ctx context.Context, branch, message string, paths ...string) (string, error) {
	var changes strings.Builder
	for _, path := range paths {
		fmt.Fprintf(&changes, "0 %s\t%s\n", noObject, path)
	}
	return r.commit(ctx, branch, message, changes.String())
}

var noObject = strings.Repeat("0", 40)

// commit applies changes to an index that holds branch's tree, and commits it.
func (r *Repo) commit(ctx context.Context, branch, message, changes string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	dir, err := os.MkdirTemp("", "gitserver")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	index := []string{"GIT_INDEX_FILE=" + filepath.Join(dir, "index")}
	ref := "refs/heads/" + branch

	for range 100 {
		parent, err := r.Git(ctx, "for-each-ref", "--format=%(objectname)", ref)
		if err != nil {
			return "", err
		}
		commitTree := []string{"commit-tree", "-m", message}
		if parent != "" {
			commitTree = append(commitTree, "-p", parent)
			_, err = r.run(ctx, index, "", "read-tree", parent)
		} else {
			_, err = r.run(ctx, index, "", "read-tree", "--empty")
		}
		if err != nil {
			return "", err
		}
		if _, err := r.run(ctx, index, changes, "update-index", "--index-info"); err != nil {
			return "", err
		}
		tree, err := r.run(ctx, index, "", "write-tree")
		if err != nil {
			return "", err
		}
		hash, err := r.Git(ctx, append(commitTree, tree)...)
		if err != nil {
			return "", err
		}
		old := parent
		if old == "" {
			old = noObject
		}
		// A push may have come in between: start again on its commit.
		if _, err := r.Git(ctx, "update-ref", ref, hash, old); err == nil {
			return hash, nil
		} else if ctx.Err() != nil {
			return "", err
		}
	}
	return "", errors.New("gitserver: " + ref + " moves faster than a commit is made")
}

// Log returns the subjects of the commits on rev, newest first.
func (r *Repo) Log(ctx context.Context, rev string) ([]string, error) {
	out, err := r.Git(ctx, "log", "--format=%s", rev)
	if err != nil || out == "" {
		return nil, err
	}
	return strings.Split(out, "\n"), nil
}
