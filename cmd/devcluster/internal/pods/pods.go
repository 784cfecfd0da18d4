// Package pods runs containers as processes of this machine, if their images are mapped
// to commands ([Images]). It has the role of the container runtime and of a kubelet's
// volume and probe managers.
//
// [Runtime] has a life (life.go) for each pod, which writes the pod's volumes (files.go),
// runs and restarts its containers (container.go, process.go), and probes them (probe.go).
// references.go watches the Secrets and ConfigMaps of pods. Package podspec computes the
// environment, arguments and files of containers, and package kubelet writes the pod's
// status.
//
// The processes share the machine's network and files. Each pod has a loopback address
// of its own (addresses.go), on which its processes must listen: it is in the environment
// as POD_IP. There are no mounts; paths below mount paths are rewritten in arguments and
// environment. Init containers do not run, nor do liveness and startup probes. Exec and
// grpc readiness probes count as passed. Limits, security contexts and host ports have no
// effect.
package pods

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"gitopsd.dev/cmd/devcluster/internal/podspec"
	"gitopsd.dev/cmd/devcluster/internal/process"
)

// Config configures a [Runtime].
type Config struct {
	// Client reads Secrets and ConfigMaps, and makes tokens of service accounts.
	Client kubernetes.Interface
	// API has the API server's address and authority, for the pods.
	API *rest.Config
	// Dir is the directory of volumes. [New] empties "pods" in it.
	Dir string
	// Logs is the directory of logs, NAMESPACE/POD/CONTAINER.log.
	Logs string
	// HostIP is the node's address.
	HostIP string
	// Changed is called when the state of a pod's containers may have changed, and
	// when a pod has ended. It must not block.
	Changed func(namespace, name string)
}

// Container is the state of a container, as in a pod's status.
type Container struct {
	State, Last  corev1.ContainerState
	RestartCount int32
	Ready        bool
}

// Runtime runs pods. It is safe for concurrent use.
type Runtime struct {
	cfg        Config
	spawner    *spawner
	references *references

	mu        sync.Mutex
	closed    bool
	addresses addresses
	lives     map[types.NamespacedName]*life
}

// New returns a runtime without pods.
func New(cfg Config) (*Runtime, error) {
	// The kernel killed the processes of an earlier runtime, but not their children.
	if err := End(cfg.Dir); err != nil {
		return nil, err
	}
	if err := os.RemoveAll(podsIn(cfg.Dir)); err != nil {
		return nil, err
	}
	return &Runtime{
		cfg:        cfg,
		spawner:    newSpawner(),
		references: newReferences(cfg.Client),
		lives:      map[types.NamespacedName]*life{},
	}, nil
}

// Mark is an environment variable of all processes of containers. Its value is the pod's
// directory joined with the container's name.
const Mark = "DEVCLUSTER_CONTAINER"

func podsIn(dir string) string { return filepath.Join(dir, "pods") }

// End kills the children that the processes of a killed runtime have left. dir is the
// runtime's [Config.Dir].
func End(dir string) error { return process.KillMarked(Mark, podsIn(dir)) }

// Run makes sure that the containers with a command run, and returns the state of each by
// name. podIP is the pod's address in the cluster. The containers wait while processes of
// an earlier pod with the same name, or of earlier commands, end.
func (r *Runtime) Run(pod *corev1.Pod, podIP string, commands map[string][]string) (map[string]Container, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	l := r.lives[name]
	if l != nil && (l.pod.UID != pod.UID || !maps.EqualFunc(l.commands, commands, slices.Equal)) {
		l.end(replacedGrace)
	}
	if l != nil && !l.ending() {
		return l.states(), nil
	}
	if l != nil {
		return waiting(commands, "ContainerCreating", "the processes before are ending"), nil
	}
	if r.closed {
		return nil, fmt.Errorf("pod %s: devcluster is ending", name)
	}
	ip, err := netip.ParseAddr(podIP)
	if err != nil {
		return nil, fmt.Errorf("pod %s: its address: %w", name, err)
	}
	address, err := r.addresses.take()
	if err != nil {
		return nil, fmt.Errorf("pod %s: %w", name, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	l = r.newLife(pod.DeepCopy(), ip, address, commands, cancel)
	r.lives[name] = l
	r.references.follow(pod.UID, podspec.References(pod))
	go func() {
		l.run(ctx)
		cancel()
		r.references.unfollow(pod.UID)
		r.mu.Lock()
		r.addresses.release(address)
		delete(r.lives, name)
		r.mu.Unlock()
		close(l.done)
		r.cfg.Changed(name.Namespace, name.Name)
	}()
	return l.states(), nil
}

// replacedGrace is the grace period for processes that are replaced.
const replacedGrace = 2 * time.Second

// waiting returns a state for each container that waits.
func waiting(commands map[string][]string, reason, message string) map[string]Container {
	states := map[string]Container{}
	for name := range commands {
		states[name] = Container{State: waitingState(reason, message)}
	}
	return states
}

func waitingState(reason, message string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
}

// Stop asks the processes of a pod to end, and kills them after grace. It reports
// whether none is left. If some are, Changed is called when they have ended.
func (r *Runtime) Stop(namespace, name string, grace time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.lives[types.NamespacedName{Namespace: namespace, Name: name}]
	if l == nil {
		return true
	}
	l.end(grace)
	return false
}

// Address returns the address on this machine for a pod's address in the cluster, or an
// error that says why there is none.
func (r *Runtime) Address(podIP netip.Addr) (netip.Addr, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.lives {
		if l.ip == podIP {
			return l.address, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("connection refused: no process stands for a pod with address %s; `devcluster image` maps a pod's image to a command", podIP)
}

// Close ends all processes.
func (r *Runtime) Close() {
	const grace = 2 * time.Second
	r.mu.Lock()
	var left []*life
	for _, l := range r.lives {
		l.end(grace)
		left = append(left, l)
	}
	r.closed = true
	r.mu.Unlock()
	for _, l := range left {
		<-l.done
	}
	r.addresses.close()
	r.references.close()
}
