package gitserver

import (
	"context"
	"net"
	"net/http"
)

// Fault makes requests fail. Of Status, Hang and CutAfter at most one is set;
// with none, only Before happens and git answers.
type Fault struct {
	// Service is git-upload-pack or git-receive-pack; empty means both.
	Service string
	// Discovery fails the request that lists refs or capabilities, instead of
	// the one that fetches or pushes. Over SSH, where both are one request, it
	// makes no difference.
	Discovery bool
	// Times is how many requests fail; 0 means all, until Heal.
	Times int

	// Before runs before the request is answered; its error fails it.
	Before func() error
	// Status answers with an HTTP status; over SSH, with exit status 1.
	Status int
	// Hang never answers, until the client goes away.
	Hang bool
	// CutAfter drops the connection after that many bytes of the answer.
	CutAfter int64
}

// Fail injects a fault, after those already there.
func (s *Server) Fail(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, &f)
}

// Heal takes back every fault.
func (s *Server) Heal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
}

// RejectPushes makes each of the next n pushes to repo lose a race: another
// commit lands on branch after the pusher has looked at it.
func (s *Server) RejectPushes(repo *Repo, branch string, n int) {
	s.Fail(Fault{Service: "git-receive-pack", Times: n, Before: func() error {
		_, err := repo.Commit(context.Background(), branch, "Somebody else was faster", nil)
		return err
	}})
}

// take returns the fault that a request meets, if any, and counts it.
func (s *Server) take(service string, discovery bool) *Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, f := range s.faults {
		if f.Service != "" && f.Service != service || f.Discovery != discovery {
			continue
		}
		if f.Times > 0 {
			if f.Times--; f.Times == 0 {
				s.faults = append(s.faults[:i:i], s.faults[i+1:]...)
			}
		}
		return f
	}
	return nil
}

// cutter passes on left bytes of an answer and then drops the connection.
type cutter struct {
	http.ResponseWriter
	left int64
}

func (c *cutter) Write(p []byte) (int, error) {
	n := min(int64(len(p)), c.left)
	if n > 0 {
		if _, err := c.ResponseWriter.Write(p[:n]); err != nil {
			return 0, err
		}
		c.left -= n
	}
	if c.left > 0 {
		return len(p), nil
	}
	control := http.NewResponseController(c.ResponseWriter)
	if err := control.Flush(); err != nil {
		return 0, err
	}
	conn, _, err := control.Hijack()
	if err != nil {
		return 0, err
	}
	conn.Close()
	return 0, net.ErrClosed
}
