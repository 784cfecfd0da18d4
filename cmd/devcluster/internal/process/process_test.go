package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain makes the test binary the child that Start starts. Its first argument selects
// what it does.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "child" {
		os.Exit(child(os.Args[2]))
	}
	os.Exit(m.Run())
}

func child(what string) int {
	if err := Enter(os.Stdin, func() { os.Exit(5) }); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 3
	}
	fmt.Println("entered")
	switch what {
	case "return":
		return 0
	case "obey":
		// SIGTERM ends it.
	case "refuse":
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("refusing")
	}
	time.Sleep(time.Minute)
	return 4
}

// start starts a child, which is killed at the end of the test.
func start(t *testing.T, what string, owner ID) (*Process, string) {
	t.Helper()
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	p, err := Start(Config{Args: []string{"child", what}, Dir: dir, Log: log, Owner: owner}, func(ID) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.ID.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, ErrGone) {
			t.Error(err)
		}
		<-p.Done()
	})
	return p, log
}

// awaitText waits until the file contains the text.
func awaitText(t *testing.T, path, text string) {
	t.Helper()
	for range 3000 {
		if b, err := os.ReadFile(path); err == nil && strings.Contains(string(b), text) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%s never contained %q", path, text)
}

func awaitEnd(t *testing.T, p *Process) {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(30 * time.Second):
		t.Fatalf("pid %d still runs", p.ID.PID)
	}
}

func TestParseStat(t *testing.T) {
	t.Parallel()
	const tail = " 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 7 18 777 20 21"
	for _, tt := range []struct {
		name, text string
		want       stat
		bad        bool
	}{
		{name: "plain", text: "12 (etcd) S" + tail, want: stat{'S', 7, 777}},
		{name: "blanks and parentheses in the name", text: "12 (a) b (c) Z" + tail, want: stat{'Z', 7, 777}},
		{name: "empty", text: "", bad: true},
		{name: "name not closed", text: "12 (etcd", bad: true},
		{name: "cut off", text: "12 (etcd) S 1 2 3", bad: true},
		{name: "no number", text: "12 (etcd) S" + strings.Replace(tail, "777", "x", 1), bad: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := parseStat([]byte(tt.text))
			if (err != nil) != tt.bad || got != tt.want {
				t.Errorf("got %+v, %v; want %+v, error %v", got, err, tt.want, tt.bad)
			}
		})
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("12 (a) b) R 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 777 20"))
	f.Add([]byte(")"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if _, err := parseStat(text); err == nil && !strings.Contains(string(text), ") ") {
			t.Errorf("%q: no error", text)
		}
	})
}

func TestStatGone(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		s    stat
		want bool
	}{
		{stat{state: 'S', threads: 5}, false},
		{stat{state: 'Z', threads: 1}, true},
		{stat{state: 'Z', threads: 0}, true},
		{stat{state: 'Z', threads: 9}, false}, // killed, its other threads still die
		{stat{state: 'X', threads: 1}, true},
	} {
		if got := tt.s.gone(); got != tt.want {
			t.Errorf("%+v: gone is %v", tt.s, got)
		}
	}
}

func TestIDOfAnotherProcess(t *testing.T) {
	t.Parallel()
	p, log := start(t, "obey", ID{})
	awaitText(t, log, "entered")
	if !p.ID.Alive() {
		t.Fatal("a running process is not alive")
	}
	recycled, rebooted, nobody := p.ID, p.ID, ID{}
	recycled.Start++
	rebooted.Boot = "another"
	for name, id := range map[string]ID{"recycled": recycled, "rebooted": rebooted, "nobody": nobody} {
		if id.Alive() {
			t.Errorf("%s: alive", name)
		}
		if err := id.Signal(syscall.SIGKILL); !errors.Is(err, ErrGone) {
			t.Errorf("%s: signal: %v", name, err)
		}
	}
	if !p.ID.Alive() {
		t.Error("a signal for somebody else has reached it")
	}
}

func TestZombieIsGone(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("cat")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	id, err := Identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	stdin.Close()
	// Nobody waits for it yet, so it stays a zombie.
	if left := waitGone(t.Context(), []ID{id}); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func TestStopAsksThenKills(t *testing.T) {
	t.Parallel()
	obeys, obeyLog := start(t, "obey", ID{})
	refuses, refuseLog := start(t, "refuse", ID{})
	awaitText(t, obeyLog, "entered")
	awaitText(t, refuseLog, "refusing")
	killed, err := Stop(t.Context(), 500*time.Millisecond, obeys.ID, refuses.ID, ID{})
	if err != nil || len(killed) != 1 || killed[0] != refuses.ID {
		t.Errorf("killed %v, %v; want %v", killed, err, refuses.ID)
	}
	for _, p := range []*Process{obeys, refuses} {
		if p.ID.Alive() {
			t.Errorf("%v is alive", p.ID)
		}
	}
}

func TestStopKillsWhenInterrupted(t *testing.T) {
	t.Parallel()
	p, log := start(t, "refuse", ID{})
	awaitText(t, log, "refusing")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Stop(ctx, time.Hour, p.ID); err != nil || p.ID.Alive() {
		t.Errorf("alive %v, %v", p.ID.Alive(), err)
	}
}

func TestChildEndsWithItsOwner(t *testing.T) {
	t.Parallel()
	owner, _ := start(t, "obey", ID{})
	owned, log := start(t, "refuse", owner.ID)
	free, freeLog := start(t, "refuse", ID{})
	awaitText(t, log, "refusing")
	awaitText(t, freeLog, "refusing")
	if err := owner.ID.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, owned)
	if !free.ID.Alive() {
		t.Error("a process without owner has ended too")
	}
}

func TestChildOfAnOwnerThatIsGone(t *testing.T) {
	t.Parallel()
	owner, _ := start(t, "return", ID{})
	awaitEnd(t, owner)
	owned, _ := start(t, "refuse", owner.ID)
	awaitEnd(t, owned)
}

func TestChildThatNobodyRecorded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var child ID
	_, err := Start(Config{Args: []string{"child", "refuse"}, Dir: dir, Log: filepath.Join(dir, "log")},
		func(id ID) error { child = id; return io.ErrShortWrite })
	if !errors.Is(err, io.ErrShortWrite) {
		t.Fatalf("got %v", err)
	}
	if left := waitGone(t.Context(), []ID{child}); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestEnterWithoutStarter(t *testing.T) {
	t.Parallel()
	for _, stdin := range []string{"", `{"owner":`, "no JSON\n"} {
		if err := Enter(strings.NewReader(stdin), nil); err == nil {
			t.Errorf("stdin %q: no error", stdin)
		}
	}
}
