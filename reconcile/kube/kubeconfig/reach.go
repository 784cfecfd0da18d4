package kubeconfig

import (
	"fmt"
	"net/netip"
	"slices"
)

// metadata are the metadata services of clouds that have no link-local address.
var metadata = []netip.Addr{
	netip.MustParseAddr("fd00:ec2::254"),   // AWS
	netip.MustParseAddr("100.100.100.200"), // Alibaba Cloud
	netip.MustParseAddr("168.63.129.16"),   // Azure
	netip.MustParseAddr("192.0.0.192"),     // Oracle Cloud
}

// Reach decides which addresses a kubeconfig from a team may lead to. It refuses addresses of
// the daemon's own machine, and those at which a cloud gives credentials to it, unless they
// are listed: the daemon would send requests there on the team's behalf.
type Reach []netip.Prefix

// ParseReach reads address ranges, each such as 127.0.0.0/8 or one address.
func ParseReach(texts []string) (Reach, error) {
	var r Reach
	for _, text := range texts {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			a, errAddr := netip.ParseAddr(text)
			if errAddr != nil || a.Zone() != "" {
				return nil, fmt.Errorf("%q is no address and no range such as 127.0.0.0/8", text)
			}
			prefix = netip.PrefixFrom(a, a.BitLen())
		}
		r = append(r, prefix.Masked())
	}
	return r, nil
}

// Check returns an error if an address is refused. It is for kube.Config.MayReach, which gets
// resolved addresses, so that a name cannot change its meaning after the check.
func (r Reach) Check(a netip.Addr) error {
	a = a.Unmap().WithZone("")
	own := a.IsLoopback() || a.IsUnspecified() || a.IsLinkLocalUnicast() || a.IsMulticast() || slices.Contains(metadata, a)
	if !own || slices.ContainsFunc(r, func(p netip.Prefix) bool { return p.Contains(a) }) {
		return nil
	}
	return fmt.Errorf("address %s is refused: it is one of the machine that gitopsd runs on, or of services for it (--allow-addresses)", a)
}
