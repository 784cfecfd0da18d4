// Package etcdclient is a program that reads and writes the keys of an etcd namespace, as
// an API server would, with the certificate in a Secret.
//
//	etcdclient mount NAMESPACE/SECRET DIR
//	etcdclient LOG NAMESPACE/SECRET put KEY VALUE
//	etcdclient LOG NAMESPACE/SECRET get PREFIX
//	etcdclient LOG NAMESPACE/SECRET served [FILE]
//	etcdclient serial NAMESPACE/SECRET [FILE]
//	etcdclient admin DIR PREFIX
//
// Secrets are in the cluster of $KUBECONFIG. mount writes the Secret of a proxy into a
// directory, and replaces what is there, as a kubelet does. LOG is the log of a
// `gitopsd etcd-proxy` that runs with such a directory: it says where that listens, and for
// which namespace. Its client believes it to be the namespace's Service. LOG may also be
// that of a daemon with --etcd-proxy-listen, which is reached by its address. get prints each
// key with its value in a line. served prints the serial number of the proxy's certificate,
// and serial that of a client's; both fail if FILE has the same. admin is get for
// everything in the etcd of `gitopsd run --etcd-embedded DIR`, as its root user.
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
	"path/filepath"
	"regexp"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
)

// timeout bounds one run.
const timeout = 20 * time.Second

var errUsage = errors.New("usage: etcdclient (mount NAMESPACE/SECRET DIR | LOG NAMESPACE/SECRET (put KEY VALUE | get PREFIX | served [FILE]) | serial NAMESPACE/SECRET [FILE] | admin DIR PREFIX)")

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
	if len(args) < 2 {
		return errUsage
	}
	switch do, rest := args[0], args[1:]; {
	case do == "mount" && len(rest) == 2:
		data, err := secret(ctx, rest[0])
		if err != nil {
			return err
		}
		return mount(data, rest[1])
	case do == "serial":
		config, err := identity(ctx, rest[0])
		if err != nil {
			return err
		}
		return serial(config.Certificates[0].Leaf, rest[1:], stdout)
	case do == "admin" && len(rest) == 2:
		return admin(ctx, rest[0], rest[1], stdout)
	case len(rest) < 2:
		return errUsage
	}
	proxy, err := find(args[0])
	if err != nil {
		return err
	}
	config, err := identity(ctx, args[1])
	if err != nil {
		return err
	}
	return proxy.do(ctx, config, args[2], args[3:], stdout)
}

// proxy is a process that serves a namespace.
type proxy struct{ service, address string }

var serving = regexp.MustCompile(`msg="serving an etcd namespace" namespace=[^/ ]+/([^/ ]+)/([^/ ]+) address=(\S+)`)

var servingAll = regexp.MustCompile(`msg="serving etcd namespaces" address=(\S+)`)

// find reads where a proxy listens in its log.
func find(log string) (proxy, error) {
	text, err := os.ReadFile(log)
	if err != nil {
		return proxy{}, err
	}
	if m := servingAll.FindSubmatch(text); m != nil {
		host, _, err := net.SplitHostPort(string(m[1]))
		return proxy{service: host, address: string(m[1])}, err
	}
	m := serving.FindSubmatch(text)
	if m == nil {
		return proxy{}, fmt.Errorf("%s does not say yet where it serves", log)
	}
	return proxy{service: fmt.Sprintf("%s-etcd.%s.svc", m[2], m[1]), address: string(m[3])}, nil
}

func (p proxy) do(ctx context.Context, config *tls.Config, do string, rest []string, stdout io.Writer) error {
	if do == "served" {
		return p.served(ctx, config, rest, stdout)
	}
	// A connection that is refused is not tried again until the time is up.
	c, err := clientv3.New(clientv3.Config{
		Endpoints: []string{"https://" + net.JoinHostPort(p.service, "2379")}, TLS: config, Logger: zap.NewNop(), MaxUnaryRetries: 1,
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(impatient), grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", p.address)
		})},
	})
	if err != nil {
		return err
	}
	defer c.Close()
	switch {
	case do == "put" && len(rest) == 2:
		_, err := c.Put(ctx, rest[0], rest[1])
		return err
	case do == "get" && len(rest) == 1:
		return get(ctx, c, rest[0], stdout)
	}
	return errUsage
}

// impatient has a request fail that has no connection.
func impatient(ctx context.Context, method string, request, response any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	return invoke(ctx, method, request, response, conn, append(options[:len(options):len(options)], grpc.WaitForReady(false))...)
}

// get prints the keys with a prefix.
func get(ctx context.Context, c *clientv3.Client, prefix string, stdout io.Writer) error {
	all, err := c.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return err
	}
	for _, kv := range all.Kvs {
		if _, err := fmt.Fprintf(stdout, "%s %s\n", kv.Key, kv.Value); err != nil {
			return err
		}
	}
	return nil
}

// served prints the serial number of the certificate that a client gets to see.
func (p proxy) served(ctx context.Context, config *tls.Config, files []string, stdout io.Writer) error {
	config.ServerName, config.NextProtos = p.service, []string{"h2"}
	conn, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", p.address)
	if err != nil {
		return err
	}
	defer conn.Close()
	return serial(conn.(*tls.Conn).ConnectionState().PeerCertificates[0], files, stdout)
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

// secret returns what is in a Secret.
func secret(ctx context.Context, id string) (map[string][]byte, error) {
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	if err != nil {
		return nil, err
	}
	cluster, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	namespace, name, _ := strings.Cut(id, "/")
	got, err := cluster.Resource(corev1.SchemeGroupVersion.WithResource("secrets")).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	var s corev1.Secret
	err = runtime.DefaultUnstructuredConverter.FromUnstructured(got.Object, &s)
	return s.Data, err
}

// identity returns how to use the certificate in a Secret.
func identity(ctx context.Context, id string) (*tls.Config, error) {
	data, err := secret(ctx, id)
	if err != nil {
		return nil, err
	}
	return config(data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey], data[corev1.ServiceAccountRootCAKey])
}

func config(cert, key, ca []byte) (*tls.Config, error) {
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots}, nil
}

// files are the keys of a proxy's Secret, and the files that its pod finds them in.
var files = map[string]string{
	"namespace.json": "namespace.json", "endpoints": "endpoints", "client-ca.crt": "client-ca.crt",
	"upstream.crt": "upstream/tls.crt", "upstream.key": "upstream/tls.key", "upstream-ca.crt": "upstream/ca.crt",
	"server.crt": "server/tls.crt", "server.key": "server/tls.key",
}

// mount writes the Secret of a proxy into a directory. All files change at once, by the
// link ..data.
func mount(data map[string][]byte, dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	now, err := os.MkdirTemp(dir, "..")
	if err != nil {
		return err
	}
	for key, path := range files {
		text, ok := data[key]
		if !ok {
			return fmt.Errorf("the Secret has no %s", key)
		}
		name := filepath.Join(now, filepath.FromSlash(path))
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(name, text, 0o600); err != nil {
			return err
		}
	}
	link := now + ".link"
	if err := os.Symlink(filepath.Base(now), link); err != nil {
		return err
	}
	return os.Rename(link, filepath.Join(dir, "..data"))
}

// admin prints the keys with a prefix, wherever they are in the etcd of a directory.
func admin(ctx context.Context, dir, prefix string, stdout io.Writer) error {
	var files [4][]byte
	for i, name := range []string{"root.crt", "root.key", "ca.crt", "endpoint"} {
		var err error
		if files[i], err = os.ReadFile(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	config, err := config(files[0], files[1], files[2])
	if err != nil {
		return err
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{strings.TrimSpace(string(files[3]))}, TLS: config, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer c.Close()
	return get(ctx, c, prefix, stdout)
}
