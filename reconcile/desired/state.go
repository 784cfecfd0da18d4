package desired

import (
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/clusters"
	"gitopsd.dev/sources/lockfile"
	"gitopsd.dev/sources/resolve"
)

// State is what a commit declares. It is immutable once made, and shared by all
// workers.
type State struct {
	// Commit that was computed; its Hash is empty for a working tree.
	Commit sources.Commit
	// Registry is clusters.yaml, as far as it is valid.
	Registry *clusters.Registry
	// RegistryErr joins the errors in clusters.yaml.
	RegistryErr error
	// Clusters are the registered clusters that were computed, in the registry's
	// order.
	Clusters []*Unit
	// Committed is the lock in the commit, Lock the one that the declarations need.
	Committed, Lock *lockfile.File
	// Unsettled are the lines of Earlier.Hint that could not be settled; pass them to
	// the next computation again.
	Unsettled *lockfile.File
	// Waiting are revisions that wait for a person's approval.
	Waiting []resolve.Waiting
	// Notes are about the fleet's rules for versions that concern no package.
	Notes []string
	// Unasked are tags that a check could not look up.
	Unasked []sources.Ref
	// Always: some package needs its tag resolved in every pass.
	Always bool
}

// Removed reports whether a unit is no longer part of the fleet. It returns false if
// errors in the registry leave that open.
func (s *State) Removed(id ID) bool { return s.Registry.Removed(id.Cluster) }

// Get returns the unit of that name, as [ID.String] has it; nil if there is none. The
// unit of a cluster's own manifests has the cluster's name.
func (s *State) Get(name string) *Unit {
	for _, c := range s.Clusters {
		if c.ID.String() == name {
			return c
		}
	}
	return nil
}

// Origin returns where to ask for the versions of a package's repository: the origin
// of the first cluster that has or declares the package, else its own name.
func (s *State) Origin(repository string) sources.Origin {
	for _, c := range s.Clusters {
		if o, ok := c.Origin(repository); ok {
			return o
		}
	}
	return sources.Origin{Repository: repository}
}

// Problems returns all problems of the registry, clusters, packages and objects. A
// problem that several clusters share is listed once, without a cluster.
func (s *State) Problems() []problem.Problem { return problem.Merge(s.AllProblems()) }

// AllProblems returns all problems, each cluster's own.
func (s *State) AllProblems() []problem.Problem {
	all := problem.Of(s.RegistryErr)
	for _, c := range s.Clusters {
		all = append(all, c.Problems()...)
	}
	return all
}

// Err returns [State.Problems] as an error, nil if there are none.
func (s *State) Err() error { return problem.Join(s.Problems()) }

// LockChanged reports whether the lock which the declarations ask for differs from
// the committed one.
func (s *State) LockChanged() bool {
	return string(s.Lock.Format()) != string(s.Committed.Format())
}
