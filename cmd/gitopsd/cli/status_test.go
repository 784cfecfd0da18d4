package cli

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gitopsd.dev/reconcile/status"
)

// fleetStatus is the answer of a daemon with one cluster that is Ready.
func fleetStatus(now, polled time.Time, change func(*status.Snapshot)) status.Snapshot {
	s := status.Snapshot{Version: "v1", Started: now.Add(-time.Hour), Time: now, Repository: "https://git.example.org/fleet.git", Branch: "main", Commit: "abc", Turned: now, Polled: polled,
		Clusters: []status.Unit{{Name: "dev", Phase: status.Ready, Commit: "abc"}, {Name: "prod", Phase: status.Suspended, Commit: "old"}}}
	if change != nil {
		change(&s)
	}
	return s
}

// The wait ends once everything is Ready with a poll that began after the first answer. An
// earlier poll may have missed commits that were pushed before the command.
func TestStatusWait(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	computing := func(s *status.Snapshot) { s.Computing = "def" }
	for _, tt := range []struct {
		name    string
		args    []string
		answers []status.Snapshot // the last one is repeated
		code    int
		asked   int64 // at least
		want    string
	}{
		{name: "by the next poll", answers: []status.Snapshot{fleetStatus(at(10), at(9), nil), fleetStatus(at(11), at(10), nil), fleetStatus(at(12), at(11), nil)}, asked: 3},
		{name: "a newer commit is found by it", answers: []status.Snapshot{fleetStatus(at(10), at(9), nil), fleetStatus(at(11), at(11), computing), fleetStatus(at(12), at(11), nil)}, asked: 3},
		{name: "no poll", answers: []status.Snapshot{fleetStatus(at(10), at(9), nil)}, args: []string{"--timeout", "1200ms"}, code: 1, asked: 1, want: "the daemon has not polled the repository since"},
		{name: "a suspended cluster that is asked for", answers: []status.Snapshot{fleetStatus(at(10), at(9), nil), fleetStatus(at(12), at(11), nil)}, args: []string{"--cluster", "prod", "--timeout", "1200ms"}, code: 1, asked: 1, want: "cluster prod: the repository suspends it"},
		{name: "something else answers", answers: []status.Snapshot{{}}, args: []string{"--timeout", "700ms"}, code: 1, asked: 1, want: "but is not gitopsd"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int64
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				n := min(int(asked.Add(1)), len(tt.answers))
				_ = json.NewEncoder(w).Encode(tt.answers[n-1]) // the client reports the error
			}))
			defer server.Close()
			code, _, stderr := gitopsd(t, nil, append([]string{"status", "--wait", "--address", server.URL}, tt.args...)...)
			if code != tt.code || asked.Load() < tt.asked || !strings.Contains(stderr, tt.want) {
				t.Errorf("status %d after %d answers, %q", code, asked.Load(), stderr)
			}
		})
	}
}

// An address may be that of the page itself.
func TestStatusURL(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"127.0.0.1:8080": "http://127.0.0.1:8080/status", ":8080": "http://127.0.0.1:8080/status", "http://h:8088/status": "http://h:8088/status",
		"http://h:8088/status/": "http://h:8088/status", "https://h/": "https://h/status", "https://h/fleet": "https://h/fleet/status", "https://h/fleet/status": "https://h/fleet/status",
	} {
		if have, err := statusURL(address); err != nil || have != want {
			t.Errorf("%s: %s, %v, want %s", address, have, err, want)
		}
	}
}

// A token that cannot be read is an error at once, even with --wait.
func TestStatusToken(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{"empty": "\n", "two": "a b\n"} {
		writeFile(t, dir, name, text)
	}
	for file, want := range map[string]string{"missing": "--status-token-file: open ", "empty": "want a token in one line", "two": "want a token in one line"} {
		began := time.Now()
		code, _, stderr := gitopsd(t, nil, "status", "--wait", "--timeout", "1h", "--address", "127.0.0.1:1", "--status-token-file", filepath.Join(dir, file))
		if code != 1 || !strings.Contains(stderr, want) {
			t.Errorf("%s: status %d, %q after %s", file, code, stderr, time.Since(began))
		}
	}
	// In the daemon's pod, the variable is the daemon's, and the file may not be there. While a
	// token is replaced, the file has two.
	var given string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given = r.Header.Get("Authorization")
		http.Error(w, "not now", http.StatusServiceUnavailable)
	}))
	defer server.Close()
	writeFile(t, dir, "both", "new\nold\n")
	for file, want := range map[string]string{"missing": "", "both": "Bearer new"} {
		code, _, stderr := gitopsd(t, map[string]string{"GITOPSD_STATUS_TOKEN_FILE": filepath.Join(dir, file)}, "status", "--address", server.URL)
		if code != 1 || given != want {
			t.Errorf("%s in the pod: %q, %d %q", file, given, code, stderr)
		}
		given = "not asked"
	}
}

// Names that mean something else to a shell are not completed.
func TestCompletedNames(t *testing.T) {
	t.Parallel()
	names := []string{"main", "feature/x-1", "v1.2.3+b", "deployment.apps/default/web", "me@host", "$(id)", "`id`", "a;b", "a b", "-rf", "~", "=ls", "a\nb", "x\x1b[2J", "it's", "a|b", "été"}
	want := "main feature/x-1 v1.2.3+b deployment.apps/default/web me@host été"
	if have := strings.Join(beginning("", names, nil), " "); have != want {
		t.Errorf("%q, want %q", have, want)
	}
}
