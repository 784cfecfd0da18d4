package apply

import (
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
)

// unconnected is an Applier without a cluster: any request panics.
func unconnected() *Applier {
	set := newApplySet("dev")
	return &Applier{
		set: set, inv: plan.Inventory{ID: set.id, FieldManager: kube.FieldManager}, log: slog.New(slog.DiscardHandler),
		kinds: make(map[schema.GroupKind]*kindState), disputes: make(map[subject]*dispute),
	}
}

// An object that a controller writes to while a pass looks at it has not drifted.
// There is no cluster here, so that a request would panic.
func TestWrittenToMeanwhile(t *testing.T) {
	t.Parallel()
	o, err := manifest.New(map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "a", "namespace": "n"}, "data": map[string]any{"k": "v"},
	}, manifest.Origin{})
	if err != nil {
		t.Fatal(err)
	}
	set, duplicates := manifest.NewSet([]*manifest.Object{o})
	if len(duplicates) > 0 {
		t.Fatal(duplicates)
	}
	a := unconnected()
	seen := func(version string) *metav1.ObjectMeta {
		return &metav1.ObjectMeta{
			Name: "a", Namespace: "n", UID: "1", ResourceVersion: version,
			Labels:      map[string]string{plan.PartOfLabel: a.set.id},
			Annotations: map[string]string{manifest.AppliedAnnotation: a.inv.Applied(o)},
			ManagedFields: []metav1.ManagedFieldsEntry{{
				Manager: kube.FieldManager, Operation: metav1.ManagedFieldsOperationApply,
				FieldsV1: metav1.NewFieldsV1(`{"f:data":{"f:k":{}}}`),
			}},
		}
	}
	a.listed(configMaps, map[manifest.ID]*metav1.ObjectMeta{o.ID(): seen("1")}, "1")
	a.state(configMaps).followed = true
	_, print, _ := a.suspect(o.ID())
	a.approve(o.ID(), print)

	v := &view{desired: set}
	v.live.Objects = make(map[manifest.ID]*metav1.ObjectMeta)
	if !a.recall(configMaps, v.live.Objects) {
		t.Fatal("the kind is not followed")
	}
	written := &metav1.PartialObjectMetadata{ObjectMeta: *seen("2")}
	if a.saw(a.state(configMaps), kube.Event{Meta: written}) != atOnce {
		t.Fatal("nobody is to look at what was written")
	}
	if err := a.findDrift(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	if len(v.live.Drifted) > 0 || v.live.Objects[o.ID()].ResourceVersion != "2" {
		t.Errorf("drifted %v; known as of version %s", v.live.Drifted, v.live.Objects[o.ID()].ResourceVersion)
	}
	if meta, _, _ := a.suspect(o.ID()); meta != nil {
		t.Error("it is looked at again")
	}
}

// The later state stands, whether the answer or the event arrives first.
func TestVersionsGoForward(t *testing.T) {
	t.Parallel()
	o, err := manifest.New(map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "a", "namespace": "n"},
	}, manifest.Origin{})
	if err != nil {
		t.Fatal(err)
	}
	type seen struct{ uid, version string }
	for _, tt := range []struct {
		name   string
		events func(event func(uid, version string, deleted bool), answer func(uid, version string))
		want   *seen
		fine   bool
	}{
		{
			name: "answer, then its event", want: &seen{"1", "10"}, fine: true,
			events: func(event func(string, string, bool), answer func(string, string)) {
				answer("1", "10")
				event("1", "10", false)
			},
		},
		{
			name: "event, then its answer", want: &seen{"1", "10"}, fine: true,
			events: func(event func(string, string, bool), answer func(string, string)) {
				event("1", "10", false)
				answer("1", "10")
			},
		},
		{
			name: "somebody's write before the answer", want: &seen{"1", "12"},
			events: func(event func(string, string, bool), answer func(string, string)) {
				event("1", "10", false)
				event("1", "12", false)
				answer("1", "10")
			},
		},
		{
			name: "deleted before the answer",
			events: func(event func(string, string, bool), answer func(string, string)) {
				event("1", "10", false)
				event("1", "12", true)
				answer("1", "10")
			},
		},
		{
			name: "made anew before the answer", want: &seen{"2", "13"},
			events: func(event func(string, string, bool), answer func(string, string)) {
				event("1", "12", true)
				event("2", "13", false)
				answer("1", "10")
			},
		},
		{
			name: "the end of an earlier object after the answer", want: &seen{"2", "13"}, fine: true,
			events: func(event func(string, string, bool), answer func(string, string)) {
				event("1", "10", false)
				answer("2", "13")
				event("1", "12", true)
			},
		},
		{
			name: "versions that are no numbers", want: &seen{"1", "y"}, fine: true,
			events: func(event func(string, string, bool), answer func(string, string)) {
				event("1", "x", false)
				answer("1", "y")
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := unconnected()
			a.listed(configMaps, nil, "5")
			s := a.state(configMaps)
			s.followed = true
			meta := func(uid, version string) metav1.ObjectMeta {
				return metav1.ObjectMeta{
					Name: "a", Namespace: "n", UID: types.UID(uid), ResourceVersion: version,
					Labels: map[string]string{plan.PartOfLabel: a.set.id}, Annotations: map[string]string{manifest.AppliedAnnotation: a.inv.Applied(o), "at": version},
				}
			}
			tt.events(func(uid, version string, deleted bool) {
				a.saw(s, kube.Event{Meta: &metav1.PartialObjectMetadata{ObjectMeta: meta(uid, version)}, Deleted: deleted})
			}, func(uid, version string) {
				m := meta(uid, version)
				a.wrote(configMaps, o, &m)
			})
			m := s.members[o.ID()]
			switch {
			case m == nil && tt.want == nil:
			case m == nil || tt.want == nil || (seen{m.uid, m.version}) != *tt.want || m.fine != tt.fine:
				t.Errorf("have %+v, want %+v, fine %t", m, tt.want, tt.fine)
			}
		})
	}
}

// A list that shows that the cluster was restored ends the watch: the kind and the
// inventory's parent are read anew. A write of ours during the list shows no such thing.
func TestRestored(t *testing.T) {
	t.Parallel()
	object := func(name string) *manifest.Object {
		o, err := manifest.New(map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name, "namespace": "n"}}, manifest.Origin{})
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	one, two := object("one"), object("two")
	for _, tt := range []struct {
		name string
		// list is the version of the list, and in it that of one; two is not in it.
		list, in string
		wrote    string // during the list, if not empty
		restored bool
		left     map[string]string // the members' versions, unless they are read anew
	}{
		{name: "later", list: "100", in: "96", left: map[string]string{"one": "96"}},
		{name: "unchanged", list: "95", in: "90", left: map[string]string{"one": "90"}},
		{name: "written meanwhile", list: "100", in: "90", wrote: "120", left: map[string]string{"one": "120"}},
		{name: "restored", list: "50", in: "40", restored: true},
		{name: "restored, and written to since", list: "100", in: "40", restored: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := unconnected()
			meta := func(o *manifest.Object, version string) *metav1.ObjectMeta {
				return &metav1.ObjectMeta{
					Name: o.ID().Name, Namespace: "n", UID: "1", ResourceVersion: version,
					Labels: map[string]string{plan.PartOfLabel: a.set.id}, Annotations: map[string]string{manifest.AppliedAnnotation: a.inv.Applied(o)},
				}
			}
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if tt.wrote != "" {
					a.wrote(configMaps, one, meta(one, tt.wrote))
				}
				w.Header().Set("Content-Type", "application/json")
				list := metav1.PartialObjectMetadataList{
					TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"}, ListMeta: metav1.ListMeta{ResourceVersion: tt.list},
					Items: []metav1.PartialObjectMetadata{{ObjectMeta: *meta(one, tt.in)}},
				}
				if err := json.NewEncoder(w).Encode(list); err != nil {
					t.Error(err)
				}
			}))
			defer server.Close()
			var err error
			if a.cluster, err = kube.New(kube.Config{Name: "dev", Trusted: true, Kubeconfig: []byte(
				`{apiVersion: v1, kind: Config, current-context: x, contexts: [{name: x, context: {cluster: x, user: x}}], clusters: [{name: x, cluster: {server: "` + server.URL + `"}}], users: [{name: x, user: {}}]}`,
			)}); err != nil {
				t.Fatal(err)
			}
			defer a.cluster.Close()
			a.listed(configMaps, map[manifest.ID]*metav1.ObjectMeta{one.ID(): meta(one, "90"), two.ID(): meta(two, "80")}, "95")
			s := a.state(configMaps)
			s.followed = true
			_, err = a.relist(t.Context(), s, configMaps, &damper{notify: func() {}})
			if restored := errors.Is(err, errRestored); restored != tt.restored || a.rewound != tt.restored || !restored && err != nil {
				t.Fatalf("restored: %v; the parent is read anew: %t", err, a.rewound)
			}
			if tt.restored {
				return
			}
			left := make(map[string]string)
			for id, m := range s.members {
				left[id.Name] = m.version
			}
			if !maps.Equal(left, tt.left) {
				t.Errorf("members %v, want %v", left, tt.left)
			}
		})
	}
}

// Fields that people added between the look and the apply do not count as applied.
func TestEditedMeanwhile(t *testing.T) {
	t.Parallel()
	o, err := manifest.New(map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "a", "namespace": "n"}, "data": map[string]any{"k": "v"},
	}, manifest.Origin{})
	if err != nil {
		t.Fatal(err)
	}
	a := unconnected()
	a.wrote(configMaps, o, &metav1.ObjectMeta{
		Name: "a", Namespace: "n", UID: "1", ResourceVersion: "3",
		ManagedFields: []metav1.ManagedFieldsEntry{
			{Manager: kube.FieldManager, Operation: metav1.ManagedFieldsOperationApply, FieldsV1: metav1.NewFieldsV1(`{"f:data":{"f:k":{}}}`)},
			{Manager: "kubectl-edit", Operation: metav1.ManagedFieldsOperationUpdate, FieldsV1: metav1.NewFieldsV1(`{"f:data":{"f:x":{}}}`)},
		},
	})
	if meta, _, _ := a.suspect(o.ID()); meta == nil {
		t.Error("it is taken for what was applied")
	}
}
