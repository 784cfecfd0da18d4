package controlplane

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"gitopsd.dev/cmd/devcluster/internal/component"
	"gitopsd.dev/cmd/devcluster/internal/kubelet"
	"gitopsd.dev/cmd/devcluster/internal/process"
	"gitopsd.dev/cmd/devcluster/internal/statedir"
)

// of names a cluster's component in log and run files.
func of(cluster, component string) string { return cluster + "." + component }

// componentsOf returns the components that a cluster may have.
func componentsOf(cluster string) []string {
	return []string{
		of(cluster, component.NameAPIServer),
		of(cluster, component.NameControllerManager),
		of(cluster, component.NameKubelet),
	}
}

// serversOf returns the components that all clusters together may have.
func serversOf(state *statedir.State) (names []string) {
	for _, cluster := range state.Names() {
		names = append(names, componentsOf(cluster)...)
	}
	return names
}

// nodeName is the name of a cluster's only node.
func nodeName(cluster string) string { return cluster + "-node" }

// running is a component that runs: started by this command, or found.
type running struct {
	name string
	id   process.ID
	// done is closed at its end. It is nil if the component was found: only the parent
	// of a process can wait for it.
	done <-chan struct{}
	// logged is the size of its log before its start, 0 if it was found.
	logged int64
}

// ended reports whether the component has ended.
func (r running) ended() bool {
	if r.found() {
		return !r.id.Alive()
	}
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// found reports whether it ran before this command.
func (r running) found() bool { return r.done == nil }

// how says in words whether the component was found.
func (r running) how() string {
	if r.found() {
		return "is up already"
	}
	return "started"
}

// ensure starts a component unless it runs already. ports are the ports that it will
// listen on; they must be reserved by this command or free.
func (c *command) ensure(ctx context.Context, name string, args []string, ports ...int) (running, error) {
	id, err := c.dir.Running(name)
	if err != nil {
		return running{}, err
	}
	if id != (process.ID{}) {
		return running{name: name, id: id}, nil
	}
	ports = slices.DeleteFunc(ports, func(port int) bool { return c.reserved[port] })
	if err := portsFree(ctx, ports); err != nil {
		return running{}, fmt.Errorf("%s: %w, or take `devcluster down` and `up` for other ports", name, err)
	}
	logged, err := c.dir.LogSize(name)
	if err != nil {
		return running{}, err
	}
	p, err := process.Start(process.Config{
		Args:  append([]string{Subcommand}, args...),
		Dir:   string(c.dir),
		Log:   c.dir.Log(name),
		Env:   component.Environment(args[0]),
		Owner: c.owner,
	}, func(id process.ID) error { return c.dir.Record(name, id) })
	if err != nil {
		return running{}, fmt.Errorf("start %s: %w", name, err)
	}
	r := running{name: name, id: p.ID, done: p.Done(), logged: logged}
	c.mu.Lock()
	c.started = append(c.started, r)
	c.mu.Unlock()
	return r, nil
}

func (c *command) ensureEtcd(ctx context.Context, e statedir.Etcd) (running, error) {
	return c.ensure(ctx, component.NameEtcd, component.Etcd(component.EtcdConfig{
		Dir:        c.dir.Path("etcd"),
		ClientPort: e.ClientPort,
		PeerPort:   e.PeerPort,
		HTTPPort:   e.HTTPPort,
	}), e.ClientPort, e.PeerPort, e.HTTPPort)
}

func (c *command) ensureAPIServer(ctx context.Context, cl statedir.Cluster, e statedir.Etcd) (running, error) {
	return c.ensure(ctx, of(cl.Name, component.NameAPIServer), component.APIServer(component.APIServerConfig{
		Port: cl.Port,
		Etcd: etcdClient(c.dir, cl, e),
		Dir:  c.dir.Path(cl.Name),

		StorageMigration: cl.StorageMigration,
	}), cl.Port)
}

// etcdClient returns the configuration with which a cluster's API server reaches its
// etcd. Each cluster has a prefix of its own in the shared etcd, and Kubernetes' default
// prefix in others.
func etcdClient(dir statedir.Dir, cl statedir.Cluster, shared statedir.Etcd) component.EtcdClientConfig {
	if x := cl.Etcd; x != nil {
		return component.EtcdClientConfig{Servers: x.Servers, Prefix: "/registry", CAFile: x.CAFile, CertFile: x.CertFile, KeyFile: x.KeyFile}
	}
	return component.EtcdClientConfig{
		Servers:  []string{fmt.Sprintf("https://127.0.0.1:%d", shared.ClientPort)},
		Prefix:   "/" + cl.Name,
		CAFile:   dir.Path("etcd", "ca.crt"),
		CertFile: dir.Path("etcd", "client.crt"),
		KeyFile:  dir.Path("etcd", "client.key"),
	}
}

func (c *command) ensureControllerManager(ctx context.Context, cl statedir.Cluster) (running, error) {
	return c.ensure(ctx, of(cl.Name, component.NameControllerManager), component.ControllerManager(component.ControllersConfig{
		Dir:              c.dir.Path(cl.Name),
		StorageMigration: cl.StorageMigration,
	}))
}

func (c *command) ensureKubelet(ctx context.Context, cl statedir.Cluster) (running, error) {
	return c.ensure(ctx, of(cl.Name, component.NameKubelet), component.Kubelet(kubelet.Config{
		Kubeconfig: c.dir.Path(cl.Name, "kubelet.kubeconfig"),
		NodeName:   nodeName(cl.Name),
		Images:     c.dir.Path(cl.Name, imagesFile),
		Dir:        c.dir.Path(cl.Name),
		Logs:       c.dir.PodLogs(cl.Name),
		Egress:     egressSocket(cl.Name),
	}))
}

// egressSocket returns the path of a cluster's egress proxy. It is relative to the
// directory, in which all components run, since a Unix socket's path has at most 107
// bytes.
func egressSocket(cluster string) string { return filepath.Join(cluster, "egress.sock") }
