package resolve

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/errgroup"
	"gitopsd.dev/sources/lockfile"
	"gitopsd.dev/sources/rules"
)

// pass is one resolution.
type pass struct {
	cfg    Config
	before *lockfile.File
	hint   *lockfile.File
	// lines are the selections of before, by cluster; they are not changed.
	lines map[string][]lockfile.Selection
	// lost are the tags that before selects for a cluster, the first by name, and has no
	// digest of.
	lost map[sources.Ref]string

	mu        sync.Mutex
	fleet     fleet
	lock      *lockfile.File
	forgotten map[sources.Ref]bool
	loads     map[loadKey]*load
	uses      map[sources.Ref]*use
	tags      map[sources.Origin]func() ([]string, error)
	late      map[string]bool // registries that were late in this pass
	fetched   map[content]*sources.Package
	unfetched map[content]bool // what could not be fetched
	waiting   []Waiting        // of single clusters
	peeks     map[peeked]sources.Digest
	unasked   map[sources.Ref]bool

	// For the choice of versions (rules.go), by one goroutine at a time.
	retracted map[retracted]retractions
	avoided   map[sources.Ref]string // reasons for the retraction of chosen versions

	// tagged are the tags that are declared (digests.go). No others are added once the
	// first load starts.
	tagged map[sources.Ref]*tagged
}

func newPass(cfg Config, lock, hint *lockfile.File) *pass {
	if hint == nil || cfg.Mode != Add {
		hint = new(lockfile.File)
	}
	p := &pass{
		before: lock, hint: hint, lines: lock.AllSelections(), lock: lock.Clone(), forgotten: make(map[sources.Ref]bool),
		loads: make(map[loadKey]*load), uses: make(map[sources.Ref]*use),
		tags: make(map[sources.Origin]func() ([]string, error)), tagged: make(map[sources.Ref]*tagged),
		late: make(map[string]bool), unasked: make(map[sources.Ref]bool), retracted: make(map[retracted]retractions),
		fetched: make(map[content]*sources.Package), unfetched: make(map[content]bool), avoided: make(map[sources.Ref]string), lost: make(map[sources.Ref]string), peeks: make(map[peeked]sources.Digest),
	}
	p.cfg = p.timed(cfg)
	for _, cluster := range lock.Clusters() {
		for _, s := range p.lines[cluster] {
			ref := versionRef(s.Repository, s.Version)
			if _, recorded := lock.Digest(s.Repository, s.Version); !recorded && ref.Tag != "" && p.lost[ref] == "" {
				p.lost[ref] = cluster
			}
		}
	}
	return p
}

// use is how the clusters together use a reference. Once prefetch has started loads, one
// goroutine at a time uses it.
type use struct {
	always bool // a cluster has packagePullPolicy: Always
	// declared and asks: clusters declare it, and one of these has another packagePullPolicy
	// than Never.
	declared, asks bool
	manual         bool // a cluster has revisionActivationPolicy: Manual
	// unread is a cluster that has the version, and whose declaration of it is not known;
	// empty if there is none.
	unread string
	stays  error // why it was not found out whether the tag has moved; nil otherwise
	// excluded is the entry that excludes what the tag is now; nil if there is none.
	excluded *rules.Exclude

	now     sources.Digest // the tag's digest, once it was looked up
	waiting sources.Digest // the digest that waits for approval
}

// loadKey distinguishes loads of a reference that may have different results, since
// clusters have their own mirrors, credentials and signers.
type loadKey struct {
	asked   sources.Ref
	secrets string
	images  string
}

// load resolves, verifies and fetches a reference once.
type load struct {
	once sync.Once
	// asked is the reference of declarations and dependents; ref is the one that is
	// used, which differs if by replaces it.
	asked, ref sources.Ref
	by         *rules.Replace
	images     sources.ImageConfigs
	// secrets are the declaration's own pull secrets.
	secrets []string
	// cluster is the first that declares it; empty for a dependency.
	cluster string

	origin      sources.Origin
	pin         sources.Pin
	pkg         *sources.Package
	verified    string
	runtime     string
	pullSecrets []string
	err         error
}

// prefetch loads declared references in parallel. Loads of one version that differ run
// one after the other. What all clusters declare is known before the first load starts, so
// that the order of clusters does not matter.
func (p *pass) prefetch(ctx context.Context, requests []Request) {
	type wanted struct {
		key  loadKey
		load *load
	}
	byVersion := make(map[sources.Ref][]wanted)
	peeks := make(map[sources.Ref][]func()) // for references that wait for approval
	loads := func(req Request, key loadKey, l *load) {
		if req.Heard {
			return
		}
		version := versionRef(l.ref.Repository, l.ref.Version())
		if l.cluster == "" {
			byVersion[version] = append(byVersion[version], wanted{key, l})
		}
		if l.cluster == "" || req.Cluster < l.cluster {
			l.cluster = req.Cluster
		}
	}
	for _, req := range requests {
		for _, d := range req.Declarations {
			if p.cfg.Refuse != nil || p.excluded(d.Ref) != nil {
				continue
			}
			old, err := p.approved(req, d)
			if unapproved := (*Unapproved)(nil); !req.Heard && (errors.As(err, &unapproved) || err == nil && old != d.Ref) {
				peeks[d.Ref] = append(peeks[d.Ref], func() { p.peek(ctx, req, d) })
			}
			if err != nil {
				continue
			}
			if old != d.Ref {
				if key, l, err := p.find(ctx, old, d.PullSecrets, req.Images); err == nil {
					p.use(l.ref).manual = true
					loads(req, key, l)
				}
				continue
			}
			key, l, err := p.find(ctx, d.Ref, d.PullSecrets, req.Images)
			if err != nil {
				continue // load returns the error again
			}
			u := p.use(l.ref)
			u.declared = true
			u.always = u.always || d.PullPolicy == sources.PullAlways
			u.asks = u.asks || d.PullPolicy != sources.PullNever
			u.manual = u.manual || d.ManualActivation
			p.note(req.Cluster, &d, l)
			loads(req, key, l)
		}
		for _, h := range p.held(req) {
			key, l, err := p.find(ctx, h.ref, h.declaration.PullSecrets, req.Images)
			if err == nil && h.err == nil { // hold has the error again
				loads(req, key, l)
			}
		}
		p.unread(req)
	}
	p.decide()
	var first, last []func() // references that are not used yet come last
	for _, all := range byVersion {
		slices.SortFunc(all, func(a, b wanted) int {
			return cmp.Or(cmp.Compare(a.key.asked.String(), b.key.asked.String()), cmp.Compare(a.key.secrets, b.key.secrets), cmp.Compare(a.key.images, b.key.images))
		})
		var loads []*load
		for _, w := range all {
			loads = append(loads, w.load)
		}
		first = append(first, func() { p.runAll(ctx, loads) })
	}
	for _, all := range peeks {
		last = append(last, func() {
			for _, peek := range all {
				peek()
			}
		})
	}
	for _, phase := range [][]func(){first, last} {
		g := new(errgroup.Group)
		g.SetLimit(cmp.Or(p.cfg.Parallel, 8))
		for _, do := range phase {
			g.Go(func() error {
				do()
				return nil
			})
		}
		_ = g.Wait() // loads have their own errors
	}
}

// never reports whether all clusters that declare the reference have packagePullPolicy: Never.
func (u *use) never() bool { return u.declared && !u.asks }

// unread notes the tags that a cluster has, and whose declarations are not known: they may
// name a digest, or wait for approval.
func (p *pass) unread(req Request) {
	for _, s := range p.lines[req.Cluster] {
		ref := versionRef(s.Repository, s.Version)
		if ref.Tag != "" && (req.Failed || unreadable(req, s.Repository) != nil) {
			p.use(ref).unread = req.Cluster
		}
	}
}

// use returns the use of a reference. A dependency's is the zero value.
func (p *pass) use(ref sources.Ref) *use {
	p.mu.Lock()
	defer p.mu.Unlock()
	u, known := p.uses[ref]
	if !known {
		u = new(use)
		p.uses[ref] = u
	}
	return u
}

// find returns the load of a reference, which may not have run yet.
func (p *pass) find(ctx context.Context, asked sources.Ref, secrets []string, images sources.ImageConfigs) (loadKey, *load, error) {
	key := loadKey{asked: asked, secrets: strings.Join(secrets, ",")}
	if len(images) > 0 {
		text, err := json.Marshal(images)
		if err != nil {
			return key, nil, err
		}
		key.images = string(text)
	}
	ref, by, err := p.replacement(ctx, asked)
	if err != nil {
		return key, nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	l, known := p.loads[key]
	if !known {
		l = &load{asked: asked, ref: ref, by: by, secrets: secrets, images: images}
		p.loads[key] = l
	}
	return key, l, nil
}

// load returns the load of a reference, and runs it the first time.
func (p *pass) load(ctx context.Context, ref sources.Ref, secrets []string, images sources.ImageConfigs) *load {
	_, l, err := p.find(ctx, ref, secrets, images)
	if err != nil {
		return &load{asked: ref, ref: ref, err: err}
	}
	p.runAll(ctx, []*load{l})
	return l
}

// runAll runs loads of one version that have not run yet.
func (p *pass) runAll(ctx context.Context, loads []*load) {
	var ran []*load
	for _, l := range loads {
		l.once.Do(func() {
			p.run(ctx, l)
			ran = append(ran, l)
		})
	}
	if len(ran) > 0 {
		p.settle(ctx, ran)
	}
}

// run resolves a reference, verifies its signature, fetches it, and checks it
// against the lock: all by one digest.
func (p *pass) run(ctx context.Context, l *load) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	l.err = func() error {
		var err error
		if l.origin, err = l.images.Origin(l.ref, l.secrets); err != nil {
			return fmt.Errorf("%s: %w", l.ref, err)
		}
		if l.by != nil && l.by.Directory != "" {
			l.origin = sources.Origin{Repository: l.ref.Repository, Directory: l.by.Directory}
		}
		policy, err := l.policy()
		if err != nil {
			return fmt.Errorf("%s: %w", l.ref, err) // before the registry is asked
		}
		d, err := p.digest(ctx, l)
		if err != nil {
			return l.fetched(err)
		}
		l.pin = sources.Pin{Ref: l.ref, Digest: d}
		if l.verified, err = verifyBy(ctx, p.cfg.Verify, policy, l.pin, l.origin); err != nil {
			return l.fetched(err)
		}
		if l.pkg, err = p.fetch(ctx, l.origin, d); err != nil {
			return l.fetched(p.namedElsewhere(l, p.fromLock(l, err)))
		}
		return p.record(ctx, l)
	}()
	if l.err != nil {
		l.pkg = nil
	}
}

// fetched adds the origin to an error, if it differs from the declared name and is not in
// the error.
func (l *load) fetched(err error) error {
	var mismatch *lockfile.Mismatch
	if l.by != nil && !errors.As(err, &mismatch) && !strings.Contains(err.Error(), l.by.Place) {
		return fmt.Errorf("%w\n(%s is replaced at %s)", err, l.asked, l.by.Place)
	}
	if l.origin.RewrittenBy == "" || errors.As(err, &mismatch) {
		return err
	}
	return fmt.Errorf("%w\n(%s is fetched from %s)", err, l.ref.Repository, l.origin)
}

// key returns the lock's key for an item of the package.
func (l *load) key(item string) lockfile.Key {
	return lockfile.Key{Repository: l.ref.Repository, Version: l.ref.Version(), Item: item}
}

// pinned returns the reference with the digest that it resolved to.
func (l *load) pinned() sources.Ref {
	ref := l.ref
	ref.Digest = l.pin.Digest
	return ref
}

// place returns the place of the reference's digest.
func (l *load) place() string {
	if l.by == nil {
		return "the declaration"
	}
	return l.by.Place
}

// content identifies a fetched package.
type content struct {
	from   sources.Origin
	digest sources.Digest
}

// fetch fetches a package once a pass, be it for its content or its retractions.
func (p *pass) fetch(ctx context.Context, from sources.Origin, d sources.Digest) (*sources.Package, error) {
	key := content{from, d}
	p.mu.Lock()
	pkg := p.fetched[key]
	p.mu.Unlock()
	if pkg != nil {
		return pkg, nil
	}
	pkg, err := p.cfg.Fetch(ctx, from, d)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.unfetched[key] = true
		return nil, err
	}
	p.fetched[key] = pkg
	return pkg, nil
}

// failed reports whether this pass could not fetch a package.
func (p *pass) failed(from sources.Origin, d sources.Digest) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.unfetched[content{from, d}]
}
