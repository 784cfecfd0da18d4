package limit

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

func TestFloor(t *testing.T) {
	t.Parallel()
	f := NewFloor()
	f.Raise(10)
	f.Raise(7)
	if f.Load() != 10 {
		t.Errorf("raised to %d", f.Load())
	}
	f.Reset(3)
	if f.Load() != 3 {
		t.Error("not reset")
	}
}

func TestCompaction(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	ago := func(minutes int, revision int64) Sample {
		return Sample{Time: now.Add(-time.Duration(minutes) * time.Minute), Revision: revision}
	}
	for _, tt := range []struct {
		name    string
		floors  []int64
		samples []Sample
		current int64
		want    int64
	}{
		{"nothing is known", nil, nil, 100, 0},
		{"the lowest floor", []int64{50, 40, 60}, nil, 100, 40},
		{"one that never compacted", []int64{50, 0}, []Sample{ago(59, 45)}, 100, 0},
		{"one that never compacted, by age", []int64{50, 0}, []Sample{ago(59, 45), ago(60, 30), ago(120, 20)}, 100, 30},
		{"age does not hold a floor up", []int64{50, 70}, []Sample{ago(60, 30)}, 100, 50},
		{"age overtakes a floor", []int64{20, 70}, []Sample{ago(60, 30)}, 100, 30},
		{"no namespaces, by age", nil, []Sample{ago(61, 30)}, 100, 30},
		{"floors above the present", []int64{500}, []Sample{ago(61, 300)}, 100, 100},
		{"a floor that is none", []int64{-5, 7}, nil, 100, 0},
	} {
		if got := Compaction(tt.floors, tt.samples, now, MaxHistory, tt.current); got != tt.want {
			t.Errorf("%s: got %d, want %d", tt.name, got, tt.want)
		}
	}

	samples := []Sample{ago(5, 50), ago(100, 10), ago(70, 20), ago(61, 30), ago(59, 40)}
	trimmed := Trim(samples, now, MaxHistory)
	if want := []Sample{ago(61, 30), ago(59, 40), ago(5, 50)}; !slices.Equal(trimmed, want) {
		t.Errorf("trimmed to %v", trimmed)
	}
	for _, s := range [][]Sample{nil, {ago(1, 1)}, {ago(100, 1)}, {ago(100, 1), ago(90, 2)}} {
		a := Compaction(nil, s, now, MaxHistory, 100)
		if b := Compaction(nil, Trim(s, now, MaxHistory), now, MaxHistory, 100); a != b {
			t.Errorf("%v: %d becomes %d when trimmed", s, a, b)
		}
	}
}

func ExampleCompaction() {
	now := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	samples := []Sample{
		{Time: now.Add(-90 * time.Minute), Revision: 1000},
		{Time: now.Add(-30 * time.Minute), Revision: 2000},
	}
	fmt.Println(Compaction([]int64{2500, 2100}, samples, now, MaxHistory, 3000))
	fmt.Println(Compaction([]int64{2500, 0}, samples, now, MaxHistory, 3000)) // one never compacts
	// Output:
	// 2100
	// 1000
}
