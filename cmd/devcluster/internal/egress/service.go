package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
)

// Backend returns the endpoint for a connection to a port of a Service. Like kube-proxy,
// it chooses among the ready endpoints, or if there are none, among those that still
// serve while their pods terminate. choose(n) returns a number below n. all are the
// Service's EndpointSlices.
func Backend(service *corev1.Service, all []*discoveryv1.EndpointSlice, port uint16, choose func(n int) int) (netip.AddrPort, error) {
	name := "Service " + service.Namespace + "/" + service.Name
	i := slices.IndexFunc(service.Spec.Ports, func(p corev1.ServicePort) bool {
		return uint16(p.Port) == port && (p.Protocol == "" || p.Protocol == corev1.ProtocolTCP)
	})
	if i < 0 {
		return netip.AddrPort{}, fmt.Errorf("connection refused: %s has no TCP port %d", name, port)
	}
	var ready, ending []netip.AddrPort
	var errs []error
	for _, slice := range all {
		port := portNamed(slice, service.Spec.Ports[i].Name)
		if port == 0 {
			continue
		}
		for _, e := range slice.Endpoints {
			isReady := ptr.Deref(e.Conditions.Ready, true)
			serves := ptr.Deref(e.Conditions.Serving, isReady) && ptr.Deref(e.Conditions.Terminating, false)
			if !isReady && !serves || len(e.Addresses) == 0 {
				continue
			}
			// Consumers use only the first address; see discoveryv1.Endpoint.
			addr, err := netip.ParseAddr(e.Addresses[0])
			if err != nil {
				errs = append(errs, fmt.Errorf("EndpointSlice %s: %w", slice.Name, err))
				continue
			}
			if to := netip.AddrPortFrom(addr, port); isReady {
				ready = append(ready, to)
			} else {
				ending = append(ending, to)
			}
		}
	}
	if len(ready) == 0 {
		ready = ending
	}
	if len(ready) == 0 {
		return netip.AddrPort{}, errors.Join(append(errs, fmt.Errorf("connection refused: %s has no ready endpoint", name))...)
	}
	return ready[choose(len(ready))], nil
}

// portNamed returns the slice's TCP port with this name, 0 if it has none.
func portNamed(slice *discoveryv1.EndpointSlice, name string) uint16 {
	for _, p := range slice.Ports {
		if ptr.Deref(p.Name, "") == name && ptr.Deref(p.Protocol, corev1.ProtocolTCP) == corev1.ProtocolTCP && p.Port != nil {
			return uint16(*p.Port)
		}
	}
	return 0
}
