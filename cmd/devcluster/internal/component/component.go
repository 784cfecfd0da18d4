// Package component configures the processes of a control plane: etcd, kube-apiserver,
// the controllers of kube-controller-manager, and the kubelet stand-in.
//
// [Etcd], [APIServer], [ControllerManager] and [Kubelet] turn a configuration
// into arguments. Package servers runs a process with them. Package controlplane
// decides which processes run, and in which order.
package component

import "os"

// Names of the components: the first argument of servers.Run and the end of the
// names of log files.
const (
	NameEtcd              = "etcd"
	NameAPIServer         = "kube-apiserver"
	NameControllerManager = "kube-controller-manager"
	NameKubelet           = "kubelet"
)

// Environment returns additions to a component's environment.
//
// In tests, CPU is scarcer than memory: while an API server accepts 100 large CRDs,
// GOGC=200 saves a fifth of its CPU time for a third more memory (measured with
// Kubernetes 1.36). The user's own GOGC has precedence.
func Environment(name string) []string {
	if _, set := os.LookupEnv("GOGC"); set || name != NameAPIServer {
		return nil
	}
	return []string{"GOGC=200"}
}
