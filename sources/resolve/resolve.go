// Package resolve turns the package references of a fleet and its lock into
// pins and packages: one resolution per reference and pass, shared by all
// clusters.
//
// A reference that the lock records is not resolved again: it is fetched by the
// recorded digest and verified against every record. A reference without a
// record is resolved once and its records are added. A package that disagrees
// with the lock has a [*lockfile.Mismatch], which stops it and its dependents
// in every cluster, and nothing else.
//
// The digests of an interrupted run are a hint (hint.go), which is compared
// with the registry.
//
// The package does no input or output of its own. It reaches registries through
// the functions in [Config] (sources/oci and sources/xpkg).
package resolve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/lockfile"
	"gitopsd.dev/sources/rules"
)

// Mode is what may happen to the lock.
type Mode int

const (
	// Add adds missing records; the default.
	Add Mode = iota
	// Readonly refuses a package without records.
	Readonly
	// Check adds nothing and looks every tag up again, those of controllers' images
	// too, so that a moved tag is a mismatch.
	Check
)

// Config configures [Resolve]. Digest, Fetch and Tags are required. An error of
// theirs is the error of the package; sources.ErrNotFound and sources.ErrLate
// in its chain are told from others.
type Config struct {
	// Digest asks the registry for the digest of a tag.
	Digest func(ctx context.Context, from sources.Origin, tag string) (sources.Digest, error)
	// Verify checks that an authority of the policy has signed a digest, and
	// returns a description of it. It is called for every use of a package or a
	// controller's image that has a policy, before Fetch. Nil refuses these.
	Verify VerifyFunc
	// Fetch reads the package with that digest.
	Fetch func(ctx context.Context, from sources.Origin, d sources.Digest) (*sources.Package, error)
	// Tags lists a repository's tags, for dependencies by range.
	Tags func(ctx context.Context, from sources.Origin) ([]string, error)
	// Platforms lists the platforms of a controller's image that is not the
	// package itself; none for a single image. Nil records none.
	Platforms func(ctx context.Context, from sources.Origin, d sources.Digest) ([]sources.Child, error)
	// Types returns the hash of the types that a package defines, for the lock.
	Types func(*sources.Package) (string, error)
	// Mode is what may happen to the lock.
	Mode Mode
	// Update reports whether a repository is resolved anew in a cluster, whatever
	// the lock has. The digest of a version is, if that is so in every cluster
	// that selects it. Nil is false for all.
	Update func(cluster, repository string) bool
	// Rules are the fleet's own for versions. Refuse is why they are not known: no
	// package is resolved then, and the lock keeps all its lines.
	Rules  rules.Rules
	Refuse error
	// Directory returns the digest of the package that is built from a directory,
	// for Rules.Replaces. Fetch is then asked for that digest, with the directory in
	// the origin. Nil fails.
	Directory func(ctx context.Context, name string) (sources.Digest, error)
	// Approve reports whether a person decides on what is added to the lock, and so
	// approves new versions of packages with revisionActivationPolicy: Manual
	// (approve.go), and replacements that the lock does not record yet (rules.go).
	Approve bool
	// Parallel bounds the packages that are resolved and fetched at a time; by
	// default 8.
	Parallel int
	// Timeout is the time in which a reference must be resolved, verified and
	// fetched. A late one has an error, and delays nothing else (late.go). By
	// default [DefaultTimeout].
	Timeout time.Duration
}

// DefaultTimeout is the default of Config.Timeout.
const DefaultTimeout = 2 * time.Minute

// VerifyFunc is the type of [Config].Verify.
type VerifyFunc func(ctx context.Context, from sources.Origin, d sources.Digest, policy *sources.Verification) (string, error)

// Verify checks the signature of a pin by the policy that the ImageConfigs have
// for it, and returns who signed it; "" if there is no policy. It fails with
// verify's error, if the ImageConfigs contradict each other, and if verify is
// nil and there is a policy.
func Verify(ctx context.Context, verify VerifyFunc, images sources.ImageConfigs, pin sources.Pin, from sources.Origin) (string, error) {
	policy, err := images.Verification(pin.Ref, from)
	if err != nil {
		return "", fmt.Errorf("%s: %w", pin.Ref, err)
	}
	return verifyBy(ctx, verify, policy, pin, from)
}

// verifyBy checks the signature of a pin by a policy, which may be nil.
func verifyBy(ctx context.Context, verify VerifyFunc, policy *sources.Verification, pin sources.Pin, from sources.Origin) (string, error) {
	switch {
	case policy == nil:
		return "", nil
	case verify == nil:
		return "", fmt.Errorf("%s: ImageConfig %s asks for a signature, which cannot be verified here", pin, policy.ImageConfig)
	}
	return verify(ctx, from, pin.Digest, policy)
}

// Request has the declarations of one cluster.
type Request struct {
	Cluster      string
	Declarations []sources.Declaration
	// Images define where packages are fetched from, and who must have signed
	// them.
	Images sources.ImageConfigs
	// Unreadable are declarations with errors, as far as they can be read; Ref has
	// the repository at most. The lock keeps what it selects for them (held.go).
	Unreadable []sources.Declaration
	// Failed reports whether the cluster's manifests could not be read. The
	// lock then keeps all its lines for the cluster.
	Failed bool
}

// Result is the outcome for all clusters. Packages with errors leave the rest
// of it complete.
type Result struct {
	// Lock is the lock after the resolution.
	Lock *lockfile.File
	// Clusters by name, one for each request that did not fail.
	Clusters map[string]*Resolution
	// Waiting are revisions that wait for approval, while the clusters keep those
	// before; sorted.
	Waiting []Waiting
	// Unasked are the tags that a check would look up again, and that it took for
	// unmoved since no registry may be asked (sources.ErrUnasked); sorted.
	Unasked []sources.Ref
	// Unsettled are the lines of the hint that this resolution could not
	// settle. Pass them to the next one.
	Unsettled *lockfile.File
}

// Resolution is what one cluster gets.
type Resolution struct {
	// Selected are its packages, sorted by repository.
	Selected []sources.Selected
	// Held are packages that it keeps as they are, since their declarations cannot
	// be read, sorted by repository; those whose declarations have not even a
	// repository are left out.
	Held []sources.Selected
	// Errors are for packages that it does not get, sorted by name.
	Errors []*PackageError
	// Notes are about packages that it gets in spite of a rule.
	Notes []string
}

// PackageError is the reason that a cluster does not get a package.
type PackageError struct {
	// Name is the declaration's, or a dependency's repository.
	Name string
	Ref  sources.Ref
	Err  error
	// Place is where it is declared, as [sources.Declaration.Place] has it; empty for a
	// dependency.
	Place string
	// repository is the one that was asked for, before Ref replaced it.
	repository string
}

func (e *PackageError) Error() string { return fmt.Sprintf("package %s: %v", e.Name, e.Err) }
func (e *PackageError) Unwrap() error { return e.Err }

// Resolve resolves the clusters' declarations against a lock, which it does not
// change. Hint has the records and selections of a run that was interrupted
// before it committed them; nil for none. The error is the context's; the
// errors of packages are in the result.
func Resolve(ctx context.Context, cfg Config, lock, hint *lockfile.File, requests []Request) (*Result, error) {
	p := newPass(cfg, lock, hint)
	p.survey(requests)
	if err := p.prefetch(ctx, requests); err != nil {
		return nil, err
	}
	res := &Result{Lock: p.lock, Clusters: make(map[string]*Resolution)}
	for _, req := range requests {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if req.Failed {
			continue
		}
		c, selections := p.cluster(ctx, req)
		p.lock.Select(req.Cluster, selections)
		res.Clusters[req.Cluster] = c
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	p.restore()
	res.Waiting = p.allWaiting(requests)
	res.Unasked = slices.SortedFunc(maps.Keys(p.unasked), func(a, b sources.Ref) int { return cmp.Compare(a.String(), b.String()) })
	res.Unsettled = p.unsettled(requests, res.Clusters)
	return res, nil
}

// fromLock adds to the error for a missing package that its digest comes from
// the lock, if it does: the declaration does not have it.
func (p *pass) fromLock(l *load, err error) error {
	key := lockfile.Key{Repository: l.ref.Repository, Version: l.ref.Version()}
	locked, isLocked := p.before.Digest(key.Repository, key.Version)
	if !isLocked || locked != l.pin.Digest || l.ref.Digest != "" || !errors.Is(err, sources.ErrNotFound) {
		return err
	}
	return fmt.Errorf("%w\nThat digest is what %s records for %s. If the line was edited, restore it from Git. If the publisher took the package away, "+
		"go to another version (`gitopsd bump`), or to what the tag is now with `gitopsd lock --update=%s`, and have the change reviewed",
		err, lockfile.Where(p.before.Line(key)), key, l.ref.Repository)
}

// digest returns the digest of a reference, the lock's if it has one.
func (p *pass) digest(ctx context.Context, l *load) (sources.Digest, error) {
	ref, version := l.ref, l.ref.Version()
	use := p.use(ref)
	update := p.updatesVersion(ref)
	locked, isLocked := p.before.Digest(ref.Repository, version)
	if update {
		p.forget(ref)
		isLocked = false
	}
	if err := p.locked(l, isLocked); err != nil {
		return "", err
	}
	key := lockfile.Key{Repository: ref.Repository, Version: version}
	named, isNamed := p.named[sources.Ref{Repository: ref.Repository, Tag: ref.Tag}]
	switch {
	case isNamed && (ref.Digest == "" || ref.Digest == named) && (l.by == nil || p.cfg.Approve):
		return named, nil
	case !update && p.before.Contested(ref.Repository, version) != nil:
		return "", p.before.Contested(ref.Repository, version)
	case ref.Digest != "":
		if isLocked && locked != ref.Digest {
			return "", &lockfile.Mismatch{Key: key, Line: p.before.Line(key), Locked: string(locked), Seen: string(ref.Digest), SeenIn: l.place()}
		}
		if !isLocked && p.cfg.Mode == Readonly {
			return "", errNotLocked(ref)
		}
		return ref.Digest, nil
	case isLocked && p.cfg.Mode == Check:
		now, err := p.now(ctx, l)
		if errors.Is(err, sources.ErrUnasked) {
			p.leave(ref)
			return locked, nil
		}
		if err == nil && now != locked {
			err = &lockfile.Mismatch{Key: key, Line: p.before.Line(key), Locked: string(locked), Seen: string(now), SeenIn: "the registry"}
		}
		return locked, err
	case isLocked && use.always && p.cfg.Mode == Add && (l.by == nil || p.cfg.Approve):
		return p.moved(ctx, l, locked)
	case isLocked:
		return locked, nil
	case p.cfg.Mode == Readonly:
		return "", errNotLocked(ref)
	case use.never && !p.cfg.Approve: // a person may look it up
		return "", fmt.Errorf("%s is not in clusters.lock, and packagePullPolicy: Never forbids looking it up; run `gitopsd lock`, or name a digest", ref)
	}
	now, err := p.now(ctx, l)
	if err != nil {
		return "", p.nearest(ctx, l, err)
	}
	if !(use.always && !use.manual) {
		err = p.unmoved(key, now)
	}
	return now, err
}

// now looks a tag up, once a pass and by whichever way answers first, so that
// clusters with different mirrors get the same digest.
func (p *pass) now(ctx context.Context, l *load) (sources.Digest, error) {
	use := p.use(l.ref)
	if use.now != "" {
		return use.now, nil
	}
	d, err := p.cfg.Digest(ctx, l.origin, l.ref.Tag)
	if err == nil {
		use.now = d
	}
	return d, err
}

func errNotLocked(ref sources.Ref) error {
	return fmt.Errorf("%s is not in clusters.lock, which is read-only here; run `gitopsd lock` and commit the change", ref)
}

// moved looks a locked tag up again, for packagePullPolicy: Always. A tag that
// moved is a new revision, activated by the policy. If the registry does not
// answer, the locked revision stays.
func (p *pass) moved(ctx context.Context, l *load, locked sources.Digest) (sources.Digest, error) {
	// If there is no answer, time is left for the locked digest.
	look, cancel := context.WithTimeout(ctx, p.cfg.Timeout/2)
	defer cancel()
	now, err := p.now(look, l)
	if err != nil || now == locked {
		return locked, ctx.Err()
	}
	if use := p.use(l.ref); use.manual {
		use.waiting = now
		return locked, nil
	}
	p.forget(l.ref)
	return now, nil
}

// forget removes a version's records, once: later ones were made in this pass.
func (p *pass) forget(ref sources.Ref) {
	p.mu.Lock()
	defer p.mu.Unlock()
	version := sources.Ref{Repository: ref.Repository, Tag: ref.Version()}
	if !p.forgotten[version] {
		p.forgotten[version] = true
		p.lock.Forget(ref.Repository, ref.Version())
	}
}

// restore restores the records of versions that were not replaced: the new
// digest of a tag was missing or refused, and clusters run the old one.
func (p *pass) restore() {
	for version := range p.forgotten {
		if len(p.lock.Records(version.Repository, version.Tag)) == 0 {
			p.lock.Adopt(p.before, version.Repository, version.Tag)
		}
	}
}

// record compares a package with its records in the lock, and adds missing
// ones. All items are compared before the first is added.
func (p *pass) record(ctx context.Context, l *load) error {
	pkg, seenIn := l.pkg, "the registry"
	items := map[string]string{"": string(pkg.Digest), lockfile.ItemContent: string(pkg.Content)}
	for _, c := range pkg.Children {
		items[c.Platform] = string(c.Digest)
	}
	if p.cfg.Types != nil {
		sum, err := p.cfg.Types(pkg)
		if err != nil {
			return fmt.Errorf("%s: %w", l.pin, err)
		}
		items[lockfile.ItemTypes] = sum
	}
	if pkg.Meta.Kind == sources.Provider {
		if err := p.runtime(ctx, l, items); err != nil {
			return err
		}
	}
	if l.by != nil && l.by.Local {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for item, sum := range p.lock.Records(l.ref.Repository, l.ref.Version()) {
		// Of a package without a controller older locks have the package itself as the
		// controller's image. That record stays, and means nothing.
		if item == lockfile.ItemRuntime && sum == string(pkg.Digest) {
			continue
		}
		if _, there := items[item]; !there {
			key := lockfile.Key{Repository: l.ref.Repository, Version: l.ref.Version(), Item: item}
			return fmt.Errorf("%s has no %s, which %s records for it; the lock was changed by hand: restore it, or accept what the registry has with `gitopsd lock --update=%s`",
				l.pin, item, lockfile.Where(p.lock.Line(key)), l.ref.Repository)
		}
	}
	staged := p.lock.Clone()
	for _, item := range sortedKeys(items) {
		key := lockfile.Key{Repository: l.ref.Repository, Version: l.ref.Version(), Item: item}
		if _, there := p.lock.Lookup(key); !there && p.cfg.Mode == Readonly {
			return fmt.Errorf("clusters.lock has no record of %s and is read-only here; run `gitopsd lock` and commit the change", key)
		}
		if err := staged.Record(key, items[item], seenIn); err != nil {
			return err
		}
	}
	*p.lock = *staged
	return nil
}

// runtime pins a Provider's controller image, by the lock's digest if it has
// one. ImageConfigs apply to this image too; clusters pull it by the rewritten
// name. A package with types alone has none.
func (p *pass) runtime(ctx context.Context, l *load, items map[string]string) error {
	digest, origin := l.pin.Digest, l.origin
	if l.pkg.Meta.Image == "" && !l.pkg.Runnable && !p.replacesController(l) {
		return nil
	}
	if l.pkg.Meta.Image == "" && l.by != nil && l.by.Directory != "" && !l.by.Local {
		return fmt.Errorf("%s is built from the directory %s, which holds no controller: name its image in spec.controller.image of the package's metadata", l.asked, l.by.Directory)
	}
	if l.pkg.Meta.Image != "" {
		ref, err := ParseImage(l.pkg.Meta.Image)
		if err == nil {
			origin, err = l.images.Origin(ref, l.secrets)
		}
		if err == nil {
			digest, err = p.image(ctx, l, ref, origin, items)
		}
		if err == nil {
			_, err = Verify(ctx, p.cfg.Verify, l.images, sources.Pin{Ref: ref, Digest: digest}, origin)
		}
		if err != nil {
			return fmt.Errorf("%s: spec.controller.image: %w", l.pin, err)
		}
	}
	items[lockfile.ItemRuntime] = string(digest)
	l.runtime, l.pullSecrets = origin.Repository+"@"+string(digest), origin.Secrets()
	return nil
}

// replacesController reports whether a package that is built from a directory stands
// for one with a controller, by the lock. A plan then shows another image: what will be
// published has a controller too, and the directory is only its types.
func (p *pass) replacesController(l *load) bool {
	if l.by == nil || l.by.Directory == "" {
		return false
	}
	_, recorded := p.before.Lookup(lockfile.Key{Repository: l.asked.Repository, Version: l.asked.Version(), Item: lockfile.ItemRuntime})
	return recorded
}

// image resolves a controller image that is not the package itself. Recorded
// platforms are compared like other records, if the image can be read: only
// nodes may have access to it, and its digest is compared anyway.
func (p *pass) image(ctx context.Context, l *load, ref sources.Ref, origin sources.Origin, items map[string]string) (sources.Digest, error) {
	p.mu.Lock()
	locked := p.lock.Records(l.ref.Repository, l.ref.Version())
	p.mu.Unlock()
	sum, isLocked := locked[lockfile.ItemRuntime]
	digest := ref.Digest
	if digest == "" {
		if digest = sources.Digest(sum); isLocked && p.cfg.Mode == Check {
			if err := p.checkImage(ctx, l, ref, origin, digest); err != nil {
				return "", err
			}
		} else if !isLocked {
			var err error
			if digest, err = p.cfg.Digest(ctx, origin, ref.Tag); err != nil {
				return "", err
			}
			if was, _ := p.hint.Digest(l.ref.Repository, l.ref.Version()); was == l.pin.Digest {
				err = p.unmoved(lockfile.Key{Repository: l.ref.Repository, Version: l.ref.Version(), Item: lockfile.ItemRuntime}, digest)
			}
			if err != nil {
				return "", err
			}
		}
	}
	recorded := make(map[string]string)
	for item, sum := range locked {
		if strings.HasPrefix(item, lockfile.ItemRuntime+"/") {
			recorded[item] = sum
		}
	}
	if p.cfg.Platforms == nil || isLocked && len(recorded) == 0 {
		return digest, nil
	}
	children, err := p.cfg.Platforms(ctx, origin, digest)
	if err != nil {
		if p.cfg.Mode == Check && !errors.Is(err, sources.ErrUnasked) || !isLocked && ref.Digest == "" || ctx.Err() != nil {
			return "", err
		}
		// The platforms follow from the digest, and can be added later.
		maps.Copy(items, recorded)
		return digest, nil
	}
	for _, c := range children {
		items[lockfile.ItemRuntime+"/"+c.Platform] = string(c.Digest)
	}
	return digest, nil
}

// checkImage looks the tag of a recorded controller image up again.
func (p *pass) checkImage(ctx context.Context, l *load, ref sources.Ref, origin sources.Origin, recorded sources.Digest) error {
	now, err := p.cfg.Digest(ctx, origin, ref.Tag)
	switch {
	case errors.Is(err, sources.ErrUnasked):
		p.leave(ref)
		return nil
	case err != nil || now == recorded:
		return err
	}
	key := lockfile.Key{Repository: l.ref.Repository, Version: l.ref.Version(), Item: lockfile.ItemRuntime}
	return &lockfile.Mismatch{Key: key, Line: p.before.Line(key), Locked: string(recorded), Seen: string(now), SeenIn: "the registry"}
}

// leave notes a tag that was to be looked up, and about which nobody may be asked.
func (p *pass) leave(ref sources.Ref) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unasked[ref] = true
}

// ParseImage parses a container image's name.
func ParseImage(s string) (sources.Ref, error) { return sources.ParseRef(imageName(s)) }

// imageName completes a container image's name as the kubelet does: short names
// are Docker Hub's.
func imageName(s string) string {
	host, _, hasHost := strings.Cut(s, "/")
	if !hasHost {
		s = "docker.io/library/" + s
	} else if !strings.ContainsAny(host, ".:") && host != "localhost" {
		s = "docker.io/" + s
	}
	if name := s[strings.LastIndexByte(s, '/'):]; !strings.ContainsAny(name, ":@") {
		s += ":latest"
	}
	return s
}
