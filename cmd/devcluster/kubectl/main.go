// Kubectl is the kubectl of devcluster's version of Kubernetes, for machines without
// one. It is a program of its own because it starts twice as fast without Kubernetes'
// servers in it.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
)

func main() {
	os.Exit(cli.Run(kubectl.NewDefaultKubectlCommand()))
}
