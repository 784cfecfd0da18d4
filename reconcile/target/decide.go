package target

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation"

	"gitopsd.dev/reconcile/home"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/clusters"
)

// spec is the spec of a target.
type spec struct {
	// cluster is the name in clusterRef, and secret the one in connectionSecretRef.
	cluster, secret string
}

// secretName is the name of the Secret that gitopsd writes for a target.
func secretName(target string) string { return target + "-connection" }

// action is an action on a target's connection.
type action int

const (
	// wait leaves everything as it is, until the cluster or the registry has changed.
	wait action = iota
	// use uses a Secret that others brought.
	use
	// offer keeps a Secret with a connection to the cluster, even if that is not ready.
	offer
	// withdraw deletes the Secret that was offered.
	withdraw
)

// decision is the action on a target, with its condition.
type decision struct {
	do action
	// condition is the target's if do succeeds. After use it depends on the Secret, and after
	// offer on the address.
	condition   condition
	cluster     clusters.Cluster
	publication clusters.Publication
}

// renews reports whether a connection is renewed to a cluster that is left alone otherwise, perhaps because it is
// switched off. The condition says why, however the renewal ends.
func (d decision) renews() bool {
	return d.do == offer && (d.condition.reason == clusterSuspended || d.condition.reason == registryFaulty)
}

// The reasons of the condition Ready.
const (
	// available: the connection can be used.
	available = "Available"
	// clusterNotRegistered, clusterNotPublished and clusterLeaving: there is no connection
	// until the registry changes.
	clusterNotRegistered = "ClusterNotRegistered"
	clusterNotPublished  = "ClusterNotPublished"
	clusterLeaving       = "ClusterLeaving"
	// registryFaulty: the registry has errors, so that it is not known whether the cluster is
	// published.
	registryFaulty = "RegistryFaulty"
	// fleetUnknown: it is not known yet whether the cluster is published.
	fleetUnknown = "FleetUnknown"
	// clusterSuspended, clusterNotReady and clusterUnreachable: the target waits for the
	// cluster.
	clusterSuspended   = "ClusterSuspended"
	clusterNotReady    = "ClusterNotReady"
	clusterUnreachable = "ClusterUnreachable"
	// namespaceReserved: the target is in gitopsd's own namespace, which has the daemon's
	// credentials.
	namespaceReserved = "NamespaceReserved"
	// nameTooLong: the Secret cannot be named after the target.
	nameTooLong = "NameTooLong"
	// connectionFailed: an error prevented the connection. It is tried again.
	connectionFailed = "ConnectionFailed"
	// secretTaken: a Secret of that name exists, and gitopsd did not write it.
	secretTaken = "SecretTaken"
	// secretNotFound and secretRefused: the Secret that the target names is missing, or
	// cannot be used.
	secretNotFound = "SecretNotFound"
	secretRefused  = "SecretRefused"
	// addressRefused: the daemon itself must not connect to the cluster's address, so that
	// nothing can be placed there. The connection is for others.
	addressRefused = "AddressRefused"
)

// decide decides on a target of a home. A Secret that the target names takes precedence over
// its cluster. If it is not known whether the cluster is published, an existing connection
// stays, and is renewed as it is if it fits what was published last. reserved reports whether
// the namespace has the daemon's credentials.
func decide(homeName string, k *known, reserved bool, fleet home.Fleet) decision {
	s := k.spec
	no := func(do action, reason, format string, args ...any) decision {
		return decision{do: do, condition: condition{reason: reason, message: fmt.Sprintf(format, args...)}}
	}
	switch brought := s.cluster == "" || s.secret != "" && s.secret != secretName(k.meta.Name); {
	case reserved:
		do := withdraw
		if brought {
			do = wait
		}
		return no(do, namespaceReserved, "gitopsd keeps its own credentials in namespace %s, where nothing is a target; choose another", k.meta.Namespace)
	case brought:
		return decision{do: use}
	}
	c, registered := fleet.Registry.Get(s.cluster)
	faulty := !registered && fleet.Registry.Faulty
	if faulty {
		c = fleet.Before[s.cluster] // the zero Cluster is published to nobody
	}
	pub, granted := c.Publication(homeName, k.meta.Namespace)
	renews := granted && !c.Remove && k.held.fits(s.cluster, pub)
	switch {
	case faulty:
		d := no(wait, registryFaulty, "cluster %s cannot be found while %s has errors; the target keeps what it has", s.cluster, sources.RegistryFile)
		if renews {
			d.do, d.cluster, d.publication = offer, c, pub
		}
		return d
	case fleet.Unknown && !renews:
		return no(wait, fleetUnknown, "whether cluster %s is published to this namespace is not known until a commit is applied to the cluster of the target; what the target has is left as it is", s.cluster)
	case !registered:
		return no(withdraw, clusterNotRegistered, "cluster %s is not registered in %s", s.cluster, sources.RegistryFile)
	case c.Remove:
		return no(withdraw, clusterLeaving, "cluster %s is to be emptied (%s)", s.cluster, clusters.RemoveAnnotation)
	}
	if !granted {
		return no(withdraw, clusterNotPublished, "cluster %s is not published to this namespace; its document in %s has to list {cluster: %s, namespace: %s} under spec.publish",
			s.cluster, sources.RegistryFile, homeName, k.meta.Namespace)
	}
	// The message of the cluster is only in /status: it may name workloads of others.
	phase, _ := fleet.State(s.cluster)
	// A connection that was not accepted is replaced in any phase; see reconcile/applications.
	has := k.held.fits(s.cluster, pub) || k.held.uid != "" && k.held.of == ""
	switch {
	case len(secretName(k.meta.Name)) > validation.DNS1123SubdomainMaxLength:
		return no(withdraw, nameTooLong, "the name of the target is longer than %d characters, and there is no name for its Secret; choose another",
			validation.DNS1123SubdomainMaxLength-len(secretName("")))
	case c.Spec.Suspend:
		d := no(wait, clusterSuspended, "cluster %s is suspended (spec.suspend)", s.cluster)
		if has { // a new token changes nothing in the cluster
			d.do, d.cluster, d.publication = offer, c, pub
		}
		return d
	case phase == status.Unreachable:
		return no(wait, clusterUnreachable, "cluster %s cannot be reached", s.cluster)
	case !has && !ready(phase):
		return no(wait, clusterNotReady, "cluster %s is not ready: %s", s.cluster, phase)
	}
	return decision{
		do: offer, cluster: c, publication: pub,
		condition: condition{ready: true, reason: available, message: "the connection is in Secret " + secretName(k.meta.Name), secret: secretName(k.meta.Name)},
	}
}

// ready reports whether everything is applied to a cluster in the phase, so that it can be
// published.
func ready(phase status.Phase) bool {
	return phase == status.Ready || phase == status.Progressing
}
