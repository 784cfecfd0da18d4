package kubelet

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"gitopsd.dev/cmd/devcluster/internal/pods"
)

const ip = "10.244.0.9"

var now = metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))

// newPod returns a pod of the node with one container, changed by edit.
func newPod(edit func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "u1", Generation: 3},
		Spec: corev1.PodSpec{
			NodeName:      "hub-node",
			RestartPolicy: corev1.RestartPolicyAlways,
			Containers:    []corev1.Container{{Name: "web", Image: "nginx:1.27"}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	if edit != nil {
		edit(pod)
	}
	return pod
}

func ofJob(pod *corev1.Pod) {
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "j", Controller: ptr.To(true)}}
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
}

func unbound(edit func(*corev1.Pod)) *corev1.Pod {
	return newPod(func(pod *corev1.Pod) {
		pod.Spec.NodeName = ""
		if edit != nil {
			edit(pod)
		}
	})
}

func annotated(reason string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Annotations = map[string]string{FailAnnotation: reason} }
}

func TestDecideAction(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		pod  *corev1.Pod
		want action
	}{
		{"unbound", unbound(nil), bind},
		{"node selector that matches", unbound(func(p *corev1.Pod) {
			p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "hub-node"}
		}), bind},
		{"node selector that does not match", unbound(func(p *corev1.Pod) {
			p.Spec.NodeSelector = map[string]string{"disk": "ssd"}
		}), report},
		{"of a DaemonSet", unbound(func(p *corev1.Pod) { p.Spec.Affinity = onNode("hub-node") }), bind},
		{"affinity to another node", unbound(func(p *corev1.Pod) { p.Spec.Affinity = onNode("other") }), report},
		{"gated", unbound(func(p *corev1.Pod) {
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "wait"}}
		}), leave},
		{"unbound and terminating", unbound(func(p *corev1.Pod) { p.DeletionTimestamp = &now }), leave},
		{"bound", newPod(nil), report},
		{"of another node", newPod(func(p *corev1.Pod) { p.Spec.NodeName = "other" }), leave},
		{"terminating", newPod(func(p *corev1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, ptr.To[int64](30)
		}), remove},
		{"removed, with finalizers", newPod(func(p *corev1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, ptr.To[int64](0)
		}), leave},
		{"of another node and terminating", newPod(func(p *corev1.Pod) {
			p.Spec.NodeName, p.DeletionTimestamp = "other", &now
		}), leave},
		{"succeeded", newPod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), leave},
		{"failed", newPod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), leave},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			before := tt.pod.DeepCopy()
			d := decide(tt.pod, newNode("hub-node"), ip, nil, now)
			if d.action != tt.want {
				t.Fatalf("action %d, want %d", d.action, tt.want)
			}
			if !equality.Semantic.DeepEqual(before, tt.pod) {
				t.Error("the pod was changed")
			}
			if d.action != report {
				return
			}
			// A written status must not be written again.
			tt.pod.Status = d.status
			later := metav1.NewTime(now.Add(time.Hour))
			if again := decide(tt.pod, newNode("hub-node"), "10.244.7.7", nil, later); again.action != leave {
				t.Errorf("second time: action %d, status %+v", again.action, again.status)
			}
		})
	}
}

func onNode(name string) *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{name}}},
		}}},
	}}
}

func TestDecideStatus(t *testing.T) {
	t.Parallel()
	running := func(p *corev1.Pod) {
		p.Status = decide(newPod(nil), newNode("hub-node"), ip, nil, metav1.NewTime(now.Add(-time.Hour))).status
	}
	for _, tt := range []struct {
		name  string
		pod   *corev1.Pod
		phase corev1.PodPhase
		// state is the state of the only container: "running", or the reason why it waits
		// or has ended.
		state string
		ready corev1.ConditionStatus
		podIP string
	}{
		{"new", newPod(nil), corev1.PodRunning, "running", corev1.ConditionTrue, ip},
		{"on the host's network", newPod(func(p *corev1.Pod) { p.Spec.HostNetwork = true }), corev1.PodRunning, "running", corev1.ConditionTrue, address},
		{"keeps its address", newPod(func(p *corev1.Pod) {
			p.Status.PodIP, p.Status.PodIPs = "10.244.1.1", []corev1.PodIP{{IP: "10.244.1.1"}}
		}), corev1.PodRunning, "running", corev1.ConditionTrue, "10.244.1.1"},
		{"fails", newPod(annotated("ImagePullBackOff")), corev1.PodPending, "ImagePullBackOff", corev1.ConditionFalse, ip},
		{"fails for no reason", newPod(annotated("")), corev1.PodPending, "Failed", corev1.ConditionFalse, ip},
		{"fails after it ran", newPod(func(p *corev1.Pod) { running(p); annotated("CrashLoopBackOff")(p) }),
			corev1.PodRunning, "CrashLoopBackOff", corev1.ConditionFalse, ip},
		{"recovers", newPod(func(p *corev1.Pod) {
			annotated("ImagePullBackOff")(p)
			p.Status = decide(p, newNode("hub-node"), ip, nil, now).status
			p.Annotations = nil
		}), corev1.PodRunning, "running", corev1.ConditionTrue, ip},
		{"of a Job", newPod(ofJob), corev1.PodSucceeded, "Completed", corev1.ConditionFalse, ip},
		{"of a Job, fails", newPod(func(p *corev1.Pod) { ofJob(p); annotated("Error")(p) }), corev1.PodPending, "Error", corev1.ConditionFalse, ip},
		{"restarts never, of nobody", newPod(func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }),
			corev1.PodRunning, "running", corev1.ConditionTrue, ip},
		{"readiness gate", newPod(func(p *corev1.Pod) {
			p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "lb"}}
		}), corev1.PodRunning, "running", corev1.ConditionFalse, ip},
		{"readiness gate that is open", newPod(func(p *corev1.Pod) {
			p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "lb"}}
			p.Status.Conditions = []corev1.PodCondition{{Type: "lb", Status: corev1.ConditionTrue}}
		}), corev1.PodRunning, "running", corev1.ConditionTrue, ip},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := decide(tt.pod, newNode("hub-node"), ip, nil, now)
			if d.action != report {
				t.Fatalf("action %d", d.action)
			}
			s := d.status
			if s.Phase != tt.phase || s.PodIP != tt.podIP || len(s.PodIPs) != 1 || s.PodIPs[0].IP != tt.podIP || s.HostIP != address {
				t.Errorf("phase %s, pod IP %s %v, host IP %s", s.Phase, s.PodIP, s.PodIPs, s.HostIP)
			}
			if s.StartTime == nil {
				t.Error("no start time")
			}
			c := s.ContainerStatuses[0]
			state := ""
			switch {
			case c.State.Running != nil:
				state = "running"
			case c.State.Waiting != nil:
				state = c.State.Waiting.Reason
			case c.State.Terminated != nil:
				state = c.State.Terminated.Reason
			}
			if state != tt.state || c.Ready != (tt.state == "running" || tt.state == "Completed") || *c.Started != (tt.state == "running") {
				t.Errorf("container %s, ready %v, started %v", state, c.Ready, *c.Started)
			}
			for _, cond := range s.Conditions {
				want := corev1.ConditionTrue
				switch cond.Type {
				case corev1.PodReady:
					want = tt.ready
				case corev1.ContainersReady:
					want = corev1.ConditionFalse
					if tt.state == "running" {
						want = corev1.ConditionTrue
					}
				case corev1.PodReadyToStartContainers:
					if tt.phase == corev1.PodSucceeded {
						want = corev1.ConditionFalse
					}
				}
				if cond.Status != want {
					t.Errorf("condition %s is %s, want %s", cond.Type, cond.Status, want)
				}
			}
		})
	}
}

func TestDecideProcesses(t *testing.T) {
	t.Parallel()
	waits := func(reason string) pods.Container {
		return pods.Container{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: "because"}}}
	}
	runs := func(ready bool) pods.Container {
		return pods.Container{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}, Ready: ready}
	}
	exits := func(code int32) pods.Container {
		return pods.Container{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, StartedAt: now, FinishedAt: now}}}
	}
	crashed := waits("CrashLoopBackOff")
	crashed.Last, crashed.RestartCount = exits(1).State, 2
	two := func(p *corev1.Pod) {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "proxy", Image: "proxy"})
	}
	for _, tt := range []struct {
		name      string
		edit      func(*corev1.Pod)
		processes map[string]pods.Container
		phase     corev1.PodPhase
		ready     corev1.ConditionStatus
	}{
		{"waits for a Secret", nil, map[string]pods.Container{"web": waits("ContainerCreating")}, corev1.PodPending, corev1.ConditionFalse},
		{"runs, not ready yet", nil, map[string]pods.Container{"web": runs(false)}, corev1.PodRunning, corev1.ConditionFalse},
		{"ready", nil, map[string]pods.Container{"web": runs(true)}, corev1.PodRunning, corev1.ConditionTrue},
		{"in back-off", nil, map[string]pods.Container{"web": crashed}, corev1.PodRunning, corev1.ConditionFalse},
		{"waits after it ran", func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }, map[string]pods.Container{"web": waits("ContainerCreating")}, corev1.PodRunning, corev1.ConditionFalse},
		{"has ended well", nil, map[string]pods.Container{"web": exits(0)}, corev1.PodSucceeded, corev1.ConditionFalse},
		{"has failed", nil, map[string]pods.Container{"web": exits(1)}, corev1.PodFailed, corev1.ConditionFalse},
		{"of a Job, runs", ofJob, map[string]pods.Container{"web": runs(true)}, corev1.PodRunning, corev1.ConditionTrue},
		{"of a Job, has failed", ofJob, map[string]pods.Container{"web": exits(1)}, corev1.PodFailed, corev1.ConditionFalse},
		{"beside a container without a process", two, map[string]pods.Container{"web": runs(true)}, corev1.PodRunning, corev1.ConditionTrue},
		{"not ready beside one without a process", two, map[string]pods.Container{"web": runs(false)}, corev1.PodRunning, corev1.ConditionFalse},
		{"has ended beside one that goes on", two, map[string]pods.Container{"web": exits(0)}, corev1.PodRunning, corev1.ConditionFalse},
		{"one has ended, one goes on", two, map[string]pods.Container{"web": exits(0), "proxy": runs(true)}, corev1.PodRunning, corev1.ConditionFalse},
		{"one has failed", two, map[string]pods.Container{"web": exits(0), "proxy": exits(2)}, corev1.PodFailed, corev1.ConditionFalse},
		{"on the host's network", func(p *corev1.Pod) { p.Spec.HostNetwork = true }, map[string]pods.Container{"web": runs(true)}, corev1.PodRunning, corev1.ConditionTrue},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			pod := newPod(tt.edit)
			d := decide(pod, newNode("hub-node"), ip, tt.processes, now)
			if d.action != report || d.status.Phase != tt.phase || d.status.PodIP != ip {
				t.Fatalf("action %d, phase %s, pod IP %s", d.action, d.status.Phase, d.status.PodIP)
			}
			for _, c := range d.status.Conditions {
				if c.Type == corev1.PodReady && c.Status != tt.ready {
					t.Errorf("ready is %s, want %s", c.Status, tt.ready)
				}
			}
			for _, c := range d.status.ContainerStatuses {
				p, ok := tt.processes[c.Name]
				switch {
				case !ok && (!c.Ready || c.State.Running == nil):
					t.Errorf("container %s, which has no process: %v", c.Name, c)
				case ok && (c.Ready != p.Ready || c.RestartCount != p.RestartCount || *c.Started != (p.State.Running != nil)):
					t.Errorf("container %s: %v, want %v", c.Name, c, p)
				}
			}
			// A written status must not be written again.
			pod.Status = d.status
			later := metav1.NewTime(now.Add(time.Hour))
			if again := decide(pod, newNode("hub-node"), ip, tt.processes, later); again.action != leave {
				t.Errorf("second time: action %d, status %+v", again.action, again.status)
			}
		})
	}
}

func TestTransitionTimeMovesWithTheStatusOnly(t *testing.T) {
	t.Parallel()
	pod, node := newPod(nil), newNode("hub-node")
	pod.Status = decide(pod, node, ip, nil, now).status
	later := metav1.NewTime(now.Add(time.Hour))
	annotated("CrashLoopBackOff")(pod)
	for _, c := range decide(pod, node, ip, nil, later).status.Conditions {
		want := now
		if c.Type == corev1.PodReady || c.Type == corev1.ContainersReady {
			want = later
		}
		if !c.LastTransitionTime.Equal(&want) {
			t.Errorf("%s changed at %v, want %v", c.Type, c.LastTransitionTime, want)
		}
	}
}

func TestInitContainers(t *testing.T) {
	t.Parallel()
	pod := newPod(func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{
			{Name: "setup", Image: "busybox"},
			{Name: "sidecar", Image: "proxy", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)},
		}
	})
	got := decide(pod, newNode("hub-node"), ip, nil, now).status.InitContainerStatuses
	if len(got) != 2 || got[0].State.Terminated == nil || !got[0].Ready || got[1].State.Running == nil || !got[1].Ready {
		t.Errorf("got %+v", got)
	}
	ofJob(pod)
	got = decide(pod, newNode("hub-node"), ip, nil, now).status.InitContainerStatuses
	if got[1].State.Terminated == nil {
		t.Errorf("the sidecar of a completed pod: %+v", got[1].State)
	}
}

func TestImageID(t *testing.T) {
	t.Parallel()
	digest := "sha256:" + strings.Repeat("ab", 32)
	for _, tt := range []struct{ image, repo, digest string }{
		{"ghcr.io/o/app@" + digest, "ghcr.io/o/app", digest},
		{"ghcr.io/o/app:v1@" + digest, "ghcr.io/o/app", digest},
		{"localhost:5000/app@" + digest, "localhost:5000/app", digest},
		{"localhost:5000/app:v1", "localhost:5000/app", ""},
		{"localhost:5000/app", "localhost:5000/app", ""},
		{"nginx:1.27", "nginx", ""},
		{"nginx", "nginx", ""},
	} {
		got := imageID(tt.image)
		repo, made, _ := strings.Cut(got, "@")
		if repo != tt.repo || tt.digest != "" && made != tt.digest || len(made) != len(digest) {
			t.Errorf("%s: got %s", tt.image, got)
		}
		if again := imageID(tt.image); again != got {
			t.Errorf("%s: %s, then %s", tt.image, got, again)
		}
	}
	if imageID("nginx:1") == imageID("nginx:2") {
		t.Error("two tags have the same digest")
	}
	other := "ghcr.io/o/app@" + digest
	pod := newPod(func(pod *corev1.Pod) { pod.Annotations = map[string]string{ImageIDAnnotation: other} })
	status := decide(pod, newNode("hub-node"), ip, nil, now).status.ContainerStatuses
	if len(status) != 1 || status[0].ImageID != other || status[0].Image != "nginx:1.27" {
		t.Errorf("with an image ID of its own: %+v", status)
	}
}

func TestIPPool(t *testing.T) {
	t.Parallel()
	p := newIPPool()
	p.take("default/old", "10.244.0.2")
	p.take("default/foreign", "192.168.0.1")
	p.take("default/broken", "x")
	seen := map[string]string{}
	for _, pod := range []string{"default/old", "default/a", "default/b", "default/foreign", "other/a"} {
		got := p.of(pod)
		if other, taken := seen[got]; taken {
			t.Errorf("%s and %s have %s", pod, other, got)
		}
		seen[got] = pod
		if again := p.of(pod); again != got {
			t.Errorf("%s: %s, then %s", pod, got, again)
		}
	}
	if seen["10.244.0.2"] != "default/old" {
		t.Errorf("an address that was taken: %v", seen)
	}
	was := p.of("default/a")
	p.release("default/a")
	p.release("default/unknown")
	if got := p.of("default/new"); got == was {
		t.Errorf("%s is given out again at once", got)
	}
}

func TestIPPoolRunsOut(t *testing.T) {
	t.Parallel()
	p := newIPPool()
	given := 0
	for i := range 1 << 17 {
		if p.of(fmt.Sprint("pod/", i)) == "" {
			break
		}
		given++
	}
	if given == 0 || given >= 1<<16 {
		t.Errorf("%d addresses", given)
	}
	if got := p.of("one/more"); got != "" {
		t.Errorf("got %s from an empty pool", got)
	}
	if d := decide(newPod(nil), newNode("hub-node"), "", nil, now); d.status.PodIP != "" || d.status.PodIPs != nil {
		t.Errorf("without address: %v", d.status.PodIPs)
	}
}
