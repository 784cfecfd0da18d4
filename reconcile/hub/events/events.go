// Package events tells what happens to the fleet as Kubernetes Events in the hub, about the
// Lease of the daemon that works:
//
//	kubectl -n gitopsd-system describe lease gitopsd
//
// They are for people and programs that watch Events rather than logs or /status. They may be
// lost, and nothing depends on them. A restart tells nothing that has not changed.
//
// news.go decides what there is to tell.
package events

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"strings"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/render/manifest"
)

// Config describes where the Events go. All fields are required.
type Config struct {
	// Client returns a client of the hub. It is called for each request.
	Client func() (*kube.Client, error)
	// Namespace and Lease are those of the daemon's Lease.
	Namespace, Lease string
	// Process names this daemon.
	Process string
	Board   *status.Board
	Log     *slog.Logger
}

const (
	// apiVersion is that of Events.
	apiVersion = "events.k8s.io/v1"
	// controller names gitopsd in Events.
	controller = manifest.Group + "/gitopsd"
	action     = "Reconcile"
	// pace is the shortest time between two looks at the board.
	pace = 2 * time.Second
	// patience bounds the requests for one Event.
	patience = 5 * time.Second
	// maxNote and maxProcess are the API server's bounds, in bytes.
	maxNote    = 1024
	maxProcess = 128
)

// Follow writes Events about what changes on the board, until ctx ends.
func Follow(ctx context.Context, cfg Config) {
	w := writer{cfg: cfg}
	known := teller{now: time.Now}
	for {
		changed := cfg.Board.Changed()
		w.write(ctx, known.news(cfg.Board.Snapshot()))
		if kube.Sleep(ctx, pace) != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// writer writes Events.
type writer struct {
	cfg Config
	uid string // the Lease's
	// failing: the last one could not be written, which is in the log.
	failing bool
}

// write writes Events, up to the first that fails.
func (w *writer) write(ctx context.Context, all []event) {
	for _, e := range all {
		err := w.create(ctx, e)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			if !w.failing {
				w.cfg.Log.Warn("Events cannot be written; nothing else depends on them", "error", err)
			}
			w.failing = true
			return
		}
		w.failing = false
	}
}

func (w *writer) create(ctx context.Context, e event) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c, err := w.cfg.Client()
	if err != nil {
		return err
	}
	lease := manifest.Lease.ID(w.cfg.Namespace, w.cfg.Lease)
	if w.uid == "" { // kubectl describe compares it
		typ, err := c.Kind(ctx, lease.Group, lease.Kind)
		if err != nil {
			return err
		}
		meta, err := c.GetMetadata(ctx, typ, lease)
		if err != nil {
			return err
		}
		w.uid = string(meta.UID)
	}
	typ, err := c.Type(ctx, apiVersion, "Event")
	if err != nil {
		return err
	}
	id := typ.ID(w.cfg.Namespace, w.cfg.Lease+"."+strings.ToLower(rand.Text()))
	meta := map[string]any{"namespace": id.Namespace, "name": id.Name}
	if e.cluster != "" {
		meta["labels"] = map[string]any{manifest.ClusterLabel: e.cluster}
	}
	body, err := json.Marshal(map[string]any{
		"apiVersion": apiVersion, "kind": id.Kind, "metadata": meta,
		"eventTime":           metav1.NowMicro(),
		"reportingController": controller, "reportingInstance": cut(w.cfg.Process, maxProcess),
		"action": action, "reason": e.reason, "type": cmp.Or(e.typ, normal), "note": cut(e.note, maxNote),
		"regarding": map[string]any{
			"apiVersion": "coordination.k8s.io/v1", "kind": lease.Kind, "namespace": lease.Namespace, "name": lease.Name, "uid": w.uid,
		},
	})
	if err != nil {
		return err
	}
	_, err = c.Create(ctx, typ, id, body)
	return err
}

// cut returns the beginning of a text of at most max bytes.
func cut(text string, most int) string {
	const more = "…"
	if len(text) <= most {
		return text
	}
	end := most - len(more)
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + more
}
