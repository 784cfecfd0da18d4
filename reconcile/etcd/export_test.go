package etcd

import (
	"context"
	"time"

	"gitopsd.dev/render/etcd"
)

// MeasureOften is Measure with pauses of milliseconds.
func MeasureOften(ctx context.Context, a *Admin, skip func(etcd.ID) bool) {
	m := &meter{admin: a, skip: skip, reading: make(chan struct{}, 1), pause: time.Millisecond, patience: 1, list: 10 * time.Millisecond}
	for ctx.Err() == nil {
		_ = m.run(ctx) // is tried again
	}
}
