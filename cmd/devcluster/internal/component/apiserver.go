package component

import (
	"fmt"
	"path/filepath"
	"strings"
)

// APIServerConfig configures a kube-apiserver.
type APIServerConfig struct {
	// Port is served on 127.0.0.1, with SO_REUSEPORT.
	Port int
	Etcd EtcdClientConfig
	// Dir has the server's certificate, the CA of its users, the certificates for
	// aggregated API servers, the key that signs tokens, and the file
	// [EgressSelectorFile].
	Dir string
	// StorageMigration enables the API storagemigration.k8s.io.
	StorageMigration bool
}

// EtcdClientConfig configures an API server's client of etcd.
type EtcdClientConfig struct {
	// Servers are URLs. Prefix, such as "/hub", begins the API server's keys.
	Servers []string
	Prefix  string
	// CAFile, CertFile and KeyFile are the CA of the servers and the certificate of
	// the client. They are empty without TLS.
	CAFile, CertFile, KeyFile string
}

const (
	// ServiceCIDR is the range of Services' cluster IPs. The egress proxy connects the
	// API server from there to processes.
	ServiceCIDR = "10.96.0.0/16"
	// ServiceIP is the cluster IP of the kubernetes Service.
	ServiceIP = "10.96.0.1"
)

// APIServer returns the arguments for a kube-apiserver with the default admission
// plugins and RBAC.
func APIServer(c APIServerConfig) []string {
	return []string{
		NameAPIServer,
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", c.Port),
		"--permit-port-sharing",
		"--tls-cert-file=" + filepath.Join(c.Dir, "apiserver.crt"),
		"--tls-private-key-file=" + filepath.Join(c.Dir, "apiserver.key"),
		"--client-ca-file=" + filepath.Join(c.Dir, "ca.crt"),
		"--requestheader-client-ca-file=" + filepath.Join(c.Dir, "front-proxy-ca.crt"),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + filepath.Join(c.Dir, "front-proxy-client.crt"),
		"--proxy-client-key-file=" + filepath.Join(c.Dir, "front-proxy-client.key"),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-signing-key-file=" + filepath.Join(c.Dir, "sa.key"),
		"--service-account-key-file=" + filepath.Join(c.Dir, "sa.key"),
		"--service-cluster-ip-range=" + ServiceCIDR,
		"--authorization-mode=RBAC",
		"--allow-privileged",
		// An Endpoints object cannot hold a loopback address.
		"--endpoint-reconciler-type=none",
		"--egress-selector-config-file=" + filepath.Join(c.Dir, EgressSelectorFile),
		"--profiling=false",
		"--etcd-servers=" + strings.Join(c.Etcd.Servers, ","),
		"--etcd-prefix=" + c.Etcd.Prefix,
		"--etcd-cafile=" + c.Etcd.CAFile,
		"--etcd-certfile=" + c.Etcd.CertFile,
		"--etcd-keyfile=" + c.Etcd.KeyFile,
		// Kubernetes' own migration of stored objects is on by default from 1.37.
		fmt.Sprintf("--feature-gates=StorageVersionMigrator=%t", c.StorageMigration),
		fmt.Sprintf("--runtime-config=storagemigration.k8s.io/v1=%t", c.StorageMigration),
	}
}

// EgressSelectorFile is the name of the file with an [EgressSelector].
const EgressSelectorFile = "egress.yaml"

// EgressSelector returns a configuration with which an API server connects to Services,
// pods and nodes through a Unix socket. Webhooks and aggregated APIs by URL are reached
// without it.
func EgressSelector(socket string) []byte {
	return fmt.Appendf(nil, `apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection:
    proxyProtocol: HTTPConnect
    transport:
      uds:
        udsName: %q
`, socket)
}
