package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"gitopsd.dev/cmd/devcluster/internal/egress"
)

const (
	byClusterIP = "clusterIP"
	byService   = "service"
)

// services finds the endpoints behind cluster IPs.
type services struct {
	services, slices cache.Indexer
}

// watchServices watches Services and their EndpointSlices once factory starts.
func watchServices(factory informers.SharedInformerFactory) (*services, error) {
	s, e := factory.Core().V1().Services().Informer(), factory.Discovery().V1().EndpointSlices().Informer()
	err := errors.Join(
		s.AddIndexers(cache.Indexers{byClusterIP: func(obj any) ([]string, error) {
			return obj.(*corev1.Service).Spec.ClusterIPs, nil
		}}),
		e.AddIndexers(cache.Indexers{byService: func(obj any) ([]string, error) {
			slice := obj.(*discoveryv1.EndpointSlice)
			return []string{slice.Namespace + "/" + slice.Labels[discoveryv1.LabelServiceName]}, nil
		}}),
	)
	return &services{services: s.GetIndexer(), slices: e.GetIndexer()}, err
}

// endpoint returns an endpoint of the Service with this address, or the address itself if
// no Service has it.
func (s *services) endpoint(to netip.AddrPort) (netip.AddrPort, error) {
	found, err := s.services.ByIndex(byClusterIP, to.Addr().String())
	if err != nil || len(found) == 0 {
		return to, err
	}
	service := found[0].(*corev1.Service)
	objs, err := s.slices.ByIndex(byService, service.Namespace+"/"+service.Name)
	if err != nil {
		return netip.AddrPort{}, err
	}
	slices := make([]*discoveryv1.EndpointSlice, 0, len(objs))
	for _, obj := range objs {
		slices = append(slices, obj.(*discoveryv1.EndpointSlice))
	}
	return egress.Backend(service, slices, to.Port(), rand.IntN)
}

// route implements [egress.Route] for the processes of this cluster's pods.
func (k *kubelet) route(to netip.AddrPort) (netip.AddrPort, error) {
	endpoint, err := k.services.endpoint(to)
	if err != nil {
		return netip.AddrPort{}, err
	}
	process, err := k.runtime.Address(endpoint.Addr())
	if err != nil {
		return netip.AddrPort{}, err
	}
	return netip.AddrPortFrom(process, endpoint.Port()), nil
}

// serveEgress listens on the Unix socket at path until ctx ends. It removes an existing
// socket, which a killed process left: only one process serves a cluster.
func (k *kubelet) serveEgress(ctx context.Context, path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return fmt.Errorf("egress proxy: %w", err)
	}
	return egress.Serve(ctx, l, k.route)
}
