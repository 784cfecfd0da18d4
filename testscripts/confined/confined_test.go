package confined

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "confined" {
		Main()
	}
	os.Exit(m.Run())
}

// A program writes to the directory and nowhere else, however it tries, and reads
// everything. It has no capabilities, whoever it runs as.
func TestConfined(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	inside, outside := t.TempDir(), t.TempDir()
	for _, dir := range []string{inside, outside} {
		if err := os.WriteFile(filepath.Join(dir, "there"), []byte("as it was"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	script := func(text string) (string, error) {
		cmd := &exec.Cmd{Path: self, Args: []string{"confined", "INSIDE", "sh", "-c", text}}
		cmd.Env = append(os.Environ(), "INSIDE="+inside, "OUTSIDE="+outside)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for _, allowed := range []string{
		`echo new >"$INSIDE/new"`, `mkdir "$INSIDE/dir"`, `mv "$INSIDE/new" "$INSIDE/dir/newer"`, `rm -r "$INSIDE/dir"`,
		`cat "$OUTSIDE/there" >/dev/null`,
	} {
		if out, err := script(allowed); err != nil {
			t.Errorf("%s: %v\n%s", allowed, err, out)
		}
	}
	for _, refused := range []string{
		`echo new >"$OUTSIDE/new"`, `echo more >>"$OUTSIDE/there"`, `: >"$OUTSIDE/there"`, `mkdir "$OUTSIDE/dir"`, `rm "$OUTSIDE/there"`,
		`ln -s / "$OUTSIDE/link"`, `mv "$INSIDE/there" "$OUTSIDE/moved"`,
	} {
		if out, err := script(refused); err == nil {
			t.Errorf("%s should have failed:\n%s", refused, out)
		}
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) != 1 {
		t.Errorf("there are %v, %v", left, err)
	}
	if text, err := os.ReadFile(filepath.Join(outside, "there")); err != nil || string(text) != "as it was" {
		t.Errorf("it is %q, %v", text, err)
	}
	out, err := script(`cat /proc/self/status`)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"CapPrm:\t0000000000000000\n", "CapEff:\t0000000000000000\n", "NoNewPrivs:\t1\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("want %q in\n%s", want, out)
		}
	}
}

func TestMistakes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"PATH"}, "usage: confined VARIABLE PROGRAM"},
		{[]string{"NOWHERE_AT_ALL", "true"}, "NOWHERE_AT_ALL is not set"},
		{[]string{"PATH", "no-such-program"}, "no-such-program"},
	} {
		var say bytes.Buffer
		if code := run(tt.args, &say); code != 2 || !strings.Contains(say.String(), tt.want) {
			t.Errorf("%v: status %d, %s", tt.args, code, &say)
		}
	}
}
