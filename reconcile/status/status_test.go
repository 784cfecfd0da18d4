package status

import (
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gitopsd.dev/reconcile/problem"
)

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// Clusters that are gone have no metrics, also if an attempt at one ends later.
func TestGoneClusters(t *testing.T) {
	attempt := Attempt{Outcome: Failed, Actions: map[string]int{"create": 3}, Corrected: 1, Took: time.Second}
	for name, leave := range map[string]func(*Board){
		"commit": func(b *Board) { b.Commit("d", "second", nil, []string{"last"}) },
		"known":  func(b *Board) { b.Know([]string{"last"}) },
	} {
		b := NewBoard("v", "r", "main")
		if name == "known" {
			b.Know([]string{"gone", "last"})
		} else {
			b.Commit("c", "first", nil, []string{"gone", "last"})
		}
		b.Attempted("gone", attempt)
		b.Attempted("last", attempt)
		leave(b)
		b.Attempted("gone", attempt)
		w := httptest.NewRecorder()
		b.Handler(time.Hour, Access{Open: true}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		if text := w.Body.String(); strings.Contains(text, `cluster="gone"`) || !strings.Contains(text, `gitopsd_cluster_attempts_total{cluster="last",phase="Failed"} 1`) {
			t.Errorf("%s: have\n%s", name, text)
		}
	}
}

func TestHandler(t *testing.T) {
	b := NewBoard("v1", "https://git.example/fleet", "main")
	server := httptest.NewServer(b.Handler(time.Hour, Access{}))
	defer server.Close()

	b.Polled(time.Now(), io.ErrUnexpectedEOF, false)
	if code, body := get(t, server.URL+"/readyz"); code != 503 || !strings.Contains(body, "unexpected EOF") {
		t.Errorf("readyz before the first commit: %d %s", code, body)
	}
	b.Polled(time.Now(), nil, false)
	b.Commit("abc", "first", []problem.Problem{{Reason: "clusters.yaml:3: wrong"}}, []string{"prod", "dev"})
	b.Update("dev", func(c *Unit) {
		c.Phase, c.Objects, c.Problems = Failed, 7, []problem.Problem{{Cluster: "dev", Package: "web", Object: "deployment.apps/default/x", Reason: "not ready", Advice: "look at its pods"}}
	})
	b.Update("nobody", func(*Unit) { t.Error("a cluster that is not registered was updated") })
	b.Attempted("dev", Attempt{Outcome: Failed, Actions: map[string]int{"create": 3}, Corrected: 2, Took: 2 * time.Second})
	b.Computed(400 * time.Millisecond)
	b.Update("prod", func(c *Unit) {
		c.Drifted, c.Seconds = 3, 2
		same := PackageState{Name: "web", Repository: "reg.io/web", Version: "v2", Running: "v1", State: "Failed"}
		c.Packages = []PackageState{same, same}
	})
	b.LockCommitted("def")

	if code, body := get(t, server.URL+"/readyz"); code != 200 {
		t.Errorf("readyz: %d %s", code, body)
	}
	if code, body := get(t, server.URL+"/healthz"); code != 200 {
		t.Errorf("healthz: %d %s", code, body)
	}
	_, body := get(t, server.URL+"/status")
	var s Snapshot
	if err := json.Unmarshal([]byte(body), &s); err != nil {
		t.Fatal(err)
	}
	if len(s.Clusters) != 2 || s.Clusters[0].Name != "dev" || s.Clusters[0].Phase != Failed || s.Clusters[1].Phase != Pending || s.LockCommit != "def" {
		t.Errorf("status %s", body)
	}
	for _, want := range []string{
		`"problems": [ { "reason": "clusters.yaml:3: wrong" } ]`,
		`"problems": [ { "cluster": "dev", "package": "web", "object": "deployment.apps/default/x", "reason": "not ready", "advice": "look at its pods" } ]`,
	} {
		if flat := strings.Join(strings.Fields(body), " "); !strings.Contains(flat, want) {
			t.Errorf("%s is not in %s", want, flat)
		}
	}
	_, metrics := get(t, server.URL+"/metrics")
	for _, want := range []string{
		`gitopsd_cluster_phase{cluster="dev",phase="Failed"} 1`,
		`gitopsd_cluster_phase{cluster="dev",phase="Ready"} 0`,
		`gitopsd_cluster_actions_total{action="create",cluster="dev"} 3`,
		`gitopsd_cluster_objects{cluster="dev"} 7`,
		`gitopsd_cluster_package{cluster="prod",package="web",repository="reg.io/web",running="v1",state="Failed",version="v2"} 1`,
		`gitopsd_cluster_drifted_objects{cluster="prod"} 3`,
		`gitopsd_cluster_drift_corrected_total{cluster="dev"} 2`,
		`gitopsd_cluster_last_attempt_seconds{cluster="prod"} 2`,
		`gitopsd_attempt_duration_seconds_bucket{le="1"} 0`, `gitopsd_attempt_duration_seconds_bucket{le="3"} 1`, `gitopsd_attempt_duration_seconds_count 1`,
		`gitopsd_compute_duration_seconds_bucket{le="0.3"} 0`, `gitopsd_compute_duration_seconds_bucket{le="1"} 1`,
		`gitopsd_commit_errors 1`, `gitopsd_lock_commits_total 1`, `gitopsd_poll_errors_total 1`, "go_goroutines",
	} {
		if !strings.Contains(metrics, want+"\n") && !strings.Contains(metrics, want+" ") {
			t.Errorf("%s is not in the metrics\n%s", want, metrics)
		}
	}

	b.Commit("ghi", "second", nil, []string{"prod"})
	if s := b.Snapshot(); len(s.Clusters) != 1 || s.Clusters[0].Name != "prod" {
		t.Errorf("a cluster that left is still there: %v", s.Clusters)
	}
}

// What is wrong with a cluster's own etcd namespace is among the problems of the cluster.
func TestSpaces(t *testing.T) {
	b := NewBoard("v1", "r", "main")
	own := problem.Problem{Cluster: "dev", Reason: "spec.etcd.namespace: no etcd answers"}
	b.Spaces(func(cluster string) []problem.Problem {
		if cluster != own.Cluster {
			return nil
		}
		return []problem.Problem{own}
	})
	b.Commit("abc", "first", nil, []string{"prod", "dev"})
	s := b.Snapshot()
	if dev := s.Clusters[0]; len(dev.Problems) != 1 || dev.Problems[0] != own || dev.Phase != Pending {
		t.Errorf("dev: %+v", dev)
	}
	if prod := s.Clusters[1]; len(prod.Problems) != 0 {
		t.Errorf("prod: %+v", prod)
	}
}

func TestStandstillIsUnhealthy(t *testing.T) {
	b := NewBoard("v1", "r", "main")
	server := httptest.NewServer(b.Handler(-1, Access{}))
	defer server.Close()
	if code, body := get(t, server.URL+"/healthz"); code != 503 || !strings.Contains(body, "stood still") {
		t.Errorf("healthz: %d %s", code, body)
	}
}

// Who comes from elsewhere learns whether the daemon lives, and no more without
// the token.
func TestAccess(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	write := func(token string) {
		if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("s3cret\n")
	const near, far, far6 = "127.0.0.1:4711", "192.0.2.7:4711", "[2001:db8::1]:4711"
	for _, tt := range []struct {
		access            Access
		from, token, path string
		want              int
	}{
		{Access{}, near, "", "/status", 200},
		{Access{}, "[::1]:4711", "", "/metrics", 200},
		{Access{}, near, "", "/", 200},
		{Access{}, near, "", "/elsewhere", 404},
		{Access{}, far, "", "/", 401},
		{Access{}, far, "", "/status", 401},
		{Access{}, far6, "", "/metrics", 401},
		{Access{}, far, "Bearer ", "/status", 401},
		{Access{}, "garbage", "", "/status", 401},
		{Access{}, far, "", "/healthz", 200},
		{Access{}, far, "", "/readyz", 503},
		{Access{Open: true}, far, "", "/status", 200},
		{Access{TokenFile: file}, far, "Bearer s3cret", "/status", 200},
		{Access{TokenFile: file}, far, "Bearer s3cret", "/metrics", 200},
		{Access{TokenFile: file}, far, "Bearer s3cre", "/status", 401},
		{Access{TokenFile: file}, far, "Basic s3cret", "/status", 401},
		{Access{TokenFile: file}, far, "", "/status", 401},
		{Access{TokenFile: file}, near, "", "/status", 200},
		{Access{TokenFile: file + ".none"}, far, "Bearer ", "/status", 401},
	} {
		b := NewBoard("v1", "https://git.example/fleet", "main")
		b.Page = func(http.ResponseWriter, *http.Request, Snapshot) {}
		b.Polled(time.Now(), io.ErrUnexpectedEOF, false)
		r := httptest.NewRequest(http.MethodGet, "http://localhost:8080"+tt.path, nil)
		r.RemoteAddr = tt.from
		if tt.token != "" {
			r.Header.Set("Authorization", tt.token)
		}
		w := httptest.NewRecorder()
		b.Handler(time.Hour, tt.access).ServeHTTP(w, r)
		if w.Code != tt.want {
			t.Errorf("%+v, from %s with %q, %s: %d, want %d", tt.access, tt.from, tt.token, tt.path, w.Code, tt.want)
		}
		if w.Code != 200 && strings.Contains(w.Body.String(), "EOF") {
			t.Errorf("%s from %s tells why: %s", tt.path, tt.from, w.Body)
		}
	}
	// A name that somebody else's name server leads here is not this machine's.
	for host, want := range map[string]bool{
		"localhost": true, "LocalHost:8080": true, "127.0.0.1": true, "127.0.0.1:8080": true, "[::1]:8080": true, "[::1]": true,
		"": false, "10.0.0.7:8080": false, "example.org": false, "example.org:8080": false, "localhost.example.org": false, "127.0.0.1.example.org:80": false, ":8080": false,
	} {
		r := &http.Request{RemoteAddr: near, Host: host, Header: make(http.Header)}
		if (Access{}).allowed(r) != want {
			t.Errorf("a request from this machine to %q: allowed is %t, want %t", host, !want, want)
		}
		r.Header.Set("Authorization", "Bearer s3cret")
		if !(Access{TokenFile: file}).allowed(r) {
			t.Errorf("a request from this machine to %q with the token is refused", host)
		}
	}
	// A proxy on this machine, such as a sidecar, passes on requests from anywhere.
	for _, name := range []string{"X-Forwarded-For", "x-forwarded-host", "Forwarded", "Via", "X-Envoy-External-Address", "X-Real-IP"} {
		r := &http.Request{RemoteAddr: near, Host: "localhost", Header: make(http.Header)}
		r.Header.Set(name, "x")
		if (Access{}).allowed(r) {
			t.Errorf("a request with %s is allowed", name)
		}
	}
	write("\n next \ns3cret\n")
	for token, want := range map[string]bool{"next": true, "s3cret": true, "": false, "next \ns3cret": false, "other": false} {
		if (Access{TokenFile: file}).allowed(&http.Request{RemoteAddr: far, Header: http.Header{"Authorization": {"Bearer " + token}}}) != want {
			t.Errorf("with two tokens, %q: allowed is %t, want %t", token, !want, want)
		}
	}
	write("")
	if (Access{TokenFile: file}).allowed(&http.Request{RemoteAddr: far, Header: http.Header{"Authorization": {"Bearer "}}}) {
		t.Error("an empty token lets everybody in")
	}
}

// A client that sends too much, or nothing, is let go.
func TestServe(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := Serve(listener, http.NotFoundHandler(), slog.New(slog.DiscardHandler), func(err error) { t.Error(err) })
	defer server.Close()
	for name, d := range map[string]time.Duration{"header": server.ReadHeaderTimeout, "read": server.ReadTimeout, "write": server.WriteTimeout, "idle": server.IdleTimeout} {
		if d <= 0 {
			t.Errorf("%s: no time limit", name)
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+listener.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Long", strings.Repeat("x", 64<<10))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("64 KiB of headers: %s", resp.Status)
	}
}

// part is a daemon's part in an election.
type part struct {
	why     string
	ok      bool
	problem string
}

func (*part) String() string            { return "gitopsd-system/fleet" }
func (p *part) Waiting() (string, bool) { return p.why, p.ok }
func (p *part) Problem() string         { return p.problem }

// A daemon that waits is healthy, is ready if it could take over, and its status says for what it
// waits. The leader's status says if it may not write.
func TestElection(t *testing.T) {
	t.Parallel()
	b := NewBoard("v1", "https://git.example/fleet", "main")
	p := &part{why: "the hub does not answer"}
	b.Election = p
	const stall = time.Millisecond
	server := httptest.NewServer(b.Handler(stall, Access{}))
	defer server.Close()
	time.Sleep(2 * stall)
	if code, body := get(t, server.URL+"/healthz"); code != 200 {
		t.Errorf("healthz of one that waits: %d %s", code, body)
	}
	if code, body := get(t, server.URL+"/readyz"); code != 503 || !strings.Contains(body, "waiting to become the leader: the hub does not answer") {
		t.Errorf("readyz of one that cannot take over: %d %s", code, body)
	}
	*p = part{why: "one is the leader", ok: true}
	if code, body := get(t, server.URL+"/readyz"); code != 200 {
		t.Errorf("readyz of one that waits: %d %s", code, body)
	}
	if _, body := get(t, server.URL+"/metrics"); !strings.Contains(body, `gitopsd_leader{lease="gitopsd-system/fleet"} 0`) {
		t.Error(body)
	}
	s := b.Snapshot()
	if s.Waiting != p.why || s.Lease != p.String() {
		t.Errorf("waiting %q by %s", s.Waiting, s.Lease)
	}
	if why := s.Unready(); len(why) != 1 || why[0] != "this daemon waits to become the leader: one is the leader" || s.Stuck() {
		t.Errorf("unready: %q, stuck is %v", why, s.Stuck())
	}

	*p = part{ok: true, problem: "not renewed"}
	b.Lead()
	b.Commit("abc", "first", nil, []string{"dev"})
	b.Update("dev", func(c *Unit) { c.Phase, c.Commit = Ready, "abc" })
	s = b.Snapshot()
	if why := s.Unready(); len(why) != 1 || why[0] != "not renewed" || s.Stuck() {
		t.Errorf("unready: %q, stuck is %v", why, s.Stuck())
	}
	if _, body := get(t, server.URL+"/metrics"); !strings.Contains(body, `gitopsd_leader{lease="gitopsd-system/fleet"} 0`) {
		t.Error(body)
	}
	p.problem = ""
	s = b.Snapshot()
	if why := s.Unready(); len(why) > 0 {
		t.Errorf("unready: %q", why)
	}
	time.Sleep(2 * stall)
	if code, _ := get(t, server.URL+"/healthz"); code != 503 {
		t.Errorf("healthz of a leader that stands still: %d", code)
	}
}
