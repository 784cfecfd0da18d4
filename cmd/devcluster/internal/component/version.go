package component

import (
	"fmt"
	"runtime/debug"
	"strings"
	_ "unsafe" // for go:linkname

	"k8s.io/component-base/version"
)

// kubernetesModule is the module whose version the components report.
const kubernetesModule = "k8s.io/kubernetes"

// Kubernetes' own build sets these variables with -ldflags -X. Reaching them by
// name makes a plain `go build` report the true version too.
var (
	//go:linkname gitVersion k8s.io/component-base/version.gitVersion
	gitVersion string
	//go:linkname gitMajor k8s.io/component-base/version.gitMajor
	gitMajor string
	//go:linkname gitMinor k8s.io/component-base/version.gitMinor
	gitMinor string
)

// KubernetesVersion is the version, such as v1.36.3, of the Kubernetes that
// this binary was built with.
func KubernetesVersion() (string, error) {
	info, ok := debug.ReadBuildInfo()
	if ok {
		for _, m := range info.Deps {
			if m.Path == kubernetesModule {
				return m.Version, nil
			}
		}
	}
	return "", fmt.Errorf("this binary carries no module information about %s", kubernetesModule)
}

// setVersion makes the components of this process report KubernetesVersion.
func setVersion() error {
	v, err := KubernetesVersion()
	if err != nil {
		return err
	}
	gitVersion = v
	gitMajor, gitMinor, _ = strings.Cut(strings.TrimPrefix(v, "v"), ".")
	gitMinor, _, _ = strings.Cut(gitMinor, ".")
	return version.SetDynamicVersion(v)
}
