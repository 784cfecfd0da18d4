package reconcile

import (
	"fmt"
	"strings"
	"time"

	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/render/manifest"
)

// Certificates are renewed in attempts with a plan. A unit that is suspended, waits for others, or
// does not render has none, and its certificates expire: the status goes on listing them, also after
// a restart (resume.go), and people are told in time.

// noticeBefore is how long before a certificate expires people are told that nothing renews it.
const noticeBefore = 30 * 24 * time.Hour

// expiring returns a problem for each certificate of gitopsd's that expires soon or has expired, and
// when this changes; zero for never. Certificates that others brought may have been replaced.
func expiring(cluster string, certificates []status.Certificate, now time.Time) (all []problem.Problem, again time.Time) {
	at := func(t time.Time) {
		if again.IsZero() || t.Before(again) {
			again = t
		}
	}
	for _, c := range certificates {
		namespace, name, ok := strings.Cut(c.Secret, "/")
		if c.Brought || !ok {
			continue
		}
		what, when := "the serving certificate", "expires"
		if c.Use == status.Authority {
			what = "the CA"
		}
		switch notice := c.Expires.Add(-noticeBefore); {
		case now.Before(notice):
			at(notice)
			continue
		case now.Before(c.Expires):
			at(c.Expires)
		default:
			when = "expired"
		}
		all = append(all, problem.Problem{Cluster: cluster, Object: manifest.Secret.ID(namespace, name).String(),
			Reason: fmt.Sprintf("%s %s on %s, and nothing is renewed until the cluster is worked on again", what, when, c.Expires.UTC().Format(time.RFC3339))})
	}
	return all, again
}
