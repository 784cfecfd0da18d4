// Package etcd has the types of etcd namespaces. An etcd namespace is an isolated key
// space in a shared etcd. An EtcdNamespace among a cluster's manifests declares one, and
// spec.etcd of a Cluster declares one for the cluster itself. The package is pure.
//
// A [Namespace] is a declared key space: its identity, its keys and its limits (etcd.go).
// reconcile/etcd provisions it, and reconcile/etcdproxy serves it.
//
// A [Declaration] is an EtcdNamespace as written. declaration.go reads it with the decoder
// in decode.go; definition.yaml is its CRD. [Objects] makes its proxy (proxy.go).
package etcd

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"gitopsd.dev/render/manifest"
)

// ID identifies an etcd namespace in the fleet. Namespace and Name are empty for the etcd
// namespace of a cluster itself. IDs are comparable.
type ID struct {
	// Cluster is a registered name.
	Cluster string
	// Namespace and Name are from the EtcdNamespace in the cluster.
	Namespace, Name string
}

// String returns "prod/default/sample-apiserver", or "prod" for the cluster itself.
func (id ID) String() string {
	if id.Name == "" {
		return id.Cluster
	}
	return id.Cluster + "/" + id.Namespace + "/" + id.Name
}

// ParseID parses the result of [ID.String].
func ParseID(s string) (ID, error) {
	parts := strings.Split(s, "/")
	switch {
	case slices.Contains(parts, ""):
	case len(parts) == 1:
		return ID{Cluster: parts[0]}, nil
	case len(parts) == 3:
		return ID{Cluster: parts[0], Namespace: parts[1], Name: parts[2]}, nil
	}
	return ID{}, fmt.Errorf("%q is not the name of an etcd namespace: CLUSTER/NAMESPACE/NAME or CLUSTER", s)
}

// Conditions in the status of an EtcdNamespace.
const (
	// ProvisionedCondition is True once the namespace is in the etcd.
	ProvisionedCondition = "Provisioned"
	// MissingReason is the reason of a condition if the daemon has no etcd.
	MissingReason = "EtcdMissing"
)

// URI returns the only subject alternative name in certificates of clients:
// spiffe://gitopsd.dev/etcd/<id>.
func (id ID) URI() *url.URL {
	return &url.URL{Scheme: "spiffe", Host: manifest.Group, Path: "/etcd/" + id.String()}
}

// User returns the name of the user and role in etcd. It is also the common name of the
// proxy's certificate, which has at most 64 characters (RFC 5280), so it is a hash of the
// ID.
func (id ID) User() string {
	sum := sha256.Sum256([]byte(id.String()))
	return "gitopsd-" + hex.EncodeToString(sum[:20])
}

// OwnPrefix is the prefix of gitopsd's own keys and of all default prefixes. Declarations
// must not name a prefix below it.
const OwnPrefix = "/" + manifest.Group + "/"

// DefaultPrefix returns the prefix if the declaration names none. The default prefix of a
// cluster itself does not contain those of its EtcdNamespaces.
func (id ID) DefaultPrefix() string {
	if id.Name == "" {
		return OwnPrefix + "clusters/" + id.Cluster + "/"
	}
	return OwnPrefix + "ns/" + id.String() + "/"
}

// Each namespace has a number. It is the high bits of the IDs of its leases in etcd.
const (
	// NumberBits is the number of bits of a number. 0 is not a number.
	NumberBits = 20
	// MaxNumber is the largest number.
	MaxNumber = 1<<NumberBits - 1
	// LeaseBits is the number of bits of a lease's ID that the tenant chooses. IDs in
	// etcd are positive.
	LeaseBits = 63 - NumberBits
)

// Namespace is an isolated key space in an etcd.
type Namespace struct {
	ID ID `json:"id"`
	// Number is unique in the etcd; see [NumberBits].
	Number int64 `json:"number"`
	// Prefix is the prefix of its keys in etcd. It ends with "/". Prefixes of two
	// namespaces must not contain each other.
	Prefix   string   `json:"prefix"`
	Quota    Quota    `json:"quota,omitzero"`
	Throttle Throttle `json:"throttle,omitzero"`
	// Revoked are SHA-256 fingerprints, in hex, of valid client certificates to refuse.
	Revoked []string `json:"revoked,omitempty"`
}

// Quota limits the content of a namespace. Zero means no limit.
type Quota struct {
	// Storage is the largest total size of keys and values, in bytes.
	Storage int64 `json:"storage,omitempty"`
	// Keys is the largest number of keys.
	Keys int64 `json:"keys,omitempty"`
	// WriteBytesPerSecond bounds writes by each proxy, and so the history until it is compacted. A put counts
	// with its value, twice its key and prefix, and 128 bytes: etcd stores them and, once the key is deleted,
	// the deletion. A put that keeps the value counts with that, or with the largest while it is uncertain.
	WriteBytesPerSecond int64 `json:"writeBytesPerSecond,omitempty"`
}

// Throttle limits the requests of a namespace. Zero means the default.
type Throttle struct {
	RequestsPerSecond int64 `json:"requestsPerSecond,omitempty"`
	// Concurrent is the largest number of requests in progress.
	Concurrent int64 `json:"concurrent,omitempty"`
	// Watches is the largest number of watches.
	Watches int64 `json:"watches,omitempty"`
	// Weight is the share of the namespace while several namespaces wait.
	Weight int64 `json:"weight,omitempty"`
}
