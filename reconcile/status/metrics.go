package status

import (
	"maps"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// collector reads the board on each scrape, so that metrics and the status never
// disagree.
type collector struct {
	board *Board

	info, leader, polled, pollErrors, passes, lockCommits, lockErrors, errors *prometheus.Desc
	phase, objects, attempts, actions, succeeded, notHealthy, outside         *prometheus.Desc
	expiry, migrated, migrating                                               *prometheus.Desc
	packages, drifted, corrected, took, attempt, compute                      *prometheus.Desc
}

func (b *Board) collector() prometheus.Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("gitopsd_"+name, help, labels, nil)
	}
	return &collector{
		board:       b,
		info:        desc("info", "The daemon, always 1.", "version", "repository", "branch", "commit"),
		leader:      desc("leader", "1 if this daemon is the leader and may write, 0 if it waits or may not; absent without --lease.", "lease"),
		polled:      desc("poll_timestamp_seconds", "When the repository last answered."),
		pollErrors:  desc("poll_errors_total", "Polls of the repository that failed."),
		passes:      desc("passes_total", "Turns of the loop."),
		lockCommits: desc("lock_commits_total", "Commits of clusters.lock."),
		lockErrors:  desc("lock_errors_total", "Attempts to commit clusters.lock, or its pending lines, that failed."),
		errors:      desc("commit_errors", "Errors in the commit in charge: registry, lock, packages."),
		phase:       desc("cluster_phase", "1 for the phase that a cluster is in.", "cluster", "phase"),
		objects:     desc("cluster_objects", "Objects that a cluster is wanted to have.", "cluster"),
		attempts:    desc("cluster_attempts_total", "Attempts at a cluster by their outcome.", "cluster", "phase"),
		actions:     desc("cluster_actions_total", "Steps of plans that were executed, by action.", "cluster", "action"),
		succeeded:   desc("cluster_success_timestamp_seconds", "When an attempt at a cluster last went well.", "cluster"),
		notHealthy:  desc("cluster_problems", "Objects at fault in a cluster.", "cluster"),
		outside:     desc("cluster_outside_problems", "Objects at fault in a cluster that are not in the repository, such as people's applications.", "cluster"),
		expiry:      desc("certificate_expiry_seconds", "Seconds until a certificate expires, negative afterwards; use is serving or authority, brought is true if gitopsd does not renew it.", "cluster", "secret", "use", "brought"),
		packages:    desc("cluster_package", "1 for a package of a cluster: the version that it should have, the one that runs, which is empty if that is not known, and Ready or why it is not.", "cluster", "package", "repository", "version", "running", "state"),
		drifted:     desc("cluster_drifted_objects", "Objects that others changed, and that stay as they are.", "cluster"),
		corrected:   desc("cluster_drift_corrected_total", "Objects that others changed or deleted, and that were corrected.", "cluster"),
		took:        desc("cluster_last_attempt_seconds", "How long the last attempt at a cluster took.", "cluster"),
		attempt:     desc("attempt_duration_seconds", "Attempts at clusters, and how long each took."),
		compute:     desc("compute_duration_seconds", "Computations of what a commit asks for, and how long each took."),
		migrating:   desc("storage_migration", "1 for a storage migration that is not done; state is Waiting, Running or Failed.", "cluster", "definition", "state"),
		migrated:    desc("storage_migration_objects", "Objects of a storage migration that is not done; result is stored, failed or left.", "cluster", "definition", "result"),
	}
}

func (c *collector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

func (c *collector) Collect(ch chan<- prometheus.Metric) {
	s := c.board.Snapshot()
	c.board.mu.Lock()
	n := c.board.counters
	n.attempts, n.actions, n.corrected = maps.Clone(n.attempts), maps.Clone(n.actions), maps.Clone(n.corrected)
	c.board.mu.Unlock()

	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge(c.info, 1, s.Version, s.Repository, s.Branch, s.Commit)
	if s.Lease != "" {
		leads := 0.0
		if s.Waiting == "" && s.LeaseError == "" {
			leads = 1
		}
		gauge(c.leader, leads, s.Lease)
	}
	if !s.Polled.IsZero() {
		gauge(c.polled, float64(s.Polled.UnixMilli())/1000)
	}
	counter(c.pollErrors, n.pollErrors)
	counter(c.passes, n.passes)
	counter(c.lockCommits, n.lockCommits)
	counter(c.lockErrors, n.lockErrors)
	gauge(c.errors, float64(len(s.Problems)))
	ch <- n.attempt.metric(c.attempt)
	ch <- n.compute.metric(c.compute)
	for _, cl := range s.Clusters {
		for _, phase := range phases {
			v := 0.0
			if cl.Phase == phase {
				v = 1
			}
			gauge(c.phase, v, cl.Name, string(phase))
		}
		gauge(c.objects, float64(cl.Objects), cl.Name)
		own := len(cl.own())
		gauge(c.notHealthy, float64(own), cl.Name)
		gauge(c.outside, float64(len(cl.Problems)-own), cl.Name)
		gauge(c.drifted, float64(cl.Drifted), cl.Name)
		counter(c.corrected, n.corrected[cl.Name], cl.Name)
		if cl.Seconds > 0 {
			gauge(c.took, cl.Seconds, cl.Name)
		}
		told := make(map[[5]string]bool) // Prometheus refuses duplicates
		for _, p := range cl.Packages {
			labels := [5]string{p.Name, p.Repository, p.Version, p.Running, p.State}
			if !told[labels] {
				told[labels] = true
				gauge(c.packages, 1, append([]string{cl.Name}, labels[:]...)...)
			}
		}
		for _, cert := range cl.Certificates {
			gauge(c.expiry, time.Until(cert.Expires).Seconds(), cl.Name, cert.Secret, cert.Use, strconv.FormatBool(cert.Brought))
		}
		for _, m := range cl.Migrations {
			gauge(c.migrating, 1, cl.Name, m.Definition, m.State)
			if m.Kubernetes {
				continue // it reports no numbers
			}
			gauge(c.migrated, float64(m.Done-m.Failed), cl.Name, m.Definition, "stored")
			gauge(c.migrated, float64(m.Failed), cl.Name, m.Definition, "failed")
			gauge(c.migrated, float64(m.Objects-m.Done), cl.Name, m.Definition, "left")
		}
		if !cl.Succeeded.IsZero() {
			gauge(c.succeeded, float64(cl.Succeeded.UnixMilli())/1000, cl.Name)
		}
	}
	for key, v := range n.attempts {
		counter(c.attempts, v, key[0], key[1])
	}
	for key, v := range n.actions {
		counter(c.actions, v, key[0], key[1])
	}
}
