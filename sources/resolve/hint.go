package resolve

import (
	"fmt"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/lockfile"
)

// The digests that an interrupted run resolved and used are kept where more
// people can write than may change the lock. So nothing is taken from there
// that the registry does not confirm:
//
//   - a digest is what the tag stands for now; if not, the package has an error,
//     since either the tag was moved or somebody else wrote the record;
//   - a dependency gets the version that it got before, if that still is one which
//     its dependents ask for, and the registry has it.
//
// The lock comes first, and all other records follow from the digest.

// Moved is an error about a tag that names another digest than when an
// interrupted run resolved it.
type Moved struct {
	Key lockfile.Key
	// Recorded is the digest of the interrupted run, Now the registry's.
	Recorded, Now string
}

func (m *Moved) Error() string {
	return fmt.Sprintf(movedText, m.Key, m.Recorded, m.Now)
}

const movedText = `%s was resolved by a run that was interrupted, and is something else now.

    the pending records have  %s
    the registry has          %s

The publisher has moved the tag meanwhile, or somebody who may push to the
repository's pending ref has changed the record there. Clusters may run the
first already, and nothing that this package defines is changed in any of them;
everything else goes on.

Find out which digest is the right one. Then run ` + "`gitopsd lock`" + `, which records what
the registry has, or declare the digest beside the tag, and have the change
reviewed like any other.`

// unmoved compares a tag's digest with the hint.
func (p *pass) unmoved(key lockfile.Key, now sources.Digest) error {
	if was, ok := p.hint.Lookup(key); ok && was != string(now) {
		return &Moved{Key: key, Recorded: was, Now: string(now)}
	}
	return nil
}

// unsettled returns the lines of the hint about packages that could not be
// resolved now: clusters may run them.
func (p *pass) unsettled(requests []Request, clusters map[string]*Resolution) *lockfile.File {
	left := new(lockfile.File)
	keep := func(repository, version string) {
		if len(p.lock.Records(repository, version)) == 0 {
			left.Adopt(p.hint, repository, version)
		}
	}
	if string(p.hint.Format()) == "" {
		return left
	}
	for _, req := range requests {
		if !req.Failed && len(req.Unreadable) == 0 && len(clusters[req.Cluster].Errors) == 0 {
			continue
		}
		if !req.Failed {
			for _, e := range clusters[req.Cluster].Errors {
				keep(e.Ref.Repository, e.Ref.Version())
			}
		}
		selections := p.hint.Selections(req.Cluster)
		left.Select(req.Cluster, selections)
		for _, s := range selections {
			keep(s.Repository, s.Version)
		}
	}
	return left
}
