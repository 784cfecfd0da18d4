package status

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
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

func TestHandler(t *testing.T) {
	b := NewBoard("v1", "https://git.example/fleet", "main")
	server := httptest.NewServer(b.Handler(time.Hour))
	defer server.Close()

	b.Polled(io.ErrUnexpectedEOF)
	if code, body := get(t, server.URL+"/readyz"); code != 503 || !strings.Contains(body, "unexpected EOF") {
		t.Errorf("readyz before the first commit: %d %s", code, body)
	}
	b.Polled(nil)
	b.Commit("abc", "first", []string{"clusters.yaml:3: wrong"}, []string{"prod", "dev"})
	b.Update("dev", func(c *Cluster) { c.Phase, c.Objects, c.Problems = Failed, 7, []string{"deployment x: not ready"} })
	b.Update("nobody", func(*Cluster) { t.Error("a cluster that is not registered was updated") })
	b.Attempted("dev", Failed, map[string]int{"create": 3})
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
	_, metrics := get(t, server.URL+"/metrics")
	for _, want := range []string{
		`gitopsd_cluster_phase{cluster="dev",phase="Failed"} 1`,
		`gitopsd_cluster_phase{cluster="dev",phase="Ready"} 0`,
		`gitopsd_cluster_actions_total{action="create",cluster="dev"} 3`,
		`gitopsd_cluster_objects{cluster="dev"} 7`,
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

func TestStandstillIsUnhealthy(t *testing.T) {
	b := NewBoard("v1", "r", "main")
	server := httptest.NewServer(b.Handler(-1))
	defer server.Close()
	if code, body := get(t, server.URL+"/healthz"); code != 503 || !strings.Contains(body, "stood still") {
		t.Errorf("healthz: %d %s", code, body)
	}
}
