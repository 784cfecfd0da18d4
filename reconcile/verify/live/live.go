// Package live reads from clusters what reconcile/verify compares: CRDs and XRDs with
// the Compositions behind them (definitions.go), the pods that run controllers
// (controllers.go) with their ConfigMaps and Secrets (config.go) and rights (rbac.go),
// admission (admission.go), and other workloads that may write types (actors.go).
//
// platforms.go looks up the platforms of images in registries.
//
// It keeps mostly digests: 1,000 CRDs of 50 clusters are gigabytes, and nearly all of them are
// equal. Lists come in small pages, an object is decoded only if no cluster had the same bytes
// before, and an object that is compared field by field is read again.
//
// If a cluster cannot be reached or refuses a read, its facts have a gap, and everything else
// is read. reconcile/kube makes the requests. Nothing is written.
package live

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"sync"
	"time"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/verify"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/clusters"
	"gitopsd.dev/sources/errgroup"
	"gitopsd.dev/sources/lockfile"
)

// Config configures a [Reader]. All fields are required.
type Config struct {
	// Connect makes the client of a registered cluster.
	Connect func(context.Context, clusters.Cluster) (*kube.Client, error)
	// Platforms lists the platforms of an image, for image IDs that are not in the
	// lock.
	Platforms func(ctx context.Context, repository string, d sources.Digest) ([]sources.Child, error)
	// Images are those in the lock.
	Images []lockfile.Image
}

// How many clusters are read at a time, and how long one may take.
const (
	parallel = 8
	timeout  = 5 * time.Minute
)

// Reader reads clusters. It keeps their connections until it is closed.
type Reader struct {
	cfg Config
	// key is the HMAC key for contents of ConfigMaps and Secrets. It is random and never
	// stored, so that hashes reveal nothing outside of this run.
	key [sha256.Size]byte

	mu       sync.Mutex
	clusters map[string]*kube.Client
	known    map[content]*known
	looked   map[sources.Digest]*lookup
}

// New returns a Reader.
func New(cfg Config) *Reader {
	r := &Reader{cfg: cfg, clusters: make(map[string]*kube.Client), known: make(map[content]*known), looked: make(map[sources.Digest]*lookup)}
	_, _ = rand.Read(r.key[:]) // never fails
	return r
}

// Close closes the connections.
func (r *Reader) Close() {
	for _, c := range r.clusters {
		c.Close()
	}
}

// Read reads clusters into facts, several at a time. facts[i] is for wanted[i], and has the
// rendered state from [verify.Repository]. The error is the context's: a problem with a
// cluster is a gap in its facts.
func (r *Reader) Read(ctx context.Context, wanted []*desired.Unit, facts []verify.Facts) error {
	var g errgroup.Group
	g.SetLimit(parallel)
	for i := range facts {
		if facts[i].Unread {
			continue
		}
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			r.cluster(ctx, wanted[i], &facts[i])
			return nil
		})
	}
	_ = g.Wait() // each cluster has its own gaps
	return ctx.Err()
}

// reading is one cluster while it is read.
type reading struct {
	*Reader
	kube   *kube.Client
	wanted *desired.Unit
	facts  *verify.Facts
	// rendered are the webhook configurations. They move to facts as they are read.
	rendered []verify.Webhook
	// running are the controllers whose workloads were read.
	running []*controller
	// before is what declared workloads give their pods as gitopsd applied them, if they are
	// in the namespace of a controller and of its kind.
	before map[manifest.ID]*declaration
	// applied are the objects behind their configuration and rights that are as gitopsd
	// applied them.
	applied map[manifest.ID]bool
}

// note notes whether a live object is as gitopsd applied it.
func (in *reading) note(id manifest.ID, tree map[string]any) {
	if plan.AsApplied(tree, kube.FieldManager) {
		in.applied[id] = true
	}
}

// differs adds an object that makes a difference to a context.
func (in *reading) differs(c *verify.Context, id manifest.ID) {
	c.Applied = in.applied[id] && (c.Applied || len(c.From) == 0)
	c.From = append(c.From, id)
}

func (r *Reader) cluster(ctx context.Context, wanted *desired.Unit, facts *verify.Facts) {
	rendered := facts.Webhooks
	facts.Webhooks = nil
	c, err := r.cfg.Connect(ctx, wanted.Cluster)
	if err != nil {
		facts.Unread = true
		facts.Gap(err)
		return
	}
	r.mu.Lock()
	r.clusters[wanted.Name] = c
	r.mu.Unlock()
	in := &reading{Reader: r, kube: c, wanted: wanted, facts: facts, rendered: rendered, before: make(map[manifest.ID]*declaration), applied: make(map[manifest.ID]bool)}
	if err := in.definitions(ctx); err != nil {
		facts.Unread = true
		facts.Gap(err)
		return
	}
	for _, read := range []func(context.Context) error{in.compositions, in.controllers, in.config, in.rights, in.admission, in.actors} {
		if err := read(ctx); err != nil {
			facts.Gap(err)
			if kube.IsClusterWide(err) {
				return
			}
		}
	}
}

// Tree reads a definition from a cluster that Read has read. It fails if Read could not
// connect to the cluster, and with the errors of [kube.Client.Get].
func (r *Reader) Tree(ctx context.Context, cluster string, id manifest.ID) (map[string]any, error) {
	r.mu.Lock()
	c := r.clusters[cluster]
	r.mu.Unlock()
	if c == nil {
		return nil, fmt.Errorf("cluster %s was not read", cluster)
	}
	t, err := c.Kind(ctx, id.Group, id.Kind)
	if err != nil {
		return nil, err
	}
	tree, _, err := c.Get(ctx, t, id)
	return tree, err
}
