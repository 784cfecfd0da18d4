package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/git"
	"gitopsd.dev/testscripts/gitserver"
)

// The size of the repository, the number of polls that are timed together, and the goal for
// memory.
const (
	gitFiles   = 50_000
	gitCommits = 10_000
	gitRefs    = 20_000
	gitPolls   = 20
	gitMemory  = 40 // MB
)

// git compares following a large repository over HTTP with git itself: a poll that finds
// nothing, a new commit until its files can be read, and a commit of the lock. It compares
// wall time, since most of the work is the server's. Both sides have all earlier commits,
// including each other's, before the clock starts.
func (b *bench) git(ctx context.Context, f *fixture) error {
	server, err := f.gitServer()
	if err != nil {
		return err
	}
	fmt.Fprintf(b.say, "bench: making a repository of %d files, %d commits and %d refs\n", gitFiles, gitCommits, gitRefs)
	repo, err := server.Create(ctx, "fleet")
	if err != nil {
		return err
	}
	if _, err := repo.GitInput(ctx, fastImport(), "fast-import", "--quiet"); err != nil {
		return err
	}
	if _, err := repo.Git(ctx, "pack-refs", "--all"); err != nil {
		return err
	}
	l := gitLab{url: server.URL("fleet"), clone: filepath.Join(f.dir, "clone"), home: f.dir, repo: repo}
	if err := l.git(ctx, "clone", "--quiet", "--bare", "--depth", "1", l.url, l.clone); err != nil {
		return err
	}
	if l.ours, err = git.Open(git.Config{URL: l.url, Branch: "main", Dir: filepath.Join(f.dir, "ours")}); err != nil {
		return err
	}
	defer l.ours.Close()
	cache := filepath.Join(f.dir, "child")
	for round := range b.rounds + 1 {
		fmt.Fprintf(b.say, "bench: git, round %d of %d\n", round, b.rounds)
		t, err := l.round(ctx, round)
		if err != nil {
			return err
		}
		if err := l.change(ctx, fmt.Sprint("child ", round)); err != nil {
			return err
		}
		u, err := each(ctx, round, [][]string{{"follow", l.url, cache}})
		if err != nil {
			return err
		}
		if round == 0 {
			continue // it clones, and warms the server
		}
		b.add("git-poll", t.poll[0], t.poll[1])
		b.add("git-fetch", t.fetch[0], t.fetch[1])
		b.add("git-commit-back", t.back[0], t.back[1])
		b.add("git-rss", u[0].rss, gitMemory)
	}
	return nil
}

// fastImport returns the repository as input of git fast-import.
func fastImport() string {
	var s strings.Builder
	s.WriteString("blob\nmark :1\ndata 20\napiVersion: v1\na: b\n\n")
	for i := range gitCommits {
		fmt.Fprintf(&s, "commit refs/heads/main\nmark :%d\ncommitter A <a@example.com> %d +0000\ndata 2\nc\n", i+2, 1_700_000_000+i)
		if i > 0 {
			fmt.Fprintf(&s, "M 100644 inline clusters/c0/changing.yaml\ndata <<END\nn: %d\nEND\n\n", i)
			continue
		}
		for f := range gitFiles {
			fmt.Fprintf(&s, "M 100644 :1 clusters/c%d/f%d.yaml\n", f/500, f%500)
		}
		s.WriteString("\n")
	}
	for i := range gitRefs {
		fmt.Fprintf(&s, "reset refs/tags/t%d\nfrom :%d\n\n", i, i%gitCommits+2)
	}
	return s.String()
}

// gitLab is both sides of the comparison.
type gitLab struct {
	url, clone, home string
	repo             *gitserver.Repo
	ours             *git.Repository
	last             string // the last head that our side saw
}

// gitTimes are seconds, ours and git's.
type gitTimes struct{ poll, fetch, back [2]float64 }

func (l *gitLab) round(ctx context.Context, round int) (t gitTimes, err error) {
	sides := func(into *[2]float64, ours, theirs func() error) error {
		for _, side := range []int{round % 2, 1 - round%2} {
			start := time.Now()
			if err := []func() error{ours, theirs}[side](); err != nil {
				return err
			}
			into[side] = time.Since(start).Seconds()
		}
		return nil
	}
	if err := l.both(ctx); err != nil {
		return t, err
	}
	times := func(do func() error) func() error {
		return func() error {
			for range gitPolls {
				if err := do(); err != nil {
					return err
				}
			}
			return nil
		}
	}
	err = sides(&t.poll,
		times(func() error { return l.follow(ctx) }),
		times(func() error { return l.git(ctx, "ls-remote", l.url, "refs/heads/main") }))
	if err != nil {
		return t, err
	}
	if err := l.change(ctx, fmt.Sprint("round ", round)); err != nil {
		return t, err
	}
	if err := sides(&t.fetch, func() error { return l.follow(ctx) }, func() error { return l.fetch(ctx) }); err != nil {
		return t, err
	}
	// Each side commits on top of the other's commit, which it has fetched.
	ours := func() error {
		_, wrote, err := l.ours.Update(ctx, sources.LockFile, "Lock", func(sources.Commit) ([]byte, error) {
			return fmt.Appendf(nil, "ours %d\n", round), nil
		})
		if err == nil && !wrote {
			err = errors.New("nothing was committed")
		}
		return err
	}
	for i, do := range []func() error{ours, func() error { return l.back(ctx, round) }} {
		if err := l.both(ctx); err != nil {
			return t, err
		}
		start := time.Now()
		if err := do(); err != nil {
			return t, err
		}
		t.back[i] = time.Since(start).Seconds()
	}
	return t, nil
}

// both makes both sides fetch the head.
func (l *gitLab) both(ctx context.Context) error {
	if err := l.follow(ctx); err != nil {
		return err
	}
	return l.fetch(ctx)
}

// follow polls, and reads a file of the new commit.
func (l *gitLab) follow(ctx context.Context) error {
	commit, changed, err := l.ours.Poll(ctx, l.last)
	if err != nil || !changed {
		return err
	}
	l.last = commit.Hash
	_, err = fs.ReadFile(commit.Files, "clusters/c0/changing.yaml")
	return err
}

func (l *gitLab) fetch(ctx context.Context) error {
	return l.git(ctx, "fetch", "--quiet", "--no-tags", "--depth", "1", "origin", "+refs/heads/main:refs/heads/main")
}

// back commits the lock with git's plumbing, and pushes.
func (l *gitLab) back(ctx context.Context, round int) error {
	script := `set -e
export GIT_INDEX_FILE="$PWD/index"
blob=$(git hash-object -w --stdin)
git read-tree refs/heads/main
git update-index --add --cacheinfo "100644,$blob,clusters.lock"
commit=$(git commit-tree -p refs/heads/main -m Lock "$(git write-tree)")
git push --quiet origin "$commit:refs/heads/main"
`
	cmd := exec.CommandContext(ctx, "sh", "-c", script)
	return l.run(cmd, fmt.Sprintf("theirs %d\n", round))
}

// change commits as somebody else.
func (l *gitLab) change(ctx context.Context, what string) error {
	_, err := l.repo.Commit(ctx, "main", what, map[string]string{"clusters/c0/changing.yaml": what + "\n"})
	return err
}

func (l *gitLab) git(ctx context.Context, args ...string) error {
	return l.run(exec.CommandContext(ctx, "git", args...), "")
}

func (l *gitLab) run(cmd *exec.Cmd, input string) error {
	cmd.Env = gitserver.Env(l.home)
	if _, err := os.Stat(l.clone); err == nil {
		cmd.Dir = l.clone
	}
	cmd.Stdin = strings.NewReader(input)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, stderr.Bytes())
	}
	return nil
}

// followOnce fetches new commits, with the cache of earlier runs, and polls once more: args
// are the repository's URL and the cache directory.
func followOnce(args []string) (float64, error) {
	r, err := git.Open(git.Config{URL: args[0], Branch: "main", Dir: args[1]})
	if err != nil {
		return 0, err
	}
	defer r.Close()
	l := gitLab{ours: r}
	for range 2 {
		if err := l.follow(context.Background()); err != nil {
			return 0, err
		}
	}
	return 0, nil
}
