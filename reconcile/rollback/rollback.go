// Package rollback decides whether the controller of a package is rolled back to the last
// ready pod template, because a new revision did not get ready. It is pure: reconcile/apply
// reads the cluster for it, and executes the decision as part of the plan.
//
// # The decision
//
// Kubernetes decides whether a revision gets ready: its Deployment reports
// ProgressDeadlineExceeded after progressDeadlineSeconds, ten minutes unless a
// DeploymentRuntimeConfig sets another value. The daemon's clock is not involved, so a
// restart of the daemon changes nothing. Then the last ready pod template is put back, and
// stays until the repository has another spec of the Deployment: a commit that does not
// change the spec starts no new attempt. Only the template is rolled back. Types, rights and
// Secrets are those of the new revision, as they would be for an old controller under
// Crossplane.
//
// Kubernetes may not measure the deadline of a template that a Deployment had before: it finds
// the old ReplicaSet and keeps the condition Progressing of the previous rollout. So when a
// failed revision is tried again, by a person or by a revert of a revert, the condition may
// say that it is available while it crashes, or that another one took too long. It counts only
// if it names the ReplicaSet, or if all pods are available. Otherwise the daemon that wrote
// the record measures the deadline, from when it first saw the revision, and a pod must be
// seen failing. After a restart the daemon does not know whether the revision was ready
// meanwhile: the revision stays, and that is reported.
//
// A revision that has been ready once is not rolled back when it fails later. There is no
// rollback if it would not help: if no template was ready before, or if the ready template
// needs the same missing image or volume, the same resources of nodes, or an account that is
// gone.
//
// # The record
//
// The record has the template that was ready last and the revision that failed. It is an
// annotation of the Deployment ([Record]), written in the request that changes the template.
// So it exists before the new revision can fail, and costs no write while nothing changes. The
// template itself is in the ReplicaSets, where Kubernetes keeps it for `kubectl rollout undo`.
// A copy would expose the environment in one more place, and could differ from what ran.
// Removing the record starts a new attempt at the revision; the daemon that read it before
// still knows the ready template.
//
// Whoever may write the Deployment or its ReplicaSets could change both, and may run pods
// there anyway. Still, the annotation counts only while gitopsd owns the field, and a
// ReplicaSet only if the Deployment controls it and its template has the recorded hash. A
// record of another revision (an older one, or copied with its object) and an unreadable one
// are ignored: the desired revision is applied, and there may be no template to roll back to.
// ReplicaSets alone do not suffice, since they do not say which of them was ready.
package rollback

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// Record is the value of manifest.RollbackAnnotation of a controller's Deployment.
type Record struct {
	// Revision is the [Revision] that the record was written for.
	Revision string `json:"revision"`
	// Ready is the [Hash] of the pod template that was ready last before it.
	Ready string `json:"ready"`
	// Failed is why the revision did not get ready, for people. If it is set, the
	// revision is rolled back to Ready.
	Failed string `json:"failed,omitempty"`
}

// Exceeded is the beginning of the reason if the newest revision of a Deployment did not get
// ready.
const Exceeded = "Progress deadline exceeded"

// mostFailed is the largest length of Record.Failed.
const mostFailed = 500

// Parse parses a record. It returns the zero Record for any other text.
func Parse(text string) Record {
	var r Record
	if json.Unmarshal([]byte(text), &r) != nil || r.Revision == "" || r.Ready == "" || len(r.Failed) > mostFailed {
		return Record{}
	}
	return r
}

// String returns the record for [Parse].
func (r Record) String() string {
	text, _ := json.Marshal(r) // strings have no errors
	return string(text)
}

// Revision returns a hash over the spec of a Deployment as it was rendered.
func Revision(o *manifest.Object) string {
	return hash(manifest.Mapping(o.Rendered().Tree(), "spec"))
}

// Hash returns a hash over a pod template as the API server has it in a Deployment or
// in one of its ReplicaSets.
func Hash(template map[string]any) string { return hash(plain(template)) }

func hash(tree map[string]any) string {
	return string(sources.DigestOf(manifest.AppendJSON(nil, tree)))
}

// hashLabel is the label that distinguishes the ReplicaSets of a Deployment.
const hashLabel = "pod-template-hash"

// plain returns a template without the fields that its ReplicaSet adds.
func plain(template map[string]any) map[string]any {
	template = manifest.Without(template, "metadata", "creationTimestamp") // null, from older API servers
	return manifest.Without(template, "metadata", "labels", hashLabel)
}

// Known is the known state of the cluster. The caller reads more of it if [Decide] needs it.
type Known struct {
	// Record is the record of the live Deployment; zero if it has none that counts.
	Record Record
	// Before is Record.Ready of the record that others removed from the live Deployment;
	// empty if none was seen.
	Before string
	// Applied reports whether the live Deployment was last applied from the desired one, as
	// it was rendered.
	Applied bool
	// Settled reports whether the revision in Record has been seen ready.
	Settled bool
	// Template is the template with the hash Record.Ready, if known.
	Template map[string]any
	// Deployment is the live one; nil if it was not read, empty if it is gone.
	Deployment map[string]any
	// Foreign reports whether others have changed its pod template.
	Foreign bool
	// Overdue reports whether the daemon has watched the revision in Record from its begin
	// for longer than the deadline. It counts only if [Decision.Unmeasured] is set.
	Overdue bool
	// Revisions are its ReplicaSets and pods; nil if they were not read.
	Revisions *Revisions
}

// Revisions are the ReplicaSets and pods of a Deployment.
type Revisions struct {
	ReplicaSets, Pods []map[string]any
	// Unread is why they could not be read.
	Unread string
}

// Need is the part of [Known] that a decision needs.
type Need int

// The needs.
const (
	// Nothing: the decision is made.
	Nothing Need = iota
	// TheDeployment: Known.Deployment and Known.Foreign.
	TheDeployment
	// TheRevisions: Known.Revisions.
	TheRevisions
)

// Decision is a decision on a controller's Deployment.
type Decision struct {
	// Need is what must be read first; if it is not Nothing, the rest is zero.
	Need Need
	// Record is applied with the Deployment; zero for none.
	Record Record
	// Template is applied in place of the desired one; nil for the desired one.
	Template map[string]any
	// Settled reports whether the revision in Record is ready.
	Settled bool
	// Unmeasured reports whether Kubernetes does not measure the deadline of the revision in
	// Record.
	Unmeasured bool
	// Unknown reports whether the template to apply cannot be read now.
	Unknown bool
	// Stays is why a revision is not rolled back even if it does not get ready; empty if it
	// may be.
	Stays string
}

// Decide decides about a desired Deployment.
func Decide(desired *manifest.Object, k Known) Decision {
	revision := Revision(desired)
	switch {
	case k.Record.Revision == revision && k.Record.Failed != "":
		return held(k)
	case k.Record.Revision == revision && k.Settled:
		return Decision{Record: k.Record, Settled: true}
	case k.Record.Revision == revision:
		return underWay(desired, k)
	case k.Record == Record{} && k.Applied:
		return Decision{Stays: first} // the first revision, or one that had none to go back to
	case k.Deployment == nil:
		return Decision{Need: TheDeployment}
	}
	// A new revision.
	r := Record{Revision: revision}
	complete, need := k.complete()
	switch {
	case need != Nothing && !k.Settled:
		return Decision{Need: need}
	case !(complete || k.Settled) || wanted(k.Deployment) == 0: // none of its pods was ready
		r.Ready = cmp.Or(k.Record.Ready, k.Before)
	case k.Foreign: // its ready template was not declared
		r.Ready = k.Before
	default:
		r.Ready = Hash(template(k.Deployment))
	}
	if r.Ready == "" {
		return Decision{Stays: first}
	}
	return Decision{Record: r}
}

// Reasons why nothing can be put back.
const (
	first = "no revision before it is known to have been ready"
	gone  = "the ReplicaSet with the pod template that was ready before is gone"
)

// held decides about a revision that was rolled back.
func held(k Known) Decision {
	t := k.Template
	switch {
	case t != nil:
	case k.Deployment == nil:
		return Decision{Need: TheDeployment}
	case !k.Foreign && template(k.Deployment) != nil:
		// It is the one, even if the API server has added a default to it.
		t = plain(template(k.Deployment))
	case k.Revisions == nil:
		return Decision{Need: TheRevisions}
	case k.Revisions.Unread != "":
		return Decision{Record: k.Record, Unknown: true}
	default:
		if t, _ = k.find(k.Record.Ready); t == nil {
			return Decision{Stays: gone}
		}
	}
	return Decision{Record: k.Record, Template: t}
}

// underWay decides about a revision that is being rolled out.
func underWay(desired *manifest.Object, k Known) Decision {
	d := Decision{Record: k.Record}
	if k.Deployment == nil {
		return Decision{Need: TheDeployment}
	}
	complete, need := k.complete()
	d.Settled, d.Unmeasured = complete, !complete && available(k.Deployment)
	switch {
	case need != Nothing:
		return Decision{Need: need}
	case complete, !exceeded(k.Deployment) && !(d.Unmeasured && k.Overdue):
		return d
	case k.Foreign: // drift is corrected first
		d.Stays = "others have changed its pod template"
		return d
	case k.Revisions == nil:
		return Decision{Need: TheRevisions}
	}
	failing := template(k.Deployment)
	ready, _ := k.find(k.Record.Ready)
	_, current := k.find(Hash(failing))
	seen, cause := k.causes(current, failing, ready)
	if !d.Unmeasured && outdated(k.Deployment, current) && k.Revisions.Unread == "" {
		if d.Unmeasured = true; !k.Overdue {
			return d
		}
	}
	switch account := manifest.Text(desired.Tree(), "spec", "template", "spec", "serviceAccountName"); {
	case k.Revisions.Unread != "":
		d.Stays = k.Revisions.Unread
	case d.Unmeasured && seen == "" && cause == "": // no pod is seen failing
	case ready == nil:
		d.Stays = gone
	case Hash(ready) == Hash(failing):
		d.Stays = "no other pod template was ready before"
	case manifest.Text(ready, "spec", "serviceAccountName") != account:
		d.Stays = fmt.Sprintf("the revision before runs as ServiceAccount %s, and this one as %s", manifest.Text(ready, "spec", "serviceAccountName"), account)
	case cause != "":
		d.Stays = cause
	default:
		d.Record.Failed, d.Template = why(seen), ready
	}
	return d
}

// find returns the template with a hash, and its ReplicaSet; nil if there is none.
func (k Known) find(hash string) (t, set map[string]any) {
	uid := manifest.Text(k.Deployment, "metadata", "uid")
	for _, rs := range k.Revisions.ReplicaSets {
		if t := template(rs); t != nil && controls(uid, rs) && Hash(t) == hash {
			return plain(t), rs
		}
	}
	return nil, nil
}

// controls reports whether the object with a UID controls another.
func controls(uid string, o map[string]any) bool {
	return uid != "" && slices.ContainsFunc(manifest.List(o, "metadata", "ownerReferences"), func(v any) bool {
		ref, _ := v.(map[string]any)
		return ref["uid"] == uid && ref["controller"] == true
	})
}

// causes returns a fault of the pods of a revision, or why a rollback would not help: every fault
// is shared by the ready template. Both are empty if there is no fault.
func (k Known) causes(set, failing, ready map[string]any) (seen, shared string) {
	faults := make(map[string]bool) // the value reports whether it is shared
	if fault, common := refused(k.Deployment, failing, ready); fault != "" {
		faults[fault] = common
	}
	uid := manifest.Text(set, "metadata", "uid")
	for _, pod := range k.Revisions.Pods {
		if !controls(uid, pod) {
			continue
		}
		if fault, common := faultOf(pod, failing, ready); fault != "" {
			faults[fault] = common
		}
	}
	for _, fault := range slices.Sorted(maps.Keys(faults)) {
		if !faults[fault] {
			return fault, ""
		}
		shared = fault
	}
	return "", shared
}

// why returns the reason for a rollback.
func why(seen string) string {
	text := Exceeded
	if seen != "" {
		text += "; " + seen
	}
	return strings.ToValidUTF8(text[:min(len(text), mostFailed)], "")
}

// refused returns why the pods of a revision cannot be created. common is as for faultOf.
func refused(deployment, failing, ready map[string]any) (fault string, common bool) {
	c := manifest.Condition(deployment, "ReplicaFailure")
	message := manifest.Text(c, "message")
	switch {
	case c["status"] != "True":
		return "", false
	case strings.Contains(message, "failed calling webhook"):
		return "an admission webhook for its pods does not answer", true
	case strings.Contains(message, "exceeded quota"):
		return "the namespace's quota is exceeded", sameNeeds(failing, ready)
	}
	return "its pods cannot be created", false
}

// faultOf returns why a pod is not ready, without its name and anything else that changes over
// time. common reports whether a pod of the ready template would fail as well.
func faultOf(pod, failing, ready map[string]any) (fault string, common bool) {
	if manifest.Text(pod, "metadata", "deletionTimestamp") != "" || manifest.ConditionTrue(pod, "DisruptionTarget") ||
		manifest.Text(pod, "status", "reason") == "NodeLost" {
		return "its pods are being taken off their node", true
	}
	if c := manifest.Condition(pod, "PodScheduled"); c["status"] == "False" {
		return "no node takes its pods", sameNeeds(failing, ready)
	}
	for _, field := range []string{"initContainer", "container"} {
		for _, v := range manifest.List(pod, "status", field+"Statuses") {
			s, _ := v.(map[string]any)
			name, reason := manifest.Text(s, "name"), manifest.Text(s, "state", "waiting", "reason")
			switch reason {
			case "", "PodInitializing":
				if fault == "" && field == "container" && manifest.Mapping(s, "state", "running") != nil && s["ready"] == false {
					fault = fmt.Sprintf("container %s: it runs, and is not ready", name) // unless another has a reason
				}
				continue
			case "ContainerCreating":
				// The image is pulled slowly, or a volume cannot be mounted, such as a missing Secret.
				image := imageOf(failing, field+"s", name)
				if image != "" && image == imageOf(ready, field+"s", name) && sameVolumes(failing, ready) {
					return fmt.Sprintf("container %s: %s, with the image and the volumes that the revision before has too", name, reason), true
				}
			case "CreateContainerConfigError":
				message := manifest.Text(s, "state", "waiting", "message")
				a, b := containerOf(failing, field+"s", name), containerOf(ready, field+"s", name)
				if (strings.Contains(message, "not found") || strings.Contains(message, "couldn't find key")) &&
					reflect.DeepEqual([]any{a["env"], a["envFrom"]}, []any{b["env"], b["envFrom"]}) {
					return fmt.Sprintf("container %s: %s of an environment that the revision before has too", name, reason), true
				}
			case "ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "RegistryUnavailable":
				image := imageOf(failing, field+"s", name)
				if image != "" && image == imageOf(ready, field+"s", name) {
					return fmt.Sprintf("container %s: %s of an image that the revision before has too", name, reason), true
				}
			}
			return fmt.Sprintf("container %s: %s", name, reason), false
		}
	}
	return fault, false
}

// sameNeeds reports whether pods of two templates can run on the same nodes.
func sameNeeds(a, b map[string]any) bool {
	needs := func(t map[string]any) map[string]any {
		spec := manifest.Mapping(t, "spec")
		n := make(map[string]any)
		for _, k := range []string{"nodeName", "nodeSelector", "affinity", "tolerations", "topologySpreadConstraints", "hostNetwork", "priorityClassName", "runtimeClassName", "schedulerName", "volumes"} {
			n[k] = spec[k]
		}
		for _, field := range []string{"containers", "initContainers"} {
			for _, v := range manifest.List(spec, field) {
				c, _ := v.(map[string]any)
				n[field+"/"+manifest.Text(c, "name")] = []any{manifest.Mapping(c, "resources", "requests"), c["ports"]}
			}
		}
		return n
	}
	return reflect.DeepEqual(needs(a), needs(b))
}

// sameVolumes reports whether pods of two templates need the same volumes.
func sameVolumes(a, b map[string]any) bool {
	return reflect.DeepEqual(manifest.List(a, "spec", "volumes"), manifest.List(b, "spec", "volumes"))
}

// imageOf returns the image of a container; of the first one if container is empty.
func imageOf(template map[string]any, field, container string) string {
	return manifest.Text(containerOf(template, field, container), "image")
}

func containerOf(template map[string]any, field, name string) map[string]any {
	for _, v := range manifest.List(template, "spec", field) {
		if c, _ := v.(map[string]any); name == "" || manifest.Text(c, "name") == name {
			return c
		}
	}
	return nil
}

// Apply returns the desired Deployment with the decision.
func (d Decision) Apply(desired *manifest.Object) (*manifest.Object, error) {
	tree := desired.Tree()
	switch {
	case d.Record != Record{}:
		tree = desired.WithMetadata(nil, map[string]string{manifest.RollbackAnnotation: d.Record.String()}).Tree()
	case !d.Unknown:
		return desired, nil
	}
	switch {
	case d.Unknown:
		return desired.Complete(manifest.Without(tree, "spec", "template"), "spec.template")
	case d.Template != nil:
		tree = manifest.With(tree, d.Template, "spec", "template")
	}
	return desired.Complete(tree)
}

// Text returns a message that a revision was rolled back; empty if it was not.
func (d Decision) Text(desired *manifest.Object) string {
	if d.Template == nil {
		return ""
	}
	failed := manifest.Text(desired.Tree(), "spec", "template", "metadata", "labels", manifest.RevisionLabel)
	before := manifest.Text(d.Template, "metadata", "labels", manifest.RevisionLabel)
	back := before + ", image " + imageOf(d.Template, "containers", "")
	if failed == before {
		back = "its settings before"
	}
	if version := desired.Origin().Package.Ref.Tag; version != "" {
		failed = version + " (" + failed + ")"
	}
	return fmt.Sprintf("%s did not get ready (%s); the controller is back at %s", failed, d.Record.Failed, back)
}

// Advice returns how to try a revision again that was rolled back.
func Advice(id manifest.ID) string {
	return fmt.Sprintf("types and rights are as declared; change the package or its DeploymentRuntimeConfig, or try the same again: kubectl annotate -n %s deployment %s %s-",
		id.Namespace, id.Name, manifest.RollbackAnnotation)
}

func template(o map[string]any) map[string]any { return manifest.Mapping(o, "spec", "template") }

// progress returns the reason of a Deployment's condition Progressing; empty if the controller
// has not seen the newest generation.
func progress(deployment map[string]any) string {
	generation, _ := manifest.Mapping(deployment, "metadata")["generation"].(int64)
	observed, _ := manifest.Mapping(deployment, "status")["observedGeneration"].(int64)
	if generation == 0 || observed < generation {
		return ""
	}
	return manifest.Text(manifest.Condition(deployment, "Progressing"), "reason")
}

// wanted returns the number of desired replicas of a Deployment.
func wanted(deployment map[string]any) int64 {
	if n, ok := manifest.Mapping(deployment, "spec")["replicas"].(int64); ok {
		return n
	}
	return 1
}

// available reports whether a Deployment's condition Progressing says that a template was rolled
// out, and all replicas have the newest one. When a rollout begins, the condition is still
// that of the previous one.
func available(deployment map[string]any) bool {
	updated, _ := manifest.Mapping(deployment, "status")["updatedReplicas"].(int64)
	return progress(deployment) == "NewReplicaSetAvailable" && updated >= wanted(deployment)
}

// complete reports whether the template of the live Deployment has been rolled out, even if its
// pods have failed since: then it needs the ReplicaSets to decide whether the condition is
// about this template.
func (k Known) complete() (bool, Need) {
	if !available(k.Deployment) {
		return false, Nothing
	}
	status := manifest.Mapping(k.Deployment, "status")
	if ready, _ := status["availableReplicas"].(int64); ready >= wanted(k.Deployment) && status["replicas"] == status["updatedReplicas"] {
		return true, Nothing
	}
	if k.Revisions == nil {
		return false, TheRevisions
	}
	_, current := k.find(Hash(template(k.Deployment)))
	return !outdated(k.Deployment, current), Nothing
}

// Deadline returns how long a Deployment's rollout may take without progress.
func Deadline(deployment map[string]any) time.Duration {
	if n, ok := manifest.Mapping(deployment, "spec")["progressDeadlineSeconds"].(int64); ok && n > 0 {
		return time.Duration(n) * time.Second
	}
	return 10 * time.Minute // Kubernetes' default
}

func exceeded(deployment map[string]any) bool {
	return progress(deployment) == "ProgressDeadlineExceeded"
}

// outdated reports whether the condition Progressing is about another ReplicaSet than the
// current one, which may not exist yet.
func outdated(deployment, current map[string]any) bool {
	_, rest, named := strings.Cut(manifest.Text(manifest.Condition(deployment, "Progressing"), "message"), `ReplicaSet "`)
	name, _, _ := strings.Cut(rest, `"`)
	return named && name != manifest.Text(current, "metadata", "name")
}
