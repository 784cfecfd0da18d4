package testscripts

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"gitopsd.dev/testscripts/gitserver"
)

// repoName is the name of the script's only fleet repository.
const repoName = "fleet"

func serveRepository(ctx context.Context, s *scenario, c *call) error {
	var auth string
	cfg := gitserver.Config{Root: filepath.Join(s.work, ".git-server")}
	err := c.flags(func(f *flag.FlagSet) {
		f.StringVar(&auth, "auth", "", "")
		f.BoolVar(&cfg.TLS, "tls", false, "")
	}, 1, 1)
	if err != nil {
		return err
	}
	if s.git != nil {
		return errors.New("a repository is served already")
	}
	cfg.Username, cfg.Password, _ = strings.Cut(auth, ":")
	s.user = cfg.Username
	if s.git, err = gitserver.New(cfg); err != nil {
		return err
	}
	if s.repo, err = s.git.Create(ctx, repoName); err != nil {
		return err
	}
	if cfg.TLS {
		ca, err := os.ReadFile(s.git.CAFile)
		if err != nil {
			return err
		}
		if err := s.trust(ca); err != nil {
			return err
		}
		c.ts.Setenv("GIT_SSL_CAINFO", s.caFile())
	}
	c.ts.Setenv("REPOSITORY", s.git.URL(repoName))
	c.ts.Setenv("REPOSITORY_SSH", s.git.SSHURL(repoName))
	c.ts.Setenv("SSH_KEY", s.git.SSHKeyFile)
	c.ts.Setenv("SSH_KNOWN_HOSTS", s.git.KnownHostsFile)
	dir := c.args[0]
	s.clone = c.ts.MkAbs(dir)
	for _, args := range [][]string{
		{"init", "--quiet", dir},
		{"-C", dir, "remote", "add", "origin", s.withPassword(cfg.Username, cfg.Password)},
		{"-C", dir, "add", "--all"},
		{"-C", dir, "commit", "--quiet", "--message", "Start the fleet"},
		{"-C", dir, "push", "--quiet", "--set-upstream", "origin", "main"},
	} {
		if err := c.program(ctx, "git", args...); err != nil {
			return err
		}
	}
	return nil
}

// withPassword returns the repository's URL with credentials, for the clone.
func (s *scenario) withPassword(user, password string) string {
	scheme, rest, _ := strings.Cut(s.git.URL(repoName), "://")
	if user == "" {
		return scheme + "://" + rest
	}
	return scheme + "://" + url.UserPassword(user, password).String() + "@" + rest
}

// needRepository returns an error unless a repository is served.
func (s *scenario) needRepository() error {
	if s.repo == nil {
		return errors.New("no repository is served yet")
	}
	return nil
}

func repositoryPassword(ctx context.Context, s *scenario, c *call) error {
	if err := s.needRepository(); err != nil {
		return err
	}
	s.git.SetPassword(c.args[0])
	return c.program(ctx, "git", "-C", s.clone, "remote", "set-url", "origin", s.withPassword(s.user, c.args[0]))
}

// refusePushes installs a hook that refuses pushes to a ref, as forges do for a
// protected branch.
func refusePushes(_ context.Context, s *scenario, c *call) error {
	if err := s.needRepository(); err != nil {
		return err
	}
	return s.repo.Hook("update", fmt.Sprintf(`#!/bin/sh
case "$1" in
%s)
	echo "$1 is protected" >&2
	exit 1
esac
`, c.args[0]))
}

func racePushes(_ context.Context, s *scenario, c *call) error {
	if err := s.needRepository(); err != nil {
		return err
	}
	n, err := number(c.args[0])
	if err != nil {
		return err
	}
	s.git.RejectPushes(s.repo, "main", n)
	return nil
}

func healRepository(_ context.Context, s *scenario, _ *call) error {
	if err := s.needRepository(); err != nil {
		return err
	}
	s.git.Heal()
	if err := s.repo.Hook("update", ""); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func repositoryRequests(_ context.Context, s *scenario, c *call) error {
	if err := s.needRepository(); err != nil {
		return err
	}
	for _, r := range s.git.Requests() {
		fmt.Fprintln(c.out, r)
	}
	return nil
}

func runGit(ctx context.Context, _ *scenario, c *call) error {
	return c.program(ctx, "git", c.args...)
}

func commitAll(ctx context.Context, _ *scenario, c *call) error {
	for _, args := range [][]string{
		{"add", "--all"},
		{"commit", "--quiet", "--message", c.args[0]},
	} {
		if err := c.program(ctx, "git", args...); err != nil {
			return err
		}
	}
	// gitopsd may commit the lock between a pull and the push.
	const attempts = 5
	var err error
	for range attempts {
		if err := c.program(ctx, "git", "pull", "--quiet", "--rebase"); err != nil {
			return err
		}
		if _, err = c.output(ctx, "git", "push", "--quiet"); err == nil {
			return nil
		}
	}
	return err
}
