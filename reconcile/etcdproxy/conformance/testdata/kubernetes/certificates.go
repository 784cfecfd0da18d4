// Package testingcert makes certificates like those that it had, for a client of the
// namespace that tests use.
package testingcert

import (
	"gitopsd.dev/reconcile/etcdproxy/proxytest"
	"gitopsd.dev/render/etcd"
)

// These are the certificates, PEM: of a server that is its own client, and of the
// authority that signed it.
var CertFileContent, KeyFileContent, CAFileContent = certificates()

func certificates() (crt, key, ca string) {
	authority, err := proxytest.NewAuthority("test")
	if err != nil {
		panic(err)
	}
	pair, err := authority.Server(etcd.ID{Cluster: "kubernetes"}.URI())
	if err != nil {
		panic(err)
	}
	c, k, err := proxytest.EncodePair(pair)
	if err != nil {
		panic(err)
	}
	return string(c), string(k), string(authority.PEM())
}
