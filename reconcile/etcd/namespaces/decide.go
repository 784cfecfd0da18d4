package namespaces

import (
	"gitopsd.dev/render/etcd"
	"gitopsd.dev/sources"
)

// subject is what is known of an EtcdNamespace in a home.
type subject struct {
	// declared reports whether the repository has it; declaration is what it says then,
	// unless fault is why that cannot be read.
	declared    bool
	declaration *etcd.Declaration
	fault       error
	// adopt: what is in etcd of somebody else's is taken over.
	adopt bool
	// unclear: it is not declared as far as the repository can be read, but may be.
	unclear bool
	// deleting: it was deleted, and finalizers keep it. finalized: gitopsd's does.
	deleting, finalized bool
	// member: it has the label of an inventory, which says nothing for sure.
	member bool
	// etcd reports whether the daemon has an etcd.
	etcd bool
}

// action is what is to be done about an EtcdNamespace.
type action int

const (
	// leave leaves it as it is, with everything that it has.
	leave action = iota
	// keep provisions it, and keeps what belongs to it.
	keep
	// remove takes leave of it by its policy.
	remove
	// release lets the object go, and nothing else.
	release
	// refuse gives it a condition.
	refuse
)

// reason is why nothing is done, for people.
type reason struct{ reason, message string }

// The reasons of the condition Ready.
const (
	// Available: it can be used.
	Available = "Available"
	// NotDeclared: the repository does not have it.
	NotDeclared = "NotDeclared"
	// Invalid: the declaration has errors.
	Invalid = "Invalid"
	// EtcdMissing: the daemon has no etcd.
	EtcdMissing = etcd.MissingReason
	// EtcdUnavailable: the etcd cannot be used; it is tried again.
	EtcdUnavailable = "EtcdUnavailable"
	// NotProvisioned: something is wrong with this namespace in etcd.
	NotProvisioned = "NotProvisioned"
	// PrefixRefused: the daemon does not allow the prefix.
	PrefixRefused = "PrefixRefused"
	// CertificatesMissing: not all certificates are there yet.
	CertificatesMissing = "CertificatesMissing"
	// NotServed: the daemon is to serve it, and cannot.
	NotServed = "NotServed"
	// Removing: the declaration is gone, and the keys are going.
	Removing = "Removing"
)

// decide returns what is to be done about an EtcdNamespace. Where it is not known whether
// it is wanted, everything stays.
func decide(s subject) (action, reason) {
	switch {
	case s.deleting && !s.finalized:
		return leave, reason{} // others hold it
	case s.deleting && s.declared:
		return release, reason{} // it comes back as soon as it is gone
	case s.deleting && s.unclear:
		return leave, reason{message: "it was deleted, and whether the repository still declares it is not known while that has errors; its keys stay until then"}
	case s.deleting && !s.etcd:
		return leave, reason{message: "it is not declared any more, and what it has in etcd cannot be removed: " + NoEtcd}
	case s.deleting:
		return remove, reason{}
	case s.declared && s.fault != nil:
		return refuse, reason{Invalid, s.fault.Error()}
	case s.declared && !s.etcd:
		return refuse, reason{EtcdMissing, NoEtcd}
	case s.declared:
		return keep, reason{}
	case s.unclear, s.finalized, s.member:
		return leave, reason{}
	}
	return refuse, reason{NotDeclared, "the fleet's repository does not declare it, which alone gives a key space in etcd: add it to the manifests of the cluster (its directory in " + sources.RegistryFile + "), or delete it"}
}
