package component

import (
	"encoding/json"

	"gitopsd.dev/cmd/devcluster/internal/kubelet"
)

// EtcdConfig configures an etcd of one member whose data is throw-away.
type EtcdConfig struct {
	// Dir has the certificates of server and clients ("ca.crt", "server.crt",
	// "server.key"): a client needs a certificate of that CA. "data" in it is created.
	Dir string
	// Ports on 127.0.0.1: ClientPort serves gRPC, HTTPPort /health, PeerPort
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
