package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/migrate"
	"gitopsd.dev/render/types/harm"
	"gitopsd.dev/sources/clusters"
)

// A line says in which versions objects are stored, or what was done.
func TestMigrationText(t *testing.T) {
	t.Parallel()
	old := migrate.Storage{Name: "widgets.acme.example", Version: "v1", Stored: []string{"v1alpha1", "v1"}}
	now := migrate.Storage{Name: "widgets.acme.example", Version: "v1", Stored: []string{"v1"}}
	blocked := old
	blocked.Blocked = "it is being deleted"
	removed := []string{"v1alpha1"}
	drop := func(harmed int, fields ...string) migrate.Drop {
		return migrate.Drop{Fields: fields, Survey: &harm.Survey{Harmed: harmed}}
	}
	failures := []migrate.Failure{{Object: "widget.acme.example/default/a", Reason: "no"}}
	for _, tt := range []struct {
		name string
		m    migration
		todo bool
		want string
	}{
		{"to do", migration{Result: migrate.Result{Storage: old, Objects: 1}}, true, "the storage version is v1; 1 object may also be stored in v1alpha1"},
		{"no objects", migration{Result: migrate.Result{Storage: old}}, true, "the storage version is v1; there are no objects, but status.storedVersions has v1alpha1"},
		{
			"of others", migration{Result: migrate.Result{Storage: old, Objects: 2}, Foreign: true}, false,
			"the storage version is v1; 2 objects may also be stored in v1alpha1; gitopsd has not applied it: name it to migrate it",
		},
		{
			"blocked", migration{Result: migrate.Result{Storage: blocked}}, true,
			"the storage version is v1, and status.storedVersions has v1alpha1, but it cannot be migrated: it is being deleted",
		},
		{"nothing to do", migration{Result: migrate.Result{Storage: now, Objects: 7}}, false, "everything is stored in v1"},
		{
			"done", migration{Result: migrate.Result{Storage: now, Objects: 3, Migrated: 3, Removed: removed}}, false,
			"3 objects stored again in v1; v1alpha1 taken out of status.storedVersions",
		},
		{
			"done, with fields dropped", migration{Result: migrate.Result{Storage: now, Objects: 3, Migrated: 3, Removed: removed, Drops: []migrate.Drop{drop(1, ".spec.b"), drop(1, ".spec.a", ".spec.b"), drop(0, ".spec.c")}}}, false,
			"3 objects stored again in v1 without .spec.a, .spec.b; v1alpha1 taken out of status.storedVersions",
		},
		{
			"some deleted", migration{Result: migrate.Result{Storage: now, Objects: 3, Migrated: 1, Removed: removed}}, false,
			"1 object stored again in v1, 2 deleted meanwhile; v1alpha1 taken out of status.storedVersions",
		},
		{
			"by Kubernetes", migration{Result: migrate.Result{Storage: now, Kubernetes: true, Removed: removed}}, false,
			"Kubernetes stored all objects again in v1; v1alpha1 taken out of status.storedVersions",
		},
		{
			"some failed", migration{Result: migrate.Result{Storage: old, Objects: 3, Migrated: 2, Failures: failures}}, true,
			"2 of 3 objects stored again in v1; status.storedVersions keeps v1alpha1",
		},
		{
			"too many failed", migration{Result: migrate.Result{Storage: old, Objects: 9, Migrated: 2, Failures: failures, Stopped: true}}, true,
			"2 of 9 objects stored again in v1, stopped after 1 failure; status.storedVersions keeps v1alpha1",
		},
		{
			"interrupted", migration{Result: migrate.Result{Storage: old, Objects: 9, Migrated: 2}, Error: "the cluster\n is gone\x1b[2J", err: errors.New("")}, true,
			"2 of 9 objects stored again in v1; then: the cluster is gone[2J",
		},
		{"failed", migration{Result: migrate.Result{Storage: old}, Error: "the cluster is gone", err: errors.New("")}, true, "the cluster is gone"},
	} {
		if got := tt.m.text(); got != tt.want {
			t.Errorf("%s:\n%s, want\n%s", tt.name, got, tt.want)
		}
		if got := tt.m.todo(); got != tt.todo {
			t.Errorf("%s: to do: %t", tt.name, got)
		}
	}
}

// JSON has an entry for a cluster that cannot be read, too.
func TestMigrationOfUnreachable(t *testing.T) {
	t.Parallel()
	list := []asked{{Cluster: clusters.Cluster{Name: "dev"}}, {Cluster: clusters.Cluster{Name: "prod"}}}
	out, err := json.Marshal(unread(list, []error{nil, errors.New("https://prod cannot be reached")}))
	if want := `[{"cluster":"prod","error":"https://prod cannot be reached"}]`; err != nil || string(out) != want {
		t.Errorf("%s, %v; want %s", out, err, want)
	}
}

// The exit status says whether there is something left to migrate.
func TestMigrationExit(t *testing.T) {
	t.Parallel()
	old := migrate.Storage{Version: "v1", Stored: []string{"v1alpha1", "v1"}}
	todo := migration{Result: migrate.Result{Storage: old}}
	foreign := migration{Result: migrate.Result{Storage: old}, Foreign: true}
	failed := migration{Result: migrate.Result{Storage: old, Failures: []migrate.Failure{{}}}}
	for _, tt := range []struct {
		name string
		yes  bool
		all  []migration
		errs []error
		want string
	}{
		{"nothing", false, nil, nil, ""},
		{"of others", false, []migration{foreign}, nil, ""},
		{"to do", false, []migration{foreign, todo}, nil, "exit status 2"},
		{"a cluster that is down", false, []migration{todo}, []error{errors.New("down")}, "down"},
		{
			"the time is over", true, nil, []error{context.DeadlineExceeded},
			"context deadline exceeded; give it longer with --timeout (now 1m0s): what was done stays done",
		},
		{
			"a request without an answer", true, nil, []error{fmt.Errorf("%w: %w", &kube.Error{Class: kube.Unreachable, Cluster: "prod", Message: "it did not answer"}, context.DeadlineExceeded)},
			"cluster prod: it did not answer: context deadline exceeded",
		},
		{"failed", true, []migration{failed}, nil, "1 definition has objects that could not be stored again; correct what refuses them, and run this again"},
	} {
		o := migrateOptions{yes: tt.yes, timeout: time.Minute}
		got := ""
		if err := o.exit(t.Context(), tt.all, tt.errs); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}
