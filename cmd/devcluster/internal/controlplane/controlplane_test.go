package controlplane

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"gitopsd.dev/cmd/devcluster/internal/process"
	"gitopsd.dev/cmd/devcluster/internal/statedir"
)

func newCommand(t *testing.T) (*command, *bytes.Buffer) {
	t.Helper()
	dir, err := statedir.Open(filepath.Join(t.TempDir(), "d"))
	if err != nil {
		t.Fatal(err)
	}
	if err := dir.Create(); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	return &command{dir: dir, out: &out, reserved: map[int]bool{}}, &out
}

func TestPlan(t *testing.T) {
	t.Parallel()
	c, _ := newCommand(t)
	first, release, err := c.plan(Options{Clusters: []string{"hub", "dev", "hub"}, ControllerManager: true})
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if got := first.Names(); !reflect.DeepEqual(got, []string{"hub", "dev"}) || len(c.reserved) != 5 {
		t.Errorf("clusters %v, %d ports", got, len(c.reserved))
	}
	second, releaseSecond, err := c.plan(Options{Clusters: []string{"dev", "prod"}})
	if err != nil {
		t.Fatal(err)
	}
	defer releaseSecond()
	if second.Etcd != first.Etcd || !reflect.DeepEqual(second.Clusters[:2], first.Clusters) {
		t.Errorf("what was there has changed: %+v, then %+v", first, second)
	}
	if prod := second.Cluster("prod"); prod == nil || prod.ControllerManager || prod.Port == 0 {
		t.Errorf("prod: %+v", prod)
	}
	saved, err := c.dir.Load()
	if err != nil || !reflect.DeepEqual(saved, second) {
		t.Errorf("saved %+v, %v", saved, err)
	}
}

func TestPlanKeepsOffOthersFiles(t *testing.T) {
	t.Parallel()
	c, _ := newCommand(t)
	if err := os.WriteFile(c.dir.Kubeconfig("hub"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.plan(Options{Clusters: []string{"hub"}}); err == nil || !strings.Contains(err.Error(), c.dir.Kubeconfig("hub")) {
		t.Errorf("got %v", err)
	}
	if _, err := c.dir.Load(); !errors.Is(err, statedir.ErrNotUp) {
		t.Errorf("a state was written: %v", err)
	}
}

func TestEnsureAndRemoveCluster(t *testing.T) {
	t.Parallel()
	c, _ := newCommand(t)
	state, release, err := c.plan(Options{Clusters: []string{"hub", "dev"}})
	if err != nil {
		t.Fatal(err)
	}
	release()
	for _, cl := range state.Clusters {
		if err := c.ensureCluster(cl); err != nil {
			t.Fatal(err)
		}
		cfg, err := clientcmd.LoadFromFile(c.dir.Kubeconfig(cl.Name))
		if err != nil {
			t.Fatal(err)
		}
		user := cfg.AuthInfos[cfg.Contexts[cl.Name].AuthInfo]
		if cfg.CurrentContext != cl.Name || cfg.Clusters[cl.Name].Server != url(cl) || len(user.ClientCertificateData) == 0 {
			t.Errorf("%s: %+v", cl.Name, cfg)
		}
		err = filepath.WalkDir(c.dir.Path(cl.Name), func(path string, e os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if info, err := e.Info(); err != nil || info.Mode().Perm()&0o077 != 0 {
				t.Errorf("%s: %v, %v", path, info.Mode(), err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	before, err := os.ReadFile(c.dir.Path("hub", "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	edited := []byte("edited by its user")
	if err := os.WriteFile(c.dir.Kubeconfig("dev"), edited, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, cl := range state.Clusters {
		if err := c.ensureCluster(cl); err != nil {
			t.Fatal(err)
		}
	}
	if after, err := os.ReadFile(c.dir.Path("hub", "ca.key")); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the second time made new keys: %v", err)
	}
	mine := []string{c.dir.Kubeconfig("dev"), c.dir.Path("logs", "mine"), c.dir.Path("mine")}
	for _, path := range mine[1:] {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{c.dir.Log("hub.kube-apiserver"), c.dir.Path("run", ".devcluster-1")} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(c.dir.Path(".devcluster-2", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	kept, err := c.remove(state)
	if err != nil || !reflect.DeepEqual(kept, mine) {
		t.Errorf("kept %v, %v", kept, err)
	}
	left, err := filepath.Glob(c.dir.Path("*"))
	if want := []string{c.dir.Kubeconfig("dev"), c.dir.Path("logs"), c.dir.Path("mine")}; err != nil || !reflect.DeepEqual(left, want) {
		t.Errorf("left %v, %v; want %v", left, err, want)
	}
	if got, err := os.ReadFile(c.dir.Kubeconfig("dev")); err != nil || !bytes.Equal(got, edited) {
		t.Errorf("%q, %v", got, err)
	}
}

func TestEnsureFolderIsAllOrNothing(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	path := filepath.Join(parent, "folder")
	fail := errors.New("no")
	if _, err := ensureFolder(path, func() (files, error) { return nil, fail }); !errors.Is(err, fail) {
		t.Errorf("got %v", err)
	}
	if _, err := ensureFolder(path, func() (files, error) { return files{"a": nil, "no/such/folder": nil}, nil }); err == nil {
		t.Error("no error")
	}
	if left, err := os.ReadDir(parent); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestPendingChecks(t *testing.T) {
	t.Parallel()
	report := "[+]ping ok\n[-]etcd-readiness failed: reason withheld\n[+]log ok\n[-]poststarthook/rbac/bootstrap-roles failed: reason withheld\nreadyz check failed\n"
	want := []string{"etcd-readiness", "poststarthook/rbac/bootstrap-roles"}
	if got := pendingChecks([]byte(report)); !reflect.DeepEqual(got, want) {
		t.Errorf("got %q", got)
	}
	if got := pendingChecks([]byte("ok")); got != nil {
		t.Errorf("got %q", got)
	}
}

func TestAwait(t *testing.T) {
	t.Parallel()
	c, out := newCommand(t)
	if err := c.dir.Save(&statedir.State{}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.dir.Log("hub.x"), []byte("early\n"+strings.Repeat("z", 1000)+"\nlast words\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	notYet := errors.New("not yet")
	never := func(context.Context) error { return notYet }
	ended := make(chan struct{})
	close(ended)

	err := c.await(t.Context(), "a start", never, running{name: "hub.x", done: ended, logged: int64(len("early\n"))})
	if err == nil || !strings.Contains(err.Error(), "last words") || !strings.Contains(err.Error(), c.dir.Log("hub.x")) || len(err.Error()) > 800 ||
		strings.Contains(err.Error(), "early") {
		t.Errorf("ended: %v", err)
	}
	size, err := c.dir.LogSize("hub.x")
	if err != nil {
		t.Fatal(err)
	}
	err = c.await(t.Context(), "a start", never, running{name: "hub.x", done: ended, logged: size})
	if err == nil || !strings.Contains(err.Error(), "nothing to "+c.dir.Log("hub.x")) || strings.Contains(err.Error(), "\n") {
		t.Errorf("ended without a word: %v", err)
	}
	if err := c.await(t.Context(), "a start", never, running{name: "hub.x"}); !errors.Is(err, errGone) {
		t.Errorf("found, and ended since: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("interrupted")
	polls := 0
	err = c.await(ctx, "a start", func(context.Context) error {
		if polls++; strings.Contains(out.String(), "\n") {
			cancel(why)
		}
		return notYet
	}, running{name: "hub.x", done: make(chan struct{})})
	if !errors.Is(err, why) {
		t.Errorf("interrupted: %v", err)
	}
	if got, want := out.String(), "waiting for a start: not yet\n"; got != want {
		t.Errorf("said %q, want %q", got, want)
	}
}

func TestUntilStable(t *testing.T) {
	t.Parallel()
	calls := 0
	err := untilStable(func() error {
		if calls++; calls < 3 {
			return errGone
		}
		return nil
	})
	if err != nil || calls != 3 {
		t.Errorf("%d calls, %v", calls, err)
	}
}

func TestUnknownAndMissing(t *testing.T) {
	t.Parallel()
	c, out := newCommand(t)
	cfg := Config{Dir: c.dir, Out: out}
	fresh := Config{Dir: statedir.Dir(filepath.Join(t.TempDir(), "none")), Out: out}
	if _, release, err := c.plan(Options{Clusters: []string{"hub"}}); err != nil {
		t.Fatal(err)
	} else {
		release()
	}
	for name, err := range map[string]error{
		"stop unknown":        Stop(t.Context(), cfg, []string{"prod"}),
		"start unknown":       Start(t.Context(), cfg, []string{"prod"}),
		"stop, nothing up":    Stop(t.Context(), fresh, []string{"hub"}),
		"add, nothing up":     Add(t.Context(), fresh, Options{Clusters: []string{"hub"}}),
		"up without clusters": Up(t.Context(), fresh, Options{}),
		"up with a bad name":  Up(t.Context(), fresh, Options{Clusters: []string{"../x"}}),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := Down(t.Context(), fresh); err != nil {
		t.Errorf("down, nothing up: %v", err)
	}
	if _, err := os.Stat(string(fresh.Dir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s was made: %v", fresh.Dir, err)
	}
	if err := Stop(t.Context(), cfg, []string{"hub"}); err != nil || !strings.Contains(out.String(), "hub: was not running") {
		t.Errorf("stop what does not run: %v, %s", err, out)
	}
}

func TestClearOrphans(t *testing.T) {
	t.Parallel()
	self, err := process.Identify(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	dead := self
	dead.Start++
	for _, tt := range []struct {
		name           string
		recorded, want process.ID
	}{
		{"nobody", process.ID{}, process.ID{}},
		{"alive", self, self},
		{"dead", dead, process.ID{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, _ := newCommand(t)
			if err := c.dir.Save(&statedir.State{}); err != nil {
				t.Fatal(err)
			}
			if err := c.dir.SetOwner(tt.recorded); err != nil {
				t.Fatal(err)
			}
			if err := c.clearOrphans(t.Context()); err != nil || c.owner != tt.want {
				t.Errorf("owner %v, %v", c.owner, err)
			}
			if got, err := c.dir.RecordedOwner(); err != nil || got != tt.want {
				t.Errorf("recorded %v, %v", got, err)
			}
		})
	}
}
