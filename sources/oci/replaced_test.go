package oci

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gitopsd.dev/sources"
)

// A registry that is replaced while it sends a blob over HTTP/2 ends the connection in good order,
// and the rest comes from the next one.
func TestReplacedRegistry(t *testing.T) {
	t.Parallel()
	content := bytes.Repeat([]byte("x"), 200_000)
	half := make(chan struct{})
	var requests atomic.Int32
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/v2/":
		case requests.Add(1) == 1:
			if r.ProtoMajor != 2 {
				t.Error("no HTTP/2")
			}
			w.Header().Set("Content-Length", fmt.Sprint(len(content)))
			_, _ = w.Write(content[:50_000])
			w.(http.Flusher).Flush()
			close(half)
			<-r.Context().Done()
		default:
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
		}
	})
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = true
	server.StartTLS()
	address := server.Listener.Addr().String()
	next := &http.Server{Handler: handler}
	t.Cleanup(func() { next.Close(); server.Close() })
	go func() {
		<-half
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		_ = server.Config.Shutdown(ctx) // the request under way is too slow
		l, err := tls.Listen("tcp", address, &tls.Config{Certificates: server.TLS.Certificates})
		if err != nil {
			t.Error(err)
		} else {
			go func() { _ = next.Serve(l) }()
		}
		_ = server.Config.Close()
	}()
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := New(Config{CAFile: file})
	if err != nil {
		t.Fatal(err)
	}
	blob, err := c.Blob(t.Context(), address+"/a/b", sources.DigestOf(content), int64(len(content)))
	if err != nil {
		t.Fatal(err)
	}
	defer blob.Close()
	if have, err := io.ReadAll(blob); err != nil || !bytes.Equal(have, content) {
		t.Errorf("%d bytes, %v", len(have), err)
	}
	if n := requests.Load(); n != 2 {
		t.Errorf("%d requests", n)
	}
}

// The texts of net/http's errors for a connection that ended are known.
func TestEndedHTTP2(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"http2: client connection lost": true,
		"http2: server sent GOAWAY and closed the connection; LastStreamID=3, ErrCode=NO_ERROR, debug=\"\"":          true,
		"http2: server sent GOAWAY and closed the connection; LastStreamID=3, ErrCode=ENHANCE_YOUR_CALM, debug=\"\"": false,
		"http2: response body closed": false,
	} {
		if have := isBroken(fmt.Errorf("reading: %w", errors.New(text))); have != want {
			t.Errorf("%s: %t", text, have)
		}
	}
}

// Credentials in Docker's configuration that are replaced while a process runs are used by the
// first request after that, also if the registry gives tokens for them.
func TestReplacedDockerCredentials(t *testing.T) {
	var password atomic.Value
	var server *httptest.Server
	server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token := "token for " + password.Load().(string)
		_, given, _ := r.BasicAuth()
		switch {
		case r.URL.Path == "/token" && given == password.Load():
			_ = json.NewEncoder(w).Encode(map[string]string{"token": token})
		case r.URL.Path == "/token":
			w.WriteHeader(http.StatusUnauthorized)
		case r.Header.Get("Authorization") != "Bearer "+token:
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+server.URL+`/token",service="s",scope="repository:a/b:pull"`)
			w.WriteHeader(http.StatusUnauthorized)
		default:
			w.Header().Set("Docker-Content-Digest", string(sources.DigestOf([]byte("x"))))
		}
	}))
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "http://")
	dir := t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	replace := func(by string) {
		t.Helper()
		password.Store(by)
		if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(fmt.Sprintf(`{"auths":{%q:{"username":"u","password":%q}}}`, host, by)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	replace("first")
	c, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, next := range []string{"second", "third"} {
		if _, err := c.Resolve(t.Context(), sources.Ref{Repository: host + "/a/b", Tag: "v1"}); err != nil {
			t.Errorf("before %s: %v", next, err)
		}
		replace(next)
	}
}
