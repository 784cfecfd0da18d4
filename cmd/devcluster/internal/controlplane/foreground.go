package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"gitopsd.dev/cmd/devcluster/internal/component"
	"gitopsd.dev/cmd/devcluster/internal/process"
	"gitopsd.dev/cmd/devcluster/internal/statedir"
)

// Foreground brings clusters up as [Up] does, and stays until ctx ends. All processes end
// before it returns, or by themselves if this process is killed, including those that
// other commands started meanwhile. The data stays for the next Up; [Down] removes it.
func Foreground(ctx context.Context, cfg Config, o Options) error {
	// Messages come from several goroutines. They are lost once the parent, which
	// reads the other end of the pipe, has died.
	cfg.Out = &syncWriter{w: cfg.Out}
	signal.Ignore(syscall.SIGPIPE)
	started, err := startForeground(ctx, cfg, o)
	if err != nil {
		return err
	}
	for _, r := range started {
		go report(ctx, cfg, r)
	}
	<-ctx.Done()
	return endForeground(context.WithoutCancel(ctx), cfg)
}

// startForeground brings clusters up with this process as owner.
func startForeground(ctx context.Context, cfg Config, o Options) ([]running, error) {
	c, end, err := beginUp(ctx, cfg, o)
	if err != nil {
		return nil, err
	}
	defer end()
	c.foreground = true
	if err := c.up(ctx, o); err != nil {
		return nil, err
	}
	c.say("running until interrupted")
	return c.started, nil
}

// own makes this process the owner of the processes that it will start. up records it.
func (c *command) own() error {
	if c.owner != (process.ID{}) {
		return fmt.Errorf("%s runs in the foreground of pid %d already: use `devcluster add` for more clusters", c.dir, c.owner.PID)
	}
	if err := c.refuseRunning(); err != nil {
		return err
	}
	self, err := process.Identify(os.Getpid())
	c.owner = self
	return err
}

// refuseRunning returns an error if processes without an owner run: they would not end
// with this one.
func (c *command) refuseRunning() error {
	state, err := c.dir.Load()
	if errors.Is(err, statedir.ErrNotUp) {
		return nil
	}
	if err != nil {
		return err
	}
	found, err := c.find(append(serversOf(state), component.NameEtcd)...)
	if err == nil && len(found) > 0 {
		return fmt.Errorf("%s is up in the background: use that, or bring it down before --foreground", c.dir)
	}
	return err
}

// report prints a message when a component ends without being stopped. The others keep
// running, so that the rest of the cluster can be inspected.
func report(ctx context.Context, cfg Config, r running) {
	select {
	case <-ctx.Done():
		return
	case <-r.done:
	}
	// A command that stops the component holds the lock until its record is removed.
	c, end, err := begin(ctx, cfg)
	if err != nil {
		return
	}
	defer end()
	if recorded, err := c.dir.Recorded(r.name); err == nil && recorded == r.id {
		c.say("%v", c.failed(r, errors.New("it ended by itself")))
	}
}

// endForeground stops everything. Down may have done so already.
func endForeground(ctx context.Context, cfg Config) error {
	err := change(ctx, cfg, nil, func(c *command, state *statedir.State) error {
		return errors.Join(c.stopAll(ctx, state), c.dir.SetOwner(process.ID{}))
	})
	if errors.Is(err, statedir.ErrNotUp) {
		return nil
	}
	return err
}

// syncWriter serializes the writes of several goroutines.
type syncWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (s *syncWriter) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(p)
}
