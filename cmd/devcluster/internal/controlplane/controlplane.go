// Package controlplane brings clusters up and down: it decides which processes
// there are, in which order they start and end, and when they are ready.
//
// What a process is, package component knows; how it is started and found
// again, package process; where everything lies, package statedir.
package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"gitopsd.dev/cmd/devcluster/internal/component"
	"gitopsd.dev/cmd/devcluster/internal/process"
	"gitopsd.dev/cmd/devcluster/internal/statedir"
)

// Subcommand is the argument with which this executable runs a component; what
// follows goes to [component.Run].
const Subcommand = "component"

// How long components may take to end before they are killed. An API server
// closes its watches first.
const (
	apiServerGrace = 15 * time.Second
	etcdGrace      = 10 * time.Second
)

// Config says where clusters live and who is told about them.
type Config struct {
	// Dir is the directory; see package statedir.
	Dir statedir.Dir
	// Out receives one line for each step.
	Out io.Writer
}

// Options are those of Up and Add.
type Options struct {
	// Clusters are the names to bring up. Up without names takes those that
	// the directory has.
	Clusters []string
	// ControllerManager says whether clusters that are new get one.
	ControllerManager bool
}

// command is one command at work. It holds the directory's lock.
type command struct {
	dir      statedir.Dir
	out      io.Writer
	reserved map[int]bool

	mu      sync.Mutex
	owner   process.ID
	started []running
}

// begin takes the directory's lock.
func begin(ctx context.Context, cfg Config) (c *command, end func(), err error) {
	c = &command{dir: cfg.Dir, out: cfg.Out, reserved: map[int]bool{}}
	end, err = cfg.Dir.Lock(ctx, func() { c.say("waiting for another devcluster command on %s", cfg.Dir) })
	return c, end, err
}

// say prints one line.
func (c *command) say(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Fprintf(c.out, format+"\n", args...)
}

// Up brings clusters up that go on when this process ends. What runs already
// is left alone; what an earlier Up left half done is completed. When it fails
// it stops what it has started.
func Up(ctx context.Context, cfg Config, o Options) error {
	if err := cfg.Dir.Create(o.Clusters); err != nil {
		return err
	}
	c, end, err := begin(ctx, cfg)
	if err != nil {
		return err
	}
	defer end()
	return c.up(ctx, o)
}

// Add brings up clusters in a directory that is up already.
func Add(ctx context.Context, cfg Config, o Options) error {
	if _, err := cfg.Dir.Load(); err != nil {
		return err
	}
	return Up(ctx, cfg, o)
}

// up needs the lock.
func (c *command) up(ctx context.Context, o Options) (err error) {
	begun := time.Now()
	if err := c.clearOrphans(ctx); err != nil {
		return err
	}
	state, release, err := c.plan(o)
	if err != nil {
		return err
	}
	defer release()
	names := o.Clusters
	if len(names) == 0 {
		names = state.Names()
	}
	if err := c.startClusters(ctx, state, names); err != nil {
		return errors.Join(err, c.undo(ctx))
	}
	c.say("%d of %d clusters in %s ready after %.1fs; look around with KUBECONFIG=%s", len(names), len(state.Clusters),
		c.dir, time.Since(begun).Seconds(), c.dir.Kubeconfig(names[0]))
	return nil
}

// clearOrphans finds out who owns the processes. Those whose owner has just
// died may not have noticed yet, and must not be taken for running.
func (c *command) clearOrphans(ctx context.Context) error {
	was, err := c.dir.RecordedOwner()
	if err != nil || was == (process.ID{}) {
		return err
	}
	if was.Alive() {
		c.owner = was
		return nil
	}
	state, err := c.dir.Load()
	if err != nil {
		return err
	}
	if err := c.stopAll(ctx, state); err != nil {
		return err
	}
	return c.dir.SetOwner(process.ID{})
}

// plan adds the clusters that are new to the state, with ports of their own,
// and saves it. release gives the ports up once their servers listen.
func (c *command) plan(o Options) (state *statedir.State, release func(), err error) {
	state, err = c.dir.Load()
	fresh := errors.Is(err, statedir.ErrNotUp)
	if fresh {
		state, err = &statedir.State{}, nil
	}
	if err != nil {
		return nil, nil, err
	}
	var add []string
	for _, name := range o.Clusters {
		if err := statedir.CheckName(name); err != nil {
			return nil, nil, err
		}
		if state.Cluster(name) == nil && !slices.Contains(add, name) {
			add = append(add, name)
		}
	}
	if len(state.Clusters)+len(add) == 0 {
		return nil, nil, errors.New("no clusters named: say which with --clusters")
	}
	need := len(add)
	if fresh {
		need += 3
	}
	r, err := statedir.Reserve(need)
	if err != nil {
		return nil, nil, err
	}
	ports := r.Ports
	for _, port := range ports {
		c.reserved[port] = true
	}
	if fresh {
		state.Etcd = statedir.Etcd{ClientPort: ports[0], PeerPort: ports[1], HTTPPort: ports[2]}
		ports = ports[3:]
	}
	for i, name := range add {
		state.Clusters = append(state.Clusters, statedir.Cluster{
			Name: name, Port: ports[i], ControllerManager: o.ControllerManager,
		})
	}
	if err := c.dir.Save(state); err != nil {
		r.Release()
		return nil, nil, err
	}
	return state, r.Release, nil
}

// startClusters starts etcd and these clusters and waits until they are ready.
func (c *command) startClusters(ctx context.Context, state *statedir.State, names []string) error {
	if err := c.startEtcd(ctx, state.Etcd); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, name := range names {
		g.Go(func() error { return c.startCluster(ctx, *state.Cluster(name), state.Etcd) })
	}
	return g.Wait()
}

func (c *command) startEtcd(ctx context.Context, e statedir.Etcd) error {
	if _, err := ensureFolder(c.dir.Path("etcd"), etcdFiles); err != nil {
		return err
	}
	r, err := c.ensureEtcd(e)
	if err != nil {
		return err
	}
	check, err := c.etcdReady(e)
	if err != nil {
		return err
	}
	if err := c.await(ctx, "etcd", r, check); err != nil {
		return err
	}
	c.say("etcd: %s, pid %d, port %d", r.how(), r.id.PID, e.ClientPort)
	return nil
}

// how says whether this command started it.
func (r running) how() string {
	if r.done != nil {
		return "started"
	}
	return "was running"
}

func (c *command) startCluster(ctx context.Context, cl statedir.Cluster, e statedir.Etcd) error {
	begun := time.Now()
	if err := c.ensureCluster(cl); err != nil {
		return err
	}
	api, err := c.ensureAPIServer(cl, e)
	if err != nil {
		return err
	}
	client, err := c.adminClient(cl)
	if err != nil {
		return err
	}
	if err := c.await(ctx, cl.Name+"'s API server", api, apiServerReady(client)); err != nil {
		return err
	}
	c.say("%s: API server %s, pid %d, %s, %.1fs", cl.Name, api.how(), api.id.PID, url(cl), time.Since(begun).Seconds())
	node, err := c.ensureKubelet(cl)
	if err != nil {
		return err
	}
	if cl.ControllerManager {
		manager, err := c.ensureControllerManager(cl)
		if err != nil {
			return err
		}
		if err := c.await(ctx, cl.Name+"'s controller manager", manager, namespaceReady(client)); err != nil {
			return err
		}
	}
	if err := c.await(ctx, cl.Name+"'s node", node, nodeReady(client, nodeName(cl.Name))); err != nil {
		return err
	}
	c.say("%s: ready, %.1fs, kubeconfig %s", cl.Name, time.Since(begun).Seconds(), c.dir.Kubeconfig(cl.Name))
	return nil
}

// undo stops what this command has started, after a failure.
func (c *command) undo(ctx context.Context) error {
	var servers, etcd []running
	for _, r := range c.started {
		if r.name == component.NameEtcd {
			etcd = append(etcd, r)
		} else {
			servers = append(servers, r)
		}
	}
	ctx = context.WithoutCancel(ctx)
	return errors.Join(c.end(ctx, apiServerGrace, servers), c.end(ctx, etcdGrace, etcd))
}

// end stops components and forgets them.
func (c *command) end(ctx context.Context, grace time.Duration, components []running) error {
	var ids []process.ID
	for _, r := range components {
		ids = append(ids, r.id)
	}
	killed, err := process.Stop(ctx, grace, ids...)
	for _, r := range components {
		if slices.Contains(killed, r.id) {
			c.say("%s: killed, it had not ended %s after SIGTERM", r.name, grace)
		}
		if err == nil {
			err = c.dir.Forget(r.name)
		}
	}
	return err
}

// find returns those of the components that run.
func (c *command) find(names ...string) (found []running, err error) {
	for _, name := range names {
		id, err := c.dir.Running(name)
		if err != nil {
			return nil, err
		}
		if id != (process.ID{}) {
			found = append(found, running{name: name, id: id})
		}
	}
	return found, nil
}
