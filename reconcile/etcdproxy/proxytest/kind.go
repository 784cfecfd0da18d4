package proxytest

import "os"

// Kind is a kind of proxy that tests run with.
type Kind struct {
	Name   string
	GRPCGo bool // as in [etcdproxy.Config]
}

// Kinds are all of them.
var Kinds = []Kind{{Name: "fast"}, {Name: "grpc", GRPCGo: true}}

const kindVariable = "GITOPSD_TEST_ETCD_PROXY"

// Env has tests in another process get this kind from [KindOfEnv].
func (k Kind) Env() string { return kindVariable + "=" + k.Name }

// KindOfEnv returns the kind that the environment names. It panics if that is none, so that no test runs
// with another one than was meant.
func KindOfEnv() Kind {
	name := os.Getenv(kindVariable)
	for _, k := range Kinds {
		if k.Name == name {
			return k
		}
	}
	panic(kindVariable + " names no kind of proxy: " + name)
}
