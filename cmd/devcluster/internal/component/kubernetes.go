package component

import (
	"fmt"
	"strings"
)

// APIServerConfig configures a kube-apiserver.
type APIServerConfig struct {
	// Port is served on 127.0.0.1, with SO_REUSEPORT.
	Port int
	// EtcdPort is etcd's gRPC port on 127.0.0.1; EtcdPrefix, such as "/hub",
	// is where this server's keys are.
	EtcdPort   int
	EtcdPrefix string
	// EtcdCAFile, EtcdCertFile and EtcdKeyFile are for the client of etcd.
	EtcdCAFile, EtcdCertFile, EtcdKeyFile string
	// CertFile and KeyFile are the server's.
	CertFile, KeyFile string
	// ClientCAFile signs the certificates of users.
	ClientCAFile string
	// FrontProxyCAFile, FrontProxyCertFile and FrontProxyKeyFile are for
	// requests that are passed on to aggregated API servers.
	FrontProxyCAFile, FrontProxyCertFile, FrontProxyKeyFile string
	// ServiceAccountKeyFile is the private key that signs tokens.
	ServiceAccountKeyFile string
}

const (
	// ServiceCIDR is the range of Services' cluster IPs; nothing listens there.
	ServiceCIDR = "10.96.0.0/16"
	// ServiceIP is the cluster IP of the kubernetes Service.
	ServiceIP = "10.96.0.1"
)

// APIServer returns the arguments of [Run] for a kube-apiserver with the
// default admission plugins and RBAC.
func APIServer(c APIServerConfig) []string {
	return []string{
		NameAPIServer,
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", c.Port),
		"--permit-port-sharing",
		fmt.Sprintf("--etcd-servers=https://127.0.0.1:%d", c.EtcdPort),
		"--etcd-prefix=" + c.EtcdPrefix,
		"--etcd-cafile=" + c.EtcdCAFile,
		"--etcd-certfile=" + c.EtcdCertFile,
		"--etcd-keyfile=" + c.EtcdKeyFile,
		"--tls-cert-file=" + c.CertFile,
		"--tls-private-key-file=" + c.KeyFile,
		"--client-ca-file=" + c.ClientCAFile,
		"--requestheader-client-ca-file=" + c.FrontProxyCAFile,
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + c.FrontProxyCertFile,
		"--proxy-client-key-file=" + c.FrontProxyKeyFile,
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-signing-key-file=" + c.ServiceAccountKeyFile,
		"--service-account-key-file=" + c.ServiceAccountKeyFile,
		"--service-cluster-ip-range=" + ServiceCIDR,
		"--authorization-mode=RBAC",
		"--allow-privileged",
		// An Endpoints object cannot hold a loopback address.
		"--endpoint-reconciler-type=none",
		"--profiling=false",
	}
}

// controllers are those that make a cluster without machines, disks and
// clouds behave. Fewer controllers mean fewer caches and a faster start.
var controllers = []string{
	"clusterrole-aggregation-controller",
	"cronjob-controller",
	"daemonset-controller",
	"deployment-controller",
	"disruption-controller",
	"endpoints-controller",
	"endpointslice-controller",
	"endpointslice-mirroring-controller",
	"garbage-collector-controller",
	"job-controller",
	"namespace-controller",
	"node-lifecycle-controller",
	"replicaset-controller",
	"resourcequota-controller",
	"root-ca-certificate-publisher-controller",
	"serviceaccount-controller",
	"serviceaccount-token-controller",
	"statefulset-controller",
	"ttl-after-finished-controller",
	"validatingadmissionpolicy-status-controller",
}

// ControllerManagerConfig configures a kube-controller-manager.
type ControllerManagerConfig struct {
	// Kubeconfig is for a member of system:masters.
	Kubeconfig string
	// RootCAFile is handed to pods for checking the API server.
	RootCAFile string
	// ServiceAccountKeyFile is the private key that signs tokens.
	ServiceAccountKeyFile string
}

// ControllerManager returns the arguments of [Run] for a
// kube-controller-manager that serves nothing.
func ControllerManager(c ControllerManagerConfig) []string {
	return []string{
		NameControllerManager,
		"--kubeconfig=" + c.Kubeconfig,
		"--secure-port=0",
		"--leader-elect=false",
		"--controllers=" + strings.Join(controllers, ","),
		"--root-ca-file=" + c.RootCAFile,
		"--service-account-private-key-file=" + c.ServiceAccountKeyFile,
		// The API server has priority and fairness; a limit here only delays.
		"--kube-api-qps=500",
		"--kube-api-burst=1000",
		"--profiling=false",
	}
}

// KubeletConfig configures the kubelet stand-in.
type KubeletConfig struct {
	// Kubeconfig is for a member of system:masters.
	Kubeconfig string
	// NodeName is the node to register.
	NodeName string
}

// Kubelet returns the arguments of [Run] for the kubelet stand-in.
func Kubelet(c KubeletConfig) []string {
	return []string{NameKubelet, "--kubeconfig=" + c.Kubeconfig, "--node-name=" + c.NodeName}
}
