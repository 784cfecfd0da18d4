package namespaces

import (
	"gitopsd.dev/render/etcd"
	"gitopsd.dev/sources"
)

// subject is the state of an EtcdNamespace in a home.
type subject struct {
	// declared reports whether the repository has it. Then there is a declaration, or the fault
	// why it cannot be read.
	declared    bool
	declaration *etcd.Declaration
	fault       error
	// adopt reports whether to take over the record or keys of others in etcd.
	adopt bool
	// unclear reports whether a part of the repository that cannot be read may declare it.
	unclear bool
	// deleting reports whether it was deleted, and finalized whether it has gitopsd's finalizer.
	deleting, finalized bool
	// member reports whether it has the label of an inventory, which anybody may set.
	member bool
	// etcd reports whether the daemon has an etcd.
	etcd bool
}

// action is what to do about an EtcdNamespace.
type action int

const (
	// leave changes nothing.
	leave action = iota
	// keep provisions it, and keeps its certificates.
	keep
	// remove removes it by its policy.
	remove
	// release removes the finalizer and nothing else.
	release
	// refuse sets a condition.
	refuse
)

// reason says why nothing is done.
type reason struct{ reason, message string }

// The reasons of the condition Ready.
const (
	available           = "Available"
	notDeclared         = "NotDeclared"         // the repository does not have it
	invalid             = "Invalid"             // the declaration has errors
	etcdMissing         = etcd.MissingReason    // the daemon has no etcd
	etcdUnavailable     = "EtcdUnavailable"     // the etcd cannot be used; retried
	notProvisioned      = "NotProvisioned"      // something is wrong with this namespace in etcd
	prefixRefused       = "PrefixRefused"       // the daemon does not allow the prefix
	certificatesMissing = "CertificatesMissing" // not all certificates exist yet
	notServed           = "NotServed"           // the daemon should serve it, and cannot
	removing            = "Removing"            // no longer declared, and its keys are being deleted
)

// decide returns what to do about an EtcdNamespace. If it is unknown whether it is declared, everything
// stays.
func decide(s subject) (action, reason) {
	switch {
	case s.deleting && !s.finalized:
		return leave, reason{} // only finalizers of others are left
	case s.deleting && s.declared:
		return release, reason{} // it is created again after the deletion
	case s.deleting && s.unclear:
		return leave, reason{message: "it was deleted, and whether the repository still declares it is not known while that has errors; its keys stay until then"}
	case s.deleting && !s.etcd:
		return leave, reason{message: "it is not declared any more, and what it has in etcd cannot be removed: " + noEtcd}
	case s.deleting:
		return remove, reason{}
	case s.declared && s.fault != nil:
		return refuse, reason{invalid, s.fault.Error()}
	case s.declared && !s.etcd:
		return refuse, reason{etcdMissing, noEtcd}
	case s.declared:
		return keep, reason{}
	case s.unclear, s.finalized, s.member:
		return leave, reason{}
	}
	return refuse, reason{notDeclared, "the fleet's repository does not declare it, which alone gives a key space in etcd: add it to the manifests of the cluster (its directory in " + sources.RegistryFile + "), or delete it"}
}
