package controlplane

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"gitopsd.dev/cmd/devcluster/internal/component"
	"gitopsd.dev/cmd/devcluster/internal/pods"
	"gitopsd.dev/cmd/devcluster/internal/process"
	"gitopsd.dev/cmd/devcluster/internal/statedir"
)

// Down stops everything and removes the files that [Up] made. It is no error if the
// directory is not up.
func Down(ctx context.Context, cfg Config) error {
	if err := endOwner(ctx, cfg); err != nil {
		return err
	}
	c, end, err := begin(ctx, cfg)
	if errors.Is(err, statedir.ErrNotUp) {
		fmt.Fprintf(cfg.Out, "%s: nothing to bring down\n", cfg.Dir)
		return nil
	}
	if err != nil {
		return err
	}
	defer end()
	state, err := cfg.Dir.Load()
	if errors.Is(err, statedir.ErrNotUp) {
		c.say("%s: nothing to bring down", cfg.Dir)
		return cfg.Dir.Remove()
	}
	if err != nil {
		return err
	}
	if err := c.stopAll(ctx, state); err != nil {
		return err
	}
	kept, err := c.remove(state)
	if err != nil {
		return err
	}
	for _, path := range kept {
		c.say("kept %s: not made by `up`, or changed since", path)
	}
	c.say("%s is down: no process, no port, no data left", cfg.Dir)
	return nil
}

// endOwner asks an `up --foreground` to end, with all its processes. The caller
// must not hold the lock, which that command needs.
func endOwner(ctx context.Context, cfg Config) error {
	owner, err := cfg.Dir.Owner()
	if err != nil || owner == (process.ID{}) {
		return err
	}
	fmt.Fprintf(cfg.Out, "ending `up --foreground`, pid %d\n", owner.PID)
	if _, err := process.Stop(ctx, apiServerGrace+2*etcdGrace, owner); err != nil {
		return fmt.Errorf("the process that runs %s in the foreground: %w", cfg.Dir, err)
	}
	return nil
}

// stopAll ends every process, API servers before etcd: without etcd an API server
// retries for minutes before it ends.
func (c *command) stopAll(ctx context.Context, state *statedir.State) error {
	servers, err := c.find(serversOf(state)...)
	if err != nil {
		return err
	}
	etcd, err := c.find(component.NameEtcd)
	if err != nil {
		return err
	}
	if err := c.end(ctx, apiServerGrace, servers); err != nil {
		return err
	}
	if err := c.endPods(state.Names()); err != nil {
		return err
	}
	if err := c.end(ctx, etcdGrace, etcd); err != nil {
		return err
	}
	if n := len(servers) + len(etcd); n > 0 {
		c.say("stopped %d processes of %d clusters", n, len(state.Clusters))
	}
	ports := []int{state.Etcd.ClientPort, state.Etcd.PeerPort, state.Etcd.HTTPPort}
	for _, cl := range state.Clusters {
		ports = append(ports, cl.Port)
	}
	return portsFree(ctx, ports)
}

// endPods kills the processes of pods that a killed kubelet stand-in has left. One that
// ended in order leaves none.
func (c *command) endPods(clusters []string) error {
	for _, name := range clusters {
		if err := pods.End(c.dir.Path(name)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// portsFree waits until nobody listens on the ports. A killed process keeps its ports for
// some milliseconds.
func portsFree(ctx context.Context, ports []int) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for _, port := range ports {
		for {
			err := statedir.PortFree(port)
			if err == nil {
				break
			}
			if !errors.Is(err, syscall.EADDRINUSE) || ctx.Err() != nil {
				return fmt.Errorf("%w: another process listens there; find it with `ss -tlnp`", err)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	return nil
}

// Stop stops clusters: their processes end; data, ports and keys stay.
func Stop(ctx context.Context, cfg Config, names []string) error {
	return change(ctx, cfg, names, func(c *command, state *statedir.State) error {
		for _, name := range names {
			found, err := c.find(componentsOf(name)...)
			if err != nil {
				return err
			}
			if err := c.end(ctx, apiServerGrace, found); err != nil {
				return err
			}
			if err := c.endPods([]string{name}); err != nil {
				return err
			}
			if len(found) == 0 {
				c.say("%s: was not running", name)
				continue
			}
			if err := portsFree(ctx, []int{state.Cluster(name).Port}); err != nil {
				return err
			}
			c.say("%s: stopped; bring it back with `devcluster start %s`", name, name)
		}
		return nil
	})
}

// Start starts clusters that [Stop] stopped, on the same ports and with the same
// data.
func Start(ctx context.Context, cfg Config, names []string) error {
	return change(ctx, cfg, names, func(c *command, _ *statedir.State) error {
		return c.up(ctx, Options{Clusters: names})
	})
}

// change calls do under the lock if all the clusters exist.
func change(ctx context.Context, cfg Config, names []string, do func(*command, *statedir.State) error) error {
	c, end, err := begin(ctx, cfg)
	if err != nil {
		return err
	}
	defer end()
	state, err := cfg.Dir.Load()
	if err != nil {
		return err
	}
	for _, name := range names {
		if _, err := existing(cfg, state, name); err != nil {
			return err
		}
	}
	return do(c, state)
}

// existing returns the cluster with this name, or an error that lists the names.
func existing(cfg Config, state *statedir.State, name string) (*statedir.Cluster, error) {
	if cl := state.Cluster(name); cl != nil {
		return cl, nil
	}
	return nil, fmt.Errorf("%s has no cluster %q, only %q: make it with `devcluster add`", cfg.Dir, name, state.Names())
}
