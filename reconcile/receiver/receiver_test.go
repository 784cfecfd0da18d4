package receiver

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

const (
	secret = "0123456789abcdef"
	body   = `{"ref":"refs/heads/main"}`
)

func sum(of func() hash.Hash, secret, body string) string {
	h := hmac.New(of, []byte(secret))
	h.Write([]byte(body))
	return hex.EncodeToString(h.Sum(nil))
}

// file writes the secrets of a Receiver.
func file(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// post sends a request with a header and returns the answer.
func post(r *Receiver, header, value string, body io.Reader) *httptest.ResponseRecorder {
	req := httptest.NewRequest(http.MethodPost, "/push", body)
	if header != "" {
		req.Header.Set(header, value)
	}
	w := httptest.NewRecorder()
	r.ServeHTTP(w, req)
	return w
}

// received reports whether a push was received.
func received(r *Receiver) bool {
	select {
	case <-r.C():
		return true
	default:
		return false
	}
}

// Requests as forges send them are accepted with the secret, and with nothing else.
func TestForges(t *testing.T) {
	t.Parallel()
	r, err := New(file(t, secret+"\n"), func() bool { return true }, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	right := sum(sha256.New, secret, body)
	for _, tt := range []struct {
		name, header, value string
		want                string // in the answer; "" for one that is accepted
	}{
		{"GitHub, Gitea, Forgejo", "X-Hub-Signature-256", "sha256=" + right, ""},
		{"Bitbucket", "X-Hub-Signature", "sha256=" + right, ""},
		{"earlier Gitea", "X-Gitea-Signature", right, ""},
		{"GitLab", "X-Gitlab-Token", secret, ""},
		{"nothing", "", "", "is not signed: it has neither X-Hub-Signature-256, X-Hub-Signature nor X-Gitlab-Token"},
		{"empty signature", "X-Hub-Signature-256", "", "is not signed"},
		{"no hash", "X-Hub-Signature-256", "sha256=", "X-Hub-Signature-256 is no HMAC-SHA256"},
		{"cut off", "X-Hub-Signature-256", "sha256=" + right[:62], "X-Hub-Signature-256 is no HMAC-SHA256"},
		{"longer", "X-Hub-Signature-256", "sha256=" + right + "00", "X-Hub-Signature-256 is no HMAC-SHA256"},
		{"garbled", "X-Hub-Signature-256", "sha256=" + strings.Repeat("x", 64), "X-Hub-Signature-256 is no HMAC-SHA256"},
		{"unnamed hash", "X-Hub-Signature", right, "X-Hub-Signature is no HMAC-SHA256"},
		{"SHA-1", "X-Hub-Signature", "sha1=" + sum(sha1.New, secret, body), "X-Hub-Signature is no HMAC-SHA256"},
		{"another secret", "X-Hub-Signature-256", "sha256=" + sum(sha256.New, "another secret..", body), "does not go with the body and the secret"},
		{"another body", "X-Hub-Signature-256", "sha256=" + sum(sha256.New, secret, body+" "), "does not go with the body and the secret"},
		{"empty secret", "X-Hub-Signature-256", "sha256=" + sum(sha256.New, "", body), "does not go with the body and the secret"},
		{"another token", "X-Gitlab-Token", secret + "x", "X-Gitlab-Token is not the secret"},
		{"beginning of the token", "X-Gitlab-Token", secret[:15], "X-Gitlab-Token is not the secret"},
	} {
		w := post(r, tt.header, tt.value, strings.NewReader(body))
		code := http.StatusAccepted
		if tt.want != "" {
			code = http.StatusUnauthorized
		}
		if text := w.Body.String(); w.Code != code || !strings.Contains(text, tt.want) || strings.Contains(text, secret) {
			t.Errorf("%s: %d %q, want %d with %q", tt.name, w.Code, text, code, tt.want)
		}
		if received(r) != (tt.want == "") {
			t.Errorf("%s: wrong about a push", tt.name)
		}
	}
	// Several in a row are one reason to poll.
	for range 3 {
		if w := post(r, "X-Gitlab-Token", secret, strings.NewReader(body)); w.Code != http.StatusAccepted {
			t.Errorf("several: %d", w.Code)
		}
	}
	if !received(r) || received(r) {
		t.Error("three pushes are not received once")
	}
	for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodDelete} {
		w := httptest.NewRecorder()
		req := httptest.NewRequest(method, "/push", strings.NewReader(body))
		req.Header.Set("X-Gitlab-Token", secret)
		if r.ServeHTTP(w, req); w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") != http.MethodPost || received(r) {
			t.Errorf("%s: %d", method, w.Code)
		}
	}
	if (*Receiver)(nil).C() != nil {
		t.Error("no Receiver receives")
	}
}

// A body is bounded, and is not kept.
func TestHugeBody(t *testing.T) {
	r, err := New(file(t, secret), func() bool { return true }, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	bytesOf := func(n int64) io.Reader { return io.LimitReader(zeros{}, n) }
	h := hmac.New(sha256.New, []byte(secret))
	if _, err := io.Copy(h, bytesOf(maxBody)); err != nil {
		t.Fatal(err)
	}
	signed := "sha256=" + hex.EncodeToString(h.Sum(nil))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if w := post(r, signature256, signed, bytesOf(maxBody)); w.Code != http.StatusAccepted {
		t.Errorf("the largest body: %d %s", w.Code, w.Body)
	}
	runtime.ReadMemStats(&after)
	if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 1<<20 {
		t.Errorf("a body of %d bytes takes %d bytes of memory", maxBody, allocated)
	}
	received(r)
	if w := post(r, signature256, signed, bytesOf(maxBody+1)); w.Code != http.StatusRequestEntityTooLarge || received(r) {
		t.Errorf("a larger one: %d %s", w.Code, w.Body)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// The secret is read for each request, and there may be several.
func TestSecrets(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "there is no secret in it", " \n\n": "there is no secret in it", "short\n": "a secret is shorter than 16 characters",
		secret + "\nshort\n": "a secret is shorter than 16 characters",
	} {
		if _, err := New(file(t, text), nil, nil); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), ": short") {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	if _, err := New(filepath.Join(t.TempDir(), "none"), nil, nil); err == nil {
		t.Error("a file that is not there is accepted")
	}
	var log bytes.Buffer
	name, leads := file(t, secret), true
	r, err := New(name, func() bool { return leads }, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	next := "fedcba9876543210"
	for _, tt := range []struct {
		text       string
		first, new int
	}{
		{secret, http.StatusAccepted, http.StatusUnauthorized},
		{"\r\n" + secret + "\r\n" + next, http.StatusAccepted, http.StatusAccepted},
		{next, http.StatusUnauthorized, http.StatusAccepted},
		{"", http.StatusInternalServerError, http.StatusInternalServerError},
		{next, http.StatusUnauthorized, http.StatusAccepted},
		{"", http.StatusInternalServerError, http.StatusInternalServerError},
		{next, http.StatusUnauthorized, http.StatusAccepted},
	} {
		if err := os.WriteFile(name, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		for secret, want := range map[string]int{secret: tt.first, next: tt.new} {
			for header, value := range map[string]string{gitlabToken: secret, signature256: "sha256=" + sum(sha256.New, secret, body)} {
				if w := post(r, header, value, strings.NewReader(body)); w.Code != want {
					t.Errorf("file %q, %s of %s: %d, want %d", tt.text, header, secret, w.Code, want)
				}
			}
		}
	}
	if text := log.String(); strings.Count(text, "push webhooks are refused") != 2 || strings.Contains(text, next) {
		t.Errorf("log %q", text)
	}
	received(r)
	leads = false
	if w := post(r, gitlabToken, next, strings.NewReader(body)); w.Code != http.StatusServiceUnavailable || received(r) {
		t.Errorf("while another daemon is the leader: %d", w.Code)
	}
}
