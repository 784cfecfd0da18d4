package reconcile

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gitopsd.dev/reconcile/checkpoint"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/reconcile/unit"
)

// While no attempt is made at a unit, its certificates stay in the status, and from a month before one expires
// that is a problem, though no commit comes. A new process knows them, too.
func TestExpiring(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for _, tt := range []struct {
		name    string
		state   func() *desired.State
		phase   status.Phase
		message string // once it is a problem
	}{
		{"suspended", func() *desired.State { return suspend(rendered("2", "hub")) }, status.Suspended, "spec.suspend leaves the cluster as it is; certificates in it expire"},
		{"does not render", func() *desired.State { return broken("2", "hub") }, status.Failed, "does not render"},
		{"waits", func() *desired.State { return rendered("2", "hub<-dev", "dev") }, status.Waiting, "waits for cluster dev"},
	} {
		for _, restarted := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				store := &checkpoint.Store{Dir: t.TempDir()}
				process := func() *server {
					s := newServer(t)
					s.ws.cfg.Checkpoints = store
					s.gives("dev", unit.Outcome{Phase: status.Unreachable, Message: "down"})
					return s
				}
				s := process()
				leaf, ca := time.Now().Add(90*day), time.Now().Add(365*day)
				s.gives("hub", unit.Outcome{Phase: status.Degraded, Actions: map[string]int{}, Certificates: []status.Certificate{
					{Secret: "acme/hooks-tls", Use: status.Serving, Expires: leaf},
					{Secret: "gitopsd-system/serving-ca.acme.hooks", Use: status.Authority, Expires: ca},
					{Secret: "acme/theirs", Use: status.Serving, Expires: leaf, Brought: true},
				}})
				s.pass(rendered("1", "hub"))
				s.gives("hub", unit.Outcome{Phase: status.Failed, Message: "no plan"}) // if it does not wait
				if restarted {
					s.ws.stop()
					s = process()
				}
				s.pass(tt.state())
				told := func() (u status.Unit, problems string) {
					synctest.Wait()
					for _, c := range s.ws.cfg.Board.Snapshot().Clusters {
						if c.Name == "hub" {
							u = c
						}
					}
					for _, p := range u.Problems {
						problems += p.String() + "\n"
					}
					return u, problems
				}
				waits := tt.phase == status.Waiting && !restarted // it is kept at the earlier commit
				if u, problems := told(); !waits && u.Phase != tt.phase || len(u.Certificates) != 3 || problems != "" {
					t.Errorf("%s, %t: at first %s, %d certificates, %s", tt.name, restarted, u.Phase, len(u.Certificates), problems)
				}
				for _, then := range []struct {
					after time.Duration
					want  string
				}{
					{60*day + time.Minute, "cluster hub: secret/acme/hooks-tls: the serving certificate expires on " + leaf.UTC().Format(time.RFC3339)},
					{30 * day, "cluster hub: secret/acme/hooks-tls: the serving certificate expired on "},
					{250 * day, "cluster hub: secret/gitopsd-system/serving-ca.acme.hooks: the CA expires on "},
				} {
					time.Sleep(then.after)
					if u, problems := told(); u.Phase != tt.phase || !strings.HasPrefix(u.Message, tt.message) || !strings.Contains(problems, then.want) || strings.Contains(problems, "theirs") {
						t.Errorf("%s, %t: %s %q\n%swant %q", tt.name, restarted, u.Phase, u.Message, problems, then.want)
					}
				}
				s.ws.stop()
			})
		}
	}
}

// A unit that is left as it is, since its document has errors, is told about as well.
func TestExpiringLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.gives("hub", unit.Outcome{Phase: status.Ready, Actions: map[string]int{}, Certificates: []status.Certificate{
			{Secret: "acme/hooks-tls", Use: status.Serving, Expires: time.Now().Add(time.Hour)},
		}})
		s.pass(rendered("1", "hub"))
		j := &job{want: suspend(rendered("1", "hub")).Clusters[0], of: &revision{state: state("2", "!hub")}, left: true, tried: make(chan struct{})}
		s.ws.all[desired.ID{Cluster: "hub"}].give(j)
		synctest.Wait()
		if u := s.ws.cfg.Board.Snapshot().Clusters[0]; len(u.Problems) != 1 || !strings.Contains(u.Problems[0].Reason, "the serving certificate expires on ") {
			t.Errorf("problems %+v", u.Problems)
		}
		s.ws.stop()
	})
}
