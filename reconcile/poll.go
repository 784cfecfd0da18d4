package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/git"
)

// polling is a poll of the repository in a goroutine of its own, so that a server that hangs
// delays only the new commit. One runs at a time.
type polling struct {
	began time.Time
	// last is the head at that time.
	last   string
	cancel context.CancelFunc

	// done is closed when the fields below are final.
	done    chan struct{}
	commit  sources.Commit
	changed bool
	err     error
}

// firstAnswer is how long a daemon that starts waits for the repository before it serves what
// the process before knew of.
const firstAnswer = 5 * time.Second

// poll starts to ask the repository for a newer commit, unless that is under way.
func (d *Daemon) poll(ctx context.Context) {
	if d.polling != nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	p := &polling{began: time.Now(), last: d.head.Hash, cancel: cancel, done: make(chan struct{})}
	d.polling = p
	go func() {
		defer close(p.done)
		defer cancel()
		p.commit, p.changed, p.err = d.cfg.Repository.Poll(ctx, p.last)
	}()
}

// polled returns a channel that is closed when the poll under way ends; nil if there is none.
func (d *Daemon) polled() <-chan struct{} {
	if d.polling == nil {
		return nil
	}
	return d.polling.done
}

// pushed returns Config.Pushed, but nil while a poll is under way: its answer may be from before the
// push.
func (d *Daemon) pushed() <-chan struct{} {
	if d.polling != nil {
		return nil
	}
	return d.cfg.Pushed
}

// silent reports whether the repository has not answered the first poll for firstAnswer. due
// receives when it has not; nil if there is nothing to wait for.
func (d *Daemon) silent() (is bool, due <-chan time.Time) {
	if d.polling == nil || d.head.Hash != "" {
		return false, nil
	}
	left := time.Until(d.polling.began.Add(d.firstAnswer))
	if left <= 0 {
		return true, nil
	}
	return false, time.After(left)
}

// look uses the result of a poll that has ended, and starts a computation if there is a
// reason to. If the repository did not answer, it uses the commit that was read last.
func (d *Daemon) look(ctx context.Context) error {
	p := d.polling
	d.polling = nil
	if p.err == nil && p.last != d.head.Hash {
		d.poll(ctx) // the lock was committed meanwhile: what was read may be older
		return nil
	}
	polled := d.take(p)
	if polled != nil && d.head.Hash == "" {
		return polled
	}
	// A newer commit waits for the computation under way. Nothing else starts a
	// second one in a row.
	d.due = d.due || polled == nil && p.changed || d.computing == nil && (d.again || d.now != nil && d.now.state.Always)
	if d.unread = d.readPending(ctx); d.unread != nil {
		return errors.Join(polled, d.unread)
	}
	return errors.Join(polled, d.compute(ctx))
}

// take takes the newest commit from a poll.
func (d *Daemon) take(p *polling) error {
	if p.err == nil && p.changed {
		d.cfg.Board.Computing(p.commit.Hash) // first, so that nobody takes the one before for the newest
	}
	d.cfg.Board.Polled(p.began, p.err, errors.Is(p.err, git.ErrNotTrusted))
	if p.err != nil {
		return fmt.Errorf("polling the repository: %w", p.err)
	}
	if p.changed {
		d.head = p.commit
		d.cfg.Log.Info("new commit", "commit", sources.ShortHash(p.commit.Hash), "subject", p.commit.Subject)
	}
	return nil
}

// answerTimeout bounds a request to the repository that the loop itself waits for.
const answerTimeout = 2 * time.Minute

// bounded returns a context for such a request.
func (d *Daemon) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	d.cfg.Board.Turn()
	return context.WithTimeoutCause(ctx, answerTimeout, fmt.Errorf("the repository did not answer within %s", answerTimeout))
}
