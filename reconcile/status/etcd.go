package status

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
)

// EtcdNamespace has the counts of an etcd namespace that a proxy serves.
type EtcdNamespace struct {
	// Namespace is the name of the namespace in the fleet.
	Namespace string
	// Connections and Calls are those in progress.
	Connections, Calls int64
	// Done counts calls that ended, and Failed those among them that ended with an error.
	// Refused counts calls that the proxy refused, and Foreign responses that it held back
	// because they were of another namespace.
	Done, Failed, Refused, Foreign int64
	// Keys and Bytes exist in etcd; Watches and Leases are those by this proxy.
	Keys, Bytes, Watches, Leases int64
	// Throttled counts calls that were refused because there were too many, and Full those
	// refused because the quota was exhausted.
	Throttled, Full int64
}

// etcdMetrics are the metrics of an etcd namespace.
var etcdMetrics = []struct {
	name, help string
	kind       prometheus.ValueType
	value      func(*EtcdNamespace) int64
}{
	{"connections", "Connections of clients.", prometheus.GaugeValue, func(n *EtcdNamespace) int64 { return n.Connections }},
	{"calls", "Calls in progress; a watch is one for each stream.", prometheus.GaugeValue, func(n *EtcdNamespace) int64 { return n.Calls }},
	{"calls_total", "Calls that ended.", prometheus.CounterValue, func(n *EtcdNamespace) int64 { return n.Done }},
	{"failed_calls_total", "Calls that ended with an error.", prometheus.CounterValue, func(n *EtcdNamespace) int64 { return n.Failed }},
	{"refused_calls_total", "Calls that the proxy refused by itself.", prometheus.CounterValue, func(n *EtcdNamespace) int64 { return n.Refused }},
	{"keys", "Keys that exist.", prometheus.GaugeValue, func(n *EtcdNamespace) int64 { return n.Keys }},
	{"bytes", "Bytes of the keys and values that exist.", prometheus.GaugeValue, func(n *EtcdNamespace) int64 { return n.Bytes }},
	{"watches", "Watches by this proxy.", prometheus.GaugeValue, func(n *EtcdNamespace) int64 { return n.Watches }},
	{"leases", "Leases by this proxy.", prometheus.GaugeValue, func(n *EtcdNamespace) int64 { return n.Leases }},
	{"throttled_calls_total", "Calls that were refused, since there were too many.", prometheus.CounterValue, func(n *EtcdNamespace) int64 { return n.Throttled }},
	{"full_calls_total", "Calls that were refused, since nothing more fitted into the quota.", prometheus.CounterValue, func(n *EtcdNamespace) int64 { return n.Full }},
	{"foreign_responses_total", "Responses that were held back, since they had something that is not the namespace's. More than 0 is for the operator to look at.", prometheus.CounterValue, func(n *EtcdNamespace) int64 { return n.Foreign }},
}

// etcdCollector collects etcdMetrics.
type etcdCollector struct {
	counts func() []EtcdNamespace
	descs  []*prometheus.Desc // of etcdMetrics
}

func newEtcdCollector(counts func() []EtcdNamespace) prometheus.Collector {
	c := &etcdCollector{counts: counts}
	for _, m := range etcdMetrics {
		c.descs = append(c.descs, prometheus.NewDesc("gitopsd_etcd_"+m.name, m.help, []string{"namespace"}, nil))
	}
	return c
}

func (c *etcdCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
}

func (c *etcdCollector) Collect(ch chan<- prometheus.Metric) {
	for _, n := range c.counts() {
		for i, m := range etcdMetrics {
			ch <- prometheus.MustNewConstMetric(c.descs[i], m.kind, float64(m.value(&n)), n.Namespace)
		}
	}
}

// EtcdHandler serves the counts of etcd namespaces to Prometheus, for a process that has no
// other metrics.
func EtcdHandler(counts func() []EtcdNamespace) http.Handler {
	return metricsHandler(newEtcdCollector(counts))
}
