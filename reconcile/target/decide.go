package target

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation"

	"gitopsd.dev/reconcile/home"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/clusters"
)

// spec is what a target says.
type spec struct {
	// cluster is the name of clusterRef, secret that of connectionSecretRef.
	cluster, secret string
}

// secretName is the name of the Secret that gitopsd writes for a target.
func secretName(target string) string { return target + "-connection" }

// action is what is to be done about a target's connection.
type action int

const (
	// wait leaves everything as it is, until the cluster or the registry has changed.
	wait action = iota
	// use uses a Secret that somebody brought.
	use
	// offer keeps a Secret with a connection to the cluster.
	offer
	// withdraw deletes the Secret that was offered.
	withdraw
)

// decision is what a target should have.
type decision struct {
	do action
	// condition is the target's, if do succeeds; that of use depends on the Secret.
	condition   condition
	cluster     clusters.Cluster
	publication clusters.Publication
}

// The reasons of the condition Ready.
const (
	// Available: the connection can be used.
	Available = "Available"
	// ClusterNotRegistered, ClusterNotPublished and ClusterLeaving: there is no
	// connection to the cluster, and will be none until the registry changes.
	ClusterNotRegistered = "ClusterNotRegistered"
	ClusterNotPublished  = "ClusterNotPublished"
	ClusterLeaving       = "ClusterLeaving"
	// RegistryFaulty: the registry has errors, and whether the cluster is published is
	// not known.
	RegistryFaulty = "RegistryFaulty"
	// ClusterSuspended, ClusterNotReady and ClusterUnreachable: it waits for the
	// cluster.
	ClusterSuspended   = "ClusterSuspended"
	ClusterNotReady    = "ClusterNotReady"
	ClusterUnreachable = "ClusterUnreachable"
	// NamespaceReserved: the target is in gitopsd's own namespace, whose Secrets are
	// nobody's connections.
	NamespaceReserved = "NamespaceReserved"
	// NameTooLong: the Secret cannot be named after the target.
	NameTooLong = "NameTooLong"
	// ConnectionFailed: there is no connection, since something failed. It is tried
	// again.
	ConnectionFailed = "ConnectionFailed"
	// SecretTaken: the name of the Secret is somebody else's.
	SecretTaken = "SecretTaken"
	// SecretNotFound and SecretRefused: the Secret that the target names is missing, or
	// cannot be used.
	SecretNotFound = "SecretNotFound"
	SecretRefused  = "SecretRefused"
)

// decide returns what a target of a home should have. A Secret that a target names itself
// takes precedence over its cluster. Where it is not known whether a connection is wanted,
// the one that is there stays. reserved reports whether the namespace holds credentials of
// gitopsd's own.
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
		return no(do, NamespaceReserved, "gitopsd keeps its own credentials in namespace %s, where nothing is a target; choose another", k.meta.Namespace)
	case brought:
		return decision{do: use}
	}
	c, registered := fleet.Registry.Get(s.cluster)
	switch {
	case !registered && fleet.Registry.Faulty:
		return no(wait, RegistryFaulty, "cluster %s cannot be found while %s has errors; what the target has is left as it is", s.cluster, sources.RegistryFile)
	case !registered:
		return no(withdraw, ClusterNotRegistered, "cluster %s is not registered in %s", s.cluster, sources.RegistryFile)
	case c.Remove:
		return no(withdraw, ClusterLeaving, "cluster %s is to be emptied (%s)", s.cluster, clusters.RemoveAnnotation)
	}
	pub, granted := c.Publication(homeName, k.meta.Namespace)
	if !granted {
		return no(withdraw, ClusterNotPublished, "cluster %s is not published to this namespace; its document in %s has to list {cluster: %s, namespace: %s} under spec.publish",
			s.cluster, sources.RegistryFile, homeName, k.meta.Namespace)
	}
	// Why the cluster is not ready may name what others run there: /status says it.
	phase, _ := fleet.State(s.cluster)
	has := k.held.fits(s.cluster, pub)
	switch {
	case len(secretName(k.meta.Name)) > validation.DNS1123SubdomainMaxLength:
		return no(withdraw, NameTooLong, "the name of the target is longer than %d characters, and there is no name for its Secret; choose another",
			validation.DNS1123SubdomainMaxLength-len(secretName("")))
	case c.Spec.Suspend:
		return no(wait, ClusterSuspended, "cluster %s is suspended (spec.suspend)", s.cluster)
	case phase == status.Unreachable:
		return no(wait, ClusterUnreachable, "cluster %s cannot be reached", s.cluster)
	case !has && !ready(phase):
		return no(wait, ClusterNotReady, "cluster %s is not ready: %s", s.cluster, phase)
	}
	return decision{
		do: offer, cluster: c, publication: pub,
		condition: condition{ready: true, reason: Available, message: "the connection is in Secret " + secretName(k.meta.Name), secret: secretName(k.meta.Name)},
	}
}

// ready reports whether a cluster in the phase can be published: everything is applied to
// it.
func ready(phase status.Phase) bool {
	return phase == status.Ready || phase == status.Progressing
}
