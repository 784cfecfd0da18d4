package status

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// conversionBounds are the upper bounds of the buckets of a histogram of conversions, in
// seconds.
var conversionBounds = [...]float64{0.00001, 0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 1}

// Conversions counts objects of a definition that conversion rules converted from one version
// to another.
type Conversions struct {
	Definition, From, To string
	// Objects is their number, and Seconds the sum of their durations.
	Objects uint64
	Seconds float64
	// Refused counts objects that do not belong to the definition.
	Refused uint64
	// Stashed, Restored and Dropped count fields that were kept for the other version, taken
	// from there, and lost. FailedRules counts rules that failed on an object.
	Stashed, Restored, Dropped, FailedRules uint64

	within [len(conversionBounds)]uint64
}

// Observe counts a converted object.
func (c *Conversions) Observe(took time.Duration) {
	c.Objects++
	c.Seconds += took.Seconds()
	observe(c.within[:], conversionBounds[:], took)
}

// conversionsCollector collects the counts of conversions.
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
		ch <- prometheus.MustNewConstHistogram(c.duration, n.Objects, n.Seconds, buckets(n.within[:], conversionBounds[:]), n.Definition, n.From, n.To)
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

// MetricsHandler serves the counts of conversions to Prometheus, for a process that has no
// other metrics.
func MetricsHandler(counts func() []Conversions) http.Handler {
	return metricsHandler(newConversionsCollector(counts))
}
