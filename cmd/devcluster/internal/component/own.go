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

// Kubelet returns the arguments for the kubelet stand-in: its name, and the
// configuration as JSON.
func Kubelet(c kubelet.Config) []string { return withJSON(NameKubelet, c) }

func withJSON(name string, config any) []string {
	text, err := json.Marshal(config)
	if err != nil {
		panic(err) // strings and numbers
	}
	return []string{name, string(text)}
}
