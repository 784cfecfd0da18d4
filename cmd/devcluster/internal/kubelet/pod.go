package kubelet

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/utils/ptr"

	"gitopsd.dev/cmd/devcluster/internal/pods"
	"gitopsd.dev/cmd/devcluster/internal/podspec"
)

// FailAnnotation on a pod keeps it from becoming ready, or makes it unready again. Its
// value is the reason of the waiting containers, such as CrashLoopBackOff or
// ImagePullBackOff.
const FailAnnotation = "devcluster.gitopsd.dev/fail"

// ImageIDAnnotation on a pod is the image ID that its containers report, as if the node
// had another image with the same name, or reported the digest of a platform's manifest
// instead of the index.
const ImageIDAnnotation = "devcluster.gitopsd.dev/image-id"

// action is an action on a pod.
type action int

const (
	// leave the pod alone until it changes.
	leave action = iota
	// bind the pod to the node.
	bind
	// report the status of the decision.
	report
	// remove the pod: it is terminating, and its processes have ended.
	remove
)

// decision is an action on a pod, and the status for report.
type decision struct {
	action action
	status corev1.PodStatus
}

// decide returns the next action on a pod. It is a pure function and does not change the
// pod. podIP is the address for a pod that has none yet, and processes has the states of
// the containers that run as processes.
func decide(pod *corev1.Pod, node *corev1.Node, podIP string, processes map[string]pods.Container, now metav1.Time) decision {
	switch {
	case pod.Spec.NodeName == "":
		return place(pod, node, now)
	case pod.Spec.NodeName != node.Name:
		return decision{action: leave}
	case pod.DeletionTimestamp != nil:
		// With a grace period of zero it is deleted and only waits for its finalizers.
		if pod.DeletionGracePeriodSeconds != nil && *pod.DeletionGracePeriodSeconds == 0 {
			return decision{action: leave}
		}
		return decision{action: remove}
	case pod.Status.Phase == corev1.PodSucceeded, pod.Status.Phase == corev1.PodFailed:
		return decision{action: leave}
	}
	return reportIfChanged(pod, runStatus(pod, node, podIP, processes, now))
}

func reportIfChanged(pod *corev1.Pod, status corev1.PodStatus) decision {
	if equality.Semantic.DeepEqual(pod.Status, status) {
		return decision{action: leave}
	}
	return decision{action: report, status: status}
}

// place decides as the scheduler does.
func place(pod *corev1.Pod, node *corev1.Node, now metav1.Time) decision {
	if pod.DeletionTimestamp != nil || len(pod.Spec.SchedulingGates) > 0 {
		return decision{action: leave}
	}
	if fits, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); err == nil && fits {
		return decision{action: bind}
	}
	status := *pod.Status.DeepCopy()
	setCondition(&status, corev1.PodCondition{
		Type:    corev1.PodScheduled,
		Status:  corev1.ConditionFalse,
		Reason:  corev1.PodReasonUnschedulable,
		Message: "the only node, " + node.Name + ", does not match the pod's node selector or affinity",
	}, pod.Generation, now)
	return reportIfChanged(pod, status)
}

// runStatus returns the status of a pod of this node. With processes it is their status;
// otherwise the pod fails if its annotation says so, is completed if it belongs to a Job,
// and runs in all other cases. A failing pod stays in its phase, Pending or Running.
func runStatus(pod *corev1.Pod, node *corev1.Node, podIP string, processes map[string]pods.Container, now metav1.Time) corev1.PodStatus {
	status := *pod.Status.DeepCopy()
	status.ObservedGeneration = pod.Generation
	if status.StartTime == nil {
		status.StartTime = &now
	}
	hostIP := nodeIP(node)
	status.HostIP, status.HostIPs = hostIP, []corev1.HostIP{{IP: hostIP}}
	if pod.Spec.HostNetwork && processes == nil {
		podIP = hostIP // pods with processes need addresses of their own
	}
	if status.PodIP == "" && podIP != "" {
		status.PodIP, status.PodIPs = podIP, []corev1.PodIP{{IP: podIP}}
	}

	fail, failing := pod.Annotations[FailAnnotation]
	completes := !failing && completesByItself(pod)
	if processes != nil {
		status.Phase, completes = phaseOf(pod, processes)
		failing = !completes && !allReady(processes)
	}
	switch {
	case processes != nil:
	case completes:
		status.Phase = corev1.PodSucceeded
	case !failing:
		status.Phase = corev1.PodRunning
	}

	old := func(name string, in []corev1.ContainerStatus) *corev1.ContainerStatus {
		i := slices.IndexFunc(in, func(c corev1.ContainerStatus) bool { return c.Name == name })
		if i < 0 {
			return nil
		}
		return &in[i]
	}
	status.InitContainerStatuses = nil
	for _, c := range pod.Spec.InitContainers {
		sidecar := c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
		state := containerState{completed: !sidecar || completes}
		status.InitContainerStatuses = append(status.InitContainerStatuses,
			state.status(pod, c, old(c.Name, pod.Status.InitContainerStatuses), now))
	}
	status.ContainerStatuses = nil
	for _, c := range pod.Spec.Containers {
		if process, ok := processes[c.Name]; ok {
			status.ContainerStatuses = append(status.ContainerStatuses, processStatus(pod, c, process))
			continue
		}
		state := containerState{completed: completes || processes != nil && completesByItself(pod)}
		if processes == nil {
			state.waiting = fail
		}
		if failing && fail == "" && processes == nil {
			state.waiting = "Failed"
		}
		status.ContainerStatuses = append(status.ContainerStatuses,
			state.status(pod, c, old(c.Name, pod.Status.ContainerStatuses), now))
	}
	setConditions(pod, &status, failing, completes, now)
	return status
}

func nodeIP(node *corev1.Node) string {
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			return a.Address
		}
	}
	return ""
}

// completesByItself reports whether a pod's containers count as ended with success: the
// containers of a Job do. Others run, whatever their restart policy.
func completesByItself(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	return owner != nil && owner.Kind == "Job" && strings.HasPrefix(owner.APIVersion, "batch/") &&
		pod.Spec.RestartPolicy != corev1.RestartPolicyAlways
}

// phaseOf returns the phase of a pod with processes, and whether it has ended. The phase
// is Running from the start of the first process.
func phaseOf(pod *corev1.Pod, processes map[string]pods.Container) (phase corev1.PodPhase, ended bool) {
	phase, ended = pod.Status.Phase, len(processes) == len(pod.Spec.Containers) || completesByItself(pod)
	success := true
	for _, p := range processes {
		if p.State.Terminated != nil {
			success = success && p.State.Terminated.ExitCode == 0
		} else {
			ended = false
		}
		if p.State.Waiting == nil || p.Last.Terminated != nil {
			phase = corev1.PodRunning
		}
	}
	switch {
	case ended && success:
		return corev1.PodSucceeded, true
	case ended:
		return corev1.PodFailed, true
	}
	return phase, false
}

func allReady(processes map[string]pods.Container) bool {
	for _, p := range processes {
		if !p.Ready {
			return false
		}
	}
	return true
}

// processStatus returns the status of a container that runs as a process.
func processStatus(pod *corev1.Pod, c corev1.Container, p pods.Container) corev1.ContainerStatus {
	started := p.State.Running != nil
	status := corev1.ContainerStatus{
		Name:                 c.Name,
		Image:                c.Image,
		ImageID:              cmp.Or(pod.Annotations[ImageIDAnnotation], imageID(c.Image)),
		Ready:                p.Ready,
		Started:              &started,
		RestartCount:         p.RestartCount,
		State:                *p.State.DeepCopy(),
		LastTerminationState: *p.Last.DeepCopy(),
	}
	if p.State.Waiting == nil || p.Last.Terminated != nil {
		status.ContainerID = containerID(pod, c, p.RestartCount)
	}
	if status.State.Terminated != nil {
		status.State.Terminated.ContainerID = status.ContainerID
	}
	if status.LastTerminationState.Terminated != nil {
		status.LastTerminationState.Terminated.ContainerID = containerID(pod, c, max(0, p.RestartCount-1))
	}
	return status
}

// containerID returns the ID of a container, a different one for each restart.
func containerID(pod *corev1.Pod, c corev1.Container, restarts int32) string {
	name := string(pod.UID) + "/" + c.Name
	if restarts > 0 {
		name += fmt.Sprint("/", restarts)
	}
	return fmt.Sprintf("devcluster://%x", sha256.Sum256([]byte(name)))
}

// graceOf returns how long a pod's processes may take to end.
func graceOf(pod *corev1.Pod) time.Duration {
	seconds := ptr.Deref(pod.Spec.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds)
	return time.Duration(ptr.Deref(pod.DeletionGracePeriodSeconds, seconds)) * time.Second
}

// containerState is the state of a container without a process: it waits for the given
// reason, has completed, or runs.
type containerState struct {
	waiting   string
	completed bool
}

// status returns a container's status. old is the previous status, which has the start
// time; it may be nil.
func (s containerState) status(pod *corev1.Pod, c corev1.Container, old *corev1.ContainerStatus, now metav1.Time) corev1.ContainerStatus {
	started := s.waiting == "" && !s.completed
	status := corev1.ContainerStatus{
		Name:    c.Name,
		Image:   c.Image,
		ImageID: cmp.Or(pod.Annotations[ImageIDAnnotation], imageID(c.Image)),
		Ready:   s.waiting == "",
		Started: &started,
	}
	since := now
	if old != nil && old.State.Running != nil {
		since = old.State.Running.StartedAt
	}
	switch {
	case s.waiting != "":
		status.State.Waiting = &corev1.ContainerStateWaiting{
			Reason:  s.waiting,
			Message: "annotation " + FailAnnotation + " of the pod says so",
		}
		return status
	case !s.completed:
		status.State.Running = &corev1.ContainerStateRunning{StartedAt: since}
	case old != nil && old.State.Terminated != nil:
		status.State.Terminated = old.State.Terminated
	default:
		status.State.Terminated = &corev1.ContainerStateTerminated{
			Reason: "Completed", StartedAt: since, FinishedAt: now,
		}
	}
	status.ContainerID = containerID(pod, c, 0)
	if status.State.Terminated != nil {
		status.State.Terminated.ContainerID = status.ContainerID
	}
	return status
}

// setConditions sets the conditions that a kubelet sets.
func setConditions(pod *corev1.Pod, status *corev1.PodStatus, failing, completed bool, now metav1.Time) {
	is := func(b bool) corev1.ConditionStatus {
		if b {
			return corev1.ConditionTrue
		}
		return corev1.ConditionFalse
	}
	reason := ""
	switch {
	case failing:
		reason = "ContainersNotReady"
	case completed:
		reason = "PodCompleted"
	}
	running := !failing && !completed
	gated := slices.ContainsFunc(pod.Spec.ReadinessGates, func(g corev1.PodReadinessGate) bool {
		return !slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == g.ConditionType && c.Status == corev1.ConditionTrue
		})
	})
	readyReason := reason
	if running && gated {
		readyReason = "ReadinessGatesNotReady"
	}
	for _, c := range []corev1.PodCondition{
		{Type: corev1.PodReadyToStartContainers, Status: is(!completed)},
		{Type: corev1.PodInitialized, Status: corev1.ConditionTrue},
		{Type: corev1.PodReady, Status: is(running && !gated), Reason: readyReason},
		{Type: corev1.ContainersReady, Status: is(running), Reason: reason},
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
	} {
		setCondition(status, c, pod.Generation, now)
	}
}

// setCondition adds or replaces a condition. Its transition time changes only with its
// status.
func setCondition(status *corev1.PodStatus, c corev1.PodCondition, generation int64, now metav1.Time) {
	c.LastTransitionTime, c.ObservedGeneration = now, generation
	for i, old := range status.Conditions {
		if old.Type != c.Type {
			continue
		}
		if old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
		c.LastProbeTime = old.LastProbeTime
		status.Conditions[i] = c
		return
	}
	status.Conditions = append(status.Conditions, c)
}

// imageID returns the image by digest, as container runtimes report it: the digest in the
// image's name, or else one computed from the name.
func imageID(image string) string {
	_, digest, pinned := strings.Cut(image, "@")
	if !pinned {
		digest = fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(image)))
	}
	return podspec.Repository(image) + "@" + digest
}
