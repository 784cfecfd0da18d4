package unit

import (
	"context"
	"strings"
	"testing"
	"time"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/migrate"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/render/types"
)

// stores is widgets in two versions, that ask for storage migrations; $STORAGE is the
// version that is stored.
const stores = settings + `
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.$NAME.example.org, annotations: {gitopsd.dev/migrate-storage: "true"}}
spec:
  group: $NAME.example.org
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget}
  versions:
  - {name: v1, served: true, storage: $V1, schema: {openAPIV3Schema: {type: object}}}
  - {name: v2, served: true, storage: $V2, schema: {openAPIV3Schema: {type: object}}}
`

func storing(version string) string {
	return strings.NewReplacer("$V1", map[bool]string{true: "true", false: "false"}[version == "v1"], "$V2", map[bool]string{true: "true", false: "false"}[version == "v2"]).Replace(stores)
}

// A definition counts as written only once that was done, so that one that the API server
// refuses in each pass ends no pause.
func TestMigrating(t *testing.T) {
	crd := manifesttest.Objects(t, strings.ReplaceAll(storing("v1"), "$NAME", "x"))
	step := &plan.Step{Action: plan.Configure, Object: crd[len(crd)-1], ID: crd[len(crd)-1].ID(), UID: "1"}
	for outcome, written := range map[apply.Outcome]bool{apply.Done: true, apply.Failed: false, apply.Pending: false} {
		have := migrating(&apply.Report{Results: []apply.Result{{Step: step, Outcome: outcome}}})
		if len(have) != 1 || !have[0].Tried || have[0].Written != written {
			t.Errorf("%v: %+v", outcome, have)
		}
	}
}

// A definition that asks for it is migrated beside the attempts. Until that is known to
// be done the unit has no checkpoint, so that the next process goes on with it.
func TestMigrates(t *testing.T) {
	b := newBed(t)
	b.wants(storing("v1"))
	b.apply(status.Ready)
	if o := b.apply(status.Ready); o.Checkpoint != nil {
		t.Error("a unit that nobody migrates has a checkpoint")
	}

	b.migrations = &migrate.KeeperConfig{Rate: 1000, Settle: time.Second, Report: func([]status.Migration) {}}
	b.connect()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan struct{})
	told := make(chan struct{}, 1)
	go func() {
		defer close(ended)
		b.conn.Follow(ctx, func() {
			select {
			case told <- struct{}{}:
			default:
			}
		})
	}()
	// rests applies until nothing is left to do.
	rests := func() {
		t.Helper()
		for range 600 {
			if o := b.apply(status.Ready); o.Checkpoint != nil {
				return
			}
			select {
			case <-told:
			case <-time.After(50 * time.Millisecond):
			}
		}
		t.Fatal("the unit never has a checkpoint")
	}
	rests()
	b.wants(storing("v2"))
	if o := b.apply(status.Ready); o.Checkpoint != nil || o.Changed != 1 {
		t.Errorf("outcome %+v", o)
	}
	rests()
	crds, err := b.conn.client.Kind(t.Context(), manifest.CRD.Group, manifest.CRD.Kind)
	if err != nil {
		t.Fatal(err)
	}
	tree, _, err := b.conn.client.Get(t.Context(), crds, manifest.CRD.ID("", "widgets."+b.name+".example.org"))
	if err != nil {
		t.Fatal(err)
	}
	if have := types.Read(tree).StoredVersions(); len(have) != 1 || have[0] != "v2" {
		t.Errorf("status.storedVersions is %q", have)
	}
	b.conn.Rest()
	if !b.conn.migrations.Settled() {
		t.Error("a connection at rest has something to do")
	}
	cancel()
	<-ended
}
