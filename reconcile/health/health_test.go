package health

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"gitopsd.dev/render/manifest/manifesttest"
)

func TestSplit(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"AllReplicasReady": "all replicas ready", "HEALTH_OK": "health ok", "rolling-out": "rolling out",
		"ACK.ResourceSynced": "ack resource synced", "Setting up primary": "setting up primary", "": "",
		"PVCBound": "pvc bound", "CrashLoopBackOff": "crash loop back off", "v1Ready": "v1 ready", "Installed": "installed",
	} {
		if have := strings.Join(split(in), " "); have != want {
			t.Errorf("split(%q) = %q, want %q", in, have, want)
		}
	}
}

func TestLevelOf(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		value        string
		want, finite level
	}{
		{"Ready", good, busy}, {"Running", good, busy}, {"Completed", good, good}, {"Succeeded", good, good},
		{"PartiallyFailed", bad, bad}, {"CreateFailed", bad, bad}, {"HEALTH_ERR", bad, bad}, {"red", bad, bad},
		{"Pending", busy, busy}, {"ImportInProgress", busy, busy}, {"Cluster Is Not Ready", busy, silent},
		{"NotReconciled", busy, busy}, {"OutOfSync", busy, busy}, {"UpToDate", good, good}, {"NoErrors", good, good},
		{"WaitForFirstConsumer", good, good}, {"HEALTH_WARN", silent, silent}, {"Installed", good, good}, {"KRaft", silent, silent}, {"", silent, silent},
		{strings.Repeat("failed ", 50), silent, silent},
	} {
		if have := levelOf(tt.value, false); have != tt.want {
			t.Errorf("%q is %d, want %d", tt.value, have, tt.want)
		}
		if have := levelOf(tt.value, true); have != tt.finite {
			t.Errorf("%q of a job is %d, want %d", tt.value, have, tt.finite)
		}
	}
}

func TestSense(t *testing.T) {
	t.Parallel()
	for kind, want := range map[string]sense{
		"Ready": positive, "AllReplicasReady": positive, "ResolvedRefs": positive, "UpToDate": positive, "Installed": positive,
		"ACK.ResourceSynced": positive, "Failed": negative, "Stalled": negative, "ReconcileError": negative, "Degraded": negative,
		"NotReady": working, "Reconciling": working, "Progressing": working, "RollingOut": neutral, "Active": neutral, "Paused": neutral,
		"NoWarnings": neutral, "Upgradeable": neutral, "LastBackupSucceeded": neutral, "Conflicted": negative, "": neutral,
	} {
		if have := senseOf(kind); have != want {
			t.Errorf("%q is %d, want %d", kind, have, want)
		}
	}
}

func TestReasons(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]struct{ final, finished bool }{
		"NewReplicaSetAvailable": {false, true}, "ReplicaSetUpdated": {}, "AsExpected": {false, true}, "Pending": {}, "": {},
		"BuildFailed": {true, false}, "ErrInitIssuer": {true, false}, "InvalidProviderConfig": {true, false},
		"HostAlreadyClaimed": {true, false}, "DependencyNotReady": {}, "NodeClassNotReady": {}, "SecretMismatch": {true, false},
		"UnhealthyDependents": {}, "DependencyInvalid": {true, false}, "ReconcileError": {true, false}, "Creating": {},
	} {
		if final(reason) != want.final || finished(reason) != want.finished {
			t.Errorf("%q: final %t, finished %t", reason, final(reason), finished(reason))
		}
	}
}

// A word is in one list only.
func TestListsAreDisjoint(t *testing.T) {
	t.Parallel()
	for _, lists := range [][]map[string]bool{{badWords, busyWords, goodWords}, {positiveWords, negativeWords, workingWords}} {
		for i, list := range lists {
			for w := range list {
				for _, other := range lists[i+1:] {
					if other[w] {
						t.Errorf("%s is in two lists", w)
					}
				}
			}
		}
	}
}

func TestColumns(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]column{
		`.status.conditions[?(@.type=="Ready")].status`:             {Condition: "Ready"},
		`.status.conditions[?(@.type=='Ready')].reason`:             {Condition: "Ready"},
		`status.conditions[?(@.type == 'AllReplicasReady')].status`: {Condition: "AllReplicasReady"},
		`.status.conditions[?(@.type=="Synced")]`:                   {Condition: "Synced"},
		`.status.conditions[-1:].type`:                              {Newest: true},
		`.status.phase`:                                             {Path: []string{"phase"}},
		`.status.health.status`:                                     {Path: []string{"health", "status"}},
		`.status.ready`:                                             {Path: []string{"ready"}},
		`.status.ceph.health`:                                       {Path: []string{"ceph", "health"}},
		`.status.readyReplicas`:                                     {},
		`.status.lastBackupStatus`:                                  {},
		`.status.lastOperation.state`:                               {Path: []string{"lastOperation", "state"}},
		`.status.url`:                                               {},
		`.spec.phase`:                                               {},
		`.metadata.creationTimestamp`:                               {},
		`.status.history[?(@.state=="Completed")].version`:          {},
		``: {},
	} {
		have, ok := readColumn(map[string]any{"name": "N", "jsonPath": path})
		if want.Name = "N"; !ok {
			have = column{Name: "N"}
		}
		if !reflect.DeepEqual(have, want) {
			t.Errorf("%s: %+v, want %+v", path, have, want)
		}
	}
	if _, ok := readColumn(map[string]any{"name": "N", "jsonPath": ".status.phase", "priority": int64(1)}); ok {
		t.Error("a column of kubectl get -o wide counts")
	}
}

// Custom rules are asked before the general ones, but not about what goes.
func TestCustom(t *testing.T) {
	t.Parallel()
	rules := Rules{Custom: func(map[string]any, *Type, time.Time) (Verdict, bool) {
		return Verdict{Status: Failed, Reason: "it says so", Rule: "mine"}, true
	}}
	object := manifesttest.Tree(t, "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}")
	if v := rules.Of(object, nil, now); v.Rule != "mine" {
		t.Errorf("%+v", v)
	}
	object = manifesttest.Tree(t, `{apiVersion: v1, kind: ConfigMap, metadata: {name: a, deletionTimestamp: "2026-05-01T11:00:00Z"}}`)
	if v := rules.Of(object, nil, now); v.Rule != ruleDeletion {
		t.Errorf("%+v", v)
	}
}

// What is late counts no longer, and of an object that was read from a file nothing
// is late.
func TestPatience(t *testing.T) {
	t.Parallel()
	widget := NewType(definition("example.org/v1 Widget", map[string]any{
		"status": []any{"conditions", "phase"}, "columns": []any{`.status.conditions[?(@.type=="Ready")].status`, ".status.phase"},
	}), "v1")
	made := now.Add(-time.Hour).Format(time.RFC3339)
	for _, tt := range []struct {
		name, status string
		now          time.Time
		patience     time.Duration
		want         Status
	}{
		{"nothing yet", "{}", now, 2 * time.Hour, InProgress},
		{"nothing ever", "{}", now, 0, Unknown},
		{"a file", "{}", time.Time{}, 0, InProgress},
		{"no condition", "{phase: Ready}", now, 2 * time.Hour, InProgress},
		{"never a condition", "{phase: Ready}", now, 0, Healthy},
		{"a phase that is not there", "{conditions: [{type: Ready, status: 'True'}]}", now, 0, Healthy},
		{"another generation", "{phase: Ready, conditions: [{type: Ready, status: 'True', observedGeneration: 1}]}", now, 2 * time.Hour, InProgress},
		{"bad all the same", "{phase: Failed}", now, 0, Failed},
		{"busy all the same", "{phase: Pending}", now, 0, InProgress},
		{"never filled in", "{observedGeneration: 0, phase: Ready, conditions: [{type: Ready, status: 'True'}]}", now, 0, Healthy},
	} {
		object := manifesttest.Tree(t, "{apiVersion: example.org/v1, kind: Widget, metadata: {name: a, generation: 2, creationTimestamp: '"+made+"'}, status: "+tt.status+"}")
		v := Rules{Patience: tt.patience}.Of(object, widget, tt.now)
		if v.Status != tt.want {
			t.Errorf("%s: %+v, want %s", tt.name, v, tt.want)
		}
		if v.Until.IsZero() != (v.Status != InProgress || tt.now.IsZero() || strings.Contains(tt.name, "all the same")) {
			t.Errorf("%s: the verdict ends at %s", tt.name, v.Until)
		}
		if !v.Until.IsZero() {
			if after := (Rules{Patience: tt.patience}).Of(object, widget, v.Until.Add(time.Second)); after == v {
				t.Errorf("%s: the verdict is the same after its end: %+v", tt.name, after)
			}
		}
	}
}

// A type that another process reads back says the same.
func TestTypeJSON(t *testing.T) {
	t.Parallel()
	before := NewType(definition("example.org/v1 Widget", map[string]any{
		"status": []any{"phase", "completionTime"}, "columns": []any{".status.phase", `.status.conditions[?(@.type=="Ready")].status`},
	}), "v1")
	text, err := json.Marshal(before)
	if err != nil {
		t.Fatal(err)
	}
	after := new(Type)
	if err := json.Unmarshal(text, after); err != nil || !reflect.DeepEqual(before, after) || !after.known.Finite {
		t.Errorf("%+v is read back as %+v from %s: %v", before, after, text, err)
	}
	if NewType(definition("example.org/v1 Widget", nil), "v2") != nil {
		t.Error("there is a type without a version")
	}
}

// FuzzOf: no object and no definition panics, every verdict has a reason, and
// objects stay as they are.
func FuzzOf(f *testing.F) {
	f.Add(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"generation":2},"status":{"observedGeneration":"2","conditions":[{"type":"Ready","status":true}]}}`, `.status.conditions[?(@.type=="Ready")].status`)
	f.Add(`{"apiVersion":"example.org/v1","kind":"WidgetJob","status":{"phase":"Not Ready","parents":[{"conditions":[null,{"type":"Accepted","status":"False"}]}]}}`, `.status.phase`)
	f.Add(`{"apiVersion":"v1","kind":"Pod","status":{"containerStatuses":[{"state":{"waiting":{"reason":"ErrImagePull"}}}],"conditions":{}}}`, `.status.conditions[-1:].type`)
	f.Fuzz(func(t *testing.T, text, path string) {
		var object map[string]any
		if json.Unmarshal([]byte(text), &object) != nil {
			return
		}
		before, _ := json.Marshal(object)
		kind := NewType(definition("example.org/v1 Widget", map[string]any{"columns": []any{path}}), "v1")
		for _, known := range []*Type{nil, kind, NewType(object, "v1")} {
			for _, at := range []time.Time{{}, now} {
				v := Rules{}.Of(object, known, at)
				if v.Reason == "" || v.Rule == "" || !slices.Contains([]Status{Healthy, InProgress, Failed, Unknown}, v.Status) {
					t.Fatalf("%+v", v)
				}
			}
		}
		if after, _ := json.Marshal(object); string(after) != string(before) {
			t.Fatal("the object was changed")
		}
	})
}

// A status in which an API server keeps nothing is not waited for.
func TestStatusSchema(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, version string
		want          Status
	}{
		{"none", "{schema: {openAPIV3Schema: {type: object}}}", Healthy},
		{"empty", "{schema: {openAPIV3Schema: {type: object, properties: {status: {type: object}}}}, subresources: {status: {}}}", Healthy},
		{"open", "{schema: {openAPIV3Schema: {type: object, properties: {status: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}}", InProgress},
		{"in no schema", "{schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}, subresources: {status: {}}}", Healthy},
		{"conditions", "{schema: {openAPIV3Schema: {type: object, properties: {status: {type: object, properties: {conditions: {type: array}}}}}}}", InProgress},
		{"counters", "{schema: {openAPIV3Schema: {type: object, properties: {status: {type: object, properties: {users: {type: integer}}}}}}}", Healthy},
	} {
		v := manifesttest.Tree(t, tt.version)
		v["name"], v["served"] = "v1", true
		widget := NewType(map[string]any{
			"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
			"spec": map[string]any{"group": "example.org", "names": map[string]any{"kind": "Widget"}, "versions": []any{v}},
		}, "v1")
		object := manifesttest.Tree(t, "{apiVersion: example.org/v1, kind: Widget, metadata: {name: a, generation: 1}}")
		if v := (Rules{}).Of(object, widget, time.Time{}); v.Status != tt.want {
			t.Errorf("%s: %+v, want %s", tt.name, v, tt.want)
		}
	}
}
