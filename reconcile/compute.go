package reconcile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/errgroup"
)

// computation computes the state of a commit in a goroutine of its own, so that a slow
// registry delays the new commit and not the work on the current one. One runs at a time.
type computation struct {
	commit  sources.Commit
	started time.Time
	// of is the resumed revision to compute; nil for the newest commit.
	of      *revision
	cancel  context.CancelFunc
	givenUp bool // by the loop, for a newer commit

	// done is closed when the fields below are final.
	done  chan struct{}
	state *desired.State
	err   error
	took  time.Duration
}

// firstPatience is how long a computation may take while a newer commit waits. It doubles
// with each computation that is given up, so that frequent pushes do not prevent all of them.
const firstPatience = 15 * time.Second

// compute starts to compute the newest commit if it is due and no computation is under
// way.
func (d *Daemon) compute(ctx context.Context) error {
	if !d.due || d.computing != nil {
		return nil
	}
	d.again = true // until it succeeds
	d.due = false
	if now := d.resume(); now != nil {
		d.follow(now)
		return nil
	}
	d.start(ctx, d.head, nil)
	return nil
}

func (d *Daemon) start(ctx context.Context, commit sources.Commit, of *revision) {
	ctx, cancel := context.WithCancel(ctx)
	c := &computation{commit: commit, started: time.Now(), of: of, cancel: cancel, done: make(chan struct{})}
	d.computing = c
	earlier, now := d.earlier(), d.now
	go func() {
		defer close(c.done)
		defer cancel()
		defer func() { c.took = time.Since(c.started) }()
		defer func() {
			if v := recover(); v != nil {
				c.state, c.err = nil, errgroup.Recovered(v)
			}
		}()
		if c.state, c.err = d.cfg.Computer.Compute(ctx, commit, earlier); c.err == nil {
			c.err = d.lockLost(ctx, c.state, now)
		}
	}()
}

// maxLockLook bounds how many commits are read to find a lock that a commit has lost.
const maxLockLook = 10

// lockLost returns an error if the commit of a state has no lock, needs one, and the revision in
// charge or one of the commit's last ancestors has one. Without it, any tag that was moved since
// would be taken for a new one.
func (d *Daemon) lockLost(ctx context.Context, s *desired.State, now *revision) error {
	commit := s.Commit
	_, there, err := lockOf(commit)
	if there || err != nil || len(s.Lock.Format()) == 0 {
		return err
	}
	if now != nil && now.state.Commit.Hash == commit.Hash {
		return nil // its lock was committed on top of it, and a server's replica does not have that yet
	}
	lost := func(by string) error {
		return &problem.Error{Lasting: true, Err: fmt.Errorf("%s is missing, and commit %[2]s has it: without it, a tag that was moved since would pass; restore it (git checkout %[2]s -- %[1]s), or run `gitopsd lock`, and have its digests reviewed", sources.LockFile, sources.ShortHash(by))}
	}
	if now != nil && len(now.committed.Format()) > 0 {
		return lost(now.commit.Hash)
	}
	for last, n := commit.Hash, 0; n < maxLockLook && last != d.lockless; n++ {
		parent, ok, err := d.cfg.Repository.Parent(ctx, last)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		text, there, err := lockOf(parent)
		switch {
		case err != nil:
			return err
		case len(text) > 0:
			return lost(parent.Hash)
		}
		if last = parent.Hash; there {
			break // a fleet without packages
		}
	}
	d.lockless = commit.Hash
	return nil
}

// lockOf returns the text of a commit's lock, and reports whether it has one.
func lockOf(commit sources.Commit) (text []byte, there bool, err error) {
	text, err = fs.ReadFile(commit.Files, sources.LockFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	return text, err == nil, err
}

// computed returns a channel that is closed when the computation under way ends; nil if
// there is none.
func (d *Daemon) computed() <-chan struct{} {
	if d.computing == nil {
		return nil
	}
	return d.computing.done
}

// impatient returns a channel that receives when the computation under way must be given up
// for a newer commit; nil if none waits.
func (d *Daemon) impatient() <-chan time.Time {
	if d.computing == nil || !d.due || d.computing.givenUp {
		return nil
	}
	return time.After(time.Until(d.computing.started.Add(firstPatience << min(d.givenUp, 10))))
}

func (d *Daemon) giveUp() {
	d.cfg.Log.Info("computing is given up: there is a newer commit", "commit", sources.ShortHash(d.computing.commit.Hash))
	d.computing.givenUp = true
	d.computing.cancel()
	d.givenUp++
}

// takeUp uses the result of a computation, and starts the next one if it is due. If a commit
// cannot be computed at all, the clusters stay at the one before.
func (d *Daemon) takeUp(ctx context.Context) error {
	c := d.computing
	d.computing = nil
	if !c.givenUp {
		d.cfg.Board.Computed(c.took)
	}
	var err error
	switch {
	case c.err == nil:
		d.givenUp = 0
		d.use(ctx, c)
	case c.givenUp || ctx.Err() != nil:
	default:
		d.givenUp = 0
		err = fmt.Errorf("commit %s: %w", sources.ShortHash(c.commit.Hash), c.err)
		d.tellPanic(c.commit, c.err)
		if c.of == nil {
			d.refuse(ctx, c)
		}
	}
	return errors.Join(err, d.compute(ctx))
}

// use puts the computed state in charge.
func (d *Daemon) use(ctx context.Context, c *computation) {
	for _, cl := range c.state.Clusters {
		d.tellPanic(c.commit, cl.Err)
	}
	if d.cfg.Computed != nil {
		d.cfg.Computed(c.state)
	}
	now := &revision{state: c.state, commit: c.state.Commit, committed: c.state.Committed, input: d.inputOf(c.state)}
	switch {
	case c.of == nil:
		d.follow(now)
	case c.of == d.now:
		d.now = now
	}
}

// refuse reports a commit that cannot be used. If the revision in charge was resumed and
// never computed, it is computed next.
func (d *Daemon) refuse(ctx context.Context, c *computation) {
	d.cfg.Board.Refuse(c.commit.Hash, c.commit.Subject, problem.Of(c.err))
	if d.now != nil && d.now.at != nil && !d.due {
		d.start(ctx, d.now.commit, d.now)
	}
}

// tellPanic logs the stack if an error was a panic.
func (d *Daemon) tellPanic(commit sources.Commit, err error) {
	if p, ok := errors.AsType[*errgroup.PanicError](err); ok {
		d.cfg.Log.Error(p.Error()+"; the daemon goes on", "commit", sources.ShortHash(commit.Hash), "stack", string(p.Stack))
	}
}
