package prose_test

import (
	"testing"

	"gitopsd.dev/reconcile/prose"
)

func TestCount(t *testing.T) {
	for _, tt := range []struct{ have, want string }{
		{prose.Count(0, "type"), "0 types"},
		{prose.Count(1, "type"), "1 type"},
		{prose.Count(2, "more type"), "2 more types"},
		{prose.Agree(1, "pin stays", "pins stay"), "1 pin stays"},
		{prose.Agree(3, "pin stays", "pins stay"), "3 pins stay"},
		{prose.Some(nil, 2), ""},
		{prose.Some([]string{"a", "b"}, 2), "a, b"},
		{prose.Some([]string{"a", "b", "c", "d"}, 2), "a, b and 2 more"},
	} {
		if tt.have != tt.want {
			t.Errorf("%q, want %q", tt.have, tt.want)
		}
	}
}
