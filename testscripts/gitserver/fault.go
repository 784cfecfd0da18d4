package gitserver

import (
	"context"
	"errors"
	"net"
	"net/http"
)

// Fault makes requests fail. Of Status, Hang, CutAfter and LoseAnswer at most one
// is set; with none, only Before happens and git answers.
type Fault struct {
	// Service is git-upload-pack or git-receive-pack; empty means both.
	Service string
	// Discovery fails the request that lists refs or capabilities, instead of
	// the one that fetches or pushes. Over SSH, where both are one request, it
	// makes no difference.
	Discovery bool
	// Times is how many requests fail; 0 means all, until Heal.
	Times int

	// Before runs before the request is answered; if it returns an error, the
	// request fails.
	Before func() error
	// After runs, over HTTP, when git has carried out the request; with
	// LoseAnswer, before the client sees the connection drop.
	After func()
	// Status answers with an HTTP status; over SSH, with exit status 1.
	Status int
	// Hang gives no answer until the client disconnects.
	Hang bool
	// CutAfter drops the connection after that many bytes of the answer.
	CutAfter int64
	// LoseAnswer lets git carry out the request, and drops the connection instead
	// of answering.
	LoseAnswer bool
}

// Fail injects a fault, after the ones that were injected before.
func (s *Server) Fail(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, &f)
}

// Heal removes every fault.
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
	if err := http.NewResponseController(c.ResponseWriter).Flush(); err != nil {
		return 0, err
	}
	return 0, drop(c.ResponseWriter)
}

// drop closes the connection of a request. Its error is never nil.
func drop(w http.ResponseWriter) error {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return err
	}
	return errors.Join(net.ErrClosed, conn.Close())
}

// loser discards an answer.
type loser struct{ header http.Header }

func (l loser) Header() http.Header         { return l.header }
func (l loser) WriteHeader(int)             {}
func (l loser) Write(p []byte) (int, error) { return len(p), nil }
