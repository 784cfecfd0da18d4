package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// terminal returns both ends of a pseudoterminal.
func terminal(t *testing.T) (screen, program *os.File) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { screen.Close() })
	n, err := unix.IoctlGetInt(int(screen.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(screen.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return screen, program
}

// Progress replaces its line on a terminal. A dumb one cannot do that, and shows none.
func TestProgressOnTerminals(t *testing.T) {
	t.Parallel()
	for kind, shown := range map[string]bool{"xterm": true, "dumb": false} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			screen, program := terminal(t)
			text := make(chan string)
			go func() {
				all, _ := io.ReadAll(screen) // fails once the other end is closed
				text <- string(all)
			}()
			Run(t.Context(), Env{Args: strings.Fields("status --wait --timeout 2s --address 127.0.0.1:1"), Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: program,
				LookupEnv: variables(map[string]string{"TERM": kind})})
			program.Close()
			have := <-text
			if strings.Contains(have, "\x1b") != shown || !strings.Contains(have, "gitopsd: no daemon answered") {
				t.Errorf("%q", have)
			}
		})
	}
}
