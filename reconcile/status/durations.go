package status

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// bounds are the upper bounds of the buckets of [Durations], in seconds: an attempt at a
// cluster where nothing changed takes a moment, and one has ten minutes.
var bounds = [...]float64{0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600}

// Durations counts how long something took.
type Durations struct {
	count   uint64
	seconds float64
	within  [len(bounds)]uint64
}

// Observe counts one.
func (d *Durations) Observe(took time.Duration) {
	d.count++
	d.seconds += took.Seconds()
	for i, bound := range bounds {
		if took.Seconds() <= bound {
			d.within[i]++
			break
		}
	}
}

// metric returns the histogram.
func (d *Durations) metric(desc *prometheus.Desc) prometheus.Metric {
	buckets := make(map[float64]uint64, len(bounds))
	var sum uint64
	for i, bound := range bounds {
		sum += d.within[i]
		buckets[bound] = sum
	}
	return prometheus.MustNewConstHistogram(desc, d.count, d.seconds, buckets)
}
