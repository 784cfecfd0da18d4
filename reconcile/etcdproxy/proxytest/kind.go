package proxytest

import "os"

// Kind is a kind of proxy for tests.
type Kind struct {
	Name   string
	GRPCGo bool // as in [etcdproxy.Config]
}

// Kinds are all of them.
var Kinds = []Kind{{Name: "fast"}, {Name: "grpc", GRPCGo: true}}

const kindVariable = "GITOPSD_TEST_ETCD_PROXY"

// Env returns the environment variable that makes [KindOfEnv] return k.
func (k Kind) Env() string { return kindVariable + "=" + k.Name }

// KindOfEnv returns the kind that the environment names. It panics if it names none.
func KindOfEnv() Kind {
	name := os.Getenv(kindVariable)
	for _, k := range Kinds {
		if k.Name == name {
			return k
		}
	}
	panic(kindVariable + " names no kind of proxy: " + name)
}
