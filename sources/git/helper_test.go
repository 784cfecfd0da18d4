package git

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"gitopsd.dev/sources"
	"gitopsd.dev/testscripts/gitserver"

	"github.com/go-git/go-git/v5/plumbing"
)

// way is one way to reach a repository.
type way struct {
	name   string
	server gitserver.Config
	config func(s *gitserver.Server, repo *gitserver.Repo, name string) Config
}

func overHTTP(s *gitserver.Server, _ *gitserver.Repo, name string) Config {
	return Config{URL: s.URL(name), CAFile: s.CAFile}
}

func overSSH(s *gitserver.Server, _ *gitserver.Repo, name string) Config {
	return Config{URL: s.SSHURL(name), SSHKeyFile: s.SSHKeyFile, KnownHostsFile: s.KnownHostsFile}
}

func inDirectory(_ *gitserver.Server, repo *gitserver.Repo, _ string) Config {
	return Config{URL: "file://" + repo.Dir}
}

var ways = []way{
	{name: "http", config: overHTTP},
	{name: "http, protocol 0", server: gitserver.Config{OnlyProtocolV0: true}, config: overHTTP},
	{name: "https", server: gitserver.Config{TLS: true, Username: "fleet", Password: "s3cr3t-token"}, config: func(s *gitserver.Server, r *gitserver.Repo, name string) Config {
		c := overHTTP(s, r, name)
		c.Username, c.Password = "fleet", "s3cr3t-token"
		return c
	}},
	{name: "ssh", config: overSSH},
	{name: "ssh, protocol 0", server: gitserver.Config{OnlyProtocolV0: true}, config: overSSH},
	{name: "directory", config: inDirectory},
}

func wayBy(name string) way {
	return ways[slices.IndexFunc(ways, func(w way) bool { return w.name == name })]
}

// remoteWays are the ways with a cache.
func remoteWays() []way {
	return slices.DeleteFunc(slices.Clone(ways), func(w way) bool { return w.name == "directory" })
}

// everyWay runs a test for each way to a repository that is there and empty.
func everyWay(t *testing.T, test func(t *testing.T, f *fixture)) {
	t.Parallel()
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			test(t, newFixture(t, w))
		})
	}
}

// fixture is a server with a repository "fleet", and what it takes to open it.
type fixture struct {
	*testing.T
	server *gitserver.Server
	repo   *gitserver.Repo
	cfg    Config
}

func newFixture(t *testing.T, w way) *fixture {
	t.Helper()
	s := gitserver.Start(t, w.server)
	repo, err := s.Create(t.Context(), "fleet")
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{T: t, server: s, repo: repo, cfg: w.config(s, repo, "fleet")}
	f.cfg.Branch = "main"
	return f
}

// open opens the repository with a cache of its own.
func (f *fixture) open() *Repository {
	f.Helper()
	cfg := f.cfg
	cfg.Dir = f.TempDir()
	return f.openWith(cfg)
}

func (f *fixture) openWith(cfg Config) *Repository {
	f.Helper()
	r, err := Open(cfg)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { r.Close() })
	return r
}

func (f *fixture) commit(message string, files map[string]string) string {
	f.Helper()
	hash, err := f.repo.Commit(context.Background(), "main", message, files)
	if err != nil {
		f.Fatal(err)
	}
	return hash
}

func (f *fixture) git(args ...string) string {
	f.Helper()
	out, err := f.repo.Git(context.Background(), args...)
	if err != nil {
		f.Fatal(err)
	}
	return out
}

// fsck lets git check everything in the repository.
func (f *fixture) fsck() {
	f.Helper()
	f.git("fsck", "--strict", "--full")
}

// poll returns the newest commit, which must not be last.
func (f *fixture) poll(r *Repository, last string) sources.Commit {
	f.Helper()
	c, changed, err := r.Poll(f.Context(), last)
	if err != nil {
		f.Fatal(err)
	}
	if !changed {
		f.Fatalf("the poll says that nothing has changed since %q", last)
	}
	return c
}

// read returns the files of a commit as a map.
func read(t *testing.T, c sources.Commit) map[string]string {
	t.Helper()
	have := make(map[string]string)
	err := fs.WalkDir(c.Files, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := fs.ReadFile(c.Files, path)
		have[path] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return have
}

func wantFiles(t *testing.T, c sources.Commit, want map[string]string) {
	t.Helper()
	if have := read(t, c); !maps.Equal(have, want) {
		t.Errorf("the commit holds %v, want %v", have, want)
	}
}

// workTree clones the repository of f, for tests that need a work tree.
func (f *fixture) workTree() string {
	f.Helper()
	dir := filepath.Join(f.TempDir(), "tree")
	run(f.T, f.TempDir(), "clone", "--quiet", f.repo.Dir, dir)
	return dir
}

// run runs git in a directory.
func run(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := runErr(t.Context(), dir, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func runErr(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = dir
	cmd.Env = gitserver.Env(dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("git %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}

// wantError checks that an error says all of texts, in a form fit for people.
func wantError(t *testing.T, err error, texts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", texts)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("the error is\n\t%v\nwant it to say %q", err, text)
		}
	}
	if strings.Contains(err.Error(), "s3cr3t") {
		t.Errorf("the error holds the password: %v", err)
	}
}

func constant(content string) func(sources.Commit) ([]byte, error) {
	return func(sources.Commit) ([]byte, error) { return []byte(content), nil }
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// mktree makes a tree of lines as git ls-tree prints them.
func (f *fixture) mktree(lines ...string) string {
	f.Helper()
	return f.input(strings.Join(lines, "\n")+"\n", "mktree")
}

// mktreeRaw does the same without changing modes, as git mktree would.
func (f *fixture) mktreeRaw(lines ...string) string {
	f.Helper()
	slices.SortFunc(lines, func(a, b string) int { return strings.Compare(treeSortName(a), treeSortName(b)) })
	var tree strings.Builder
	for _, line := range lines {
		head, name, _ := strings.Cut(line, "\t")
		fields := strings.Fields(head)
		tree.WriteString(strings.TrimPrefix(fields[0], "0") + " " + name + "\x00" + f.rawHash(fields[2]))
	}
	return f.input(tree.String(), "hash-object", "-t", "tree", "-w", "--stdin")
}

func treeSortName(line string) string {
	_, name, _ := strings.Cut(line, "\t")
	if strings.HasPrefix(line, "040000") {
		name += "/"
	}
	return name
}

// rawHash is the 20 bytes of what rev names.
func (f *fixture) rawHash(rev string) string {
	f.Helper()
	h := plumbing.NewHash(f.git("rev-parse", rev))
	return string(h[:])
}

// commitTree makes main a commit with a tree of that content, however malformed.
func (f *fixture) commitTree(content string) {
	f.Helper()
	root := f.input(content, "hash-object", "-t", "tree", "-w", "--literally", "--stdin")
	f.git("update-ref", "refs/heads/main", f.git("commit-tree", "-m", "Tree", root))
}

// input runs git with input.
func (f *fixture) input(input string, args ...string) string {
	f.Helper()
	out, err := f.repo.GitInput(context.Background(), input, args...)
	if err != nil {
		f.Fatal(err)
	}
	return out
}

// contextOfMain is for TestMain, which has no test whose context it could use.
func contextOfMain() context.Context { return context.Background() }

// deadAddress is one on which nobody listens, and which nobody else gets while
// the test runs.
func deadAddress(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(name.(*syscall.SockaddrInet4).Port))
}
