// Package resolve turns the package references of a fleet and its lock into
// pins and packages. Each reference is resolved once a pass, for all clusters
// (load.go).
//
// A reference that the lock records is not resolved again: it is fetched by the
// recorded digest and verified against every record. A reference without a
// record is resolved once and its records are added. A package that differs from
// the lock has a [*lockfile.Mismatch], which stops it and its dependents in every
// cluster, and nothing else.
//
// depend.go resolves the dependencies of a cluster in a graph (graph.go). choose.go
// decides on the version of each, by the fleet's rules (rules.go), the retractions of
// authors (retract.go) and the versions of other clusters (fleet.go). approve.go is about
// versions that wait for approval, digests.go about the digests of tags, held.go about
// declarations that cannot be read, left.go about packages that could not be resolved,
// hint.go about the digests of an interrupted run, late.go about registries that do not
// answer in time, and tags.go about tags that do not exist.
//
// The package does no input or output of its own. It reaches registries through
// the functions in [Config], which sources/oci and sources/xpkg implement.
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

// Mode says how the lock is used.
type Mode int

const (
	// Add adds missing records; the default.
	Add Mode = iota
	// Readonly refuses a package without records.
	Readonly
	// Check adds nothing and looks every tag up again, including the tags of
	// controllers' images, so that a moved tag is a mismatch. A tag whose digest a
	// declaration names is not looked up: it may move without changing anything.
	Check
)

// Config configures [Resolve]. Digest, Fetch and Tags are required. Their errors are
// errors of the package. [sources.ErrNotFound], [sources.ErrLate] and
// [sources.ErrUnasked] in the chain are treated differently from others.
type Config struct {
	// Digest asks the registry for the digest of a tag.
	Digest func(ctx context.Context, from sources.Origin, tag string) (sources.Digest, error)
	// Verify checks that an authority of the policy has signed a digest, and
	// describes the signature. It is called before Fetch for every package and
	// controller's image with a policy. If it is nil, these are refused.
	Verify VerifyFunc
	// Fetch reads the package with a digest.
	Fetch func(ctx context.Context, from sources.Origin, d sources.Digest) (*sources.Package, error)
	// Tags lists a repository's tags, for dependencies by range.
	Tags func(ctx context.Context, from sources.Origin) ([]string, error)
	// Platforms lists the platforms of a controller's image that is not the package
	// itself; none for a single image. If it is nil, none are recorded.
	Platforms func(ctx context.Context, from sources.Origin, d sources.Digest) ([]sources.Child, error)
	// Types returns the hash of the types that a package defines, for the lock. If it
	// is nil, none is recorded.
	Types func(*sources.Package) (string, error)
	// Mode says how the lock is used.
	Mode Mode
	// Update reports whether a repository is resolved again in a cluster, whatever
	// the lock has. A version's digest is resolved again if all clusters that select it
	// update it. Nil updates nothing.
	Update func(cluster, repository string) bool
	// Rules are the fleet's rules for versions. Refuse is why they are unknown, if
	// they are: then no package is resolved, and the lock keeps all its lines.
	Rules  rules.Rules
	Refuse error
	// Directory returns the digest of the package that is built from a directory,
	// for Rules.Replaces. Fetch is then called with that digest and the directory as
	// origin. If it is nil, such packages fail.
	Directory func(ctx context.Context, name string) (sources.Digest, error)
	// Approve reports whether a person reviews what is added to the lock. That approves
	// new versions of packages with revisionActivationPolicy: Manual (approve.go) and
	// replacements that the lock does not record yet (rules.go).
	Approve bool
	// Parallel bounds the packages that are resolved and fetched at a time; by
	// default 8.
	Parallel int
	// Timeout is the time in which a reference must be resolved, verified and fetched;
	// by default [DefaultTimeout]. A late one has an error, and does not delay others
	// (late.go).
	Timeout time.Duration
}

// DefaultTimeout is the default of Config.Timeout.
const DefaultTimeout = 2 * time.Minute

// VerifyFunc is the type of [Config].Verify.
type VerifyFunc func(ctx context.Context, from sources.Origin, d sources.Digest, policy *sources.Verification) (string, error)

// Verify checks the signature of a pin by the policy that the ImageConfigs have
// for it, and returns a description of the signature, or "" if there is no policy. It
// fails with verify's error, if the ImageConfigs contradict each other, and if there
// is a policy and verify is nil.
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
	// Images say where packages are fetched from, and who must have signed them.
	Images sources.ImageConfigs
	// Unreadable are the readable parts of declarations with errors. Their Ref has at
	// most a repository. Their packages are held at the lock's version (held.go).
	Unreadable []sources.Declaration
	// Failed reports whether the cluster's manifests could not be read. The
	// lock then keeps all its lines for the cluster.
	Failed bool
	// Heard reports whether the cluster is not resolved. What it declares counts for the
	// others: a tag is one package in the whole fleet.
	Heard bool
}

// Result is the result for all clusters. It is complete except for packages with errors.
type Result struct {
	// Lock is the lock after the resolution.
	Lock *lockfile.File
	// Clusters by name, one for each request that did not fail.
	Clusters map[string]*Resolution
	// Waiting are the revisions that wait for approval, sorted.
	Waiting []Waiting
	// Unmoved are about tags that stay at the lock's digest because the one that they should
	// move to failed (digests.go), sorted by name.
	Unmoved []*PackageError
	// Unasked are the tags that mode Check could not look up because no registry may be
	// asked ([sources.ErrUnasked]), sorted. They are assumed not to have moved.
	Unasked []sources.Ref
	// Unsettled are the lines of the hint that this resolution could not
	// settle. Pass them to the next one.
	Unsettled *lockfile.File
}

// Resolution is the result for one cluster.
type Resolution struct {
	// Selected are its packages, sorted by repository.
	Selected []sources.Selected
	// Held are packages that stay as they are because their declarations cannot be
	// read, sorted by repository. Declarations without a repository are left out.
	Held []sources.Selected
	// Left are packages that stay as they are because they could not be resolved, as the
	// lock has them, and the dependencies that only these need. A Package that cannot be
	// read is nil, and the kind of a dependency is unknown then.
	Left []sources.Selected
	// Errors are about packages that could not be resolved, sorted by name.
	Errors []*PackageError
	// Notes are about packages that are selected despite a rule, or stay because it is
	// unknown whether their tag has moved.
	Notes []string
}

// PackageError is an error about a package of a cluster.
type PackageError struct {
	// Name is the declaration's, or a dependency's repository.
	Name string
	Ref  sources.Ref
	Err  error
	// Place is the declaration's, as [sources.Declaration.Place] returns it; empty for a
	// dependency.
	Place string
	// repository is the declared one, which Ref may replace.
	repository string
}

// Lasting reports whether the repository decides the error, so that it stays until somebody
// changes that.
func (e *PackageError) Lasting() bool {
	_, lasting := errors.AsType[decided](e.Err)
	return lasting
}

// decided marks an error that the repository and its pinned packages decide, whatever a
// registry answers.
type decided struct{ error }

func (d decided) Unwrap() error { return d.error }

// decidedf returns such an error.
func decidedf(format string, args ...any) error { return decided{fmt.Errorf(format, args...)} }

func (e *PackageError) Error() string { return fmt.Sprintf("package %s: %v", e.Name, e.Err) }
func (e *PackageError) Unwrap() error { return e.Err }

// Resolve resolves the clusters' declarations against a lock, which it does not
// change. Hint has the records and selections that an interrupted run did not commit,
// and may be nil. Errors of packages are in the result. Resolve fails only if the
// context ends.
func Resolve(ctx context.Context, cfg Config, lock, hint *lockfile.File, requests []Request) (*Result, error) {
	p := newPass(cfg, lock, hint)
	p.survey(requests)
	p.prefetch(ctx, requests)
	res := &Result{Lock: p.lock, Clusters: make(map[string]*Resolution)}
	for _, req := range requests {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if req.Failed || req.Heard {
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
	res.Unmoved = p.unmovedTags()
	res.Unasked = slices.SortedFunc(maps.Keys(p.unasked), func(a, b sources.Ref) int { return cmp.Compare(a.String(), b.String()) })
	res.Unsettled = p.unsettled(requests, res.Clusters)
	return res, nil
}

// fromLock explains the error for a missing package if its digest comes from the lock,
// and not from the declaration.
func (p *pass) fromLock(l *load, err error) error {
	key := l.key("")
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
	key := l.key("")
	says := p.says(ref)
	switch {
	case says.failed != nil && says.failed.hinted != "":
		return "", says.failed.unsettled(ref)
	case says.failed != nil && ref.Digest == "":
		return says.locked, nil
	case says.failed != nil && ref.Digest == says.failed.digest:
		return "", says.failed.named(l, p.before.Line(key))
	case says.activated != "" && (ref.Digest == "" || ref.Digest == says.activated):
		return says.activated, nil
	case !update && p.before.Contested(ref.Repository, version) != nil:
		return "", p.before.Contested(ref.Repository, version)
	case (!isLocked || ref.Digest != "" && locked != ref.Digest) && says.conflict(ref) != nil:
		return "", says.conflict(ref)
	case ref.Digest != "":
		if isLocked && locked != ref.Digest && l.by == nil && says.moving && says.replaces != nil {
			return "", fmt.Errorf("%s is not what %s has for it, and %s replaces another package with it, which a person must approve; run `gitopsd lock` and commit the change",
				ref, lockfile.Where(p.before.Line(key)), says.replaces.Place)
		}
		if u := p.use(tagOf(ref)); isLocked && locked != ref.Digest && says.moving && u.unread != "" {
			return "", fmt.Errorf("%s is not what %s has for it, and the tag stays while the declaration of it in cluster %s cannot be read, which may name another digest; correct that first",
				ref, lockfile.Where(p.before.Line(key)), u.unread)
		}
		if isLocked && locked != ref.Digest {
			return "", &lockfile.Mismatch{Key: key, Line: p.before.Line(key), Locked: string(locked), Seen: string(ref.Digest), SeenIn: l.place(), Named: true}
		}
		if !isLocked && p.cfg.Mode == Readonly {
			return "", errNotLocked(ref)
		}
		return ref.Digest, nil
	case isLocked && p.cfg.Mode == Check && says.keeper() != "":
		return locked, nil // what the registry has is not what is declared
	case isLocked && p.cfg.Mode == Check:
		now, err := p.now(ctx, l)
		return locked, p.unchanged(ref, key, locked, now, err)
	case isLocked && use.always && p.cfg.Mode == Add && (l.by == nil || p.cfg.Approve):
		return p.moved(ctx, l, locked)
	case isLocked:
		return locked, nil
	case p.cfg.Mode == Readonly:
		return "", errNotLocked(ref)
	case says.only() != "":
		return says.only(), nil
	case p.lost[ref] != "" && !update && !p.cfg.Approve: // a person may look it up
		return "", fmt.Errorf("%s selects %s %s for cluster %s and has no digest of it; restore the record from Git, or run `gitopsd lock` and have the change reviewed",
			sources.LockFile, ref.Repository, version, p.lost[ref])
	case use.never() && !p.cfg.Approve:
		return "", decidedf("%s is not in clusters.lock, and packagePullPolicy: Never forbids looking it up; run `gitopsd lock`, or name a digest", ref)
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

// now looks a tag up once a pass, at the first origin that answers, so that clusters with
// different mirrors get the same digest.
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
	return decidedf("%s is not in clusters.lock, which is read-only here; run `gitopsd lock` and commit the change", ref)
}

// moved looks a locked tag up again, for packagePullPolicy: Always. A moved tag is a new
// revision, which revisionActivationPolicy activates. If the registry does not answer,
// the locked revision stays, for all clusters, unless they may have the hint's already.
func (p *pass) moved(ctx context.Context, l *load, locked sources.Digest) (sources.Digest, error) {
	// Leave time for the locked digest.
	look, cancel := context.WithTimeout(ctx, p.cfg.Timeout/2)
	defer cancel()
	use := p.use(l.ref)
	now := sources.Digest("")
	if use.stays == nil {
		now, use.stays = p.now(look, l)
	}
	if use.stays != nil {
		now, _ = p.hint.Digest(l.ref.Repository, l.ref.Tag)
	}
	if now == "" || now == locked {
		return locked, ctx.Err()
	}
	excluded := p.exclusion(sources.Ref{Repository: l.ref.Repository, Tag: l.ref.Tag, Digest: now})
	waits := excluded != nil || use.manual || use.unread != "" || p.says(l.ref).stays()
	switch {
	case use.stays != nil && waits:
		return locked, ctx.Err()
	case use.stays != nil:
		return "", fmt.Errorf("%s was moved to %s by a run that was interrupted, and the registry cannot confirm that: %w\n%s", l.ref, now, use.stays, mayHave)
	case waits:
		use.excluded, use.waiting = excluded, now
		return locked, nil
	}
	p.forget(l.ref)
	return now, nil
}

// forget removes a version's records, once. Later records are from this pass.
func (p *pass) forget(ref sources.Ref) {
	p.mu.Lock()
	defer p.mu.Unlock()
	version := sources.Ref{Repository: ref.Repository, Tag: ref.Version()}
	if !p.forgotten[version] {
		p.forgotten[version] = true
		p.lock.Forget(ref.Repository, ref.Version())
	}
}

// restore restores the forgotten records of versions that have no new ones, because the
// tag's new digest was missing or refused. Clusters run the old one.
func (p *pass) restore() {
	for version := range p.forgotten {
		if len(p.lock.Records(version.Repository, version.Tag)) == 0 {
			p.lock.Adopt(p.before, version.Repository, version.Tag)
		}
	}
}

// record compares a package with its records in the lock, and adds missing records if
// none differs.
func (p *pass) record(ctx context.Context, l *load) error {
	pkg := l.pkg
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
		// Older locks have the package itself as the controller's image of packages without
		// a controller. That record is ignored.
		if item == lockfile.ItemRuntime && sum == string(pkg.Digest) {
			continue
		}
		if _, there := items[item]; !there {
			return fmt.Errorf("%s has no %s, which %s records for it; the lock was changed by hand: restore it, or accept what the registry has with `gitopsd lock --update=%s`",
				l.pin, item, lockfile.Where(p.lock.Line(l.key(item))), l.ref.Repository)
		}
	}
	staged := p.lock.Clone()
	for _, item := range sortedKeys(items) {
		key := l.key(item)
		if _, there := p.lock.Lookup(key); !there && p.cfg.Mode == Readonly {
			return decidedf("clusters.lock has no record of %s and is read-only here; run `gitopsd lock` and commit the change", key)
		}
		if err := staged.Record(key, items[item], seenInRegistry); err != nil {
			return err
		}
	}
	*p.lock = *staged
	return nil
}

// runtime pins a Provider's controller image, by the lock's digest if there is one. A
// package with only types has no such image. ImageConfigs apply to the image too, and
// clusters pull it by the rewritten name.
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

// replacesController reports whether a package that is built from a directory replaces one
// with a controller, by any version in the lock: a dependency has none of its own, and a
// declared one may be new. The directory has only the types of the package to be published,
// which will have a controller too.
func (p *pass) replacesController(l *load) bool {
	if l.by == nil || l.by.Directory == "" {
		return false
	}
	return slices.ContainsFunc(p.before.Versions(l.asked.Repository), func(version string) bool {
		_, recorded := p.before.Lookup(lockfile.Key{Repository: l.asked.Repository, Version: version, Item: lockfile.ItemRuntime})
		return recorded
	})
}

// image resolves a controller image that is not the package itself. Its platforms are
// compared with their records if the image can be read. It need not be: its digest is
// compared anyway, and perhaps only nodes have access to it.
func (p *pass) image(ctx context.Context, l *load, ref sources.Ref, origin sources.Origin, items map[string]string) (sources.Digest, error) {
	p.mu.Lock()
	locked := p.lock.Records(l.ref.Repository, l.ref.Version())
	p.mu.Unlock()
	sum, isLocked := locked[lockfile.ItemRuntime]
	digest := ref.Digest
	if digest == "" {
		if digest = sources.Digest(sum); isLocked && p.cfg.Mode == Check {
			now, err := p.cfg.Digest(ctx, origin, ref.Tag)
			if err = p.unchanged(ref, l.key(lockfile.ItemRuntime), digest, now, err); err != nil {
				return "", err
			}
		} else if !isLocked {
			var err error
			if digest, err = p.cfg.Digest(ctx, origin, ref.Tag); err != nil {
				return "", err
			}
			if was, _ := p.hint.Digest(l.ref.Repository, l.ref.Version()); was == l.pin.Digest {
				err = p.unmoved(l.key(lockfile.ItemRuntime), digest)
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

// seenInRegistry is the place of content that differs from the lock.
const seenInRegistry = "the registry"

// unchanged compares a tag's digest, or the error of looking it up, with the lock. If no
// registry may be asked, it notes the tag.
func (p *pass) unchanged(ref sources.Ref, key lockfile.Key, locked, now sources.Digest, err error) error {
	switch {
	case errors.Is(err, sources.ErrUnasked):
		p.mu.Lock()
		defer p.mu.Unlock()
		p.unasked[ref] = true
		return nil
	case err != nil || now == locked:
		return err
	}
	return &lockfile.Mismatch{Key: key, Line: p.before.Line(key), Locked: string(locked), Seen: string(now), SeenIn: seenInRegistry}
}

// ParseImage parses a container image's name. It completes a short name as the kubelet
// does, for Docker Hub.
func ParseImage(s string) (sources.Ref, error) {
	host, _, hasHost := strings.Cut(s, "/")
	if !hasHost {
		s = "docker.io/library/" + s
	} else if !strings.ContainsAny(host, ".:") && host != "localhost" {
		s = "docker.io/" + s
	}
	if name := s[strings.LastIndexByte(s, '/'):]; !strings.ContainsAny(name, ":@") {
		s += ":latest"
	}
	return sources.ParseRef(s)
}
