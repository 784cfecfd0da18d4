package status

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// durations are the upper bounds of the buckets of a histogram of conversions, in
// seconds.
var durations = [...]float64{0.00001, 0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 1}

// Conversions counts the objects of a definition that were converted from one version
// to another by conversion rules.
type Conversions struct {
	Definition, From, To string
	// Objects is their number, Seconds the time that all took.
	Objects uint64
	Seconds float64
	// Refused are objects that are not of the definition.
	Refused uint64
	// Stashed, Restored and Dropped are fields that were kept for the other version,
	// taken from there, and lost. FailedRules are rules that failed on an object.
	Stashed, Restored, Dropped, FailedRules uint64

	within [len(durations)]uint64
}

// Observe counts an object that was converted in this time.
func (c *Conversions) Observe(took time.Duration) {
	c.Objects++
	c.Seconds += took.Seconds()
	for i, bound := range durations {
		if took.Seconds() <= bound {
			c.within[i]++
			break
		}
	}
}

// conversionsCollector has the counts of conversions.
type conversionsCollector struct {
	counts         func() []Conversions
	duration       *prometheus.Desc
	refused, rules *prometheus.Desc
	fields         *prometheus.Desc
}

func newConversionsCollector(counts func() []Conversions) prometheus.Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("gitopsd_conversion_"+name, help, append([]string{"definition", "from", "to"}, labels...), nil)
	}
	return &conversionsCollector{
		counts:   counts,
		duration: desc("duration_seconds", "Objects that were converted by rules, and how long each took."),
		refused:  desc("refused_total", "Objects that were not converted, since they are not of the definition."),
		rules:    desc("failed_rules_total", "Rules that failed on an object. Their fields are left out."),
		fields:   desc("fields_total", "Fields that were kept for the other version (stashed), taken from there (restored), or lost (dropped).", "what"),
	}
}

func (c *conversionsCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.duration, c.refused, c.rules, c.fields} {
		ch <- d
	}
}

func (c *conversionsCollector) Collect(ch chan<- prometheus.Metric) {
	for _, n := range c.counts() {
		buckets := make(map[float64]uint64, len(durations))
		var sum uint64
		for i, bound := range durations {
			sum += n.within[i]
			buckets[bound] = sum
		}
		ch <- prometheus.MustNewConstHistogram(c.duration, n.Objects, n.Seconds, buckets, n.Definition, n.From, n.To)
		counter := func(d *prometheus.Desc, v uint64, more ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), append([]string{n.Definition, n.From, n.To}, more...)...)
		}
		counter(c.refused, n.Refused)
		counter(c.rules, n.FailedRules)
		counter(c.fields, n.Stashed, "stashed")
		counter(c.fields, n.Restored, "restored")
		counter(c.fields, n.Dropped, "dropped")
	}
}

// MetricsHandler serves the counts of conversions to Prometheus, for a process that
// does nothing else.
func MetricsHandler(counts func() []Conversions) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(newConversionsCollector(counts), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}
