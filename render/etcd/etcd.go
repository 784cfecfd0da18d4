// Package etcd is the vocabulary of etcd namespaces: an isolated key space in a shared
// etcd, declared by an EtcdNamespace among a cluster's manifests, or by spec.etcd of a
// Cluster for the cluster itself.
//
// A [Namespace] is what the declaration means: who it is, which keys are its own, and
// what it may use. reconcile/etcd provisions it, and reconcile/etcdproxy serves it.
//
// A [Declaration] is an EtcdNamespace as it is written (declaration.go reads it,
// definition.yaml is its CRD), and [Objects] makes the proxy beside it (proxy.go). The
// package is pure.
package etcd

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"strings"

	"gitopsd.dev/render/manifest"
)

// ID identifies a namespace in the whole fleet. Its Namespace and Name are empty for a
// cluster's own. IDs are comparable.
type ID struct {
	// Cluster is a registered name.
	Cluster string
	// Namespace and Name are those of the EtcdNamespace in the cluster.
	Namespace, Name string
}

// String returns "prod/default/sample-apiserver", or "prod" for the cluster's own.
func (id ID) String() string {
	if id.Name == "" {
		return id.Cluster
	}
	return id.Cluster + "/" + id.Namespace + "/" + id.Name
}

// ParseID parses what [ID.String] returns.
func ParseID(s string) (ID, error) {
	parts := strings.Split(s, "/")
	for _, p := range parts {
		if p == "" {
			return ID{}, fmt.Errorf("%q is not the name of an etcd namespace: CLUSTER/NAMESPACE/NAME or CLUSTER", s)
		}
	}
	switch len(parts) {
	case 1:
		return ID{Cluster: parts[0]}, nil
	case 3:
		return ID{Cluster: parts[0], Namespace: parts[1], Name: parts[2]}, nil
	}
	return ID{}, fmt.Errorf("%q is not the name of an etcd namespace: CLUSTER/NAMESPACE/NAME or CLUSTER", s)
}

// What the status of an EtcdNamespace says of the daemon's etcd.
const (
	// ProvisionedCondition is True once the namespace is in the etcd.
	ProvisionedCondition = "Provisioned"
	// MissingReason is the reason of conditions if the daemon has no etcd.
	MissingReason = "EtcdMissing"
)

// uriPrefix is how the URIs begin that name namespaces in certificates.
const uriPrefix = "spiffe://" + manifest.Group + "/etcd/"

// URI returns the URI that a client's certificate has as its one subject alternative
// name: spiffe://gitopsd.dev/etcd/<id>.
func (id ID) URI() *url.URL {
	return &url.URL{Scheme: "spiffe", Host: manifest.Group, Path: "/etcd/" + id.String()}
}

// ParseURI returns the namespace that a URI of a certificate names.
func ParseURI(u *url.URL) (ID, error) {
	name, ok := strings.CutPrefix(u.String(), uriPrefix)
	if !ok {
		return ID{}, fmt.Errorf("%s does not name an etcd namespace; such URIs begin with %s", u, uriPrefix)
	}
	return ParseID(name)
}

// User returns the name of the namespace's user and role in etcd. It is the common name
// of the proxy's certificate, which has at most 64 characters (RFC 5280), so it holds a
// hash of the ID.
func (id ID) User() string {
	sum := sha256.Sum256([]byte(id.String()))
	return "gitopsd-" + hex.EncodeToString(sum[:20])
}

// OwnPrefix begins every prefix that gitopsd chooses, and every key of its own: no
// declaration names one there.
const OwnPrefix = "/" + manifest.Group + "/"

// DefaultPrefix returns the prefix of a namespace whose declaration names none. A
// cluster's own is not around those of the cluster's EtcdNamespaces.
func (id ID) DefaultPrefix() string {
	if id.Name == "" {
		return OwnPrefix + "clusters/" + id.Cluster + "/"
	}
	return OwnPrefix + "ns/" + id.String() + "/"
}

// Numbers of namespaces, which are the high bits of the IDs of their leases in etcd.
const (
	// NumberBits is how many bits a number has; 0 is no number.
	NumberBits = 20
	// MaxNumber is the largest number.
	MaxNumber = 1<<NumberBits - 1
	// LeaseBits is how many bits of an ID in etcd are the tenant's own. IDs in etcd are
	// positive.
	LeaseBits = 63 - NumberBits
)

// Namespace is a key space of its own in an etcd.
type Namespace struct {
	ID ID `json:"id"`
	// Number is unique in the etcd; see [NumberBits].
	Number int64 `json:"number"`
	// Prefix is before each of its keys in etcd. It ends with "/", so that no other
	// namespace's prefix begins with it unless by being inside, which is refused.
	Prefix   string   `json:"prefix"`
	Quota    Quota    `json:"quota,omitzero"`
	Throttle Throttle `json:"throttle,omitzero"`
	// Revoked are SHA-256 fingerprints, in hex, of client certificates that are refused
	// although they are valid.
	Revoked []string `json:"revoked,omitempty"`
}

// Quota limits what a namespace may hold. Zero fields are without a limit.
type Quota struct {
	// Storage is the largest number of bytes of the keys and values that exist.
	Storage int64 `json:"storage,omitempty"`
	// Keys is the largest number of keys that exist.
	Keys int64 `json:"keys,omitempty"`
	// WriteBytesPerSecond bounds what is written, and so the history until it is
	// compacted.
	WriteBytesPerSecond int64 `json:"writeBytesPerSecond,omitempty"`
}

// Throttle limits what a namespace may ask of etcd. Zero fields get defaults.
type Throttle struct {
	RequestsPerSecond int64 `json:"requestsPerSecond,omitempty"`
	// Concurrent is the largest number of requests in progress.
	Concurrent int64 `json:"concurrent,omitempty"`
	// Watches is the largest number of watches.
	Watches int64 `json:"watches,omitempty"`
	// Weight is the share of the namespace where several wait.
	Weight int64 `json:"weight,omitempty"`
}
