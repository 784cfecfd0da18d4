package unit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/migrate"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/reconcile/prove"
	"gitopsd.dev/render"
	"gitopsd.dev/render/manifest"
)

const (
	// mostTried is how many objects of one type are tried.
	mostTried = 100_000
	// triedPage is how many are read at a time, and triedEvery the shortest time
	// between two pages, so that reading them is no load for an API server.
	triedPage  = 100
	triedEvery = 50 * time.Millisecond
)

// PlanLive is like Plan. It also reads the objects of the types that have conversion
// rules, and tries the rules on them; and it notes which definitions of gitopsd's list
// versions in status.storedVersions that are not the storage version. What could not be
// read is a note.
func (c *Connection) PlanLive(ctx context.Context, want *desired.Unit) (*plan.Plan, error) {
	p, err := c.Plan(ctx, want)
	if err != nil {
		return nil, err
	}
	if want.Objects == nil {
		return p, nil
	}
	m, err := migrate.New(migrate.Config{Cluster: c.client, Log: c.log})
	if err != nil {
		return nil, err
	}
	all, err := m.List(ctx)
	if err != nil {
		return nil, err
	}
	live := make(map[string]migrate.Storage, len(all))
	for _, s := range all {
		live[s.Name] = s
		if s.Ours && s.Needed() {
			p.Notes = append(p.Notes, stored(ctx, m, s, want.Objects))
		}
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		of := want.Conversions[s.ID.Name]
		if there, ok := live[s.ID.Name]; ok && s.ID.Is(manifest.CRD) && of != nil {
			if s.Tried, err = c.try(ctx, of, there); err != nil {
				return nil, err
			}
		}
	}
	return p, nil
}

// stored says what is left of old versions in a definition's status.storedVersions.
func stored(ctx context.Context, m *migrate.Migrator, s migrate.Storage, wanted *manifest.Set) string {
	objects := "its objects"
	if n, err := m.Count(ctx, s); err == nil {
		objects = prose.Count(n, "object")
	}
	by := "`gitopsd migrate --yes`"
	if plan.Migrates(wanted.Get(manifest.CRD.ID("", s.Name))) {
		by = "`gitopsd run`"
	}
	return fmt.Sprintf("%s: status.storedVersions has %s beside the storage version %s, for %s; %s stores them again, and until then the version cannot be removed",
		s.Name, strings.Join(s.Old(), ", "), s.Version, objects, by)
}

// try tries conversion rules on the objects of a live definition. The error is about the
// cluster as a whole.
func (c *Connection) try(ctx context.Context, rules *render.Conversion, live migrate.Storage) (*prove.Live, error) {
	version := ""
	for _, v := range live.Served() {
		if slices.Contains(rules.Set.Versions(), v) {
			version = v
			break
		}
	}
	if version == "" {
		return &prove.Live{Stopped: fmt.Sprintf("none was read: the cluster serves %s, and the rules know none of it", strings.Join(live.Served(), ", "))}, nil
	}
	trial, err := prove.NewTrial(rules, version)
	if err != nil {
		return &prove.Live{Version: version, Stopped: err.Error()}, nil
	}
	next := time.Now().Add(triedEvery)
	var stop error
	err = c.client.ListFull(ctx, live.Type(version), kube.ListOptions{Page: triedPage, Again: trial.Again}, func(tree map[string]any) bool {
		if stop = trial.Try(ctx, tree); stop != nil {
			return false
		}
		switch n := trial.Result().Objects; {
		case n == mostTried:
			stop = fmt.Errorf("there are more than %d", mostTried)
		case n%triedPage == 0:
			stop = sleep(ctx, time.Until(next))
			next = time.Now().Add(triedEvery)
		}
		return stop == nil
	})
	if kube.IsClusterWide(err) {
		return nil, err
	}
	result := trial.Result()
	if err = errors.Join(stop, err); err != nil {
		result.Stopped = "not all were tried: " + err.Error()
	}
	return result, nil
}

// sleep waits, or returns why ctx ended.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
