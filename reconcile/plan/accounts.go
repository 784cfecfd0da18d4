package plan

import (
	"fmt"

	"gitopsd.dev/render/manifest"
)

// RefuseAccounts refuses the workloads of packages that would run as an account which a
// package brings, and which gitopsd does not have: it belongs to another owner, or is
// refused. Call it after all other refusals.
func RefuseAccounts(p *Plan) {
	lacking := make(map[manifest.ID]Action)
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.ID.Is(manifest.ServiceAccount) && s.Package != "" && !s.Member && (s.Action == Conflict || s.Action == Refused) {
			lacking[s.ID] = s.Action
		}
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.Object == nil || s.Package == "" || s.Stage != Workloads || !s.Action.Writes() {
			continue
		}
		account := accountOf(s.Object)
		switch lacking[account] {
		case Conflict:
			s.Action, s.Reason = Refused, fmt.Sprintf("it would run as %s, which is in conflict", account)
		case Refused:
			s.Action, s.Reason = Refused, fmt.Sprintf("it would run as %s, which is refused", account)
		}
	}
}

// accountOf returns the ServiceAccount that the pods of a workload run as.
func accountOf(o *manifest.Object) manifest.ID {
	return manifest.ServiceAccount.ID(o.ID().Namespace, manifest.Text(o.Tree(), "spec", "template", "spec", "serviceAccountName"))
}

// lent returns the accounts of packages that workloads outside of the package run as.
func lent(steps []Step) map[manifest.ID]bool {
	packages := make(map[manifest.ID]string)
	for i := range steps {
		if s := &steps[i]; s.Object != nil && s.Package != "" && s.ID.Is(manifest.ServiceAccount) {
			packages[s.ID] = s.Package
		}
	}
	found := make(map[manifest.ID]bool)
	for i := range steps {
		s := &steps[i]
		if s.Object == nil || s.Stage != Workloads {
			continue
		}
		if account := accountOf(s.Object); packages[account] != "" && packages[account] != s.Package {
			found[account] = true
		}
	}
	return found
}
