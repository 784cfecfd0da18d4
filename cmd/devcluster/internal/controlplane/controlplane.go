// Package controlplane brings clusters up and down: it decides which processes
// there are, in which order they start and end, and when they are ready.
//
// Package component configures the processes, package process starts and finds
// them, and package statedir knows the places of files.
//
// controlplane.go brings clusters up, down.go stops them, and foreground.go is `up
// --foreground`. components.go starts single components, wait.go waits for them, and
// files.go makes and removes files. pods.go handles images and logs of pods, and
// stored.go prints stored objects.
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

// Subcommand is the argument with which this executable runs a component. The
// arguments after it go to servers.Run.
const Subcommand = "component"

// How long components may take to end before they are killed. An API server
// closes its watches first.
const (
	apiServerGrace = 15 * time.Second
	etcdGrace      = 10 * time.Second
)

// Config says where clusters live and where messages go.
type Config struct {
	// Dir is the directory; see package statedir.
	Dir statedir.Dir
	// Out receives one line for each step.
	Out io.Writer
}

// Options are the options of [Up], [Foreground] and [Add].
type Options struct {
	// Clusters are the names to bring up. Without names, Up brings up the clusters
	// in the directory.
	Clusters []string
	// ControllerManager runs Kubernetes' controllers in new clusters.
	ControllerManager bool
	// StorageMigration makes new clusters serve Kubernetes' own migration of stored
	// objects.
	StorageMigration bool
	// Etcd is the etcd of new clusters; nil is devcluster's own.
	Etcd *statedir.ExternalEtcd
}

// command is a running command. It holds the directory's lock.
type command struct {
	dir statedir.Dir
	// reserved are the ports that this command reserves for servers.
	reserved map[int]bool
	// foreground makes this process the owner of the processes that it starts.
	foreground bool
	// owner is the process with which all others end, if any.
	owner process.ID

	mu      sync.Mutex
	out     io.Writer
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

// Up brings clusters up, which keep running when this process ends. It leaves running
// processes alone, and completes an earlier Up that was interrupted. If it fails, it
// stops the processes that it started.
func Up(ctx context.Context, cfg Config, o Options) error {
	c, end, err := beginUp(ctx, cfg, o)
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

// beginUp checks the names, creates the directory, and takes its lock.
func beginUp(ctx context.Context, cfg Config, o Options) (c *command, end func(), err error) {
	for _, name := range o.Clusters {
		if err := statedir.CheckName(name); err != nil {
			return nil, nil, err
		}
	}
	if _, err := cfg.Dir.Load(); errors.Is(err, statedir.ErrNotUp) && len(o.Clusters) == 0 {
		return nil, nil, fmt.Errorf("%w: name clusters to make with --clusters", err)
	}
	if err := cfg.Dir.Create(); err != nil {
		return nil, nil, err
	}
	return begin(ctx, cfg)
}

// up brings clusters up. The caller holds the lock.
func (c *command) up(ctx context.Context, o Options) error {
	begun := time.Now()
	if err := c.clearOrphans(ctx); err != nil {
		return err
	}
	if c.foreground {
		if err := c.own(); err != nil {
			return err
		}
	}
	state, release, err := c.plan(o)
	if err != nil {
		return err
	}
	defer release()
	if err := c.dir.SetOwner(c.owner); err != nil {
		return err
	}
	names := distinct(o.Clusters)
	if len(names) == 0 {
		names = state.Names()
	}
	if err := c.startClusters(ctx, state, names); err != nil {
		return errors.Join(err, c.undo(ctx))
	}
	if len(c.started) == 0 {
		return nil
	}
	c.say("ready after %.1fs; look around with KUBECONFIG=%s", time.Since(begun).Seconds(), c.dir.Kubeconfig(names[0]))
	return nil
}

// distinct drops repetitions.
func distinct(names []string) (once []string) {
	for _, name := range names {
		if !slices.Contains(once, name) {
			once = append(once, name)
		}
	}
	return once
}

// clearOrphans sets c.owner to the living owner of the processes. If the owner has died,
// it stops the processes: they are about to end, and must not count as running.
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

// plan adds the new clusters to the state, with reserved ports, and saves it. Call
// release once their servers listen.
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
	for _, name := range distinct(o.Clusters) {
		if state.Cluster(name) == nil {
			add = append(add, name)
		}
	}
	if err := c.dir.CheckUnused(fresh, add); err != nil {
		if fresh {
			err = errors.Join(err, c.dir.Remove())
		}
		return nil, nil, err
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
			Name: name, Port: ports[i], ControllerManager: o.ControllerManager, StorageMigration: o.StorageMigration, Etcd: o.Etcd,
		})
	}
	if err := c.dir.Save(state); err != nil {
		r.Release()
		return nil, nil, err
	}
	return state, r.Release, nil
}

// startClusters starts the clusters, and etcd if one of them needs it, and waits until
// they are ready.
func (c *command) startClusters(ctx context.Context, state *statedir.State, names []string) error {
	if slices.ContainsFunc(names, func(name string) bool { return state.Cluster(name).Etcd == nil }) {
		if err := untilStable(func() error { return c.startEtcd(ctx, state.Etcd) }); err != nil {
			return err
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, name := range names {
		g.Go(func() error {
			return untilStable(func() error { return c.startCluster(ctx, *state.Cluster(name), state.Etcd) })
		})
	}
	return g.Wait()
}

func (c *command) startEtcd(ctx context.Context, e statedir.Etcd) error {
	if _, err := ensureFolder(c.dir.Path("etcd"), etcdFiles); err != nil {
		return err
	}
	r, err := c.ensureEtcd(ctx, e)
	if err != nil {
		return err
	}
	check, err := c.etcdReady(e)
	if err != nil {
		return err
	}
	if err := c.await(ctx, "etcd", check, r); err != nil {
		return err
	}
	c.say("etcd: %s, pid %d, port %d", r.how(), r.id.PID, e.ClientPort)
	return nil
}

func (c *command) startCluster(ctx context.Context, cl statedir.Cluster, e statedir.Etcd) error {
	begun := time.Now()
	if err := c.ensureCluster(cl); err != nil {
		return err
	}
	api, err := c.ensureAPIServer(ctx, cl, e)
	if err != nil {
		return err
	}
	client, err := c.adminClient(cl)
	if err != nil {
		return err
	}
	if err := c.await(ctx, cl.Name+"'s API server", apiServerReady(client), api); err != nil {
		return err
	}
	if !api.found() {
		c.say("%s: API server started, pid %d, %s", cl.Name, api.id.PID, url(cl))
	}
	node, err := c.ensureKubelet(ctx, cl)
	if err != nil {
		return err
	}
	// The API server may still have the node as ready from the previous process.
	if err := c.await(ctx, cl.Name+"'s egress proxy", c.egressReady(cl), node); err != nil {
		return err
	}
	if err := c.await(ctx, cl.Name+"'s default namespace", namespaceReady(client), api); err != nil {
		return err
	}
	up := api.found() && node.found()
	if cl.ControllerManager {
		manager, err := c.ensureControllerManager(ctx, cl)
		if err != nil {
			return err
		}
		if err := c.await(ctx, cl.Name+"'s default service account", serviceAccountReady(client), api, manager); err != nil {
			return err
		}
		up = up && manager.found()
	}
	if err := c.await(ctx, cl.Name+"'s node", nodeReady(client, nodeName(cl.Name)), api, node); err != nil {
		return err
	}
	if up {
		c.say("%s: is up already, kubeconfig %s", cl.Name, c.dir.Kubeconfig(cl.Name))
		return nil
	}
	c.say("%s: ready after %.1fs, kubeconfig %s", cl.Name, time.Since(begun).Seconds(), c.dir.Kubeconfig(cl.Name))
	return nil
}

// undo stops the components that this command started, after a failure.
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
	err := errors.Join(c.end(ctx, apiServerGrace, servers), c.end(ctx, etcdGrace, etcd))
	if c.foreground {
		err = errors.Join(err, c.dir.SetOwner(process.ID{}))
	}
	return err
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

// find returns the components that run.
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
