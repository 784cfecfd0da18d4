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
		account := manifest.ServiceAccount.ID(s.ID.Namespace, manifest.Text(s.Object.Tree(), "spec", "template", "spec", "serviceAccountName"))
		switch lacking[account] {
		case Conflict:
			s.Action, s.Reason = Refused, fmt.Sprintf("it would run as %s, which is in conflict", account)
		case Refused:
			s.Action, s.Reason = Refused, fmt.Sprintf("it would run as %s, which is refused", account)
		}
	}
}
