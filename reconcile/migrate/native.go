package migrate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/manifest"
)

// Kubernetes' own migrator (KEP-4192) is a controller of kube-controller-manager: v1 from
// 1.37, v1beta1 behind the gate StorageVersionMigrator before. Older versions of the API
// ask for other fields.
var nativeVersions = []string{"v1", "v1beta1"}

const (
	// poll is the pause between two looks at a migration of Kubernetes' own.
	poll = time.Second
	// pickUp is how many polls it may take to begin, or to shorten status.storedVersions at
	// the end: the API may be served without the controller.
	pickUp = 60
	// share is the divisor of the remaining time: Kubernetes' own migration gets half, and
	// gitopsd's the rest if that fails.
	share = 2
)

// nativeState is the state of a migration of Kubernetes' own.
type nativeState struct {
	uid       string
	mine      bool // whether it is for the CRD
	running   bool
	succeeded bool
	failed    string // why; empty if it has not failed
}

// ended reports whether Kubernetes is done with the objects.
func (n nativeState) ended() bool { return n.succeeded || n.failed != "" }

// stateOf reads a StorageVersionMigration.
func stateOf(tree map[string]any, s Storage) nativeState {
	spec := manifest.Mapping(tree, "spec")
	n := nativeState{
		uid:       manifest.Text(tree, "metadata", "uid"),
		mine:      manifest.Text(spec, "resource", "group") == s.objects.Group && manifest.Text(spec, "resource", "resource") == s.objects.Resource,
		running:   manifest.ConditionTrue(tree, "Running"),
		succeeded: manifest.ConditionTrue(tree, "Succeeded"),
	}
	if c := manifest.Condition(tree, "Failed"); c["status"] == "True" {
		n.failed = cmp.Or(manifest.Text(c, "message"), "no reason given")
	}
	return n
}

// native lets Kubernetes migrate the CRD, and reports whether it did. It returns false without
// an error if the cluster does not offer that, if the account lacks the right to request it,
// or if it failed.
//
// The name of the request has the CRD's UID and generation, so that it began with the present
// storage version. A request under way from an interrupted run is joined. One that has ended
// is made again.
func (m *Migrator) native(ctx context.Context, s Storage) (bool, error) {
	t, offered, err := m.nativeType(ctx)
	if err != nil || !offered {
		return false, err
	}
	n := &nativeRun{Migrator: m, of: s, t: t, id: manifest.StorageVersionMigration.ID("", fmt.Sprintf("gitopsd-%s-%d", s.uid, s.generation))}
	limited := ctx
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, time.Until(deadline)/share)
		defer cancel()
	}
	err = n.run(limited)
	if err != nil && ctx.Err() != nil {
		return false, context.Cause(ctx) // the next run joins it
	}
	n.remove(ctx)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, errMoved), kube.IsClusterWide(err) && limited.Err() == nil:
		return false, err
	}
	m.cfg.Log.Info("Kubernetes' own migration failed; gitopsd goes through the objects", "cluster", m.cfg.Cluster.Name(), "definition", s.Name, "reason", kube.MessageOf(err))
	return false, nil
}

func (m *Migrator) nativeType(ctx context.Context) (t kube.Type, offered bool, err error) {
	kind := manifest.StorageVersionMigration
	for _, v := range nativeVersions {
		t, err = m.cfg.Cluster.Type(ctx, kind.APIVersion(v), kind.Kind)
		if kube.ClassOf(err) != kube.NoSuchType {
			return t, err == nil, err
		}
	}
	return t, false, nil
}

// nativeRun is one migration of Kubernetes' own.
type nativeRun struct {
	*Migrator
	of Storage
	t  kube.Type
	id manifest.ID
}

// run returns nil once Kubernetes has migrated all objects.
func (n *nativeRun) run(ctx context.Context) error {
	if err := n.begin(ctx); err != nil {
		return err
	}
	begun, waited := false, 0
	for {
		tree, _, err := n.cfg.Cluster.Get(ctx, n.t, n.id)
		if err != nil {
			return err
		}
		state := stateOf(tree, n.of)
		begun = begun || state.running
		ended := state.ended()
		switch {
		// At the end Kubernetes updates the status of the CRD, and then is not running.
		case ended && state.running && waited < pickUp, !begun && !ended && waited < pickUp:
			waited++
		case state.failed != "":
			return errors.New(state.failed)
		case state.succeeded:
			return nil
		case !begun:
			return fmt.Errorf("it has not begun after %s", pickUp*poll)
		}
		if err := n.check(ctx, n.of); err != nil {
			return err
		}
		n.cfg.Progress(Progress{Name: n.of.Name, Kubernetes: true})
		if err := n.cfg.pause(ctx, poll); err != nil {
			return err
		}
	}
}

// begin asks for the migration.
func (n *nativeRun) begin(ctx context.Context) error {
	tree, _, err := n.cfg.Cluster.Get(ctx, n.t, n.id)
	switch kube.ClassOf(err) {
	case kube.NotFound:
	case "":
		if err != nil {
			return err
		}
		state := stateOf(tree, n.of)
		if !state.mine {
			return fmt.Errorf("%s exists, and is about something else", n.id)
		}
		if !state.succeeded && state.failed == "" {
			return nil
		}
		if _, _, err := n.cfg.Cluster.Delete(ctx, n.t, n.id, state.uid); err != nil {
			return err
		}
	default:
		return err
	}
	body, err := json.Marshal(map[string]any{
		"apiVersion": n.t.APIVersion(), "kind": n.t.Kind,
		"metadata": map[string]any{"name": n.id.Name, "ownerReferences": []any{map[string]any{
			"apiVersion": manifest.CRD.APIVersion("v1"), "kind": manifest.CRD.Kind, "name": n.of.Name, "uid": n.of.uid,
		}}},
		"spec": map[string]any{"resource": map[string]any{"group": n.of.objects.Group, "resource": n.of.objects.Resource}},
	})
	if err != nil {
		return err
	}
	_, err = n.cfg.Cluster.Create(ctx, n.t, n.id, body)
	return err
}

// remove deletes the request, unless it is running: the status of the CRD would show it as
// running for ever. A request that stays is deleted with the CRD.
func (n *nativeRun) remove(ctx context.Context) {
	tree, _, err := n.cfg.Cluster.Get(ctx, n.t, n.id)
	if state := stateOf(tree, n.of); err == nil && state.mine && (!state.running || state.ended()) {
		_, _, err = n.cfg.Cluster.Delete(ctx, n.t, n.id, state.uid)
	}
	if err != nil && kube.ClassOf(err) != kube.NotFound && kube.ClassOf(err) != kube.Forbidden {
		n.cfg.Log.Warn("a request to Kubernetes' own migrator stays", "cluster", n.cfg.Cluster.Name(), "object", n.id, "reason", kube.MessageOf(err))
	}
}
