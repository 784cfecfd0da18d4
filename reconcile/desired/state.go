package desired

import (
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/clusters"
	"gitopsd.dev/sources/lockfile"
	"gitopsd.dev/sources/resolve"
)

// State is the desired state of a commit. It is immutable, and shared by all workers.
type State struct {
	// Commit is the computed commit. Its Hash is empty for a working tree.
	Commit sources.Commit
	// Registry is the valid part of clusters.yaml.
	Registry *clusters.Registry
	// RegistryErr joins the errors in clusters.yaml.
	RegistryErr error
	// Clusters are the registered clusters that were computed, in the order of the registry.
	Clusters []*Unit
	// Committed is the lock in the commit, and Lock the one that the declarations need.
	Committed, Lock *lockfile.File
	// Unsettled are the lines of Earlier.Hint that could not be confirmed. They belong in the
	// Hint of the next computation.
	Unsettled *lockfile.File
	// Waiting are revisions that wait for approval.
	Waiting []resolve.Waiting
	// Unmoved are about tags that cannot move, and stay in all clusters.
	Unmoved []problem.Problem
	// Notes are about the fleet's rules for versions that match no package.
	Notes []string
	// Unasked are tags that could not be looked up.
	Unasked []sources.Ref
	// Always reports whether the tag of some package must be resolved in every pass.
	Always bool
}

// Removed reports whether a unit is no longer part of the fleet. It returns false if
// errors in the registry leave that open.
func (s *State) Removed(id ID) bool { return s.Registry.Removed(id.Cluster) }

// Get returns the unit with a name as of [ID.String]; nil if there is none. The unit of a
// cluster's own manifests has the name of the cluster.
func (s *State) Get(name string) *Unit {
	for _, c := range s.Clusters {
		if c.ID.String() == name {
			return c
		}
	}
	return nil
}

// Origin returns the origin of a package for the first cluster that has or declares it,
// otherwise the repository itself.
func (s *State) Origin(repository string) sources.Origin {
	for _, c := range s.Clusters {
		if o, ok := c.Origin(repository); ok {
			return o
		}
	}
	return sources.Origin{Repository: repository}
}

// Problems returns all problems of the registry, tags, clusters, packages and objects. A
// problem that several clusters share is listed once, without a cluster.
func (s *State) Problems() []problem.Problem { return problem.Merge(s.AllProblems()) }

// AllProblems returns all problems, separately for each cluster.
func (s *State) AllProblems() []problem.Problem {
	all := append(problem.Of(s.RegistryErr), s.Unmoved...)
	for _, c := range s.Clusters {
		all = append(all, c.Problems()...)
	}
	return all
}

// Err returns [State.Problems] as an error, nil if there are none.
func (s *State) Err() error { return problem.Join(s.Problems()) }

// LockChanged reports whether Lock differs from Committed.
func (s *State) LockChanged() bool {
	return string(s.Lock.Format()) != string(s.Committed.Format())
}
