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
)

// pass is one resolution.
type pass struct {
	cfg    Config
	before *lockfile.File
	hint   *lockfile.File

	mu        sync.Mutex
	lock      *lockfile.File
	forgotten map[sources.Ref]bool
	loads     map[loadKey]*load
	uses      map[sources.Ref]*use
	tags      map[sources.Origin]*tagList
	late      map[string]bool // registries that were, in this pass

	// named are tags that moved, with the digest that a declaration has beside
	// the tag: it activates that digest, wherever the tag is declared.
	named map[sources.Ref]sources.Digest
}

func newPass(cfg Config, lock, hint *lockfile.File) *pass {
	if hint == nil || cfg.Mode != Add {
		hint = new(lockfile.File)
	}
	p := &pass{
		before: lock, hint: hint, lock: lock.Clone(), forgotten: make(map[sources.Ref]bool),
		loads: make(map[loadKey]*load), uses: make(map[sources.Ref]*use),
		tags: make(map[sources.Origin]*tagList), named: make(map[sources.Ref]sources.Digest),
		late: make(map[string]bool),
	}
	p.cfg = p.timed(cfg)
	return p
}

// use is what all clusters together require of a reference. After prefetch's
// first half one goroutine at a time uses it.
type use struct {
	always bool // some cluster asks for packagePullPolicy: Always
	never  bool // all of them ask for Never
	manual bool // some cluster activates by hand

	now     sources.Digest // what its tag stands for, once that was asked
	waiting sources.Digest // what waits for approval
}

// loadKey distinguishes loads of a reference with different results: clusters
// have mirrors, credentials and signers of their own.
type loadKey struct {
	ref     sources.Ref
	secrets string
	images  string
}

// load is one reference, resolved, verified and fetched once.
type load struct {
	once   sync.Once
	ref    sources.Ref
	images sources.ImageConfigs
	// secrets are the declaration's own pull secrets.
	secrets []string

	origin      sources.Origin
	pin         sources.Pin
	pkg         *sources.Package
	verified    string
	runtime     string
	pullSecrets []string
	err         error
}

// prefetch loads declared references in parallel, but one after the other where
// clusters reach a reference in different ways. The policies of all clusters
// are known before the first load starts, so that the order of clusters does
// not matter.
func (p *pass) prefetch(ctx context.Context, requests []Request) error {
	type wanted struct {
		key  loadKey
		load *load
	}
	byRef := make(map[sources.Ref][]wanted)
	for _, req := range requests {
		for _, d := range req.Declarations {
			u, known := p.uses[d.Ref]
			if !known {
				u = &use{never: true}
				p.uses[d.Ref] = u
			}
			u.always = u.always || d.PullPolicy == sources.PullAlways
			u.never = u.never && d.PullPolicy == sources.PullNever
			u.manual = u.manual || d.ManualActivation
			key, l, err := p.find(d.Ref, d.PullSecrets, req.Images)
			if err != nil {
				return err
			}
			byRef[d.Ref] = append(byRef[d.Ref], wanted{key, l})
		}
	}
	p.activate()
	g := new(errgroup.Group)
	g.SetLimit(cmp.Or(p.cfg.Parallel, 8))
	for _, all := range byRef {
		slices.SortStableFunc(all, func(a, b wanted) int {
			return cmp.Or(cmp.Compare(a.key.secrets, b.key.secrets), cmp.Compare(a.key.images, b.key.images))
		})
		g.Go(func() error {
			for _, w := range all {
				w.load.once.Do(func() { p.run(ctx, w.load) })
			}
			return nil
		})
	}
	_ = g.Wait() // the loads keep their errors
	return nil
}

// activate finds the tags that moved to a declared digest. Only
// packagePullPolicy: Always allows a tag to move.
func (p *pass) activate() {
	if p.cfg.Mode != Add {
		return
	}
	twice := make(map[sources.Ref]bool)
	for ref, use := range p.uses {
		locked, isLocked := p.before.Digest(ref.Repository, ref.Version())
		if !use.always || ref.Tag == "" || ref.Digest == "" || !isLocked || locked == ref.Digest {
			continue
		}
		tag := ref
		tag.Digest = ""
		_, twice[tag] = p.named[tag]
		p.named[tag] = ref.Digest
	}
	for tag := range p.named {
		if twice[tag] {
			delete(p.named, tag) // two digests for one tag: neither is believed
			continue
		}
		p.forget(tag)
	}
}

// use returns what is required of a reference; nothing of a dependency's.
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

// find returns the load of a reference; it may not have run yet.
func (p *pass) find(ref sources.Ref, secrets []string, images sources.ImageConfigs) (loadKey, *load, error) {
	key := loadKey{ref: ref, secrets: strings.Join(secrets, ",")}
	if len(images) > 0 {
		text, err := json.Marshal(images)
		if err != nil {
			return key, nil, err
		}
		key.images = string(text)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	l, known := p.loads[key]
	if !known {
		l = &load{ref: ref, secrets: secrets, images: images}
		p.loads[key] = l
	}
	return key, l, nil
}

// load loads a reference for one cluster, once.
func (p *pass) load(ctx context.Context, ref sources.Ref, secrets []string, images sources.ImageConfigs) *load {
	_, l, err := p.find(ref, secrets, images)
	if err != nil {
		return &load{ref: ref, err: err}
	}
	l.once.Do(func() { p.run(ctx, l) })
	return l
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
		if _, err := l.images.Verification(l.ref, l.origin); err != nil {
			return fmt.Errorf("%s: %w", l.ref, err) // before anybody is asked for it
		}
		d, err := p.digest(ctx, l)
		if err != nil {
			return l.fetched(err)
		}
		l.pin = sources.Pin{Ref: l.ref, Digest: d}
		if l.verified, err = Verify(ctx, p.cfg.Verify, l.images, l.pin, l.origin); err != nil {
			return l.fetched(err)
		}
		if l.pkg, err = p.cfg.Fetch(ctx, l.origin, d); err != nil {
			return l.fetched(p.fromLock(l, err))
		}
		return p.record(ctx, l)
	}()
	if l.err != nil {
		l.pkg = nil
	}
}

// fetched adds the origin to an error, if it differs from the declared name.
func (l *load) fetched(err error) error {
	var mismatch *lockfile.Mismatch
	if l.origin.RewrittenBy == "" || errors.As(err, &mismatch) {
		return err
	}
	return fmt.Errorf("%w\n(%s is fetched from %s)", err, l.ref.Repository, l.origin)
}
