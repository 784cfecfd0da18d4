package unit

import (
	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/migrate"
	"gitopsd.dev/reconcile/plan"
)

// migrate migrates the CRDs of an executed plan that ask for it, and reports whether
// nothing is left to do for them.
func (c *Connection) migrate(report *apply.Report) (done bool) {
	all := migrating(report)
	if c.migrations == nil {
		return len(all) == 0
	}
	c.migrations.Keep(all)
	return c.migrations.Settled()
}

// migrating returns the CRDs of an executed plan that ask for migrations. They include
// refused ones: an old version in status.storedVersions may be the reason.
func migrating(report *apply.Report) []migrate.Wanted {
	var all []migrate.Wanted
	for _, r := range report.Results {
		s := r.Step
		if plan.Migrates(s.Object) && s.Action != plan.Conflict && s.UID != "" {
			tried := s.Action.Writes()
			all = append(all, migrate.Wanted{Name: s.ID.Name, Tried: tried, Written: tried && r.Outcome == apply.Done})
		}
	}
	return all
}

// Rest stops storage migrations, which go on between attempts. The next Apply continues
// them.
func (c *Connection) Rest() {
	if c.migrations != nil {
		c.migrations.Keep(nil)
	}
}
