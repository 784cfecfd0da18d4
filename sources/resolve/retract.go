package resolve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

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

// retractions are what a pass knows of them.
type retractions struct {
	all []rules.Retraction
	err error
}

// retractions returns the retractions of a repository as [Retractions] does, once a pass.
func (p *pass) retractions(ctx context.Context, req Request, repo string, tags []string) ([]rules.Retraction, error) {
	ref := sources.Ref{Repository: repo, Tag: Latest(tags)}
	origin, err := req.Images.Origin(ref, nil)
	if err != nil {
		return nil, err
	}
	// Clusters may require different signatures.
	policy, err := req.Images.Verification(ref, origin)
	if err != nil {
		return nil, err
	}
	of := retracted{origin: origin}
	if policy != nil {
		text, err := json.Marshal(policy)
		if err != nil {
			return nil, err
		}
		of.policy = string(text)
	}
	r, known := p.retracted[of]
	if !known {
		r.all, r.err = Retractions(tags, func(tag string) (*sources.Package, error) {
			return p.readRetracting(ctx, req, sources.Ref{Repository: repo, Tag: tag}, origin)
		})
		p.retracted[of] = r
	}
	return r.all, r.err
}

// readRetracting returns a package that may have retractions.
func (p *pass) readRetracting(ctx context.Context, req Request, ref sources.Ref, origin sources.Origin) (*sources.Package, error) {
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
	return p.fetch(ctx, origin, d)
}

// maxUnfit bounds the tags that [Retractions] passes over.
const maxUnfit = 10

// Retractions returns the retractions of a repository, from the highest of its tags
// ([Latest]) that is a package and signed as required: read returns [sources.ErrUnfit] or
// [sources.ErrNotFound] for others. It fails if read has another error, or for too many
// tags: then a version may be retracted, and none should be chosen.
func Retractions(tags []string, read func(tag string) (*sources.Package, error)) ([]rules.Retraction, error) {
	tags = slices.Clone(tags)
	for passed := 0; ; passed++ {
		tag := Latest(tags)
		if tag == "" {
			return nil, nil
		}
		pkg, err := read(tag)
		if err == nil {
			return rules.Retractions(pkg), nil
		}
		if passed == maxUnfit || !errors.Is(err, sources.ErrUnfit) && !errors.Is(err, sources.ErrNotFound) {
			return nil, fmt.Errorf("it is unknown which versions the publisher retracts; name a version, or correct this first: %w", err)
		}
		tags = slices.DeleteFunc(tags, func(other string) bool { return other == tag })
	}
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
