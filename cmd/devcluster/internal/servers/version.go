package servers

import (
	"fmt"
	"runtime/debug"
	"strconv"
	_ "unsafe" // for go:linkname

	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-base/version"
)

// kubernetesModule is the module whose version the components report.
const kubernetesModule = "k8s.io/kubernetes"

// Kubernetes' own build sets these variables with -ldflags -X. Setting them here makes a
// plain `go build` report the true version, too.
var (
	//go:linkname gitVersion k8s.io/component-base/version.gitVersion
	gitVersion string
	//go:linkname gitMajor k8s.io/component-base/version.gitMajor
	gitMajor string
	//go:linkname gitMinor k8s.io/component-base/version.gitMinor
	gitMinor string
)

// KubernetesVersion returns the version, such as v1.36.3, of the Kubernetes in this
// binary.
func KubernetesVersion() (string, error) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "", fmt.Errorf("no build information in this binary, so the version of %s is unknown", kubernetesModule)
	}
	return moduleVersion(info, kubernetesModule)
}

func moduleVersion(info *debug.BuildInfo, path string) (string, error) {
	for _, m := range info.Deps {
		if m.Path == path {
			return m.Version, nil
		}
	}
	return "", fmt.Errorf("this binary's build information has no module %s", path)
}

// setVersion makes the components of this process report version v, such as
// v1.36.3.
func setVersion(v string) error {
	parsed, err := utilversion.ParseSemantic(v)
	if err != nil {
		return fmt.Errorf("version of %s: %w", kubernetesModule, err)
	}
	gitVersion = v
	gitMajor, gitMinor = strconv.FormatUint(uint64(parsed.Major()), 10), strconv.FormatUint(uint64(parsed.Minor()), 10)
	return version.SetDynamicVersion(v)
}
