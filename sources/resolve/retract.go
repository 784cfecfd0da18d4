package resolve

import (
	"context"
	"encoding/json"

	"github.com/Masterminds/semver/v3"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/rules"
	"gitopsd.dev/sources/versions"
)

// retracted identifies the retractions of a repository, as a cluster may read them.
type retracted struct {
	origin sources.Origin
	policy string
}

// retractions returns the retractions in the highest of the tags, or none if it cannot be
// read or lacks the signature that the cluster requires.
func (p *pass) retractions(ctx context.Context, req Request, repo string, tags []string) []rules.Retraction {
	tag := Latest(tags)
	if tag == "" {
		return nil
	}
	ref := sources.Ref{Repository: repo, Tag: tag}
	origin, err := req.Images.Origin(ref, nil)
	if err != nil {
		return nil
	}
	// Clusters may require different signatures.
	policy, err := req.Images.Verification(ref, origin)
	if err != nil {
		return nil
	}
	of := retracted{origin: origin}
	if policy != nil {
		text, err := json.Marshal(policy)
		if err != nil {
			return nil
		}
		of.policy = string(text)
	}
	all, known := p.retracted[of]
	if known {
		return all
	}
	all, _ = p.readRetractions(ctx, req, ref, origin) // only advice; without it all versions are open
	p.retracted[of] = all
	return all
}

func (p *pass) readRetractions(ctx context.Context, req Request, ref sources.Ref, origin sources.Origin) ([]rules.Retraction, error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	d, isLocked := p.before.Digest(ref.Repository, ref.Tag)
	if !isLocked {
		var err error
		if d, err = p.now(ctx, &load{asked: ref, ref: ref, origin: origin}); err != nil {
			return nil, err
		}
	}
	if _, err := Verify(ctx, p.cfg.Verify, req.Images, sources.Pin{Ref: ref, Digest: d}, origin); err != nil {
		return nil, err
	}
	pkg, err := p.fetch(ctx, origin, d)
	if err != nil {
		return nil, err
	}
	return rules.Retractions(pkg), nil
}

// Latest returns the tag of the version whose metadata has the retractions: the highest
// release, or the highest pre-release if there is no release.
func Latest(tags []string) string {
	release := func(v *semver.Version) (bool, error) { return v.Prerelease() == "", nil }
	tag, _ := versions.Highest(tags, release)
	if tag == "" {
		tag, _ = versions.Highest(tags, func(*semver.Version) (bool, error) { return true, nil })
	}
	return tag
}
