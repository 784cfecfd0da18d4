package wire

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// programTransport runs Git's services on a repository of this machine, as git
// does for a directory. The repository's own rules hold: its hooks, and
// safe.directory. A work tree that has the branch of a push checked out moves along
// with it; one with changes that are not committed has the push refused.
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
	cmd := exec.CommandContext(ctx, t.git, "-c", "receive.denyCurrentBranch=updateInstead", strings.TrimPrefix(service, "git-"), t.dir)
	cmd.Env = programEnv(os.Environ())
	if service == uploadPack {
		cmd.Env = append(cmd.Env, "GIT_PROTOCOL=version=2")
	}
	// A hook may leave processes that keep its output open.
	cmd.WaitDelay = time.Second
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
	s.wait = func() { cmd.Wait() } // the status says less than stderr
	s.stop = func() {
		stdin.Close()
		stdout.Close()
		cmd.Wait()
	}
	return s, nil
}

// programEnv is the environment for Git's services: without settings of gitopsd,
// which may be secret, and without what tells git of another repository (git
// rev-parse --local-env-vars).
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
