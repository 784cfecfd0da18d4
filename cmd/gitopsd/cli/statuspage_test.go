package cli

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/status"
)

// A browser gets a page, and everybody else the same as text. What a repository says is text in both.
func TestShowStatus(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	board := status.NewBoard("v1", "https://git.example.org/platform/fleet.git", "main")
	board.Page = func(w http.ResponseWriter, r *http.Request, s status.Snapshot) {
		s.Time, s.Turned, s.Polled, s.Commit, s.Subject = now, now, now, strings.Repeat("a5", 20), "<script>alert(1)</script>"
		s.Clusters = []status.Unit{{Name: "dev", Phase: status.Failed, Problems: []problem.Problem{{Cluster: "dev", Reason: "</pre><script>alert(2)</script>"}}}}
		showStatus(w, r, s)
	}
	handler := board.Handler(time.Hour, status.Access{Open: true})
	for accept, want := range map[string]struct{ contentType, subject, cluster string }{
		"":                                {"text/plain; charset=utf-8", "commit a5a5a5a5a5 <script>alert(1)</script>", "</pre><script>alert(2)</script>"},
		"text/html,application/xml;q=0.9": {"text/html; charset=utf-8", "commit a5a5a5a5a5 &lt;script&gt;alert(1)&lt;/script&gt;", "&lt;/pre&gt;&lt;script&gt;alert(2)&lt;/script&gt;"},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		if accept != "" {
			r.Header.Set("Accept", accept)
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		text := w.Body.String()
		if w.Code != http.StatusOK || w.Header().Get("Content-Type") != want.contentType || !strings.Contains(text, want.subject) || !strings.Contains(text, want.cluster) {
			t.Errorf("Accept %q: %d %v\n%s", accept, w.Code, w.Header(), text)
		}
		page := strings.HasPrefix(text, "<!DOCTYPE html>")
		if page != (accept != "") || page && (strings.Contains(text, "<script") || !strings.HasPrefix(w.Header().Get("Content-Security-Policy"), "default-src 'none'; ")) {
			t.Errorf("Accept %q: %v\n%s", accept, w.Header(), text)
		}
	}
}
