package status

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Handler serves the board:
//
//	/healthz  200 while the loop runs, 503 if it has not run for longer than stall
//	/readyz   200 once a commit was read, or without one each known cluster was looked at
//	/metrics  Prometheus
//	/status   the snapshot as JSON
//	/         the snapshot for people, if the board has a Page
//
// A daemon that waits to become the leader is healthy, and ready if it could take over.
//
// Only requests with access get the last three, and the reason why the daemon is not ready.
func (b *Board) Handler(stall time.Duration, access Access) http.Handler {
	metrics := []prometheus.Collector{b.collector()}
	if b.Conversions != nil {
		metrics = append(metrics, newConversionsCollector(b.Conversions))
	}
	if b.EtcdNamespaces != nil {
		metrics = append(metrics, newEtcdCollector(b.EtcdNamespaces))
	}

	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", probe(func(*http.Request) string {
		if why, _ := b.waiting(); why != "" {
			return ""
		}
		if since := time.Since(b.Snapshot().Turned); since > stall {
			return fmt.Sprintf("the loop has stood still for %s", since.Round(time.Second))
		}
		return ""
	}))
	mux.HandleFunc("GET /readyz", probe(func(r *http.Request) string {
		why, ok := b.waiting()
		switch s := b.Snapshot(); {
		case why != "" && ok:
			return ""
		case why != "" && access.allowed(r):
			return "waiting to become the leader: " + why
		case why != "":
			return "waiting to become the leader"
		case s.Commit != "", len(s.Clusters) > 0 && !slices.ContainsFunc(s.Clusters, func(c Unit) bool { return c.Phase == Pending }):
			return ""
		case s.PollError != "" && access.allowed(r):
			return "no commit was read yet: " + s.PollError
		}
		return "no commit was read yet"
	}))
	mux.Handle("GET /metrics", access.guard(metricsHandler(metrics...)))
	mux.Handle("GET /status", access.guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		_ = enc.Encode(b.Snapshot()) // fails only if the client is gone
	})))
	if b.Page != nil {
		mux.Handle("GET /{$}", access.guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { b.Page(w, r, b.Snapshot()) })))
	}
	return mux
}

// waiting returns why this daemon waits; empty if it works. ok reports whether it could take
// over.
func (b *Board) waiting() (why string, ok bool) {
	if b.Election == nil {
		return "", true
	}
	return b.Election.Waiting()
}

// PodHandler serves /healthz, /readyz and /metrics of a process that has no [Board]. unready
// returns why the process is not ready; empty if it is.
func PodHandler(unready func() string, metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", probe(func(*http.Request) string { return "" }))
	mux.HandleFunc("GET /readyz", probe(func(*http.Request) string { return unready() }))
	mux.Handle("GET /metrics", metrics)
	return mux
}

// probe answers a kubelet. why returns why not to answer "ok"; empty to do so.
func probe(why func(*http.Request) string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if text := why(r); text != "" {
			http.Error(w, text, http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	}
}

// metricsHandler serves metrics, and those of the Go process, to Prometheus.
func metricsHandler(metrics ...prometheus.Collector) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	registry.MustRegister(metrics...)
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}
