package target

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/home"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/sources/clusters"
)

const registry = `
apiVersion: gitopsd.dev/v1alpha1
kind: Cluster
metadata: {name: hub}
spec: {path: hub, kubeconfig: {file: hub.yaml}}
---
apiVersion: gitopsd.dev/v1alpha1
kind: Cluster
metadata: {name: prod}
spec:
  path: prod
  kubeconfig: {file: prod.yaml}
  publish:
  - {cluster: hub, namespace: team, role: edit}
  - {cluster: hub, namespace: ops, credentials: connection}
`

func suspend(registry string) string {
	return strings.Replace(registry, "  path: prod", "  suspend: true\n  path: prod", 1)
}

func garble(registry string) string { return strings.Replace(registry, "path: prod", "pth: prod", 1) }

func TestDecide(t *testing.T) {
	for _, tt := range []struct {
		name string
		// change changes the registry.
		change    func(string) string
		namespace string // team unless another is given
		target    string // t unless another is given
		spec      spec
		of        string // what the Secret that is there holds; empty for none
		denied    bool   // the Secret that is there holds what was not accepted
		unknown   bool   // the fleet
		before    string // the registry before it had errors; empty for none
		phase     status.Phase
		do        action
		reason    string
	}{
		{name: "published", spec: spec{cluster: "prod"}, phase: status.Ready, do: offer, reason: available},
		{name: "not healthy yet", spec: spec{cluster: "prod"}, phase: status.Progressing, do: offer, reason: available},
		{name: "its own Secret is named", spec: spec{cluster: "prod", secret: "t-connection"}, phase: status.Ready, do: offer, reason: available},
		{name: "another Secret takes precedence", spec: spec{cluster: "prod", secret: "mine"}, phase: status.Ready, do: use},
		{name: "a Secret alone", spec: spec{secret: "t-connection"}, phase: status.Ready, do: use},
		{name: "nothing applied yet", spec: spec{cluster: "prod"}, phase: status.Pending, do: wait, reason: clusterNotReady},
		{name: "failed", spec: spec{cluster: "prod"}, phase: status.Failed, do: wait, reason: clusterNotReady},
		{name: "failed with a connection", spec: spec{cluster: "prod"}, of: "prod token", phase: status.Failed, do: offer, reason: available},
		{name: "failed with a connection by other credentials", spec: spec{cluster: "prod"}, of: "prod connection", phase: status.Failed, do: wait, reason: clusterNotReady},
		{name: "failed with a connection that was not accepted", spec: spec{cluster: "prod"}, denied: true, phase: status.Failed, do: offer, reason: available},
		{name: "gone, with a connection that was not accepted", spec: spec{cluster: "prod"}, denied: true, phase: status.Unreachable, do: wait, reason: clusterUnreachable},
		{name: "a start, with a connection", spec: spec{cluster: "prod"}, of: "prod token", phase: status.Pending, do: offer, reason: available},
		{name: "gone", spec: spec{cluster: "prod"}, of: "prod token", phase: status.Unreachable, do: wait, reason: clusterUnreachable},
		{name: "another namespace", namespace: "others", spec: spec{cluster: "prod"}, phase: status.Ready, do: withdraw, reason: clusterNotPublished},
		{name: "another home's", spec: spec{cluster: "prod"}, phase: status.Ready, do: withdraw, reason: clusterNotPublished,
			change: func(s string) string {
				return strings.Replace(s, "{cluster: hub, namespace: team", "{cluster: prod, namespace: team", 1)
			}},
		{name: "a long name", target: strings.Repeat("t", 242), spec: spec{cluster: "prod"}, phase: status.Ready, do: offer, reason: available},
		{name: "too long a name", target: strings.Repeat("t", 243), spec: spec{cluster: "prod"}, phase: status.Ready, do: withdraw, reason: nameTooLong},
		{name: "gitopsd's own namespace", namespace: "gitopsd-system", spec: spec{cluster: "prod"}, of: "prod token", phase: status.Ready, do: withdraw, reason: namespaceReserved},
		{name: "a Secret of gitopsd's own", namespace: "gitopsd-system", spec: spec{secret: "prod"}, phase: status.Ready, do: wait, reason: namespaceReserved},
		{name: "not registered", spec: spec{cluster: "dev"}, phase: status.Ready, do: withdraw, reason: clusterNotRegistered},
		{name: "its document has errors", spec: spec{cluster: "prod"}, of: "prod token", phase: status.Ready, do: wait, reason: registryFaulty,
			change: garble},
		{name: "its document has errors now", spec: spec{cluster: "prod"}, of: "prod token", phase: status.Failed, do: offer, reason: registryFaulty, change: garble, before: registry},
		{name: "its document has errors now, without a connection", spec: spec{cluster: "prod"}, phase: status.Failed, do: wait, reason: registryFaulty, change: garble, before: registry},
		{name: "its document has errors now, with another connection", spec: spec{cluster: "prod"}, of: "prod connection", phase: status.Failed, do: wait, reason: registryFaulty, change: garble, before: registry},
		{name: "its document has errors now, and was not published", namespace: "others", spec: spec{cluster: "prod"}, of: "prod token", phase: status.Failed, do: wait, reason: registryFaulty, change: garble, before: registry},
		{name: "its document has errors now, and it was suspended", spec: spec{cluster: "prod"}, of: "prod token", phase: status.Failed, do: offer, reason: registryFaulty, change: garble, before: suspend(registry)},
		{name: "its document has errors now, of an unknown fleet", unknown: true, spec: spec{cluster: "prod"}, of: "prod token", phase: status.Failed, do: offer, reason: registryFaulty, change: garble, before: registry},
		{name: "another document has errors", spec: spec{cluster: "prod"}, phase: status.Ready, do: offer, reason: available,
			change: func(s string) string { return s + "\n---\nkind: Cluster\nmetadata: {name: broken}\n" }},
		{name: "being emptied", spec: spec{cluster: "prod"}, phase: status.Leaving, do: withdraw, reason: clusterLeaving,
			change: func(s string) string {
				return strings.Replace(s, "{name: prod}", "{name: prod, annotations: {gitopsd.dev/remove: prod}}", 1)
			}},
		{name: "suspended", spec: spec{cluster: "prod"}, phase: status.Suspended, do: wait, reason: clusterSuspended, change: suspend},
		{name: "suspended, with a connection", spec: spec{cluster: "prod"}, of: "prod token", phase: status.Suspended, do: offer, reason: clusterSuspended, change: suspend},
		{name: "suspended, with a connection that was not accepted", spec: spec{cluster: "prod"}, denied: true, phase: status.Suspended, do: offer, reason: clusterSuspended, change: suspend},
		{name: "suspended, with another connection", spec: spec{cluster: "prod"}, of: "prod connection", phase: status.Suspended, do: wait, reason: clusterSuspended, change: suspend},
		{name: "suspended, and not published", namespace: "others", spec: spec{cluster: "prod"}, of: "prod token", phase: status.Suspended, do: withdraw, reason: clusterNotPublished, change: suspend},
		{name: "unknown fleet", unknown: true, spec: spec{cluster: "prod"}, phase: status.Ready, do: wait, reason: fleetUnknown},
		{name: "unknown fleet, with a connection", unknown: true, spec: spec{cluster: "prod"}, of: "prod token", phase: status.Ready, do: offer, reason: available},
		{name: "unknown fleet, with another connection", unknown: true, spec: spec{cluster: "prod"}, of: "prod connection", phase: status.Ready, do: wait, reason: fleetUnknown},
		{name: "unknown fleet, not published", unknown: true, namespace: "others", spec: spec{cluster: "prod"}, of: "prod token", phase: status.Ready, do: wait, reason: fleetUnknown},
		{name: "unknown fleet, not registered", unknown: true, spec: spec{cluster: "dev"}, of: "dev token", phase: status.Ready, do: wait, reason: fleetUnknown},
		{name: "unknown fleet, being emptied", unknown: true, spec: spec{cluster: "prod"}, of: "prod token", phase: status.Leaving, do: wait, reason: fleetUnknown,
			change: func(s string) string {
				return strings.Replace(s, "{name: prod}", "{name: prod, annotations: {gitopsd.dev/remove: prod}}", 1)
			}},
		{name: "unknown fleet, a Secret alone", unknown: true, spec: spec{secret: "t-connection"}, phase: status.Ready, do: use},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text := registry
			if tt.change != nil {
				text = tt.change(text)
			}
			r, err := clusters.Parse("clusters.yaml", []byte(text))
			if err != nil && !r.Faulty {
				t.Fatal(err)
			}
			k := &known{meta: &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "t", Namespace: "team"}}, spec: tt.spec}
			if tt.namespace != "" {
				k.meta.Namespace = tt.namespace
			}
			if tt.target != "" {
				k.meta.Name = tt.target
			}
			if tt.of != "" || tt.denied {
				k.held = held{uid: "1", of: tt.of}
			}
			before := make(map[string]clusters.Cluster)
			if tt.before != "" {
				r, err := clusters.Parse("clusters.yaml", []byte(tt.before))
				if err != nil {
					t.Fatal(err)
				}
				for _, c := range r.Clusters {
					before[c.Name] = c
				}
			}
			const private = "deployment payments/api: hunter2" // which is not for the team
			d := decide("hub", k, new(home.View).Reserves(k.meta.Namespace), home.Fleet{Registry: r, Before: before, Unknown: tt.unknown, State: func(string) (status.Phase, string) { return tt.phase, private }})
			if strings.Contains(d.condition.message, private) {
				t.Errorf("the message is %q", d.condition.message)
			}
			if d.do != tt.do || d.condition.reason != tt.reason || d.condition.ready != (tt.reason == available) {
				t.Errorf("have %d %+v, want %d %s", d.do, d.condition, tt.do, tt.reason)
			}
		})
	}
}
