package health

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"gitopsd.dev/render/manifest"
)

// builtIns judge objects of some kinds of Kubernetes, where the general rules are not enough.
// They return an empty status if they cannot judge the object.
var builtIns = map[manifest.GroupKind]func(*look) Verdict{
	manifest.Deployment:  (*look).deployment,
	manifest.StatefulSet: (*look).statefulSet,
	manifest.DaemonSet:   (*look).daemonSet,
	manifest.Pod:         (*look).pod,
	manifest.Service:     (*look).service,
	manifest.CRD:         (*look).crd,
	manifest.ReplicaSet:  (*look).replicaSet,
	manifest.Job:         (*look).job,
	manifest.CronJob:     exists,

	{Kind: "ReplicationController"}:                                        (*look).replicaSet,
	{Kind: "PersistentVolumeClaim"}:                                        (*look).claim,
	{Kind: "PersistentVolume"}:                                             (*look).volume,
	manifest.DisruptionBudget:                                              (*look).disruptionBudget,
	{Group: "autoscaling", Kind: "HorizontalPodAutoscaler"}:                (*look).autoscaler,
	{Group: manifest.GroupNetworking, Kind: "Ingress"}:                     (*look).ingress,
	{Group: manifest.GroupCertificates, Kind: "CertificateSigningRequest"}: (*look).signing,
	{Group: manifest.GroupStorage, Kind: "VolumeAttachment"}:               (*look).attachment,
	{Group: "kubevirt.io", Kind: "VirtualMachine"}:                         (*look).virtualMachine,
}

// builtIn judges an object by its kind.
func (l *look) builtIn() (Verdict, bool) {
	if f := builtIns[l.kind]; f != nil {
		v := f(l)
		v.Rule = ruleKind
		return v, v.Status != ""
	}
	if manifest.BuiltIn(l.kind.Group) && len(l.status) > 0 {
		l.conditionSignals()
		if len(l.signals) == 0 {
			return Verdict{Status: Healthy, Reason: "it exists", Rule: ruleKind}, true
		}
		return l.conclude(), true
	}
	return Verdict{}, false
}

func exists(*look) Verdict { return Verdict{Status: Healthy, Reason: "it exists"} }

// count reads a number; missing if there is none.
func (l *look) count(missing int64, path ...string) int64 {
	if n, ok := number(at(l.object, path...)); ok {
		return n
	}
	return missing
}

// condition returns a condition of the object; zero if it has none.
func (l *look) condition(kind string) condition {
	for _, c := range l.conditions {
		if c.kind == kind && !l.stale(c) {
			return c
		}
	}
	return condition{}
}

const unseen = "its controller has not looked at it yet"

func (l *look) deployment() Verdict {
	if len(l.status) == 0 {
		return Verdict{Status: InProgress, Reason: unseen}
	}
	progressing := l.condition("Progressing")
	if progressing.reason == "ProgressDeadlineExceeded" {
		return Verdict{Status: Failed, Reason: "Progress deadline exceeded"}
	}
	want := l.count(1, "spec", "replicas")
	have, updated := l.count(0, "status", "replicas"), l.count(0, "status", "updatedReplicas")
	ready, available := l.count(0, "status", "readyReplicas"), l.count(0, "status", "availableReplicas")
	why := ""
	if c := l.condition("ReplicaFailure"); c.status == "True" {
		why = "; " + c.text()
	}
	switch paused, _ := at(l.object, "spec", "paused").(bool); {
	case updated < want && paused:
		return Verdict{Status: InProgress, Reason: fmt.Sprintf("%d of %d replicas are updated, and it is paused", updated, want)}
	case updated < want:
		return Verdict{Status: InProgress, Reason: fmt.Sprintf("%d of %d replicas are updated%s", updated, want, why)}
	case have > want:
		return Verdict{Status: InProgress, Reason: fmt.Sprintf("%d old replicas are to end", have-want)}
	case ready < want:
		return Verdict{Status: InProgress, Reason: fmt.Sprintf("%d of %d replicas are ready%s", ready, want, why)}
	case available < updated:
		return Verdict{Status: InProgress, Reason: fmt.Sprintf("%d of %d replicas are available%s", available, updated, why)}
	}
	if c := l.condition("Available"); c.status != "True" && want > 0 {
		return Verdict{Status: InProgress, Reason: "it is not available yet"}
	}
	return Verdict{Status: Healthy, Reason: fmt.Sprintf("%d of %d replicas are available", available, want)}
}

func (l *look) statefulSet() Verdict {
	if len(l.status) == 0 {
		return Verdict{Status: InProgress, Reason: unseen}
	}
	want := l.count(1, "spec", "replicas")
	have, ready := l.count(0, "status", "replicas"), l.count(0, "status", "readyReplicas")
	updated := l.count(0, "status", "updatedReplicas")
	partition := l.count(0, "spec", "updateStrategy", "rollingUpdate", "partition")
	current, next := manifest.Text(l.status, "currentRevision"), manifest.Text(l.status, "updateRevision")
	onDelete := manifest.Text(l.object, "spec", "updateStrategy", "type") == "OnDelete"
	switch {
	case have > want:
		return Verdict{Status: InProgress, Reason: fmt.Sprintf("%d replicas are to end", have-want)}
	case ready < want:
		return Verdict{Status: InProgress, Reason: fmt.Sprintf("%d of %d replicas are ready", ready, want)}
	case onDelete:
	case current != next && updated < want-partition:
		return Verdict{Status: InProgress, Reason: fmt.Sprintf("%d of %d replicas are updated", updated, want-partition)}
	case current != next && partition == 0:
		return Verdict{Status: InProgress, Reason: "its update is not complete"}
	}
	return Verdict{Status: Healthy, Reason: fmt.Sprintf("%d of %d replicas are ready", ready, want)}
}

func (l *look) daemonSet() Verdict {
	if len(l.status) == 0 {
		return Verdict{Status: InProgress, Reason: unseen}
	}
	want := l.count(0, "status", "desiredNumberScheduled")
	updated, available := l.count(0, "status", "updatedNumberScheduled"), l.count(0, "status", "numberAvailable")
	ready := l.count(0, "status", "numberReady")
	onDelete := manifest.Text(l.object, "spec", "updateStrategy", "type") == "OnDelete"
	switch {
	case updated < want && !onDelete:
		return Verdict{Status: InProgress, Reason: fmt.Sprintf("%d of %d pods are updated", updated, want)}
	case ready < want:
		return Verdict{Status: InProgress, Reason: fmt.Sprintf("%d of %d pods are ready", ready, want)}
	case available < want:
		return Verdict{Status: InProgress, Reason: fmt.Sprintf("%d of %d pods are available", available, want)}
	}
	return Verdict{Status: Healthy, Reason: fmt.Sprintf("%d of %d pods are ready", ready, want)}
}

func (l *look) replicaSet() Verdict {
	want, ready := l.count(1, "spec", "replicas"), l.count(0, "status", "readyReplicas")
	have, available := l.count(0, "status", "replicas"), l.count(0, "status", "availableReplicas")
	switch c := l.condition("ReplicaFailure"); {
	case len(l.status) == 0:
		return Verdict{Status: InProgress, Reason: unseen}
	case c.status == "True":
		return Verdict{Status: InProgress, Reason: c.text()}
	case have > want:
		return Verdict{Status: InProgress, Reason: fmt.Sprintf("%d replicas are to end", have-want)}
	case ready < want || available < want:
		return Verdict{Status: InProgress, Reason: fmt.Sprintf("%d of %d replicas are available", available, want)}
	}
	return Verdict{Status: Healthy, Reason: fmt.Sprintf("%d of %d replicas are available", available, want)}
}

// stuckContainers are reasons of a waiting container that waiting does not solve.
var stuckContainers = []string{
	"CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "ErrImageNeverPull", "InvalidImageName",
	"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "RegistryUnavailable",
}

func (l *look) pod() Verdict {
	for _, field := range []string{"initContainerStatuses", "containerStatuses"} {
		for _, item := range manifest.List(l.status, field) {
			c, _ := item.(map[string]any)
			if reason := manifest.Text(c, "state", "waiting", "reason"); slices.Contains(stuckContainers, reason) {
				return Verdict{Status: Failed, Reason: fmt.Sprintf("container %s: %s", manifest.Text(c, "name"), reason)}
			}
		}
	}
	phase := manifest.Text(l.status, "phase")
	switch scheduled := l.condition("PodScheduled"); {
	case phase == "Succeeded":
		return Verdict{Status: Healthy, Reason: "it has completed"}
	case phase == "Failed":
		return Verdict{Status: Failed, Reason: strings.TrimSuffix("it has failed: "+shorten(manifest.Text(l.status, "reason")+" "+manifest.Text(l.status, "message")), ":  ")}
	case phase == "Running" && l.condition("Ready").status == "True":
		return Verdict{Status: Healthy, Reason: "it is ready"}
	case phase == "Running":
		return Verdict{Status: InProgress, Reason: "it runs, and is not ready"}
	case scheduled.status == "False" && l.overdue():
		return Verdict{Status: Failed, Reason: "no node takes it: " + shorten(scheduled.message)}
	case scheduled.status == "False":
		return Verdict{Status: InProgress, Reason: "no node takes it: " + shorten(scheduled.message)}
	case phase == "":
		return Verdict{Status: InProgress, Reason: "no node has taken it yet"}
	}
	return Verdict{Status: InProgress, Reason: "its phase is " + phase}
}

func (l *look) service() Verdict {
	if manifest.Text(l.object, "spec", "type") == "LoadBalancer" && len(manifest.List(l.status, "loadBalancer", "ingress")) == 0 {
		// Controllers of load balancers set a finalizer when they begin.
		if len(manifest.List(l.object, "metadata", "finalizers")) == 0 {
			return l.untilLate("its load balancer has no address yet", "nothing in the cluster has begun to make its load balancer")
		}
		return Verdict{Status: InProgress, Reason: "its load balancer has no address yet"}
	}
	return Verdict{Status: Healthy, Reason: "it exists"}
}

// ingress judges an Ingress. Not every controller publishes addresses.
func (l *look) ingress() Verdict {
	switch {
	case len(manifest.List(l.status, "loadBalancer", "ingress")) > 0:
		return Verdict{Status: Healthy, Reason: "it has an address"}
	case l.overdue():
		return Verdict{Status: Healthy, Reason: "it exists; its controller publishes no address"}
	}
	return l.inProgress(signal{reason: "it has no address yet", late: true})
}

func (l *look) crd() Verdict {
	if c := l.condition("NamesAccepted"); c.status == "False" {
		return Verdict{Status: Failed, Reason: c.text()}
	}
	c := l.condition("Established")
	switch {
	case c.status == "True":
		return Verdict{Status: Healthy, Reason: "its types are served"}
	case c.status == "False" && c.reason != "Installing" && c.reason != "NotAccepted":
		return Verdict{Status: Failed, Reason: c.text()}
	}
	return Verdict{Status: InProgress, Reason: "its types are not served yet"}
}

func (l *look) volume() Verdict {
	switch phase := manifest.Text(l.status, "phase"); phase {
	case "Bound", "Available", "Released":
		return Verdict{Status: Healthy, Reason: "it is " + strings.ToLower(phase)}
	case "Failed", "Lost":
		return Verdict{Status: Failed, Reason: strings.TrimSuffix("its phase is "+phase+": "+shorten(manifest.Text(l.status, "message")), ": ")}
	case "":
		return Verdict{Status: InProgress, Reason: unseen}
	default:
		return Verdict{Status: InProgress, Reason: "its phase is " + phase}
	}
}

// provisioner are the annotations that Kubernetes sets on a claim when it asks a provisioner
// for a volume.
var provisioner = []string{"volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner"}

// claim judges a PersistentVolumeClaim. A claim that waits for its first pod looks the same as
// one that lacks a storage class.
func (l *look) claim() Verdict {
	static := at(l.object, "spec", "storageClassName") == ""
	begun := slices.ContainsFunc(provisioner, func(a string) bool { return manifest.Text(l.object, "metadata", "annotations", a) != "" })
	if manifest.Text(l.status, "phase") == "Pending" && !static && !begun {
		return l.untilLate("its phase is Pending", "its phase is Pending, and nothing has begun to make a volume: no pod uses it yet, or it has no storage class")
	}
	return l.volume()
}

// untilLate returns InProgress until the object is overdue, and then Unknown.
func (l *look) untilLate(reason, late string) Verdict {
	if l.overdue() {
		return Verdict{Status: Unknown, Reason: fmt.Sprintf("%s, for longer than %s", late, l.patience)}
	}
	return l.inProgress(signal{reason: reason, late: true})
}

func (l *look) job() Verdict {
	for _, c := range l.conditions {
		switch {
		case c.status != "True":
		case c.kind == "Complete" || c.kind == "SuccessCriteriaMet":
			return Verdict{Status: Healthy, Reason: "it has completed"}
		case c.kind == "Failed" || c.kind == "FailureTarget":
			return Verdict{Status: Failed, Reason: c.text()}
		case c.kind == "Suspended":
			return Verdict{Status: InProgress, Reason: "it is suspended"}
		}
	}
	if manifest.Text(l.status, "startTime") == "" {
		return Verdict{Status: InProgress, Reason: "it has not started"}
	}
	return Verdict{Status: InProgress, Reason: fmt.Sprintf("it is running: %d pods are active, %d have succeeded, %d have failed",
		l.count(0, "status", "active"), l.count(0, "status", "succeeded"), l.count(0, "status", "failed"))}
}

func (l *look) disruptionBudget() Verdict {
	switch c := l.condition("DisruptionAllowed"); {
	case len(l.status) == 0:
		return Verdict{Status: InProgress, Reason: unseen}
	case c.reason == "SyncFailed":
		return Verdict{Status: Failed, Reason: c.text()}
	}
	return Verdict{Status: Healthy, Reason: "its controller has counted the pods"}
}

// v1Conditions is the annotation with the conditions in autoscaling/v1.
const v1Conditions = "autoscaling.alpha.kubernetes.io/conditions"

func (l *look) autoscaler() Verdict {
	conditions := l.conditions
	if len(conditions) == 0 {
		var list []any
		if json.Unmarshal([]byte(manifest.Text(l.object, "metadata", "annotations", v1Conditions)), &list) == nil {
			conditions = readConditions(list)
		}
	}
	for _, c := range conditions {
		switch {
		case c.status != "False" || c.kind == "ScalingLimited" || c.reason == "ScalingDisabled":
		case strings.HasPrefix(c.reason, "Backoff"):
			return Verdict{Status: InProgress, Reason: c.text()}
		default:
			return Verdict{Status: Failed, Reason: c.text()}
		}
	}
	switch {
	case len(conditions) == 0 && l.overdue():
		return Verdict{Status: Healthy, Reason: "it exists; nothing is said of its metrics"}
	case len(conditions) == 0:
		return l.inProgress(signal{reason: unseen, late: true})
	}
	return Verdict{Status: Healthy, Reason: "it reads its metrics"}
}

func (l *look) signing() Verdict {
	for _, kind := range []string{"Denied", "Failed"} {
		if c := l.condition(kind); c.status == "True" {
			return Verdict{Status: Failed, Reason: c.text()}
		}
	}
	switch {
	case l.condition("Approved").status != "True":
		return Verdict{Status: InProgress, Reason: "it is not approved"}
	case l.status["certificate"] == nil:
		return Verdict{Status: InProgress, Reason: "its certificate is not issued yet"}
	}
	return Verdict{Status: Healthy, Reason: "its certificate is issued"}
}

func (l *look) attachment() Verdict {
	if m := manifest.Text(l.status, "attachError", "message"); m != "" {
		return Verdict{Status: Failed, Reason: shorten(m)}
	}
	if !manifest.Truth(l.status, "attached") {
		return Verdict{Status: InProgress, Reason: "it is not attached yet"}
	}
	return Verdict{Status: Healthy, Reason: "it is attached"}
}

// virtualMachine judges one that is stopped as its spec asks. The general rules judge others.
func (l *look) virtualMachine() Verdict {
	running, set := at(l.object, "spec", "running").(bool)
	if halted := manifest.Text(l.object, "spec", "runStrategy") == "Halted" || set && !running; halted &&
		manifest.Text(l.status, "printableStatus") == "Stopped" {
		return Verdict{Status: Healthy, Reason: "it is stopped, as its spec asks"}
	}
	return Verdict{}
}
