package component

import (
	"encoding/json"

	"gitopsd.dev/cmd/devcluster/internal/kubelet"
)

// EtcdConfig configures an etcd with one member and throw-away data.
type EtcdConfig struct {
	// Dir has the server's certificate ("server.crt", "server.key") and the CA of its
	// clients ("ca.crt"). Etcd creates "data" in it.
	Dir string
	// Ports on 127.0.0.1: ClientPort serves gRPC, HTTPPort /health, and PeerPort
	// is required by etcd and unused. SO_REUSEPORT is set on all.
	ClientPort, PeerPort, HTTPPort int
}

// Etcd returns the arguments for an etcd: its name, and the configuration as JSON.
func Etcd(c EtcdConfig) []string { return withJSON(NameEtcd, c) }

// ControllersConfig configures Kubernetes' controllers.
type ControllersConfig struct {
	// Dir has the kubeconfig of a member of system:masters
	// ("controller-manager.kubeconfig"), the CA with which pods verify the API server
	// ("ca.crt"), and the key that signs tokens ("sa.key").
	Dir string
	// StorageMigration makes them migrate stored objects, which takes minutes for a
	// definition. The API server must have the API for that.
	StorageMigration bool
}

// ControllerManager returns the arguments for Kubernetes' controllers: the component's
// name, and the configuration as JSON.
func ControllerManager(c ControllersConfig) []string { return withJSON(NameControllerManager, c) }

// Kubelet returns the arguments for the kubelet stand-in: its name, and the
// configuration as JSON.
func Kubelet(c kubelet.Config) []string { return withJSON(NameKubelet, c) }

func withJSON(name string, config any) []string {
	text, err := json.Marshal(config)
	if err != nil {
		panic(err) // strings, numbers and booleans
	}
	return []string{name, string(text)}
}
