// Package wire speaks Git's smart protocol as a client: it lists refs, fetches
// the objects of one commit without its history, and changes one ref by
// compare-and-swap. It knows HTTP, SSH and directories, and nothing of objects:
// packs go in and out as bytes. Object names are 40 hexadecimal digits.
//
// It exists beside go-git, whose transports speak version 0 of the protocol
// only: there each poll lists every ref of the repository, opens a connection
// of its own, and an SSH handshake cannot be cancelled. Here an unchanged poll
// is one ls-refs for one ref on a connection that stays open. Servers without
// version 2 are served by version 0.
//
// The files: client.go holds the operations, greeting.go what a server says
// first, http.go, ssh.go and program.go the ways to a server (the latter two by
// the streams of stream.go), pktline.go the framing, errors.go what callers
// decide on.
//
// The protocol is documented in Git's gitprotocol-v2(5), gitprotocol-pack(5)
// and gitprotocol-http(5).
package wire

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
)

// Config says where a repository is and how to get there. URL or Dir is required.
type Config struct {
	// URL is an http, https or ssh URL without credentials. Nil stands for Dir.
	URL *url.URL
	// Dir is a directory that is a repository, bare or with a work tree. Its
	// git-upload-pack and git-receive-pack are run by the git of this machine.
	Dir string
	// Credentials returns the user name and password for HTTP; empty for none.
	// It is called for each request, so that a token may change. It may be nil.
	Credentials func(context.Context) (username, password string, err error)
	// Redirect returns an error if the client must not follow a redirect to a
	// repository at another path of the same host. Nil follows. Redirects to
	// other hosts are never followed.
	Redirect func(repository *url.URL) error
	// CAs is PEM text with certificate authorities to trust beside the
	// system's.
	CAs []byte
	// SSHKeyFile is a private key without passphrase, KnownHostsFile has the
	// host keys to accept, as in ssh(1). Both are required for ssh, and read at
	// each connection.
	SSHKeyFile, KnownHostsFile string
}

// Client is a client for one repository. It keeps idle connections and the
// server's capabilities. It is safe for concurrent use.
type Client struct {
	t transport
	// stall is how long a server may be silent, longest how long a conversation may
	// take, so that nothing hangs if the context has no deadline.
	stall, longest time.Duration

	known capabilities
}

// The limits for every server. Git sends a keepalive every five seconds while
// it packs or runs hooks, even one that hangs.
const (
	stallTimeout = 2 * time.Minute
	mostTimeout  = 30 * time.Minute
	maxAnswer    = 2 << 30 // bytes of what a server sends in one conversation
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

// transport opens conversations with the services of one repository.
type transport interface {
	// open starts a conversation, without waiting for an answer if possible. It
	// ends when ctx does. alive is called whenever the server sends something.
	// The error is ErrAuthentication, ErrNotFound or ErrHostKey if it has these
	// reasons.
	open(ctx context.Context, service string, alive func()) (session, error)
	// stateless reports whether each request of a session stands for itself, so
	// that a known greeting may be left out.
	stateless() bool
	close()
}

// session is one conversation. It is used by one goroutine.
type session interface {
	// greeting returns the stream of the service's first message, or an error
	// of open.
	greeting(ctx context.Context) (*pktReader, error)
	// request sends body and returns the stream of the answer. It fails if the
	// connection does, or the server refuses the request.
	request(ctx context.Context, body []byte) (*pktReader, error)
	// explain adds to err the server's output outside of the protocol.
	explain(err error) error
	close()
}

// watchdog returns a context that ends when alive is not called for the time
// given. Its cause says so.
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

// because replaces the error of an operation that ended with its context by the
// context's cause.
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

// clean makes a server's text fit for an error: printable, short, without empty
// lines and the "remote:" of some servers.
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
