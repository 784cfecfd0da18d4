// Package gitserver is a real Git server on loopback, for tests and the demo:
// smart HTTP through git's own http-backend, and SSH that runs git's own
// upload-pack and receive-pack. Nothing of the protocol is imitated; what the
// package adds is repositories made on demand (Repo), credentials, and faults
// (Fault) put in front of git.
//
// It needs the git binary, and reads no configuration of the machine or user.
package gitserver

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Config says what to serve. Root is required.
type Config struct {
	// Root is the directory that holds the repositories, each in a bare
	// repository <name>.git. It is created if needed. The server keeps its keys
	// and certificates in Root/.gitserver.
	Root string
	// Username and Password, if set, are required over HTTP.
	Username, Password string
	// TLS serves HTTPS, with a certificate of a CA that only Server.CAFile
	// holds.
	TLS bool
	// OnlyProtocolV0 makes the server ignore a client's request for a later
	// version of Git's protocol, as some forges do.
	OnlyProtocolV0 bool
}

// Server serves until Close. Its methods are safe for concurrent use.
type Server struct {
	// CAFile is a PEM file with the CA of an HTTPS server, empty without TLS.
	CAFile string
	// SSHKeyFile holds the private key that SSH accepts, KnownHostsFile the
	// server's host key.
	SSHKeyFile, KnownHostsFile string

	cfg     Config
	git     string // the binary
	backend string // git-http-backend
	http    *http.Server
	httpURL string
	ssh     *sshServer
	null    *os.File
	serving sync.RWMutex // read-locked by HTTP requests, locked by Close: a late request may still come

	ctx    context.Context // ends hanging requests; cancelled by Close
	cancel context.CancelFunc

	mu       sync.Mutex
	faults   []*Fault
	requests []string
	password string
}

// Start starts a server that is closed when the test ends. Its Root is temporary if it is
// empty.
func Start(t testing.TB, cfg Config) *Server {
	t.Helper()
	if cfg.Root == "" {
		cfg.Root = t.TempDir()
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// New starts a server on free loopback ports.
func New(cfg Config) (*Server, error) {
	if cfg.Root == "" {
		return nil, errors.New("gitserver: Root is empty")
	}
	root, err := filepath.Abs(cfg.Root)
	if err != nil {
		return nil, err
	}
	cfg.Root = root
	own := filepath.Join(root, ".gitserver")
	if err := os.MkdirAll(own, 0o755); err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, password: cfg.Password}
	if s.git, err = exec.LookPath("git"); err != nil {
		return nil, fmt.Errorf("gitserver: git is not installed: %w", err)
	}
	out, err := exec.Command(s.git, "--exec-path").Output()
	if err != nil {
		return nil, fmt.Errorf("git --exec-path: %w", err)
	}
	s.backend = filepath.Join(strings.TrimSpace(string(out)), "git-http-backend")

	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s.httpURL = "http://" + ln.Addr().String()
	if cfg.TLS {
		cert, caFile, err := newCertificate(own)
		if err != nil {
			ln.Close()
			return nil, err
		}
		s.CAFile = caFile
		s.httpURL = "https://" + ln.Addr().String()
		ln = tls.NewListener(ln, &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"http/1.1"}})
	}
	if s.null, err = os.OpenFile(os.DevNull, os.O_WRONLY, 0); err != nil {
		ln.Close()
		return nil, err
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	if s.ssh, err = newSSHServer(s, own); err != nil {
		ln.Close()
		s.null.Close()
		s.cancel()
		return nil, err
	}
	s.http = &http.Server{
		Handler:  http.HandlerFunc(s.serveHTTP),
		ErrorLog: log.New(io.Discard, "", 0), // clients that hang up are part of the tests
	}
	go s.http.Serve(ln)
	return s, nil
}

// Close ends every connection and waits for running git processes.
func (s *Server) Close() error {
	s.cancel()
	err := s.http.Close()
	s.serving.Lock()
	defer s.serving.Unlock()
	return errors.Join(err, s.ssh.close(), s.null.Close())
}

// URL is the HTTP or HTTPS address of a repository.
func (s *Server) URL(repo string) string { return s.httpURL + "/" + repo + ".git" }

// SSHURL is the SSH address of a repository.
func (s *Server) SSHURL(repo string) string {
	return "ssh://git@" + s.ssh.addr() + "/" + repo + ".git"
}

// SetPassword changes the password that HTTP requires, as if a token were
// rotated.
func (s *Server) SetPassword(password string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.password = password
}

// Requests returns the requests since the last call, in order: "GET
// /fleet.git/info/refs?service=git-upload-pack v2" for HTTP (with the version of
// the protocol that the client asked for), "SSH git-upload-pack /fleet.git v2"
// for SSH.
func (s *Server) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	have := s.requests
	s.requests = nil
	return have
}

func (s *Server) record(line, protocol string) {
	if v, ok := strings.CutPrefix(protocol, "version="); ok {
		line += " v" + v
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, line)
}

// dir maps the path of a URL to a repository of this server; it reports whether
// there is one.
func (s *Server) dir(urlPath string) (string, bool) {
	name := strings.TrimPrefix(path.Clean("/"+urlPath), "/")
	if name == "" || strings.HasPrefix(name, ".") || !strings.HasSuffix(name, ".git") {
		return "", false
	}
	dir := filepath.Join(s.cfg.Root, filepath.FromSlash(name))
	info, err := os.Stat(dir)
	return dir, err == nil && info.IsDir()
}

// protocol returns GIT_PROTOCOL for git, given the client's request.
func (s *Server) protocol(wish string) string {
	if s.cfg.OnlyProtocolV0 {
		return ""
	}
	return wish
}

func (s *Server) serveHTTP(w http.ResponseWriter, r *http.Request) {
	s.serving.RLock()
	defer s.serving.RUnlock()
	if s.ctx.Err() != nil {
		return
	}
	s.record(r.Method+" "+r.URL.RequestURI(), r.Header.Get("Git-Protocol"))
	s.mu.Lock()
	password := s.password
	s.mu.Unlock()
	if s.cfg.Username != "" {
		if user, pass, _ := r.BasicAuth(); user != s.cfg.Username || pass != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="gitserver"`)
			http.Error(w, "these credentials are not known here", http.StatusUnauthorized)
			return
		}
	}
	service := r.URL.Query().Get("service")
	repo, isDiscovery := strings.CutSuffix(r.URL.Path, "/info/refs")
	if !isDiscovery {
		repo, service = path.Dir(r.URL.Path), path.Base(r.URL.Path)
	}
	if _, ok := s.dir(repo); !ok {
		http.NotFound(w, r)
		return
	}
	fault := s.take(service, isDiscovery)
	if fault != nil {
		if fault.Before != nil {
			if err := fault.Before(); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
		}
		switch {
		case fault.Status != 0:
			http.Error(w, "the server was told to fail", fault.Status)
			return
		case fault.Hang:
			io.Copy(io.Discard, r.Body) // to notice when the client disconnects
			select {
			case <-r.Context().Done():
			case <-s.ctx.Done():
			}
			return
		case fault.CutAfter > 0:
			w = &cutter{ResponseWriter: w, left: fault.CutAfter}
		case fault.LoseAnswer:
			defer drop(w)
			w = loser{header: make(http.Header)}
		}
		if fault.After != nil {
			defer fault.After()
		}
	}
	// CGI does not support chunked requests, which git sends for packs above 1
	// MiB.
	if r.ContentLength < 0 {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		r.Body, r.ContentLength, r.TransferEncoding = io.NopCloser(bytes.NewReader(body)), int64(len(body)), nil
	}
	h := &cgi.Handler{
		Path: s.backend,
		Root: "/",
		Dir:  s.cfg.Root,
		Env: append(Env(s.cfg.Root),
			"GIT_PROJECT_ROOT="+s.cfg.Root,
			"GIT_HTTP_EXPORT_ALL=1",
			"GIT_PROTOCOL="+s.protocol(r.Header.Get("Git-Protocol")),
			"REMOTE_USER="+s.cfg.Username,
		),
		Logger: log.New(io.Discard, "", 0),
		Stderr: s.null, // a file: with a pipe, Wait would wait for grandchildren that have it open
	}
	h.ServeHTTP(w, r)
}

// Env returns an environment for git that depends only on this machine's PATH: no
// system or user configuration, a fixed identity, no prompts. home is where git
// looks for user files.
func Env(home string) []string {
	return []string{
		"PATH=" + os.Getenv("PATH"),
		"HOME=" + home,
		"LC_ALL=C",
		"GIT_CONFIG_NOSYSTEM=1",
		"GIT_CONFIG_GLOBAL=" + os.DevNull,
		"GIT_CONFIG_COUNT=2",
		"GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*",
		"GIT_CONFIG_KEY_1=init.defaultBranch", "GIT_CONFIG_VALUE_1=main",
		"GIT_TERMINAL_PROMPT=0",
		"GIT_AUTHOR_NAME=Dev Eloper", "GIT_AUTHOR_EMAIL=dev@example.com",
		"GIT_COMMITTER_NAME=Dev Eloper", "GIT_COMMITTER_EMAIL=dev@example.com",
	}
}
