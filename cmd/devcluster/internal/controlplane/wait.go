package controlplane

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"gitopsd.dev/cmd/devcluster/internal/statedir"
)

const (
	// patience is how long one step may take. A busy machine takes many times as long
	// as an idle one.
	patience = 3 * time.Minute
	// tailLines is how many lines of a failed component's log an error has.
	tailLines = 15
)

// errGone means that a component was found running and has ended since: it had been
// killed, and took a moment to end.
var errGone = errors.New("a component that was running has just ended")

// untilStable repeats do, which starts missing components, while it returns errGone.
// This ends, since no process is found again after its end.
func untilStable(do func() error) error {
	for {
		if err := do(); !errors.Is(err, errGone) {
			return err
		}
	}
}

// await calls check until it returns nil. After a second it says what it waits for. It
// gives up when a component that it depends on ends, and after patience.
func (c *command) await(ctx context.Context, what string, check func(context.Context) error, on ...running) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	const every = 40 * time.Millisecond
	tell := time.Now().Add(time.Second)
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		for _, r := range on {
			switch {
			case r.ended() && r.found():
				return errGone
			case r.ended():
				return c.failed(r, fmt.Errorf("it ended while devcluster waited for %s", what))
			}
		}
		if time.Now().After(tell) {
			c.say("waiting for %s: %v", what, err)
			tell = time.Now().Add(5 * time.Second)
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return c.failed(on[len(on)-1], fmt.Errorf("%s: not in %s: %w", what, patience, err))
			}
			return context.Cause(ctx)
		case <-time.After(every):
		}
	}
}

// failed returns the error of a component with the end of its log since its start. The
// log of a component that was found may have the output of earlier processes.
func (c *command) failed(r running, err error) error {
	tail := c.dir.LogTail(r.name, r.logged, tailLines)
	if tail == "" {
		return fmt.Errorf("%s: %w; it has written nothing to %s", r.name, err, c.dir.Log(r.name))
	}
	return fmt.Errorf("%s: %w\nthe end of %s:\n%s", r.name, err, c.dir.Log(r.name), indent(tail))
}

// indent indents lines under an error and shortens them: etcd's client writes very long
// ones.
func indent(text string) string {
	const width = 240
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if len(line) > width {
			line = strings.ToValidUTF8(line[:width], "") + "…"
		}
		lines[i] = "    " + line
	}
	return strings.Join(lines, "\n")
}

// etcdReady returns a check of etcd's health.
func (c *command) etcdReady(e statedir.Etcd) (check func(context.Context) error, err error) {
	cert, err := tls.LoadX509KeyPair(c.dir.Path("etcd", "client.crt"), c.dir.Path("etcd", "client.key"))
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(c.dir.Path("etcd", "ca.crt"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	client := http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert}},
		DisableKeepAlives: true,
	}}
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d/health", e.HTTPPort), nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("etcd's /health: %s", resp.Status)
		}
		return nil
	}, nil
}

// adminClient returns a client of the cluster with all rights.
func (c *command) adminClient(cl statedir.Cluster) (kubernetes.Interface, error) {
	rest, err := clientcmd.BuildConfigFromFlags("", c.dir.Path(cl.Name, "admin.kubeconfig"))
	if err != nil {
		return nil, err
	}
	rest.QPS = -1
	return kubernetes.NewForConfig(rest)
}

func apiServerReady(client kubernetes.Interface) func(context.Context) error {
	return func(ctx context.Context) error {
		report, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Raw()
		if pending := pendingChecks(report); err != nil && len(pending) > 0 {
			return fmt.Errorf("%d checks to go, among them %s", len(pending), pending[0])
		}
		return err
	}
}

// pendingChecks returns the failed checks in a response of /readyz, which has lines such
// as "[+]ping ok" and "[-]etcd-readiness failed: reason withheld".
func pendingChecks(report []byte) (names []string) {
	for line := range strings.Lines(string(report)) {
		if rest, ok := strings.CutPrefix(line, "[-]"); ok {
			name, _, _ := strings.Cut(rest, " ")
			names = append(names, name)
		}
	}
	return names
}

// egressReady checks that the kubelet stand-in listens. From then on it also handles
// signals.
func (c *command) egressReady(cl statedir.Cluster) func(context.Context) error {
	return func(ctx context.Context) error {
		// The path from the directory is short enough for a Unix socket.
		dir, err := os.Open(string(c.dir))
		if err != nil {
			return err
		}
		defer dir.Close()
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), egressSocket(cl.Name)))
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

func namespaceReady(client kubernetes.Interface) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceDefault, metav1.GetOptions{})
		return err
	}
}

// serviceAccountReady checks for the service account of pods in the default namespace.
func serviceAccountReady(client kubernetes.Interface) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		return err
	}
}

func nodeReady(client kubernetes.Interface, name string) func(context.Context) error {
	return func(ctx context.Context) error {
		node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, cond := range node.Status.Conditions {
			if cond.Type == corev1.NodeReady && cond.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("node %s is not ready", name)
	}
}
