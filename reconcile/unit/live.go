package unit

import (
	"context"
	"fmt"
	"strings"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/migrate"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/manifest"
)

// PlanLive is like Plan. It also tries the conversion rules that the plan does not change
// on the objects of their types, and notes gitopsd's definitions with versions in
// status.storedVersions beside the storage version.
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
		if there, ok := live[s.ID.Name]; ok && s.ID.Is(manifest.CRD) && of != nil && s.Tried == nil {
			if s.Tried, err = apply.Try(ctx, c.client, there.Type(""), there.Served(), of); err != nil {
				return nil, err
			}
		}
	}
	return p, nil
}

// stored returns the note about old versions in a definition's status.storedVersions, and
// about fields that a migration would drop.
func stored(ctx context.Context, m *migrate.Migrator, s migrate.Storage, wanted *manifest.Set) string {
	objects := "its objects"
	if n, err := m.Count(ctx, s); err == nil {
		objects = prose.Count(n, "object")
	}
	note := fmt.Sprintf("%s: status.storedVersions has %s beside the storage version %s, for %s", s.Name, strings.Join(s.Old(), ", "), s.Version, objects)
	drops, err := m.Drops(ctx, s)
	if err != nil {
		return fmt.Sprintf("%s; whether storing them again drops fields is not known: %s", note, kube.MessageOf(err))
	}
	if err := s.Refusal(drops); err != nil {
		return fmt.Sprintf("%s, and until they are stored again the version cannot be removed; %s", note, err)
	}
	by := "`gitopsd migrate --yes`"
	if plan.Migrates(wanted.Get(manifest.CRD.ID("", s.Name))) {
		by = "`gitopsd run`"
	}
	return fmt.Sprintf("%s; %s stores them again, and until then the version cannot be removed", note, by)
}
