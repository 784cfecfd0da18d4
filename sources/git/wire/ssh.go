package wire

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/skeema/knownhosts"
	"golang.org/x/crypto/ssh"
)

// sshTransport runs Git's services on a server by SSH, with a connection for each
// session.
type sshTransport struct {
	user, addr, path   string
	keyFile, hostsFile string
}

func newSSHTransport(cfg Config) (*sshTransport, error) {
	u := cfg.URL
	if cfg.SSHKeyFile == "" {
		return nil, errors.New("ssh needs a private key: name the file of a deploy key with --ssh-key")
	}
	if cfg.KnownHostsFile == "" {
		return nil, fmt.Errorf("ssh needs a known_hosts file, so that the server can be told from others: name it with --ssh-known-hosts; make one from what the forge publishes, or with ssh-keyscan %s and a look at the fingerprints", u.Hostname())
	}
	return &sshTransport{
		user:      cmp.Or(u.User.Username(), "git"),
		addr:      net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "22")),
		path:      sshPath(u),
		keyFile:   cfg.SSHKeyFile,
		hostsFile: cfg.KnownHostsFile,
	}, nil
}

// sshPath returns the path as git sends it. The server expands ~user.
func sshPath(u *url.URL) string {
	if u.Opaque != "" { // of host:path, relative to the user's home
		return u.Opaque
	}
	if strings.HasPrefix(u.Path, "/~") {
		return u.Path[1:]
	}
	return u.Path
}

func (t *sshTransport) stateless() bool { return false }
func (t *sshTransport) close()          {}

func (t *sshTransport) open(ctx context.Context, service string, alive func()) (session, error) {
	client, err := t.dial(ctx)
	if err != nil {
		return nil, err
	}
	// Closing the connection ends reads and writes under way.
	cancel := context.AfterFunc(ctx, func() { client.Close() })
	s := &streamSession{alive: alive, stop: func() {
		cancel()
		client.Close()
	}}
	if err := s.startSSH(client, service, t.path); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *streamSession) startSSH(client *ssh.Client, service, path string) error {
	session, err := client.NewSession()
	if err != nil {
		return fmt.Errorf("ssh: %w", err)
	}
	s.wait = func() { session.Wait() } // stderr says more than the status
	if service == uploadPack {
		// A server that does not accept the variable answers in version 0.
		_ = session.Setenv("GIT_PROTOCOL", "version=2")
	}
	session.Stderr = &s.stderr
	if s.stdin, err = session.StdinPipe(); err != nil {
		return err
	}
	stdout, err := session.StdoutPipe()
	if err != nil {
		return err
	}
	s.out = newPktReader(stdout, s.alive)
	if err := session.Start(service + " " + quote(path)); err != nil {
		return fmt.Errorf("ssh: %w", err)
	}
	return nil
}

// quote quotes a word for a POSIX shell, as git does.
func quote(s string) string {
	return "'" + strings.NewReplacer("'", `'\''`, "!", `'\!'`).Replace(s) + "'"
}

func (t *sshTransport) dial(ctx context.Context) (*ssh.Client, error) {
	key, err := os.ReadFile(t.keyFile)
	if err != nil {
		return nil, fmt.Errorf("ssh key: %w", err)
	}
	signer, err := ssh.ParsePrivateKey(key)
	var locked *ssh.PassphraseMissingError
	if errors.As(err, &locked) {
		return nil, fmt.Errorf("ssh key %s has a passphrase, which nobody can be asked for here: use a key without", t.keyFile)
	} else if err != nil {
		return nil, fmt.Errorf("ssh key %s: %w", t.keyFile, err)
	}
	hosts, err := knownhosts.NewDB(t.hostsFile)
	if err != nil {
		return nil, fmt.Errorf("known hosts: %w", err)
	}
	conn, err := (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext(ctx, "tcp", t.addr)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	c, channels, requests, err := ssh.NewClientConn(conn, t.addr, &ssh.ClientConfig{
		User:              t.user,
		Auth:              []ssh.AuthMethod{ssh.PublicKeys(signer)},
		HostKeyCallback:   t.checkHostKey(hosts),
		HostKeyAlgorithms: hosts.HostKeyAlgorithms(t.addr),
		ClientVersion:     "SSH-2.0-" + agent,
	})
	if err != nil {
		conn.Close()
		if errors.Is(err, ErrHostKey) {
			return nil, err
		}
		if strings.Contains(err.Error(), "unable to authenticate") {
			return nil, fmt.Errorf("%w: the server does not let in %s with the key %s (%s)", ErrAuthentication, t.user, t.keyFile, ssh.FingerprintSHA256(signer.PublicKey()))
		}
		return nil, fmt.Errorf("ssh: %w", err)
	}
	return ssh.NewClient(c, channels, requests), nil
}

func (t *sshTransport) checkHostKey(hosts *knownhosts.HostKeyDB) ssh.HostKeyCallback {
	check := hosts.HostKeyCallback()
	return func(host string, remote net.Addr, key ssh.PublicKey) error {
		err := check(host, remote, key)
		has := fmt.Sprintf("%s %s", key.Type(), ssh.FingerprintSHA256(key))
		switch {
		case err == nil:
			return nil
		case knownhosts.IsHostKeyChanged(err):
			return fmt.Errorf("%w: %s has the host key %s, and %s another one; somebody may be in between, or the server got a new key: compare it with what the forge publishes", ErrHostKey, t.addr, has, t.hostsFile)
		case knownhosts.IsHostUnknown(err):
			return fmt.Errorf("%w: %s (host key %s) is not in %s; compare it with what the forge publishes and add it there", ErrHostKey, t.addr, has, t.hostsFile)
		}
		return fmt.Errorf("%w: %w", ErrHostKey, err)
	}
}
