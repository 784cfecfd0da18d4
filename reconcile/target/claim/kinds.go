package claim

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"gitopsd.dev/render/manifest"
)

// Kinds with rules of their own.
var (
	clusterAPI     = manifest.GroupKind{Group: "cluster.x-k8s.io", Kind: "Cluster"}
	clusterProfile = manifest.ClusterProfile
)

// DefaultKinds are the kinds of claims unless an operator names others.
var DefaultKinds = []string{"KubernetesCluster.compute.crossplane.io", clusterAPI.String()}

// ParseKinds reads kinds, each as Kind.group.
func ParseKinds(texts []string) ([]manifest.GroupKind, error) {
	var kinds []manifest.GroupKind
	for _, text := range texts {
		kind, group, ok := strings.Cut(text, ".")
		if !ok || kind == "" || !strings.Contains(group, ".") || kind[0] < 'A' || kind[0] > 'Z' {
			return nil, fmt.Errorf("%q is not Kind.group, such as %s", text, clusterAPI)
		}
		gk := manifest.GroupKind{Group: group, Kind: kind}
		if slices.Contains(kinds, gk) {
			return nil, errors.New(text + " is named twice")
		}
		kinds = append(kinds, gk)
	}
	return kinds, nil
}

// state is the state of a claim's cluster.
type state struct {
	apiVersion string
	// secret is the name of the connection Secret in the claim's namespace; empty if there
	// is none yet, or if it is the Secret of profile, a ClusterProfile.
	secret, profile string
	// why is why there can be no target; empty if the claim only waits.
	why string
}

// stateOf reads the state of a claim. A claim that is neither Bound nor Ready waits.
func stateOf(gk manifest.GroupKind, tree map[string]any) state {
	name := manifest.Text(tree, "metadata", "name")
	switch gk {
	case clusterAPI:
		ready := manifest.ConditionTrue(tree, "Ready") || manifest.ConditionTrue(tree, "Available") ||
			manifest.Truth(tree, "status", "controlPlaneReady") || manifest.Truth(tree, "status", "initialization", "controlPlaneInitialized")
		if !ready {
			return state{}
		}
		return state{secret: SecretOf(gk, tree)}
	case clusterProfile:
		if !manifest.ConditionTrue(tree, "ControlPlaneHealthy") {
			return state{}
		}
		return state{profile: name}
	}
	if manifest.Text(tree, "status", "bindingPhase") != "Bound" && manifest.Text(tree, "status", "phase") != "Bound" && !manifest.ConditionTrue(tree, "Ready") {
		return state{}
	}
	secret := SecretOf(gk, tree)
	switch {
	case manifest.Text(tree, "spec", "writeConnectionSecretToRef", "name") == "":
		return state{why: "spec.writeConnectionSecretToRef names no Secret"}
	case secret == "":
		return state{why: fmt.Sprintf("spec.writeConnectionSecretToRef names a Secret in namespace %s, and a target uses those of its own", manifest.Text(tree, "spec", "writeConnectionSecretToRef", "namespace"))}
	}
	return state{secret: secret}
}

// SecretOf returns the name of the Secret in a claim's namespace that gets the connection to its
// cluster; empty if the claim names none there, as a ClusterProfile.
func SecretOf(gk manifest.GroupKind, tree map[string]any) string {
	if gk == clusterAPI {
		return manifest.Text(tree, "metadata", "name") + "-kubeconfig"
	}
	if namespace := manifest.Text(tree, "spec", "writeConnectionSecretToRef", "namespace"); namespace != "" && namespace != manifest.Text(tree, "metadata", "namespace") {
		return ""
	}
	return manifest.Text(tree, "spec", "writeConnectionSecretToRef", "name")
}
