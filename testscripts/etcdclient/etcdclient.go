// Package etcdclient is a program that reads and writes the keys of an etcd namespace, as
// an API server would: by the Service of its proxy, with the certificate in a Secret.
//
//	etcdclient NAMESPACE/NAME SECRET put KEY VALUE
//	etcdclient NAMESPACE/NAME SECRET get PREFIX
//	etcdclient NAMESPACE/NAME SECRET serial [FILE]
//
// NAME is the EtcdNamespace's, and SECRET a Secret beside it, in the cluster of
// $KUBECONFIG. get prints each key with its value in a line. serial prints the serial
// number of the certificate, and fails if FILE has the same.
package etcdclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// timeout bounds one run.
const timeout = 10 * time.Second

var errUsage = errors.New("usage: etcdclient NAMESPACE/NAME SECRET (put KEY VALUE | get PREFIX | serial [FILE])")

// Main runs the program with the arguments of this process, and exits.
func Main() {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	err := run(ctx, os.Args[1:], os.Stdout)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "etcdclient:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	if len(args) < 3 {
		return errUsage
	}
	namespace, name, _ := strings.Cut(args[0], "/")
	cluster, config, err := identity(ctx, namespace, args[1])
	if err != nil {
		return err
	}
	if args[2] == "serial" {
		return serial(config.Certificates[0].Leaf, args[3:], stdout)
	}
	c, err := connect(ctx, cluster, config, namespace, name+"-etcd")
	if err != nil {
		return err
	}
	defer c.Close()
	switch do, rest := args[2], args[3:]; {
	case do == "put" && len(rest) == 2:
		_, err := c.Put(ctx, rest[0], rest[1])
		return err
	case do == "get" && len(rest) == 1:
		all, err := c.Get(ctx, rest[0], clientv3.WithPrefix())
		if err != nil {
			return err
		}
		for _, kv := range all.Kvs {
			fmt.Fprintf(stdout, "%s %s\n", kv.Key, kv.Value)
		}
		return nil
	}
	return errUsage
}

// serial prints the serial number of a certificate, and compares it with a file's.
func serial(cert *x509.Certificate, files []string, stdout io.Writer) error {
	text := cert.SerialNumber.String() + "\n"
	if len(files) > 0 {
		before, err := os.ReadFile(files[0])
		if err != nil {
			return err
		}
		if string(before) == text {
			return errors.New("it is still the same certificate")
		}
	}
	_, err := io.WriteString(stdout, text)
	return err
}

// identity returns a client of the cluster, and how to use the certificate in a Secret.
func identity(ctx context.Context, namespace, secret string) (kubernetes.Interface, *tls.Config, error) {
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	if err != nil {
		return nil, nil, err
	}
	cluster, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, nil, err
	}
	s, err := cluster.CoreV1().Secrets(namespace).Get(ctx, secret, metav1.GetOptions{})
	if err != nil {
		return nil, nil, err
	}
	pair, err := tls.X509KeyPair(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return nil, nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(s.Data[corev1.ServiceAccountRootCAKey])
	return cluster, &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots}, nil
}

// connect connects to a pod behind a Service.
func connect(ctx context.Context, cluster kubernetes.Interface, config *tls.Config, namespace, service string) (*clientv3.Client, error) {
	config.ServerName = service + "." + namespace + ".svc"
	slices, err := cluster.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service})
	if err != nil {
		return nil, err
	}
	for _, slice := range slices.Items {
		for _, e := range slice.Endpoints {
			if e.Conditions.Ready == nil || !*e.Conditions.Ready || len(slice.Ports) == 0 {
				continue
			}
			return clientv3.New(clientv3.Config{
				Endpoints: []string{"https://" + net.JoinHostPort(e.Addresses[0], fmt.Sprint(*slice.Ports[0].Port))},
				TLS:       config, Logger: zap.NewNop(),
			})
		}
	}
	return nil, fmt.Errorf("Service %s has no endpoint that is ready", service)
}
