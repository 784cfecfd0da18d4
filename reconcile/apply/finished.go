package apply

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
)

// Kubernetes deletes a finished Job with spec.ttlSecondsAfterFinished. If it were created
// again for the same manifest, it would run forever. So the inventory's parent records the
// Jobs that were seen finished. A Job that runs again, or leaves the repository, is removed
// from the record; one that was never seen finished is created again.

const (
	// mostFinished is how many Jobs are recorded: those that finished last.
	mostFinished = 100
	// finishedSkew is how far the clocks of the cluster and of this process may differ.
	finishedSkew = time.Minute
)

// finishedOf returns how a Job that Kubernetes is to delete has finished; zero if it has not.
func finishedOf(job map[string]any) plan.Finished {
	ttl, ok := manifest.Mapping(job, "spec")["ttlSecondsAfterFinished"].(int64)
	if !ok {
		return plan.Finished{}
	}
	for _, e := range manifest.List(job, "status", "conditions") {
		c, _ := e.(map[string]any)
		kind := manifest.Text(c, "type")
		if manifest.Text(c, "status") != "True" || kind != "Complete" && kind != "Failed" {
			continue
		}
		at, err := time.Parse(time.RFC3339, manifest.Text(c, "lastTransitionTime"))
		if err != nil {
			return plan.Finished{}
		}
		return plan.Finished{
			Applied: manifest.Text(job, "metadata", "annotations", manifest.AppliedAnnotation),
			Due:     at.Add(time.Duration(ttl) * time.Second).UTC(), Failed: kind == "Failed",
		}
	}
	return plan.Finished{}
}

// noteFinished records what a look at Jobs saw, of those that are there.
func (a *Applier) noteFinished(seen map[manifest.ID]plan.Finished) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for id, f := range seen {
		if _, known := a.finished[id]; known || f.Applied != "" {
			a.finished[id] = f
		}
	}
}

// findFinished notes the desired Jobs that Kubernetes deleted after they had finished, and
// forgets those that left the repository.
func (a *Applier) findFinished(v *view, opts plan.Options) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for id, f := range a.finished {
		maybe := opts.RenderFailed != "" || opts.Keeps != nil && opts.Keeps(id, "")
		switch {
		case v.desired.Get(id) == nil && !maybe:
			a.finished[id] = plan.Finished{}
		case f.Applied != "" && v.live.Objects[id] == nil && !time.Now().Add(finishedSkew).Before(f.Due):
			v.live.Finished[id] = f
		}
	}
}

// readFinished adds the Jobs in the record of a parent. What this process has seen is newer.
func (a *Applier) readFinished(record string) {
	read := make(map[string]plan.Finished)
	if json.Unmarshal([]byte(record), &read) != nil {
		return // there is none, or somebody changed it: these Jobs run again
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, f := range read {
		namespace, name, _ := strings.Cut(name, "/")
		id := manifest.Job.ID(namespace, name)
		if _, known := a.finished[id]; !known {
			a.finished[id] = f
		}
	}
}

// finishedRecord returns the record; "" if no Job is in it.
func (a *Applier) finishedRecord() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	ids := slices.SortedFunc(maps.Keys(a.finished), func(x, y manifest.ID) int {
		return cmp.Or(a.finished[y].Due.Compare(a.finished[x].Due), x.Compare(y))
	})
	record := make(map[string]plan.Finished)
	for _, id := range ids {
		if f := a.finished[id]; f.Applied != "" && len(record) < mostFinished {
			record[id.Namespace+"/"+id.Name] = f
		}
	}
	if len(record) == 0 {
		return ""
	}
	text, _ := json.Marshal(record)
	return string(text)
}

// Record writes what Health saw to the inventory, if a restart would have to know it. If
// the inventory cannot be written, a later pass does it. The error is about the cluster as
// a whole.
func (a *Applier) Record(ctx context.Context, p *plan.Plan) error {
	was := a.parent
	if was == nil || !was.exists || was.fleet != a.fleet.Name || was.commit != p.Commit || was.finished == a.finishedRecord() {
		return nil
	}
	err := a.writeParent(ctx, was, &parent{kinds: was.kinds, partial: was.partial, namespaces: was.namespaces, commit: was.commit, successors: was.successors})
	if kube.IsClusterWide(err) {
		return err
	}
	if err != nil {
		a.log.Warn("the Jobs that finished could not be recorded", "err", err)
	}
	return nil
}
