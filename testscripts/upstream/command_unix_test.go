//go:build unix

package upstream

import (
	"io"
	"os"
	"testing"
	"time"
)

// late is a test shortly before the deadline of all tests.
type late struct{ *testing.T }

func (late) Deadline() (time.Time, bool) { return time.Now().Add(beforeDeadline + time.Second), true }

// What a command has started ends with its test, and when the deadline of all tests is near.
func TestCommand(t *testing.T) {
	t.Parallel()
	start := func(tb testing.TB) (output *os.File) {
		r, w, err := os.Pipe()
		if err != nil {
			tb.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		cmd := Command(tb, "sh", "-c", "sleep 600 & echo started; wait")
		cmd.Stdout = w
		err = cmd.Start()
		w.Close()
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { _ = cmd.Wait() }) // it was killed
		return r
	}
	// Whatever is left of the command has the other end of the pipe.
	ended := func(t *testing.T, output *os.File) {
		t.Helper()
		if err := output.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, output); err != nil {
			t.Errorf("what the command started goes on: %v", err)
		}
	}
	var output *os.File
	t.Run("test", func(t *testing.T) {
		output = start(t)
		if _, err := io.ReadFull(output, make([]byte, len("started\n"))); err != nil {
			t.Fatal(err)
		}
	})
	ended(t, output)
	t.Run("deadline", func(t *testing.T) { ended(t, start(late{t})) })
}
