package migrate

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/manifest/manifesttest"
)

const (
	established1 = "conditions: [{type: Established, status: 'True'}]"
	versions1    = "versions: [{name: v1alpha1, served: true, storage: false}, {name: v1, served: true, storage: true}]"
)

// What is stored, what has to be done, and what stands against it.
func TestRead(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, metadata, spec, status string

		old     []string
		blocked string
		writes  string // the version that objects are read and written in
	}{
		{"one version", "", "versions: [{name: v1, served: true, storage: true}]", "{storedVersions: [v1], " + established1 + "}", nil, "", "v1"},
		{"an old version", "", versions1, "{storedVersions: [v1alpha1, v1], " + established1 + "}", []string{"v1alpha1"}, "", "v1"},
		{
			"two old versions, the storage version in between", "", versions1,
			"{storedVersions: [v1alpha1, v1, v1beta1], " + established1 + "}", []string{"v1alpha1", "v1beta1"}, "", "v1",
		},
		{
			"a storage version that is not served", "",
			"versions: [{name: v1beta1, served: false}, {name: v1alpha1, served: true}, {name: v2, served: false, storage: true}]",
			"{storedVersions: [v1alpha1, v2], " + established1 + "}", []string{"v1alpha1"},
			"its storage version v2 is not served, and a write in another version may drop fields; serve it", "v2",
		},
		{
			"deleted", ", deletionTimestamp: '2026-01-01T00:00:00Z'", versions1,
			"{storedVersions: [v1alpha1, v1], " + established1 + "}", []string{"v1alpha1"}, "it is being deleted", "v1",
		},
		{
			"not established", "", versions1, "{storedVersions: [v1alpha1, v1], conditions: [{type: Established, status: 'False'}]}",
			[]string{"v1alpha1"}, "the API server has not established it yet; see its status.conditions", "v1",
		},
		{
			"the storage version is not listed yet", "", versions1, "{storedVersions: [v1alpha1], " + established1 + "}",
			[]string{"v1alpha1"}, "the API server has not established it yet; see its status.conditions", "v1",
		},
		{"garbage", "", "versions: 7", "{storedVersions: [1], conditions: {}}", nil, "it has no storage version", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := read(manifesttest.Tree(t, `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.acme.example, uid: u, generation: 3, resourceVersion: "7"`+tt.metadata+`}
spec:
  group: acme.example
  scope: Namespaced
  names: {kind: Widget, plural: widgets}
  `+tt.spec+`
status: `+tt.status))
			if !slices.Equal(s.Old(), tt.old) || s.Needed() != (len(tt.old) > 0) {
				t.Errorf("old versions %q, needed %t; want %q", s.Old(), s.Needed(), tt.old)
			}
			if s.Blocked != tt.blocked {
				t.Errorf("blocked: %q, want %q", s.Blocked, tt.blocked)
			}
			if want := (kube.Type{Group: "acme.example", Version: tt.writes, Kind: "Widget", Resource: "widgets", Namespaced: true}); s.objects != want {
				t.Errorf("objects %+v, want %+v", s.objects, want)
			}
			if s.uid != "u" || s.generation != 3 || s.version != "7" {
				t.Errorf("identity %q, %d, %q", s.uid, s.generation, s.version)
			}
		})
	}
}

// Every change of the spec counts, a storage version that went there and back too.
func TestSame(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		later Storage
		want  bool
	}{
		{"nothing changed", Storage{uid: "u", generation: 2, Version: "v1"}, true},
		{"the status changed", Storage{uid: "u", generation: 2, Version: "v1", version: "9"}, true},
		{"the storage version changed and changed back", Storage{uid: "u", generation: 4, Version: "v1"}, false},
		{"deleted and created again", Storage{uid: "w", generation: 2, Version: "v1"}, false},
	} {
		before := Storage{uid: "u", generation: 2, Version: "v1", version: "8"}
		if got := before.same(tt.later); got != tt.want {
			t.Errorf("%s: %t", tt.name, got)
		}
	}
	if (Storage{}).same(Storage{}) {
		t.Error("two that could not be read are the same")
	}
}

// Other API servers have time to see a new storage version, and requests to end that began
// before it.
func TestSettle(t *testing.T) {
	t.Parallel()
	const least = 40 * time.Second
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		name, fields string
		want         time.Duration
	}{
		{"unknown", "[]", least},
		{"long ago", "[{time: '2026-01-01T11:00:00Z'}]", 0},
		{"just now", "[{time: '2026-01-01T11:00:00Z'}, {time: '2026-01-01T11:59:58Z'}]", least},
		{"by a clock that is ahead", "[{time: '2026-01-01T12:00:30Z'}]", least},
		{"by a clock that is behind", "[{time: '2026-01-01T11:58:30Z'}]", least},
		{"only the status", "[{time: '2026-01-01T11:00:00Z'}, {time: '2026-01-01T11:59:58Z', subresource: status}]", 0},
		{"garbage", "[7, {time: yesterday}]", least},
	} {
		s := Storage{changed: lastChange(manifesttest.Tree(t, "metadata: {managedFields: "+tt.fields+"}"))}
		if got := s.settle(now, least); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err  error
		want verdict
	}{
		{nil, stored},
		{&kube.Error{Class: kube.Changed}, later},
		{&kube.Error{Class: kube.NotFound}, gone},
		{&kube.Error{Class: kube.NoNamespace}, gone},
		{&kube.Error{Class: kube.Unanswered}, later},
		{&kube.Error{Class: kube.Throttled}, later},
		{&kube.Error{Class: kube.WebhookFailed}, later},
		{&kube.Error{Class: kube.Server}, later},
		{&kube.Error{Class: kube.Refused}, refused},
		{&kube.Error{Class: kube.Invalid}, refused},
		{&kube.Error{Class: kube.Forbidden}, refused},
		{&kube.Error{Class: kube.NoSuchType}, stop},
		{&kube.Error{Class: kube.Unreachable}, stop},
		{&kube.Error{Class: kube.Unauthorized}, stop},
		{&kube.Error{Class: kube.Fenced}, stop},
		{&kube.Error{Class: kube.Canceled}, stop},
		{context.DeadlineExceeded, stop},
	} {
		if got := judge(tt.err); got != tt.want {
			t.Errorf("%v (%s): %d, want %d", tt.err, kube.ClassOf(tt.err), got, tt.want)
		}
	}
}

// An object that fails for a reason that may pass counts once, and is a failure as long as
// it fails.
func TestNote(t *testing.T) {
	t.Parallel()
	w := &writer{failures: make(map[name]string)}
	a, b := name{"default", "a"}, name{"default", "b"}
	for _, step := range []struct {
		of                         name
		err                        error
		done, stored, again, fails int
	}{
		{a, &kube.Error{Class: kube.Server, Message: "etcd is leaderless"}, 1, 0, 1, 1},
		{b, &kube.Error{Class: kube.Refused, Message: "no"}, 2, 0, 1, 2},
		{a, &kube.Error{Class: kube.Server, Message: "still"}, 2, 0, 2, 2},
		{a, nil, 2, 1, 2, 1},
	} {
		if err := w.note(step.of, step.err); err != nil {
			t.Fatal(err)
		}
		if w.done != step.done || w.stored != step.stored || len(w.again) != step.again || len(w.failures) != step.fails {
			t.Errorf("after %v of %v: done %d, stored %d, again %d, failures %v", step.err, step.of, w.done, w.stored, len(w.again), w.failures)
		}
	}
	for i := range mostFailures {
		err := w.note(name{"many", string(rune(i))}, &kube.Error{Class: kube.Refused})
		if last := i == mostFailures-2; errors.Is(err, errTooMany) != last { // one has failed before
			t.Fatalf("failure %d: %v", i, err)
		} else if last {
			break
		}
	}
}

func TestStateOf(t *testing.T) {
	t.Parallel()
	widgets := Storage{objects: kube.Type{Group: "acme.example", Resource: "widgets"}}
	spec := "metadata: {uid: u}\nspec: {resource: {group: acme.example, resource: widgets}}\n"
	for _, tt := range []struct {
		name, text string
		want       nativeState
	}{
		{"new", spec, nativeState{uid: "u", mine: true}},
		{"running", spec + "status: {conditions: [{type: Running, status: 'True'}]}", nativeState{uid: "u", mine: true, running: true}},
		{
			"succeeded, and storedVersions not yet shortened", spec + "status: {conditions: [{type: Running, status: 'True'}, {type: Succeeded, status: 'True'}]}",
			nativeState{uid: "u", mine: true, running: true, succeeded: true},
		},
		{
			"succeeded", spec + "status: {conditions: [{type: Running, status: 'False'}, {type: Succeeded, status: 'True'}]}",
			nativeState{uid: "u", mine: true, succeeded: true},
		},
		{"failed", spec + "status: {conditions: [{type: Failed, status: 'True', message: refused}]}", nativeState{uid: "u", mine: true, failed: "refused"}},
		{"failed without a word", spec + "status: {conditions: [{type: Failed, status: 'True'}]}", nativeState{uid: "u", mine: true, failed: "no reason given"}},
		{"another resource", "spec: {resource: {group: acme.example, resource: gadgets}}", nativeState{}},
		{"garbage", "spec: 7\nstatus: {conditions: [7]}", nativeState{}},
	} {
		if got := stateOf(manifesttest.Tree(t, tt.text), widgets); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}
