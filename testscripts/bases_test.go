package testscripts

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"gitopsd.dev/testscripts/gitserver"
)

// serveBases serves a second repository from a server of its own.
func serveBases(ctx context.Context, s *scenario, c *call) error {
	if s.bases != nil {
		return errors.New("a repository of bases is served already")
	}
	var err error
	if s.bases, err = gitserver.New(gitserver.Config{Root: filepath.Join(s.work, ".bases-server")}); err != nil {
		return err
	}
	const name = "platform/bases"
	if _, err := s.bases.Create(ctx, name); err != nil {
		return err
	}
	url, dir := s.bases.URL(name), c.args[0]
	for _, args := range [][]string{
		{"init", "--quiet", dir},
		{"-C", dir, "remote", "add", "origin", url},
		{"-C", dir, "add", "--all"},
		{"-C", dir, "commit", "--quiet", "--message", "Start the bases"},
		{"-C", dir, "tag", "--annotate", "--message", "First release", "v1"},
		{"-C", dir, "push", "--quiet", "--follow-tags", "--set-upstream", "origin", "main"},
	} {
		if err := c.program(ctx, "git", args...); err != nil {
			return err
		}
	}
	commit, err := c.output(ctx, "git", "-C", dir, "rev-parse", "HEAD")
	if err != nil {
		return err
	}
	c.ts.Setenv("BASES", url)
	c.ts.Setenv("BASES_COMMIT", strings.TrimSpace(commit))
	return nil
}

// needBases returns an error unless a repository of bases is served.
func (s *scenario) needBases() error {
	if s.bases == nil {
		return errors.New("no repository of bases is served yet")
	}
	return nil
}

// stopBases stops the server for good.
func stopBases(_ context.Context, s *scenario, _ *call) error {
	if err := s.needBases(); err != nil {
		return err
	}
	defer func() { s.bases = nil }()
	return s.bases.Close()
}

func basesRequests(_ context.Context, s *scenario, c *call) error {
	if err := s.needBases(); err != nil {
		return err
	}
	for _, r := range s.bases.Requests() {
		fmt.Fprintln(c.out, r)
	}
	return nil
}
