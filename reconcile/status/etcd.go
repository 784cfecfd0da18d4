package status

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// EtcdNamespace has the counts of an etcd namespace that a proxy serves.
type EtcdNamespace struct {
	// Namespace is the name of the namespace in the fleet.
	Namespace string
	// Connections and Calls are those in progress.
	Connections, Calls int64
	// Done are calls that ended, of which Failed with an error. Refused are those that
	// the proxy refused, Foreign responses that it held back, since they were not the
	// namespace's.
	Done, Failed, Refused, Foreign int64
}

// etcdCollector has the counts of etcd namespaces.
type etcdCollector struct {
	counts                                             func() []EtcdNamespace
	connections, calls, done, failed, refused, foreign *prometheus.Desc
}

func newEtcdCollector(counts func() []EtcdNamespace) prometheus.Collector {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("gitopsd_etcd_"+name, help, []string{"namespace"}, nil)
	}
	return &etcdCollector{
		counts:      counts,
		connections: desc("connections", "Connections of clients."),
		calls:       desc("calls", "Calls in progress; a watch is one for each stream."),
		done:        desc("calls_total", "Calls that ended."),
		failed:      desc("failed_calls_total", "Calls that ended with an error."),
		refused:     desc("refused_calls_total", "Calls that the proxy refused by itself."),
		foreign:     desc("foreign_responses_total", "Responses that were held back, since they had something that is not the namespace's. More than 0 is for the operator to look at."),
	}
}

func (c *etcdCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.connections, c.calls, c.done, c.failed, c.refused, c.foreign} {
		ch <- d
	}
}

func (c *etcdCollector) Collect(ch chan<- prometheus.Metric) {
	for _, n := range c.counts() {
		put := func(d *prometheus.Desc, as prometheus.ValueType, v int64) {
			ch <- prometheus.MustNewConstMetric(d, as, float64(v), n.Namespace)
		}
		put(c.connections, prometheus.GaugeValue, n.Connections)
		put(c.calls, prometheus.GaugeValue, n.Calls)
		put(c.done, prometheus.CounterValue, n.Done)
		put(c.failed, prometheus.CounterValue, n.Failed)
		put(c.refused, prometheus.CounterValue, n.Refused)
		put(c.foreign, prometheus.CounterValue, n.Foreign)
	}
}

// EtcdHandler serves the counts of etcd namespaces to Prometheus, for a process that
// does nothing else.
func EtcdHandler(counts func() []EtcdNamespace) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(newEtcdCollector(counts), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}
