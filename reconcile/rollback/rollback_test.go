package rollback_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/rollback"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/sources"
)

// desired is a controller's Deployment with an image.
func desired(t *testing.T, image string) *manifest.Object {
	t.Helper()
	o, err := manifest.New(manifesttest.Tree(t, fmt.Sprintf(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: p, namespace: gitopsd-system, labels: {gitopsd.dev/package: p}},
 spec: {replicas: 1, template: %s}}`, pods(image))), manifest.Origin{Package: sources.Pin{Ref: sources.Ref{Repository: "example.org/p", Tag: image}}})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func pods(image string) string {
	return fmt.Sprintf("{metadata: {labels: {pkg.crossplane.io/revision: p-%[1]s}}, spec: {serviceAccountName: p, containers: [{name: c, image: 'example.org/p:%[1]s'}]}}", image)
}

// live is a Deployment in the cluster, with the reason of its condition Progressing.
// If that is done, its pod is available.
func live(t *testing.T, image, progressing string) map[string]any {
	t.Helper()
	available := 0
	if progressing == done {
		available = 1
	}
	return status(t, image, progressing, image, available)
}

// status is a Deployment whose condition Progressing is about the ReplicaSet of
// another image.
func status(t *testing.T, image, progressing, about string, available int) map[string]any {
	t.Helper()
	return manifesttest.Tree(t, fmt.Sprintf(`{metadata: {uid: d, generation: 2}, spec: {replicas: 1, template: %s},
 status: {observedGeneration: 2, replicas: 1, updatedReplicas: 1, availableReplicas: %d, conditions: [{type: Progressing, reason: %s, message: ReplicaSet "p-%s" did something.}]}}`, pods(image), available, progressing, about))
}

// set is the ReplicaSet with an image, which a Deployment controls.
func set(t *testing.T, image, owner string) map[string]any {
	t.Helper()
	rs := manifesttest.Tree(t, fmt.Sprintf("{metadata: {name: p-%[1]s, uid: rs-%[1]s, ownerReferences: [{uid: %[2]s, controller: true}]}, spec: {template: %[3]s}}", image, owner, pods(image)))
	labels := manifest.Mapping(rs, "spec", "template", "metadata", "labels")
	labels["pod-template-hash"] = "5d4c"
	manifest.Mapping(rs, "spec", "template", "metadata")["creationTimestamp"] = nil
	return rs
}

func pod(t *testing.T, image, status string) map[string]any {
	t.Helper()
	return manifesttest.Tree(t, fmt.Sprintf("{metadata: {ownerReferences: [{uid: rs-%s, controller: true}]}, status: %s}", image, status))
}

func hashOf(t *testing.T, image string) string {
	t.Helper()
	return rollback.Hash(manifest.Mapping(live(t, image, "x"), "spec", "template"))
}

const (
	done     = "NewReplicaSetAvailable"
	waiting  = "ReplicaSetUpdated"
	exceeded = "ProgressDeadlineExceeded"
	crash    = "{containerStatuses: [{name: c, state: {waiting: {reason: CrashLoopBackOff}}}]}"
)

// The story of a new revision, step by step.
func TestDecide(t *testing.T) {
	t.Parallel()
	v2 := desired(t, "v2")
	record := rollback.Record{Revision: rollback.Revision(v2), Ready: hashOf(t, "v1")}
	failed := record
	failed.Failed = "Progress deadline exceeded; container c: CrashLoopBackOff"
	forbidden := record
	forbidden.Failed = "Progress deadline exceeded; its pods cannot be created"
	idle := record
	idle.Failed = "Progress deadline exceeded; container c: it runs, and is not ready"
	other := record
	other.Revision = rollback.Revision(desired(t, "v0"))
	both := func(pods ...map[string]any) *rollback.Revisions {
		return &rollback.Revisions{ReplicaSets: []map[string]any{set(t, "v2", "d"), set(t, "v1", "d")}, Pods: pods}
	}
	unready := func(revisions *rollback.Revisions) rollback.Known {
		return rollback.Known{Record: record, Deployment: live(t, "v2", exceeded), Revisions: revisions}
	}
	foreign := unready(both())
	foreign.Foreign = true
	unseen := live(t, "v2", exceeded)
	manifest.Mapping(unseen, "metadata")["generation"] = int64(3)
	begun := live(t, "v2", done) // as the rollout before ended
	manifest.Mapping(begun, "status")["updatedReplicas"] = int64(0)
	stale := live(t, "v2", exceeded)
	manifest.List(stale, "status", "conditions")[0].(map[string]any)["message"] = `ReplicaSet "p-v1" has timed out progressing.`
	moved := both()
	manifest.Mapping(moved.ReplicaSets[1], "spec", "template", "spec")["serviceAccountName"] = "before"
	movedRecord := record
	movedRecord.Ready = rollback.Hash(manifest.Mapping(moved.ReplicaSets[1], "spec", "template"))
	again := rollback.Known{Record: record, Deployment: status(t, "v2", done, "v1", 0), Revisions: both(pod(t, "v2", crash))}
	overdue := again
	overdue.Overdue = true
	silent := overdue
	silent.Revisions = both()
	lost := overdue
	lost.Revisions = both(pod(t, "v2", "{reason: NodeLost}"))
	later := again
	later.Record = other
	with := func(message string, revisions *rollback.Revisions) rollback.Known {
		k := unready(revisions)
		conditions := manifest.Mapping(k.Deployment, "status")
		conditions["conditions"] = append(manifest.List(conditions, "conditions"), map[string]any{"type": "ReplicaFailure", "status": "True", "message": message})
		return k
	}
	scaled := live(t, "v1", done)
	manifest.Mapping(scaled, "spec")["replicas"] = int64(0)
	same := record
	same.Ready = hashOf(t, "v2")
	const first = "no revision before it is known to have been ready"
	for _, tt := range []struct {
		name   string
		known  rollback.Known
		need   rollback.Need
		record rollback.Record
		// back is the image that it goes back to; empty if it does not.
		back    string
		settled bool
		stays   string
		unknown bool
		// unmeasured: Kubernetes does not measure the deadline.
		unmeasured bool
	}{
		{name: "the first revision", known: rollback.Known{Applied: true}, stays: first},
		{name: "a new revision asks what runs", known: rollback.Known{}, need: rollback.TheDeployment},
		{name: "what runs got ready", known: rollback.Known{Deployment: live(t, "v1", done)}, record: record},
		{name: "what runs was changed by others", known: rollback.Known{Deployment: live(t, "v1", done), Foreign: true}, stays: first},
		{name: "what runs never got ready", known: rollback.Known{Deployment: live(t, "v1", waiting)}, stays: first},
		{name: "tried again, before what was put back is ready", known: rollback.Known{Before: record.Ready, Deployment: live(t, "v1", waiting)}, record: record},
		{name: "tried again, while others have changed what was put back", known: rollback.Known{Before: record.Ready, Deployment: live(t, "v1", done), Foreign: true}, record: record},
		{name: "what runs never got ready, but the one before", known: rollback.Known{Record: other, Deployment: live(t, "v0", exceeded)}, record: record},
		{name: "what ran is gone", known: rollback.Known{Deployment: map[string]any{}}, stays: first},
		{name: "is it ready?", known: rollback.Known{Record: record}, need: rollback.TheDeployment},
		{name: "not yet", known: rollback.Known{Record: record, Deployment: live(t, "v2", waiting)}, record: record},
		{name: "not yet, though the one before was", known: rollback.Known{Record: record, Deployment: begun}, record: record},
		{name: "not yet, though the one before was not in time", known: rollback.Known{Record: record, Deployment: stale, Revisions: both(pod(t, "v2", crash))}, record: record, unmeasured: true},
		{name: "it is rolled back by our clock, since the one before was not in time", known: rollback.Known{Record: record, Deployment: stale, Revisions: both(pod(t, "v2", crash)), Overdue: true}, record: failed, unmeasured: true, back: "v1"},
		{name: "nothing of it fails by our clock, though the one before was not in time", known: rollback.Known{Record: record, Deployment: stale, Revisions: both(), Overdue: true}, record: record, unmeasured: true},
		{name: "ready", known: rollback.Known{Record: record, Deployment: live(t, "v2", done)}, record: record, settled: true},
		{name: "ready, and it failed later", known: rollback.Known{Record: record, Deployment: status(t, "v2", done, "v2", 0), Revisions: both(pod(t, "v2", crash))}, record: record, settled: true},
		{name: "unavailable, and which one was ready?", known: rollback.Known{Record: record, Deployment: status(t, "v2", done, "v1", 0)}, need: rollback.TheRevisions},
		{name: "tried again, and the condition is still about the one before", known: again, record: record, unmeasured: true},
		{name: "tried again, and overdue", known: overdue, record: failed, back: "v1", unmeasured: true},
		{name: "tried again, and nothing is seen to fail", known: silent, record: record, unmeasured: true},
		{name: "tried again, and the node is lost", known: lost, record: record, unmeasured: true, stays: "its pods are being taken off their node"},
		{name: "another revision, while what is tried again was never ready", known: later, record: record},
		{name: "another revision, while what was ready fails", known: rollback.Known{Record: other, Settled: true, Deployment: status(t, "v1", done, "v2", 0)}, record: record},
		{name: "what runs has no pods", known: rollback.Known{Deployment: scaled}, stays: first},
		{name: "over quota", known: with("pods p is forbidden: exceeded quota: q", both()), record: record, stays: "the namespace's quota is exceeded"},
		{name: "a webhook for pods is gone", known: with("Internal error occurred: failed calling webhook x", both()), record: record, stays: "an admission webhook for its pods does not answer"},
		{name: "its pods are forbidden", known: with("pods p is forbidden: violates PodSecurity", both()), record: forbidden, back: "v1"},
		{name: "known to be ready", known: rollback.Known{Record: record, Settled: true}, record: record, settled: true},
		{name: "another generation exceeded it", known: rollback.Known{Record: record, Deployment: unseen}, record: record},
		{name: "others changed it", known: foreign, record: record, stays: "others have changed its pod template"},
		{name: "it does not get ready", known: unready(nil), need: rollback.TheRevisions},
		{name: "it is rolled back", known: unready(both(pod(t, "v2", crash))), record: failed, back: "v1"},
		{name: "it is never ready", known: unready(both(pod(t, "v2", "{containerStatuses: [{name: c, ready: false, state: {running: {}}}]}"))), record: idle, back: "v1"},
		{name: "it waits for a container that crashes", known: unready(both(pod(t, "v2", "{containerStatuses: [{name: b, ready: false, state: {running: {}}}, {name: c, state: {waiting: {reason: CrashLoopBackOff}}}]}"))), record: failed, back: "v1"},
		{name: "a pod of another revision", known: unready(both(pod(t, "v2", crash), pod(t, "v1", "{containerStatuses: [{name: c, state: {waiting: {reason: Other}}}]}"))), record: failed, back: "v1"},
		{name: "the ReplicaSet is gone", known: unready(&rollback.Revisions{ReplicaSets: []map[string]any{set(t, "v2", "d")}}), record: record, stays: "the ReplicaSet with the pod template that was ready before is gone"},
		{name: "the ReplicaSet is another Deployment's", known: unready(&rollback.Revisions{ReplicaSets: []map[string]any{set(t, "v2", "d"), set(t, "v1", "e")}}), record: record, stays: "the ReplicaSet with the pod template that was ready before is gone"},
		{name: "the ReplicaSets cannot be read", known: unready(&rollback.Revisions{Unread: "forbidden"}), record: record, stays: "forbidden"},
		{name: "the same template", known: rollback.Known{Record: same, Deployment: live(t, "v2", exceeded), Revisions: both()}, record: same, stays: "no other pod template was ready before"},
		{name: "its account is gone", known: rollback.Known{Record: movedRecord, Deployment: live(t, "v2", exceeded), Revisions: moved}, record: movedRecord, stays: "the revision before runs as ServiceAccount before, and this one as p"},
		{name: "no room", known: unready(both(pod(t, "v2", `{conditions: [{type: PodScheduled, status: "False"}]}`))), record: record, stays: "no node takes its pods"},
		{name: "the node is lost", known: unready(both(pod(t, "v2", "{reason: NodeLost}"))), record: record, stays: "its pods are being taken off their node"},
		{name: "evicted", known: unready(both(pod(t, "v2", `{conditions: [{type: DisruptionTarget, status: "True"}]}`))), record: record, stays: "its pods are being taken off their node"},
		{name: "one pod is evicted, one fails", known: unready(both(pod(t, "v2", "{reason: NodeLost}"), pod(t, "v2", crash))), record: failed, back: "v1"},
		{name: "held", known: rollback.Known{Record: failed, Template: manifesttest.Tree(t, pods("v1"))}, record: failed, back: "v1"},
		{name: "held, after a restart", known: rollback.Known{Record: failed}, need: rollback.TheDeployment},
		{name: "held, by what runs", known: rollback.Known{Record: failed, Deployment: live(t, "v1", exceeded)}, record: failed, back: "v1"},
		{name: "held, and others changed it", known: rollback.Known{Record: failed, Deployment: live(t, "v9", done), Foreign: true}, need: rollback.TheRevisions},
		{name: "held, by the ReplicaSet", known: rollback.Known{Record: failed, Deployment: live(t, "v9", done), Foreign: true, Revisions: both()}, record: failed, back: "v1"},
		{name: "held, and nothing can be read", known: rollback.Known{Record: failed, Deployment: live(t, "v9", done), Foreign: true, Revisions: &rollback.Revisions{Unread: "forbidden"}}, record: failed, unknown: true},
		{name: "held, and everything is gone", known: rollback.Known{Record: failed, Deployment: map[string]any{}, Revisions: &rollback.Revisions{}}, stays: "the ReplicaSet with the pod template that was ready before is gone"},
		{name: "another revision than the failed one", known: rollback.Known{Record: rollback.Record{Revision: other.Revision, Ready: record.Ready, Failed: "x"}, Deployment: live(t, "v1", done)}, record: record},
		{name: "another revision, before the one that is put back is ready", known: rollback.Known{Record: rollback.Record{Revision: other.Revision, Ready: record.Ready, Failed: "x"}, Deployment: live(t, "v1", waiting)}, record: record},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := rollback.Decide(v2, tt.known)
			if d.Need != tt.need || d.Record != tt.record || d.Settled != tt.settled || d.Stays != tt.stays || d.Unknown != tt.unknown || d.Unmeasured != tt.unmeasured || (d.Template != nil) != (tt.back != "") {
				t.Fatalf("have %+v", d)
			}
			o, err := d.Apply(v2)
			if err != nil {
				t.Fatal(err)
			}
			want := "v2"
			if tt.back != "" {
				want = tt.back
			}
			template := manifest.Mapping(o.Tree(), "spec", "template")
			switch {
			case tt.unknown:
				if template != nil || len(o.Unknown()) != 1 {
					t.Errorf("have %v, unknown %v", template, o.Unknown())
				}
			case rollback.Hash(template) != hashOf(t, want) || manifest.Mapping(template, "metadata", "labels")["pod-template-hash"] != nil:
				t.Errorf("have %v", template)
			}
			if o.Rendered() != v2 || rollback.Revision(o) != record.Revision {
				t.Error("it is not the desired object in another form")
			}
			if have := o.Annotation(manifest.RollbackAnnotation); rollback.Parse(have) != tt.record {
				t.Errorf("record %q", have)
			}
		})
	}
}

// Two revisions that need the same missing image or volume.
func TestShared(t *testing.T) {
	t.Parallel()
	const pull = "container c: ImagePullBackOff of an image that the revision before has too"
	const mount = "container c: ContainerCreating, with the image and the volumes that the revision before has too"
	for _, tt := range []struct {
		name, image, reason, volumes, stays string
	}{
		{name: "the image", image: "v2", reason: "ImagePullBackOff", stays: pull},
		{name: "another image", image: "v1", reason: "ImagePullBackOff"},
		{name: "a Secret that is missing", image: "v2", reason: "ContainerCreating", stays: mount},
		{name: "a Secret in the environment", image: "v1", reason: `CreateContainerConfigError, message: 'secret "db" not found'`, stays: "container c: CreateContainerConfigError of an environment that the revision before has too"},
		{name: "another container that cannot be made", image: "v1", reason: "CreateContainerConfigError, message: 'image will run as root'"},
		{name: "an image that takes long", image: "v1", reason: "ContainerCreating"},
		{name: "a Secret that the one before does not mount", image: "v2", reason: "ContainerCreating", volumes: "[{name: before}]"},
	} {
		image, stays := tt.image, tt.stays
		pull := fmt.Sprintf("{containerStatuses: [{name: c, ready: false, state: {waiting: {reason: %s}}}]}", tt.reason)
		ready := set(t, image, "d")
		if tt.volumes != "" {
			manifest.Mapping(ready, "spec", "template", "spec")["volumes"] = manifesttest.Tree(t, "{volumes: "+tt.volumes+"}")["volumes"]
		}
		manifest.Mapping(ready, "spec", "template", "metadata", "labels")["pkg.crossplane.io/revision"] = "p-v1"
		v2 := desired(t, "v2")
		k := rollback.Known{
			Record:     rollback.Record{Revision: rollback.Revision(v2), Ready: rollback.Hash(manifest.Mapping(ready, "spec", "template"))},
			Deployment: live(t, "v2", exceeded), Revisions: &rollback.Revisions{ReplicaSets: []map[string]any{ready, set(t, "v2", "d")}, Pods: []map[string]any{pod(t, "v2", pull)}},
		}
		if image == "v2" { // two ReplicaSets have that UID otherwise
			manifest.Mapping(ready, "metadata")["uid"] = "rs-before"
		}
		if d := rollback.Decide(v2, k); d.Stays != stays || (d.Template != nil) != (stays == "") {
			t.Errorf("%s: have %+v", tt.name, d)
		}
	}
}

// What it says names what failed, why, and what runs.
func TestText(t *testing.T) {
	t.Parallel()
	d := rollback.Decision{Record: rollback.Record{Failed: "Progress deadline exceeded"}, Template: manifesttest.Tree(t, pods("v1"))}
	if have, want := d.Text(desired(t, "v2")), "v2 (p-v2) did not get ready (Progress deadline exceeded); the controller is back at p-v1, image example.org/p:v1"; have != want {
		t.Errorf("have %s\nwant %s", have, want)
	}
	if have, want := d.Text(desired(t, "v1")), "v1 (p-v1) did not get ready (Progress deadline exceeded); the controller is back at its settings before"; have != want {
		t.Errorf("have %s\nwant %s", have, want)
	}
	if have := (rollback.Decision{}).Text(desired(t, "v1")); have != "" {
		t.Errorf("have %s", have)
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	r := rollback.Record{Revision: "a", Ready: "b", Failed: "\"quoted\"\n"}
	if have := rollback.Parse(r.String()); have != r {
		t.Errorf("have %+v", have)
	}
	for _, text := range []string{"", "x", "{}", "null", `{"revision": "a"}`, `{"ready": "b"}`, `{"revision": 1, "ready": "b"}`, `{"revision": "a", "ready": "b", "failed": "` + strings.Repeat("x", 1000) + `"}`} {
		if have := rollback.Parse(text); have != (rollback.Record{}) {
			t.Errorf("%s: have %+v", text, have)
		}
	}
}

// Whatever order things happen in, no revision is rolled back twice without being asked
// for again, only a template that was ready is put back, and the same state gives the
// same decision. Bytes choose what happens: commits, the Deployment's progress,
// restarts, lost ReplicaSets, a removed record, strangers.
func FuzzStory(f *testing.F) {
	f.Add([]byte{0, 2, 1, 1, 3, 1, 1, 5, 1})
	f.Add([]byte{2, 0, 1, 3, 1, 2, 5, 1, 3, 1, 0, 1, 3, 1}) // tried again, and then another
	f.Add([]byte{0, 2, 1, 1, 1, 3, 2, 1, 3, 1, 4, 1, 6, 1, 3, 1})
	f.Fuzz(func(t *testing.T, story []byte) {
		now := 0 // the revision that the repository asks for
		running, record, applied := "v0", rollback.Record{}, true
		progress, about, overdue := waiting, "v0", false // what the condition says, and of which revision
		wasReady := map[string]bool{}
		sets := map[string]bool{"v0": true}
		rolledBack := map[string]int{} // by revision, since it was asked for
		var memory rollback.Decision
		var memoryOf rollback.Record
		foreign := false
		for _, b := range story[:min(len(story), 60)] {
			switch b % 8 {
			case 0: // a commit
				now++
				rolledBack = map[string]int{}
			case 2:
				progress, about = done, running
				wasReady[running] = true
			case 3:
				if progress == waiting {
					progress, about = exceeded, running
				}
				overdue = true
			case 4: // a restart
				memory, memoryOf, overdue = rollback.Decision{}, rollback.Record{}, false
			case 5:
				record, applied = rollback.Record{}, false // somebody removes the record
				rolledBack = map[string]int{}
			case 6:
				sets = map[string]bool{running: true}
			case 7:
				foreign = !foreign
			case 1: // a pass
				want := fmt.Sprintf("v%d", now)
				o := desired(t, want)
				k := rollback.Known{Record: record, Applied: applied && record == rollback.Record{} && running == want, Settled: memory.Settled && memoryOf == record, Overdue: overdue}
				if memoryOf == record {
					k.Template = memory.Template
				}
				var d rollback.Decision
				for asked := 0; ; asked++ {
					if d = rollback.Decide(o, k); d.Need == rollback.Nothing {
						break
					}
					if asked > 2 {
						t.Fatal("it asks again and again")
					}
					switch d.Need {
					case rollback.TheDeployment:
						available := 0
						if progress == done && about == running {
							available = int(b >> 3 & 1) // it may fail after it was ready
						}
						k.Deployment, k.Foreign = status(t, running, progress, about, available), foreign
					case rollback.TheRevisions:
						k.Revisions = new(rollback.Revisions)
						for image := range maps.Keys(sets) {
							k.Revisions.ReplicaSets = append(k.Revisions.ReplicaSets, set(t, image, "d"))
							k.Revisions.Pods = append(k.Revisions.Pods, pod(t, image, crash))
						}
					}
				}
				memory, memoryOf = d, d.Record
				to := want
				if d.Template != nil {
					to = strings.TrimPrefix(manifest.Text(d.Template, "metadata", "labels", "pkg.crossplane.io/revision"), "p-")
					if !wasReady[to] {
						t.Fatalf("%s was never ready", to)
					}
					if record.Failed == "" {
						if rolledBack[want]++; rolledBack[want] > 1 {
							t.Fatalf("%s is rolled back twice", want)
						}
					}
				}
				if to != running {
					if !sets[to] || progress != done { // else the condition stays, as Kubernetes keeps it
						progress, about = waiting, to
					}
					running, overdue, foreign = to, false, false
					sets[to] = true
				}
				record, applied = d.Record, true
			}
		}
	})
}
