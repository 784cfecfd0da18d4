package kubeconfig

import (
	"net/netip"
	"testing"
)

// What a team's Secret names does not lead to the daemon's own machine.
func TestReach(t *testing.T) {
	allowed, err := ParseReach([]string{"127.0.0.0/8", "169.254.7.7"})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		addr         string
		free, listed bool
	}{
		{"10.0.0.1", true, true},
		{"192.168.1.1", true, true},
		{"203.0.113.9", true, true},
		{"fd00::1", true, true},
		{"127.0.0.1", false, true},
		{"::ffff:127.0.0.1", false, true},
		{"::1", false, false},
		{"0.0.0.0", false, false},
		{"::", false, false},
		{"169.254.169.254", false, false},
		{"::ffff:169.254.169.254", false, false},
		{"169.254.7.7", false, true},
		{"fe80::1%eth0", false, false},
		{"fd00:ec2::254", false, false},
		{"168.63.129.16", false, false},
		{"224.0.0.1", false, false},
	} {
		a := netip.MustParseAddr(tt.addr)
		if free, listed := Reach(nil).Check(a) == nil, allowed.Check(a) == nil; free != tt.free || listed != tt.listed {
			t.Errorf("%s: have %t and %t, want %t and %t", tt.addr, free, listed, tt.free, tt.listed)
		}
	}
	for _, bad := range []string{"", "localhost", "10.0.0.0/33", "fe80::1%eth0"} {
		if r, err := ParseReach([]string{bad}); err == nil {
			t.Errorf("%q was read as %v", bad, r)
		}
	}
}
