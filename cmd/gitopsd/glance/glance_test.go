package glance

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/status"
)

var update = flag.Bool("update", false, "write golden files")

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// head and before are hashes of commits.
const head, before = "a5a241f0c3b2a1a5a241f0c3b2a1a5a241f0c3b2", "0b1c2d3e4f5061728394a5b6c7d8e9f001122334"

func snapshot(units ...status.Unit) *status.Snapshot {
	return &status.Snapshot{
		Version: "v1", Started: noon, Time: noon, Turned: noon, Polled: noon, Repository: "https://git.example.org/platform/fleet.git", Branch: "main",
		Commit: head, Subject: "Move widgets on", Clusters: units,
	}
}

func unit(name string, phase status.Phase, message string) status.Unit {
	return status.Unit{Name: name, Phase: phase, Message: message, Commit: head, Applied: head, Objects: 14,
		Packages: []status.PackageState{{Name: "widgets", Repository: "reg.io/widgets", Version: "v2.0.0", Running: "v2.0.0", State: "Ready"}}}
}

// mixed returns a small fleet with everything that can be shown.
func mixed() *status.Snapshot {
	down := unit("edge", status.Unreachable, "https://10.0.0.1:6443 cannot be reached: connection refused")
	down.Failures, down.NextTry, down.Commit = 4, noon.Add(time.Minute), before
	failed := unit("prod", status.Failed, "1 of 14 objects failed to apply")
	failed.Packages[0].State, failed.Packages[0].Running = "Failed", "v1.0.0"
	failed.Problems = []problem.Problem{{Cluster: "prod", Package: "widgets", Object: "customresourcedefinition.apiextensions.k8s.io/widgets.acme.example", Reason: "refused: breaking: field-removed", Advice: "its annotation can allow it"}}
	failed.Notes = []string{"one", "two", "three", "four"}
	twin := failed
	twin.Name = "prod-2"
	twin.Problems = []problem.Problem{failed.Problems[0]}
	twin.Problems[0].Cluster = "prod-2"
	many := unit("stage", status.Degraded, "everything is applied that may be; 9 problems are left")
	for i := range 9 {
		many.Problems = append(many.Problems, problem.Problem{Cluster: "stage", Object: fmt.Sprintf("configmap/default/c%d", i), Origin: fmt.Sprintf("clusters/stage/c.yaml:%d", 1+8*i), Reason: "held: drift"})
	}
	evil := unit("test", status.Failed, "a\x1b[2Jb\rc")
	s := snapshot(unit("dev", status.Ready, ""), down, unit("lab", status.Suspended, ""), failed, twin, many, evil)
	s.Computing, s.PollError, s.Turned = "b"+head[1:], "authentication failed", noon.Add(-time.Hour)
	s.LockError = "committing clusters.lock: the server refused the push to refs/heads/main: pre-receive hook declined\nLet the daemon's account push"
	s.Problems = problem.Gather([]problem.Problem{{Cluster: "prod", Package: "widgets", Reason: "is not signed"}})
	return s
}

// large returns a fleet with more clusters than a screen has lines.
func large() *status.Snapshot {
	var units []status.Unit
	for i := range 60 {
		u := unit(fmt.Sprintf("eu-%02d", i), status.Ready, "")
		if i%20 == 7 {
			u.Phase, u.Message = status.Progressing, "1 object is not ready yet"
			u.Problems = []problem.Problem{{Cluster: u.Name, Object: "deployment.apps/web/frontend", Origin: fmt.Sprintf("clusters/eu-%02d/web.yaml:7", i), Reason: "0 of 3 replicas are ready"}}
		}
		units = append(units, u)
	}
	return snapshot(units...)
}

// uneven returns a large fleet in which every cluster has a different number of objects, and many
// have different problems.
func uneven() *status.Snapshot {
	s := large()
	for i := range s.Clusters {
		u := &s.Clusters[i]
		u.Objects = 10 + i
		if i%3 == 0 {
			u.Packages = append(u.Packages, status.PackageState{Name: "more", State: "Progressing"})
		}
		if i%2 == 0 {
			u.Phase, u.Message = status.Failed, fmt.Sprintf("object %d failed to apply", i)
		}
		s.Problems = append(s.Problems, problem.Shared{Problem: problem.Problem{Reason: fmt.Sprintf("package p%d is not signed", i)}})
	}
	return s
}

func TestText(t *testing.T) {
	first := snapshot()
	first.Commit, first.Subject, first.Polled, first.PollError = "", "", time.Time{}, "connection refused"
	locked := snapshot(unit("dev", status.Ready, ""))
	locked.Head, locked.LockCommit = before, before
	expires := unit("prod", status.Suspended, "spec.suspend leaves the cluster as it is; certificates in it expire")
	expires.Problems = []problem.Problem{{Cluster: "prod", Object: "secret/acme/hooks-tls", Reason: "the serving certificate expired on 2026-02-28T12:00:00Z"}}
	for name, tt := range map[string]struct {
		s *status.Snapshot
		o show.Options
	}{
		"locked":  {s: locked},
		"first":   {s: first},
		"none":    {s: snapshot()},
		"ready":   {s: snapshot(unit("dev", status.Ready, ""), unit("prod", status.Ready, ""))},
		"mixed":   {s: mixed()},
		"all":     {s: mixed(), o: show.Options{All: true}},
		"narrow":  {s: mixed(), o: show.Options{Width: 60}},
		"colour":  {s: snapshot(unit("dev", status.Ready, ""), unit("prod", status.Unreachable, "gone")), o: show.Options{Colour: true}},
		"expires": {s: snapshot(unit("dev", status.Ready, ""), expires), o: show.Options{Colour: true}},
		"large":   {s: large()},
		"uneven":  {s: uneven()},
	} {
		t.Run(name, func(t *testing.T) {
			var have bytes.Buffer
			if err := WriteText(&have, tt.s, tt.o); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", name+".txt")
			if *update {
				if err := os.WriteFile(file, have.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil || !bytes.Equal(have.Bytes(), want) {
				t.Errorf("%s\nwant (%v)\n%s", have.Bytes(), err, want)
			}
			if !tt.o.Colour && strings.ContainsAny(have.String(), "\x1b\r") {
				t.Errorf("a terminal would obey %q", have.String())
			}
		})
	}
}

// A problem in a file is not merged with the same problem without a file.
func TestPlaces(t *testing.T) {
	t.Parallel()
	var units []status.Unit
	for name, origin := range map[string]string{"a": "a.yaml:1", "b": "b.yaml:2", "c": ""} {
		u := unit(name, status.Progressing, "1 object is not gone yet")
		u.Problems = []problem.Problem{{Cluster: name, Object: "configmap/x/y", Origin: origin, Reason: "wait: it is being deleted"}}
		units = append(units, u)
	}
	slices.SortFunc(units, func(a, b status.Unit) int { return strings.Compare(a.Name, b.Name) })
	var have bytes.Buffer
	if err := WriteText(&have, snapshot(units...), show.Options{}); err != nil {
		t.Fatal(err)
	}
	const want = `
a, b: Progressing: 1 object is not gone yet
  ! configmap/x/y: wait: it is being deleted (a.yaml:1, b.yaml:2)

c: Progressing: 1 object is not gone yet
  ! configmap/x/y: wait: it is being deleted
`
	if !strings.HasSuffix(have.String(), want) {
		t.Errorf("%s\nwant at the end\n%s", have.String(), want)
	}
}
