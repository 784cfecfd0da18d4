package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/clusters"
	"gitopsd.dev/sources/errgroup"
)

// inClusterCA is the authority of the cluster that the process runs in. Its token
// is read again by client-go.
const inClusterCA = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"

// hub is the cluster where Secrets are that the fleet is reached with. It is safe
// for concurrent use.
type hub struct {
	// kubeconfig is a file, empty for the cluster that the process runs in.
	kubeconfig, namespace string

	mu      sync.Mutex
	cluster *kube.Client
	made    sources.Digest // of what cluster was made from

	// needed is closed when a kubeconfig was read from a Secret.
	needed  chan struct{}
	needing sync.Once
	// versions are those of the Secrets that carry manifest.ClusterLabel, by name, while
	// they are followed; else nil. read are those that were read last.
	versions, read map[string]string
}

func newHub(kubeconfig, namespace string) *hub {
	return &hub{kubeconfig: kubeconfig, namespace: namespace, needed: make(chan struct{}), read: make(map[string]string)}
}

// oldHub is how long requests under way may go on when the hub's kubeconfig was
// replaced.
const oldHub = time.Minute

// open returns the client of the hub, made anew if its kubeconfig was replaced.
func (h *hub) open() (*kube.Client, error) {
	cfg := kube.Config{Name: "the hub", UserAgent: "gitopsd/" + version()}
	file := h.kubeconfig
	if file == "" {
		cfg.InCluster = true
		file = inClusterCA
	}
	text, err := os.ReadFile(file)
	switch {
	case cfg.InCluster && errors.Is(err, os.ErrNotExist): // kube.New says what is missing
	case err != nil:
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	case !cfg.InCluster:
		cfg.Kubeconfig, cfg.Trusted = text, true // the operator's own
	}
	made := sources.DigestOf(text)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cluster != nil && h.made == made {
		return h.cluster, nil
	}
	cluster, err := kube.New(cfg)
	if err != nil {
		return nil, err
	}
	if old := h.cluster; old != nil {
		time.AfterFunc(oldHub, old.Close)
	}
	h.cluster, h.made = cluster, made
	return cluster, nil
}

// close lets go of connections.
func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cluster != nil {
		h.cluster.Close()
		h.cluster = nil
	}
}

// secret reads a Secret in the hub's namespace.
func (h *hub) secret(ctx context.Context, name string) (hubSecret, error) {
	cluster, err := h.open()
	if err != nil {
		return hubSecret{}, fmt.Errorf("no hub to read Secrets from: %w", err)
	}
	typ, err := cluster.Type(ctx, "v1", manifest.Secret.Kind)
	if err != nil {
		return hubSecret{}, err
	}
	tree, meta, err := cluster.Get(ctx, typ, manifest.Secret.ID(h.namespace, name))
	if err != nil {
		return hubSecret{}, err
	}
	h.mu.Lock()
	h.read[name] = meta.ResourceVersion
	h.mu.Unlock()
	s := hubSecret{at: time.Now(), labels: meta.Labels}
	s.typ, _ = tree["type"].(string)
	s.data, _ = tree["data"].(map[string]any)
	return s, nil
}

// version names the content of a kubeconfig Secret, as far as it is known.
func (h *hub) version(name string) (version string, known bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.versions != nil {
		return h.versions[name], true
	}
	version, known = h.read[name]
	return version, known
}

// followAgain is how long follow pauses after a failure, or after a watch that ended
// sooner than that, as behind proxies that cut connections; followRefused when the hub
// does not let it watch.
const (
	followAgain   = 10 * time.Second
	followRefused = 10 * time.Minute
)

// follow keeps the versions of kubeconfig Secrets, from when one is needed until
// ctx ends, so that a replaced one is taken up before the old one fails.
func (h *hub) follow(ctx context.Context, log *slog.Logger) {
	select {
	case <-h.needed:
	case <-ctx.Done():
		return
	}
	told := false
	for ctx.Err() == nil {
		began := time.Now()
		err := h.watch(ctx)
		h.mu.Lock()
		h.versions = nil
		h.mu.Unlock()
		if kube.ClassOf(err) == kube.Forbidden && !told {
			told = true
			log.Warn("kubeconfig Secrets in the hub cannot be followed, so that a replaced one is read when the old one fails; allow the verbs list and watch", "namespace", h.namespace, "error", err)
		}
		select {
		case <-time.After(followPause(err, time.Since(began))):
		case <-ctx.Done():
		}
	}
}

// followPause is how long follow pauses after a watch.
func followPause(err error, lasted time.Duration) time.Duration {
	switch {
	case kube.ClassOf(err) == kube.Forbidden:
		return followRefused
	case err != nil || lasted < followAgain:
		return followAgain
	}
	return 0
}

// watch lists the Secrets and follows them until the API server ends that.
func (h *hub) watch(ctx context.Context) (err error) {
	defer recovered(&err)
	cluster, err := h.open()
	if err != nil {
		return err
	}
	typ, err := cluster.Type(ctx, "v1", manifest.Secret.Kind)
	if err != nil {
		return err
	}
	versions := make(map[string]string)
	opts := kube.ListOptions{Namespace: h.namespace, Selector: manifest.ClusterLabel, Again: func() { clear(versions) }}
	at, err := cluster.List(ctx, typ, opts, func(meta *metav1.PartialObjectMetadata) bool {
		versions[meta.Name] = meta.ResourceVersion
		return true
	})
	if err != nil {
		return err
	}
	h.mu.Lock()
	h.versions = versions
	h.mu.Unlock()
	return cluster.Watch(ctx, typ, h.namespace, manifest.ClusterLabel, at, func(e kube.Event) {
		h.mu.Lock()
		defer h.mu.Unlock()
		switch {
		case e.Progress:
		case e.Deleted:
			delete(versions, e.Meta.Name)
		default:
			versions[e.Meta.Name] = e.Meta.ResourceVersion
		}
	})
}

// recovered makes an error of a panic in a goroutine that nobody else can recover.
func recovered(err *error) {
	if v := recover(); v != nil {
		*err = errgroup.Recovered(v)
	}
}

// credentials names those that connect would use for a cluster, if that is known
// without a request.
func (c *connector) credentials(cl clusters.Cluster) (name string, known bool) {
	k := cl.Spec.Kubeconfig
	switch {
	case k.InCluster:
		text, err := os.ReadFile(inClusterCA)
		return string(sources.DigestOf(text)), err == nil
	case k.File != "":
		text, err := c.file(k.File)
		return string(sources.DigestOf(text)), err == nil
	}
	return c.hub.version(k.SecretRef.Name)
}
