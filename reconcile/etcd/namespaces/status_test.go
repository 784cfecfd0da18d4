package namespaces

import "testing"

// Only an empty namespace has 0%, and one beyond its quota has more than 100%.
func TestUsed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		n, quota int64
		want     string
	}{
		{0, 1 << 30, "0%"}, {1, 1 << 30, "1%"}, {16, 32, "50%"}, {1 << 40, 1 << 40, "100%"}, {3, 2, "150%"},
	} {
		if have := used(tt.n, tt.quota); have != tt.want {
			t.Errorf("%d of %d: %s, want %s", tt.n, tt.quota, have, tt.want)
		}
	}
}
