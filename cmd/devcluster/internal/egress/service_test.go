package egress

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

var (
	isReady  = discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false)}
	notReady = discoveryv1.EndpointConditions{Ready: ptr.To(false), Serving: ptr.To(false), Terminating: ptr.To(false)}
	isEnding = discoveryv1.EndpointConditions{Ready: ptr.To(false), Serving: ptr.To(true), Terminating: ptr.To(true)}
)

func endpoint(ip string, c discoveryv1.EndpointConditions) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{Addresses: []string{ip}, Conditions: c}
}

// slice returns an EndpointSlice with one port.
func slice(name string, port int32, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "web-1"},
		Ports:      []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
		Endpoints:  endpoints,
	}
}

func TestBackend(t *testing.T) {
	t.Parallel()
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{
			{Name: "dns", Port: 443, Protocol: corev1.ProtocolUDP},
			{Name: "https", Port: 443, Protocol: corev1.ProtocolTCP},
			{Name: "metrics", Port: 8080},
		}},
	}
	for _, tt := range []struct {
		name   string
		slices []*discoveryv1.EndpointSlice
		port   uint16
		// want is an address, or part of the error.
		want string
	}{
		{"ready", []*discoveryv1.EndpointSlice{slice("https", 9443, endpoint("10.244.0.1", isReady))}, 443, "10.244.0.1:9443"},
		{"conditions unknown", []*discoveryv1.EndpointSlice{slice("https", 9443, endpoint("10.244.0.1", discoveryv1.EndpointConditions{}))}, 443, "10.244.0.1:9443"},
		{"the last of several", []*discoveryv1.EndpointSlice{
			slice("https", 9443, endpoint("10.244.0.1", isReady), endpoint("10.244.0.2", notReady)),
			slice("https", 9444, endpoint("10.244.0.3", isReady)),
		}, 443, "10.244.0.3:9444"},
		{"ready before ending", []*discoveryv1.EndpointSlice{slice("https", 9443, endpoint("10.244.0.1", isReady), endpoint("10.244.0.2", isEnding))}, 443, "10.244.0.1:9443"},
		{"only an ending one", []*discoveryv1.EndpointSlice{slice("https", 9443, endpoint("10.244.0.1", notReady), endpoint("10.244.0.2", isEnding))}, 443, "10.244.0.2:9443"},
		{"another port's slice", []*discoveryv1.EndpointSlice{slice("metrics", 8080, endpoint("10.244.0.1", isReady))}, 443, "no ready endpoint"},
		{"none ready", []*discoveryv1.EndpointSlice{slice("https", 9443, endpoint("10.244.0.1", notReady))}, 443, "Service default/web has no ready endpoint"},
		{"no slices", nil, 443, "no ready endpoint"},
		{"no such port", nil, 80, "Service default/web has no TCP port 80"},
		{"a name for an address", []*discoveryv1.EndpointSlice{slice("https", 9443, endpoint("example.org", isReady))}, 443, "EndpointSlice web-1"},
		{"without addresses", []*discoveryv1.EndpointSlice{slice("https", 9443, discoveryv1.Endpoint{})}, 443, "no ready endpoint"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := Backend(service, tt.slices, tt.port, func(n int) int { return n - 1 })
			if err != nil && (!strings.Contains(err.Error(), tt.want) || got.IsValid()) || err == nil && got.String() != tt.want {
				t.Errorf("got %v, %v; want %s", got, err, tt.want)
			}
		})
	}
}
