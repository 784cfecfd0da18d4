package gitserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
)

// sshServer lets in one key and runs git-upload-pack and git-receive-pack.
type sshServer struct {
	server *Server
	config *ssh.ServerConfig
	ln     net.Listener

	wg     sync.WaitGroup
	mu     sync.Mutex
	conns  map[net.Conn]bool
	closed bool
}

func newSSHServer(s *Server, dir string) (*sshServer, error) {
	host, _, err := newSSHKey()
	if err != nil {
		return nil, err
	}
	client, clientPEM, err := newSSHKey()
	if err != nil {
		return nil, err
	}
	t := &sshServer{server: s, conns: make(map[net.Conn]bool)}
	t.config = &ssh.ServerConfig{PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		if !bytes.Equal(key.Marshal(), client.PublicKey().Marshal()) {
			return nil, errors.New("this key is not known here")
		}
		return nil, nil
	}}
	t.config.AddHostKey(host)
	if t.ln, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	s.SSHKeyFile, s.KnownHostsFile = filepath.Join(dir, "id_ed25519"), filepath.Join(dir, "known_hosts")
	line := knownhosts.Line([]string{knownhosts.Normalize(t.addr())}, host.PublicKey())
	if err := errors.Join(
		os.WriteFile(s.SSHKeyFile, clientPEM, 0o600),
		os.WriteFile(s.KnownHostsFile, []byte(line+"\n"), 0o644),
	); err != nil {
		t.ln.Close()
		return nil, err
	}
	t.wg.Go(t.accept)
	return t, nil
}

func (t *sshServer) addr() string { return t.ln.Addr().String() }

func (t *sshServer) close() error {
	err := t.ln.Close()
	t.mu.Lock()
	t.closed = true
	for c := range t.conns {
		c.Close()
	}
	t.mu.Unlock()
	t.wg.Wait()
	return err
}

func (t *sshServer) accept() {
	for {
		c, err := t.ln.Accept()
		if err != nil {
			return
		}
		t.mu.Lock()
		t.conns[c] = true
		if t.closed { // accepted while the listener closed
			c.Close()
		}
		t.mu.Unlock()
		t.wg.Go(func() {
			t.serve(c)
			t.mu.Lock()
			delete(t.conns, c)
			t.mu.Unlock()
		})
	}
}

func (t *sshServer) serve(c net.Conn) {
	defer c.Close()
	_, channels, requests, err := ssh.NewServerConn(c, t.config)
	if err != nil {
		return
	}
	go ssh.DiscardRequests(requests)
	var sessions sync.WaitGroup
	defer sessions.Wait()
	for ch := range channels {
		if ch.ChannelType() != "session" {
			ch.Reject(ssh.UnknownChannelType, "only sessions")
			continue
		}
		channel, requests, err := ch.Accept()
		if err != nil {
			return
		}
		sessions.Go(func() { t.session(c, channel, requests) })
	}
}

// session waits for the only command of a session, and runs it.
func (t *sshServer) session(conn net.Conn, ch ssh.Channel, requests <-chan *ssh.Request) {
	defer ch.Close()
	var protocol string
	for req := range requests {
		switch req.Type {
		case "env":
			var env struct{ Name, Value string }
			ok := ssh.Unmarshal(req.Payload, &env) == nil && env.Name == "GIT_PROTOCOL"
			if ok {
				protocol = env.Value
			}
			req.Reply(ok, nil)
		case "exec":
			var exec struct{ Command string }
			if ssh.Unmarshal(req.Payload, &exec) != nil {
				req.Reply(false, nil)
				return
			}
			req.Reply(true, nil)
			// When the client disconnects, requests is closed.
			ctx, cancel := context.WithCancel(t.server.ctx)
			go func() {
				ssh.DiscardRequests(requests)
				cancel()
			}()
			status := t.run(ctx, conn, ch, exec.Command, protocol)
			cancel()
			ch.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{status}))
			return
		default:
			req.Reply(false, nil)
		}
	}
}

func (t *sshServer) run(ctx context.Context, conn net.Conn, ch ssh.Channel, command, protocol string) (status uint32) {
	s := t.server
	service, arg, _ := strings.Cut(command, " ")
	repo := strings.ReplaceAll(strings.Trim(arg, "'"), `'\''`, "'")
	s.record("SSH "+service+" "+repo, protocol)
	dir, ok := s.dir(repo)
	if !ok || service != "git-upload-pack" && service != "git-receive-pack" {
		fmt.Fprintf(ch.Stderr(), "ERROR: Repository not found.\n")
		return 1
	}
	var in io.Reader = ch
	var out io.Writer = ch
	fault := s.take(service, false)
	if fault == nil {
		fault = s.take(service, true)
	}
	if fault != nil {
		if fault.Before != nil {
			if err := fault.Before(); err != nil {
				fmt.Fprintln(ch.Stderr(), err)
				return 1
			}
		}
		switch {
		case fault.Status != 0:
			fmt.Fprintln(ch.Stderr(), "the server was told to fail")
			return 1
		case fault.Hang:
			<-ctx.Done()
			return 1
		case fault.CutAfter > 0:
			out = &connCutter{w: ch, left: fault.CutAfter, conn: conn}
		case fault.LoseAnswer:
			l := &answerLoser{r: ch, w: ch}
			in, out = l, l
			defer conn.Close()
		}
	}
	cmd := exec.CommandContext(ctx, s.git, strings.TrimPrefix(service, "git-"), dir)
	cmd.Env = append(Env(s.cfg.Root), "GIT_PROTOCOL="+s.protocol(protocol))
	cmd.Stdout, cmd.Stderr = out, ch.Stderr()
	stdin, err := cmd.StdinPipe()
	if err != nil || cmd.Start() != nil {
		return 1
	}
	go func() {
		io.Copy(stdin, in)
		stdin.Close()
	}()
	if cmd.Wait() != nil {
		return 1
	}
	return 0
}

// connCutter passes on left bytes and then drops the connection.
type connCutter struct {
	w    io.Writer
	left int64
	conn net.Conn
}

func (c *connCutter) Write(p []byte) (int, error) {
	n := min(int64(len(p)), c.left)
	if _, err := c.w.Write(p[:n]); err != nil {
		return 0, err
	}
	if c.left -= n; c.left == 0 {
		c.conn.Close()
		return int(n), net.ErrClosed
	}
	return len(p), nil
}

// answerLoser passes on git's output until git has been asked something.
type answerLoser struct {
	r     io.Reader
	w     io.Writer
	asked atomic.Bool
}

func (l *answerLoser) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	if n > 0 {
		l.asked.Store(true)
	}
	return n, err
}

func (l *answerLoser) Write(p []byte) (int, error) {
	if l.asked.Load() {
		return len(p), nil
	}
	return l.w.Write(p)
}
