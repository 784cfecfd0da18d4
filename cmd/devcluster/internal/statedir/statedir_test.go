package statedir

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"gitopsd.dev/cmd/devcluster/internal/process"
)

func TestCheckName(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"hub", "a", "prod-eu-1", "0", strings.Repeat("x", 40)} {
		if err := CheckName(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"", "Hub", "-a", "a-", "a.b", "a/b", "..", "a b", strings.Repeat("x", 41), "etcd", "logs", "run", "lock"} {
		if err := CheckName(name); err == nil {
			t.Errorf("%q: no error", name)
		}
	}
}

func newDir(t *testing.T) Dir {
	t.Helper()
	d, err := Open(filepath.Join(t.TempDir(), "d"))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Create(); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestState(t *testing.T) {
	t.Parallel()
	d := newDir(t)
	if _, err := d.Load(); !errors.Is(err, ErrNotUp) {
		t.Errorf("fresh: %v", err)
	}
	want := &State{
		Etcd:     Etcd{ClientPort: 1, PeerPort: 2, HTTPPort: 3},
		Clusters: []Cluster{{Name: "prod", Port: 4, ControllerManager: true}, {Name: "dev", Port: 5}},
	}
	if err := d.Save(want); err != nil {
		t.Fatal(err)
	}
	got, err := d.Load()
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	if c := got.Cluster("dev"); c == nil || c.Port != 5 {
		t.Errorf("dev: %+v", c)
	}
	if c := got.Cluster("other"); c != nil {
		t.Errorf("other: %+v", c)
	}
	if err := os.WriteFile(d.stateFile(), []byte(`{"clusters":[],"newer":1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Load(); err == nil || !strings.Contains(err.Error(), d.stateFile()) {
		t.Errorf("unknown field: %v", err)
	}
}

func TestCheckUnused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, file string
		fresh      bool
		bad        bool
	}{
		{name: "somebody's file", file: "notes.txt", fresh: true},
		{name: "somebody's kubeconfig", file: "hub.kubeconfig", fresh: true, bad: true},
		{name: "somebody's folder", file: "etcd", fresh: true, bad: true},
		{name: "our folder", file: "etcd"},
		{name: "kubeconfig in the way of a new cluster", file: "hub.kubeconfig", bad: true},
		{name: "kubeconfig of another cluster", file: "dev.kubeconfig"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := newDir(t)
			if err := os.WriteFile(d.Path(tt.file), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			err := d.CheckUnused(tt.fresh, []string{"hub"})
			if (err != nil) != tt.bad || err != nil && !strings.Contains(err.Error(), d.Path(tt.file)) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestRunning(t *testing.T) {
	t.Parallel()
	d := newDir(t)
	if err := d.Save(&State{}); err != nil {
		t.Fatal(err)
	}
	self, err := process.Identify(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	recycled := self
	recycled.Start++
	for name, id := range map[string]process.ID{"alive": self, "recycled": recycled} {
		if err := d.Record(name, id); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]process.ID{"alive": self, "recycled": {}, "unknown": {}} {
		if got, err := d.Running(name); err != nil || got != want {
			t.Errorf("%s: got %v, %v; want %v", name, got, err, want)
		}
	}
	for range 2 {
		if err := d.Forget("alive"); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := d.Running("alive"); err != nil || got != (process.ID{}) {
		t.Errorf("forgotten: %v, %v", got, err)
	}
	if err := os.WriteFile(d.runFile("broken"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Running("broken"); err == nil || !strings.Contains(err.Error(), d.runFile("broken")) {
		t.Errorf("broken: %v", err)
	}
}

func TestLogTail(t *testing.T) {
	t.Parallel()
	d := newDir(t)
	if err := d.Save(&State{}); err != nil {
		t.Fatal(err)
	}
	var long strings.Builder
	for i := range 20000 {
		fmt.Fprintln(&long, "line", i)
	}
	if got, err := d.LogSize("missing"); got != 0 || err != nil {
		t.Errorf("missing: size %d, %v", got, err)
	}
	for _, tt := range []struct {
		name, before, text, want string
	}{
		{"empty", "", "", ""},
		{"short", "", "a\nb\n", "a\nb"},
		{"long", "", long.String(), "line 19998\nline 19999"},
		{"no newline at the end", "", "a\nb\nc", "b\nc"},
		{"nothing since", "a\nb\n", "", ""},
		{"a line since", "a\nb\n", "c\n", "c"},
		{"lines since", "a\nb\n", "c\nd\ne\n", "d\ne"},
		{"long before", long.String(), "a\n", "a"},
	} {
		if err := os.WriteFile(d.Log(tt.name), []byte(tt.before), 0o600); err != nil {
			t.Fatal(err)
		}
		from, err := d.LogSize(tt.name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(d.Log(tt.name), []byte(tt.before+tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := d.LogTail(tt.name, from, 2); got != tt.want {
			t.Errorf("%s: got %q", tt.name, got)
		}
		if got := d.LogTail(tt.name, int64(len(tt.before+tt.text))+1, 2); got != "" {
			t.Errorf("%s, cut short: got %q", tt.name, got)
		}
	}
	if got := d.LogTail("missing", 0, 2); !strings.Contains(got, d.Log("missing")) {
		t.Errorf("missing: %q", got)
	}
}

func TestLock(t *testing.T) {
	t.Parallel()
	d := newDir(t)
	unlock, err := d.Lock(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	waiting := make(chan struct{})
	refused := make(chan error)
	go func() {
		_, err := d.Lock(ctx, func() { close(waiting) })
		refused <- err
	}()
	<-waiting
	cancel()
	if err := <-refused; !errors.Is(err, context.Canceled) {
		t.Errorf("while locked: %v", err)
	}
	// A command that waits while everything is removed must get a lock that others see. A
	// file of others keeps the directory: without a directory, waiting is an error.
	if err := os.WriteFile(d.Path("theirs"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	next := make(chan error)
	unlockNext := func() {}
	go func() {
		var err error
		unlockNext, err = d.Lock(t.Context(), nil)
		next <- err
	}()
	if err := d.Remove(); err != nil {
		t.Fatal(err)
	}
	unlock()
	if err := <-next; err != nil {
		t.Fatal(err)
	}
	defer unlockNext()
	if _, err := os.Stat(d.lockFile()); err != nil {
		t.Errorf("locked a file that is gone: %v", err)
	}
}

func TestLockWithoutDirectory(t *testing.T) {
	t.Parallel()
	if _, err := Dir(filepath.Join(t.TempDir(), "none")).Lock(t.Context(), nil); !errors.Is(err, ErrNotUp) {
		t.Errorf("got %v", err)
	}
}

func TestRemoveKeepsWhatIsNotOurs(t *testing.T) {
	t.Parallel()
	d := newDir(t)
	if err := d.Save(&State{}); err != nil {
		t.Fatal(err)
	}
	if err := d.Remove(); err != nil {
		t.Fatal(err)
	}
	// The caller removes logs/ and run/.
	if _, err := os.Stat(d.Path("logs")); err != nil {
		t.Error(err)
	}
	if _, err := d.Load(); !errors.Is(err, ErrNotUp) {
		t.Errorf("state: %v", err)
	}
}

func TestReserve(t *testing.T) {
	t.Parallel()
	r, err := Reserve(5)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Release()
	seen := map[int]bool{}
	for _, port := range r.Ports {
		if seen[port] {
			t.Errorf("port %d twice", port)
		}
		seen[port] = true
		if err := PortFree(port); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("port %d is not kept from others: %v", port, err)
		}
		if _, err := reserve(port); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("port %d can be reserved again: %v", port, err)
		}
	}
	// A server with SO_REUSEPORT, like ours, can listen and is reached.
	shares := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) {
			err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, 0xf, 1)
		}); e != nil {
			return e
		}
		return err
	}}
	addr := fmt.Sprintf("127.0.0.1:%d", r.Ports[0])
	l, err := shares.Listen(t.Context(), "tcp4", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := net.Dial("tcp4", addr)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	r.Release()
	if err := PortFree(r.Ports[1]); err != nil {
		t.Errorf("after release: %v", err)
	}
}
