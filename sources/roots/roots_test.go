package roots

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gitopsd.dev/testscripts/await"
	"gitopsd.dev/testscripts/registry"
)

// The file is followed as the kubelet replaces it: by another target of a link. One that
// cannot be used does not break what works, and is told.
func TestRotation(t *testing.T) {
	t.Parallel()
	first, second := registry.Start(t, registry.Config{TLS: true}), registry.Start(t, registry.Config{TLS: true})
	dir := t.TempDir()
	file := filepath.Join(dir, "ca.crt")
	mounts := 0
	mount := func(content []byte) {
		t.Helper()
		mounts++
		target := fmt.Sprintf("..%d", mounts)
		var written error
		if content != nil {
			written = os.WriteFile(filepath.Join(dir, target), content, 0o600)
		}
		next := filepath.Join(dir, "..tmp")
		if err := errors.Join(written, os.Symlink(target, next), os.Rename(next, file)); err != nil {
			t.Fatal(err)
		}
	}
	mount(first.CA())
	var log await.Log
	transport, err := New(file, &http.Transport{ForceAttemptHTTP2: true}, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: transport}
	defer client.CloseIdleConnections()
	get := func(r *registry.Registry) (reused bool, err error) {
		trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused }}
		req, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), http.MethodGet, "https://"+r.Host()+"/v2/", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err == nil {
			resp.Body.Close()
		}
		return reused, err
	}
	for _, tt := range []struct {
		name     string
		content  []byte // nil: the link leads nowhere
		keep     bool   // the file stays as it is
		trusted  *registry.Registry
		reused   bool
		refused  *registry.Registry
		unusable string
	}{
		{name: "first", keep: true, trusted: first, refused: second},
		{name: "unchanged", keep: true, trusted: first, reused: true, refused: second},
		{name: "same content", content: first.CA(), trusted: first, reused: true, refused: second},
		{name: "another", content: second.CA(), trusted: second, refused: first},
		{name: "empty", content: []byte{}, trusted: second, reused: true, refused: first, unusable: file + " holds no PEM certificate"},
		{name: "still empty", keep: true, trusted: second, reused: true, refused: first, unusable: file + " holds no PEM certificate"},
		{name: "missing", trusted: second, reused: true, refused: first, unusable: "open " + file + ": no such file"},
		{name: "as before", content: second.CA(), trusted: second, reused: true, refused: first},
		{name: "back", content: first.CA(), trusted: first, refused: second},
	} {
		if !tt.keep {
			mount(tt.content)
		}
		if reused, err := get(tt.trusted); err != nil || reused != tt.reused {
			t.Errorf("%s: connection reused %v, want %v; %v", tt.name, reused, tt.reused, err)
		}
		_, err := get(tt.refused)
		told := (*Error)(nil)
		if err == nil || errors.As(err, &told) != (tt.unusable != "") || !strings.Contains(err.Error(), "unknown authority") || !strings.Contains(err.Error(), tt.unusable) {
			t.Errorf("%s: want an error with %q, have %v", tt.name, tt.unusable, err)
		}
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 2 {
		t.Errorf("%d warnings, want one for each broken file:\n%s", n, log.String())
	}
}

func TestNew(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "ca.crt")
	for _, want := range []string{"no such file", "holds no PEM certificate"} {
		if _, err := New(file, new(http.Transport), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error with %q, have %v", want, err)
		}
		if err := os.WriteFile(file, []byte("garbage"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
