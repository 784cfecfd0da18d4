// Package hub reads kubeconfigs of registered clusters, pull secrets and public keys from
// the daemon's own cluster, and decides who may use them.
//
// Authors of the fleet repository name Secrets and files in it, and must not reach
// anything else of the daemon's:
//   - Secrets are read in the daemon's own namespace only, and used only as their
//     labels allow, which are checked at each read. A kubeconfig ([Connector]) needs
//     gitopsd.dev/cluster with the cluster's name, on the Secret or its ClusterProfile
//     (profile.go). A Secret that packages name ([Secrets]) needs gitopsd.dev/pull-secret
//     or gitopsd.dev/verification-key with "true";
//   - files are read below the directories that the operator named, and no name or
//     link leads out of these;
//   - a cluster is registered as the daemon's own only if the operator allows it;
//   - no error and no log holds any of the content.
//
// follow.go watches the kubeconfig Secrets, so that a replaced one is used before the old
// one fails. registry.go keeps the last registry of clusters for the next process. Package kube restricts the content of a kubeconfig, and package oci decides
// which registry gets which credentials.
package hub

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// Where Kubernetes mounts the credentials of a pod. client-go reads the token again
// by itself.
const (
	podCA        = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
	podNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
)

// DefaultNamespace has the hub's Secrets unless another is configured.
const DefaultNamespace = "gitopsd-system"

// maxFile is the largest size of a file that holds a kubeconfig or a key of a
// Secret, in bytes; a Secret can hold no more.
const maxFile = 1 << 20

// retireAfter is how long requests in flight may go on after the hub's kubeconfig
// was replaced.
const retireAfter = time.Minute

// Config describes the hub.
type Config struct {
	// Kubeconfig is the operator's file. It is read before each use, so that it may
	// be replaced. Empty means the cluster that the process runs in.
	Kubeconfig string
	// Namespace is the only one whose Secrets are read. Empty means the process's
	// own, or DefaultNamespace outside of a cluster.
	Namespace string
	// UserAgent is sent with each request, to the hub and to registered clusters.
	UserAgent string
}

// Hub is the daemon's own cluster. It is safe for concurrent use, and sends nothing
// until a Secret is needed.
type Hub struct {
	cfg Config

	mu      sync.Mutex
	cluster *kube.Client
	made    sources.Digest // of what cluster was made from

	// needed is closed when a kubeconfig is first read from a Secret.
	needed  chan struct{}
	needing sync.Once
	// versions are the resourceVersions of the Secrets with manifest.ClusterLabel, by
	// name; nil while Follow does not watch them. read are the versions last read.
	versions, read map[string]string
}

// New returns the hub.
func New(cfg Config) *Hub {
	if cfg.Namespace == "" {
		text, _ := os.ReadFile(podNamespace) // an error means that this is no pod
		cfg.Namespace = cmp.Or(strings.TrimSpace(string(text)), DefaultNamespace)
	}
	return &Hub{cfg: cfg, needed: make(chan struct{}), read: make(map[string]string)}
}

// Close closes the connections to the hub.
func (h *Hub) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cluster != nil {
		h.cluster.Close()
		h.cluster = nil
	}
}

// errNoHub is the error outside of a cluster.
var errNoHub = errors.New("this process runs in no pod, and no --kubeconfig names the hub's")

// Client returns the client of the hub, a new one if its kubeconfig was replaced. It sends
// nothing, and is closed by Close.
func (h *Hub) Client() (*kube.Client, error) {
	cfg := kube.Config{Name: "the hub", UserAgent: h.cfg.UserAgent}
	file := h.cfg.Kubeconfig
	if file == "" {
		cfg.InCluster = true
		file = podCA
	}
	text, err := os.ReadFile(file)
	switch {
	case cfg.InCluster && errors.Is(err, os.ErrNotExist) && os.Getenv("KUBERNETES_SERVICE_HOST") == "":
		return nil, errNoHub
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
		time.AfterFunc(retireAfter, old.Close)
	}
	h.cluster, h.made = cluster, made
	return cluster, nil
}

// secret is a Secret and when it was read.
type secret struct {
	where  string // how errors name it
	at     time.Time
	typ    string
	data   map[string]any // base64
	labels map[string]string
}

// Namespace returns the namespace whose Secrets are read.
func (h *Hub) Namespace() string { return h.cfg.Namespace }

// where returns the name of a Secret for errors.
func (h *Hub) where(name string) string { return fmt.Sprintf("Secret %s/%s", h.cfg.Namespace, name) }

// secret reads a Secret in the hub's namespace.
func (h *Hub) secret(ctx context.Context, name string) (secret, error) {
	cluster, err := h.Client()
	if err != nil {
		return secret{}, fmt.Errorf("no hub to read Secrets from: %w", err)
	}
	typ, err := cluster.Type(ctx, "v1", manifest.Secret.Kind)
	if err != nil {
		return secret{}, err
	}
	tree, meta, err := cluster.Get(ctx, typ, manifest.Secret.ID(h.cfg.Namespace, name))
	if err != nil {
		return secret{}, err
	}
	h.mu.Lock()
	h.read[name] = meta.ResourceVersion
	h.mu.Unlock()
	return secret{
		where: h.where(name), at: time.Now(), labels: meta.Labels,
		typ: manifest.Text(tree, "type"), data: manifest.Mapping(tree, "data"),
	}, nil
}

// entry returns the decoded value of one key.
func (s secret) entry(key string) ([]byte, error) {
	encoded, ok := s.data[key].(string)
	if !ok {
		return nil, fmt.Errorf("%s has no key %q", s.where, key)
	}
	text, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return nil, fmt.Errorf("key %q of %s is not base64", key, s.where)
	}
	return text, nil
}

// readBelow reads a file below dir, and reports whether it exists. os.Root keeps
// names and links from leading out of dir.
func readBelow(dir, name string) (text []byte, exists bool, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, false, err
	}
	defer root.Close()
	f, err := root.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	text, err = io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(text) > maxFile {
		return nil, true, fmt.Errorf("%s: more than %d bytes", name, maxFile)
	}
	return text, true, err
}
