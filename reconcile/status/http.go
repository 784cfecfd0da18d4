package status

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Handler serves the board:
//
//	/healthz  200 while the loop runs, 503 if it has not run for longer than stall
//	/readyz   200 once a commit was read
//	/metrics  Prometheus
//	/status   the snapshot as JSON
//
// Only requests with access get the last two, and the reason why the daemon is not ready.
func (b *Board) Handler(stall time.Duration, access Access) http.Handler {
	metrics := []prometheus.Collector{b.collector()}
	if b.Conversions != nil {
		metrics = append(metrics, newConversionsCollector(b.Conversions))
	}
	if b.EtcdNamespaces != nil {
		metrics = append(metrics, newEtcdCollector(b.EtcdNamespaces))
	}

	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if since := time.Since(b.Snapshot().Turned); since > stall {
			http.Error(w, fmt.Sprintf("the loop has stood still for %s", since.Round(time.Second)), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if s := b.Snapshot(); s.Commit == "" {
			reason := "no commit was read yet"
			if s.PollError != "" && access.allowed(r) {
				reason += ": " + s.PollError
			}
			http.Error(w, reason, http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.Handle("GET /metrics", access.guard(metricsHandler(metrics...)))
	mux.Handle("GET /status", access.guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		_ = enc.Encode(b.Snapshot()) // fails only if the client is gone
	})))
	return mux
}

// metricsHandler serves metrics, and those of the Go process, to Prometheus.
func metricsHandler(metrics ...prometheus.Collector) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	registry.MustRegister(metrics...)
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}
