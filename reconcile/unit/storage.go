package unit

import (
	"gitopsd.dev/reconcile/migrate"
	"gitopsd.dev/reconcile/plan"
)

// migrate migrates the CRDs of an executed plan that ask for it, and reports whether
// nothing is left to do for them. They include refused ones: an old version in
// status.storedVersions may be the reason.
func (c *Connection) migrate(p *plan.Plan) (done bool) {
	var all []migrate.Wanted
	for i := range p.Steps {
		s := &p.Steps[i]
		if plan.Migrates(s.Object) && s.Action != plan.Conflict && s.UID != "" {
			all = append(all, migrate.Wanted{Name: s.ID.Name, Written: s.Action.Writes()})
		}
	}
	if c.migrations == nil {
		return len(all) == 0
	}
	c.migrations.Keep(all)
	return c.migrations.Settled()
}

// Rest stops storage migrations, which go on between attempts. The next Apply continues
// them.
func (c *Connection) Rest() {
	if c.migrations != nil {
		c.migrations.Keep(nil)
	}
}
