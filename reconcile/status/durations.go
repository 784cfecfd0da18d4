package status

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// bounds are the upper bounds of the buckets of durations, in seconds: an attempt at an
// unchanged cluster takes a moment, and none more than ten minutes by default.
var bounds = [...]float64{0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600}

// durations is a histogram.
type durations struct {
	count   uint64
	seconds float64
	within  [len(bounds)]uint64
}

func (d *durations) observe(took time.Duration) {
	d.count++
	d.seconds += took.Seconds()
	observe(d.within[:], bounds[:], took)
}

func (d *durations) metric(desc *prometheus.Desc) prometheus.Metric {
	return prometheus.MustNewConstHistogram(desc, d.count, d.seconds, buckets(d.within[:], bounds[:]))
}

// observe counts a duration in its bucket, if there is one.
func observe(within []uint64, bounds []float64, took time.Duration) {
	if i, _ := slices.BinarySearch(bounds, took.Seconds()); i < len(bounds) {
		within[i]++
	}
}

// buckets returns the cumulative counts by upper bound, as Prometheus takes them.
func buckets(within []uint64, bounds []float64) map[float64]uint64 {
	all := make(map[float64]uint64, len(bounds))
	var sum uint64
	for i, bound := range bounds {
		sum += within[i]
		all[bound] = sum
	}
	return all
}
