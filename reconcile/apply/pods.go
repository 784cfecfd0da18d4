package apply

import (
	"context"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/manifest"
)

// A workload that is not ready reports how many pods are missing, its pods why.

const (
	// mostAskedWorkloads is for how many workloads of a kind pods are read.
	mostAskedWorkloads = 5
	// mostAskedPods is how many pods of a workload are read.
	mostAskedPods = 50
)

func hasPods(gk schema.GroupKind) bool {
	return slices.Contains(manifest.Workloads, manifest.GroupKind(gk))
}

// selectorOf returns a workload's label selector; "" if it has none.
func selectorOf(u *unstructured.Unstructured) string {
	tree := manifest.Mapping(u.Object, "spec", "selector")
	var s metav1.LabelSelector
	if tree == nil || runtime.DefaultUnstructuredConverter.FromUnstructured(tree, &s) != nil {
		return ""
	}
	selector, err := metav1.LabelSelectorAsSelector(&s)
	if err != nil {
		return ""
	}
	return selector.String()
}

// blamePods adds to the reasons of workloads why their pods are not ready. A
// workload without such a pod is looked at again: a pod may fail after the last
// write to its workload. It costs one list for each workload.
func (a *Applier) blamePods(ctx context.Context, list []Health, l *healthLook) error {
	asked := 0
	for i := range list {
		h := &list[i]
		if h.State != InProgress && h.State != FailedState || l.selectors[h.ID] == "" || asked == mostAskedWorkloads {
			continue
		}
		asked++
		fault, err := a.podFault(ctx, h.ID.Namespace, l.selectors[h.ID])
		switch {
		case kube.IsClusterWide(err):
			return err
		case err != nil:
			// Without the right to read pods, the workload's own reason is enough.
			a.log.Debug("the pods of a workload that is not ready cannot be read", "object", h.ID.String(), "error", err)
		case fault == "":
			l.again[h.ID] = true
		default:
			h.Reason = strings.TrimPrefix(h.Reason+"; "+fault, "; ")
		}
	}
	return nil
}

// podFault returns why the first pod by name that is not ready is not.
func (a *Applier) podFault(ctx context.Context, namespace, selector string) (string, error) {
	t, err := a.cluster.Kind(ctx, manifest.Pod.Group, manifest.Pod.Kind)
	if err != nil {
		return "", err
	}
	first, fault := "", ""
	err = a.cluster.ListFull(ctx, t, kube.ListOptions{Namespace: namespace, Selector: selector, Most: mostAskedPods}, func(tree map[string]any) bool {
		name := manifest.Text(tree, "metadata", "name")
		if why := faultOf(tree); why != "" && (first == "" || name < first) {
			first, fault = name, fmt.Sprintf("pod %s: %s", name, why)
		}
		return true
	})
	return fault, err
}

// faultOf returns why a pod is not ready: why a container waits, or why no node
// takes the pod. It leaves out the containers' messages: they contain times, and change
// constantly.
func faultOf(pod map[string]any) string {
	if manifest.Text(pod, "metadata", "deletionTimestamp") != "" {
		return ""
	}
	for _, field := range []string{"initContainerStatuses", "containerStatuses"} {
		for _, s := range manifest.List(pod, "status", field) {
			container, _ := s.(map[string]any)
			name := manifest.Text(container, "name")
			reason := manifest.Text(container, "state", "waiting", "reason")
			if reason != "" && reason != "ContainerCreating" && reason != "PodInitializing" {
				return fmt.Sprintf("container %s: %s", name, reason)
			}
		}
	}
	if c := manifest.Condition(pod, "PodScheduled"); c["status"] == "False" {
		return "no node takes it: " + manifest.Text(c, "message")
	}
	return ""
}
