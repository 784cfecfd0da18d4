package hub

import (
	"errors"
	"testing"
	"time"

	"gitopsd.dev/reconcile/kube"
)

// A watch that ends as it should is followed by the next; whatever else it comes to
// costs the hub a request now and then.
func TestFollowPause(t *testing.T) {
	for _, tt := range []struct {
		name   string
		err    error
		lasted time.Duration
		want   time.Duration
	}{
		{name: "it ended after minutes", lasted: 5 * time.Minute},
		{name: "it was cut at once", lasted: time.Millisecond, want: followAgain},
		{name: "it failed", err: errors.New("connection reset"), lasted: 5 * time.Minute, want: followAgain},
		{name: "it is not allowed", err: &kube.Error{Class: kube.Forbidden}, lasted: time.Millisecond, want: followRefused},
	} {
		if have := followPause(tt.err, tt.lasted); have != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, have, tt.want)
		}
	}
}
