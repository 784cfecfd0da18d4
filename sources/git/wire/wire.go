// Package wire is a client for Git's smart protocol: it lists refs, fetches the
// objects of one commit without its history, fetches a history without its files, and
// changes one ref by compare-and-swap. It supports HTTP, SSH and directories. It does not
// interpret objects: packs are bytes, and hashes are 40 hexadecimal digits.
//
// go-git's transports only speak version 0 of the protocol: each poll lists every ref of
// the repository on a new connection, and an SSH handshake cannot be cancelled. With this
// package a poll is one ls-refs for one ref, over HTTP on a connection that stays open.
// For servers without version 2 it uses version 0.
//
// client.go has the operations, greeting.go the server's first message, http.go, ssh.go
// and program.go the transports (the latter two with the streams of stream.go),
// pktline.go the framing, and errors.go the errors.
//
// The protocol is documented in Git's gitprotocol-v2(5), gitprotocol-pack(5)
// and gitprotocol-http(5).
package wire

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"
)

// Config says where a repository is, and how to reach it. URL or Dir is required.
type Config struct {
	// URL is an http, https or ssh URL without credentials; nil for Dir.
	URL *url.URL
	// Dir is the directory of a repository, bare or with a work tree. The git of this
	// machine serves it.
	Dir string
	// Credentials returns the user name and password for HTTP; empty for none.
	// It is called for each request, so that a token may change. It may be nil.
	Credentials func(context.Context) (username, password string, err error)
	// Redirect returns an error for a redirect to a repository on the same host that
	// the client must not follow. If it is nil, the client follows all of these.
	// Redirects to other hosts are never followed.
	Redirect func(repository *url.URL) error
	// CAFile has PEM certificates of authorities to trust beside the system's; empty for
	// none. It may be replaced at any time.
	CAFile string
	// SSHKeyFile is a private key without passphrase, KnownHostsFile has the
	// host keys to accept, as in ssh(1). Both are required for ssh, and read at
	// each connection.
	SSHKeyFile, KnownHostsFile string
	// Log gets a warning when CAFile cannot be used any more. It may be nil.
	Log *slog.Logger
}

// Client is a client for one repository. It keeps idle connections and the
// server's capabilities. It is safe for concurrent use.
type Client struct {
	t transport
	// stall bounds the time that a server may be silent, longest the time of a session,
	// so that nothing hangs if the context has no deadline.
	stall, longest time.Duration

	known capabilities
}

// Limits of a session. Git sends a keepalive every five seconds while it packs or runs
// hooks, even if one hangs.
const (
	stallTimeout = 2 * time.Minute
	mostTimeout  = 30 * time.Minute
	maxAnswer    = 2 << 30 // bytes from the server
)

// New returns a client. It does not connect.
func New(cfg Config) (*Client, error) {
	c := &Client{stall: stallTimeout, longest: mostTimeout}
	var err error
	switch {
	case cfg.URL == nil:
		c.t, err = newProgramTransport(cfg.Dir)
	case cfg.URL.Scheme == "http", cfg.URL.Scheme == "https":
		c.t, err = newHTTPTransport(cfg)
	case cfg.URL.Scheme == "ssh":
		c.t, err = newSSHTransport(cfg)
	default:
		err = fmt.Errorf("scheme %q is not supported: use https, ssh, http or a directory", cfg.URL.Scheme)
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Close drops idle connections.
func (c *Client) Close() { c.t.close() }

// The services of a server.
const (
	uploadPack  = "git-upload-pack"
	receivePack = "git-receive-pack"
)

// agent is the client's name in the protocol.
const agent = "gitopsd"

// transport opens sessions with the services of a repository.
type transport interface {
	// open starts a session, without waiting for an answer if possible. It ends when
	// ctx does. Alive is called whenever the server sends something. The error is
	// ErrAuthentication, ErrNotFound or ErrHostKey for these reasons.
	open(ctx context.Context, service string, alive func()) (session, error)
	// stateless reports whether the requests of a session are independent, so that a
	// known greeting need not be read again.
	stateless() bool
	close()
}

// session is a conversation with a service. It is for one goroutine.
type session interface {
	// greeting returns the stream of the service's first message, or an error
	// of open.
	greeting(ctx context.Context) (*pktReader, error)
	// request sends body and returns the stream of the answer. It fails if the
	// connection does, or the server refuses the request.
	request(ctx context.Context, body []byte) (*pktReader, error)
	// explain adds the server's output outside of the protocol to err.
	explain(err error) error
	close()
}

// watchdog returns a context that ends if alive is not called for a time. Its cause says
// so.
func watchdog(ctx context.Context, silence time.Duration) (watched context.Context, alive, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(silence, func() {
		cancel(fmt.Errorf("the server was silent for %s", silence))
	})
	return ctx, func() { timer.Reset(silence) }, func() {
		timer.Stop()
		cancel(nil)
	}
}

// because returns the context's cause in place of the error of an operation if the
// context has ended.
func because(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	cause := context.Cause(ctx)
	if errors.Is(err, cause) {
		return err
	}
	return cause
}

// clean makes a server's text fit for an error: printable, short, and without empty lines
// and the prefix "remote:" of some servers.
func clean(text string) string {
	const longest = 2000
	text = strings.ToValidUTF8(text, "?")
	var lines []string
	for line := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == '\n' || r == '\r' }) {
		line = strings.TrimSpace(strings.TrimPrefix(line, "remote:"))
		line = strings.Map(func(r rune) rune {
			if r < ' ' && r != '\t' || r == 0x7f {
				return -1
			}
			return r
		}, line)
		if line != "" {
			lines = append(lines, line)
		}
	}
	text = strings.Join(lines, "\n")
	if len(text) > longest {
		text = strings.ToValidUTF8(text[:longest], "") + "…"
	}
	return text
}
