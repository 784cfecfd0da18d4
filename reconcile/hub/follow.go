package hub

import (
	"context"
	"log/slog"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources/errgroup"
)

// followAgain is Follow's pause after a failure, or after a watch that ended sooner
// than that, as behind proxies that cut connections; followRefused is its pause if
// the hub does not let it watch.
const (
	followAgain   = 10 * time.Second
	followRefused = 10 * time.Minute
)

// Follow records the versions of kubeconfig Secrets until ctx ends, so that a
// replaced one is used before the old one fails. It begins when a kubeconfig is
// first read from a Secret.
func (h *Hub) Follow(ctx context.Context, log *slog.Logger) {
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
			log.Warn("kubeconfig Secrets in the hub cannot be followed: a replaced one is read when the old one fails; allow the verbs list and watch", "namespace", h.cfg.Namespace, "error", err)
		}
		kube.Sleep(ctx, followPause(err, time.Since(began)))
	}
}

// followPause returns how long Follow pauses after a watch.
func followPause(err error, lasted time.Duration) time.Duration {
	switch {
	case kube.ClassOf(err) == kube.Forbidden:
		return followRefused
	case err != nil || lasted < followAgain:
		return followAgain
	}
	return 0
}

// watch lists the Secrets and follows them until the API server ends the watch.
func (h *Hub) watch(ctx context.Context) (err error) {
	defer recovered(&err)
	cluster, err := h.Client()
	if err != nil {
		return err
	}
	typ, err := cluster.Type(ctx, "v1", manifest.Secret.Kind)
	if err != nil {
		return err
	}
	versions := make(map[string]string)
	opts := kube.ListOptions{Namespace: h.cfg.Namespace, Selector: manifest.ClusterLabel, Again: func() { clear(versions) }}
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
	return cluster.Watch(ctx, typ, h.cfg.Namespace, manifest.ClusterLabel, at, func(e kube.Event) {
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

// version returns the version of a kubeconfig Secret, if that is known without a
// request; empty for one that is missing or has lost its label.
func (h *Hub) version(name string) (version string, known bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.versions != nil {
		return h.versions[name], true
	}
	version, known = h.read[name]
	return version, known
}

// recovered turns a panic in a goroutine into an error.
func recovered(err *error) {
	if v := recover(); v != nil {
		*err = errgroup.Recovered(v)
	}
}
