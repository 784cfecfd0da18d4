// Kubectl is kubectl of the version that devcluster runs, for machines that have
// none. It is a program of its own since it starts twice as fast without
// Kubernetes' servers in it.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
)

func main() {
	os.Exit(cli.Run(kubectl.NewDefaultKubectlCommand()))
}
