package resolve

import (
	"fmt"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/lockfile"
)

// The hint has the digests that an interrupted run resolved and used. More people may
// write it than may change the lock, so the registry must confirm it:
//
//   - A tag must still have the hint's digest. Otherwise the package has an error,
//     since either the tag was moved or somebody else wrote the hint.
//   - A tag that packagePullPolicy: Always moved, and that the lock has at the digest
//     before, may have any digest in the registry. If that cannot be asked, or the digest
//     that it has fails, the package has an error.
//   - A dependency gets the hint's version, if the registry has it and it satisfies
//     the dependents.
//
// The lock takes precedence, and all other records follow from the digest.

// Moved is the error for a tag whose digest differs from the one that an interrupted run
// resolved.
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

// mayHave says why a package with a hint stays.
const mayHave = "Clusters may have that digest already, so the package stays as it is in all of them"

// unmoved compares a tag's digest with the hint.
func (p *pass) unmoved(key lockfile.Key, now sources.Digest) error {
	if was, ok := p.hint.Lookup(key); ok && was != string(now) {
		return &Moved{Key: key, Recorded: was, Now: string(now)}
	}
	return nil
}

// unsettled returns the hint's lines about packages that could not be resolved now. Clusters
// may run them.
func (p *pass) unsettled(requests []Request, clusters map[string]*Resolution) *lockfile.File {
	left := new(lockfile.File)
	keep := func(repository, version string) {
		was, ok := p.hint.Digest(repository, version)
		now, _ := p.lock.Digest(repository, version)
		if len(p.lock.Records(repository, version)) == 0 || ok && was != now {
			left.Adopt(p.hint, repository, version)
		}
	}
	if len(p.hint.Format()) == 0 {
		return left
	}
	for ref, use := range p.uses {
		if use.unread != "" {
			keep(ref.Repository, ref.Version())
		}
	}
	for _, req := range requests {
		if req.Heard {
			continue
		}
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
