package desired

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/sources"
)

// Bounds of a search: maxOlder other versions of a package are searched, for at most
// findTimeout. If a registry does not answer, the search is repeated only after findAgain. Its
// result is only for an explanation, and must not delay every pass.
const (
	maxOlder    = 8
	findTimeout = 20 * time.Second
	findAgain   = 10 * time.Minute
)

// finder finds definitions of types, and what acts on them, by their digests in a state and its
// lock. It is safe for concurrent use.
type finder struct {
	state *State
	fetch func(context.Context, sources.Origin, sources.Digest) (*sources.Package, error)

	types      results[typeKey, map[string]any]
	behaviours results[behaviourKey, *behaviour.Identity]
}

// found is the result of a search.
type found[T any] struct {
	what  T
	where string
	// until is when the result becomes invalid; zero for never.
	until time.Time
}

// results remembers the results of searches.
type results[K comparable, T any] struct {
	mu  sync.Mutex
	all map[K]found[T]
}

// get returns a valid result; ok is false if there is none.
func (r *results[K, T]) get(key K) (known found[T], ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known, ok = r.all[key]
	return known, ok && (known.until.IsZero() || time.Now().Before(known.until))
}

func (r *results[K, T]) keep(key K, f found[T]) (what T, where string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = make(map[K]found[T])
	}
	r.all[key] = f
	return f.what, f.where
}

type typeKey struct {
	gvk    schema.GroupVersionKind
	digest string
}

// find searches the rendered objects of the clusters, then their packages as published, and
// last other versions, from the lock, of the packages that define the kind. It remembers the
// result; after an error of a registry, only for some time.
func (f *finder) find(ctx context.Context, gvk schema.GroupVersionKind, digest string) (definition map[string]any, where string) {
	key := typeKey{gvk, digest}
	if known, ok := f.types.get(key); ok {
		return known.what, known.where
	}
	asked := ctx
	ctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	defining := make(map[string]bool) // repositories
	for _, c := range f.state.Clusters {
		if c.Objects == nil {
			continue
		}
		for _, o := range c.Objects.All() {
			if o.ID().Is(manifest.Definitions...) && defines(o.Tree(), gvk) && has(o.Tree(), key) {
				return f.types.keep(key, found[map[string]any]{what: o.Tree(), where: "cluster " + c.Name})
			}
		}
		for _, p := range c.Packages {
			if tree := within(p.Package, key, defining); tree != nil {
				return f.types.keep(key, found[map[string]any]{what: tree, where: fmt.Sprintf("%s %s as published", p.Pin.Ref.Repository, p.Pin.Ref.Version())})
			}
		}
	}
	var none found[map[string]any]
	for _, repository := range slices.Sorted(maps.Keys(defining)) {
		versions := f.state.Lock.Versions(repository)
		for _, version := range versions[:min(len(versions), maxOlder)] {
			d, ok := f.state.Lock.Digest(repository, version)
			if !ok {
				continue
			}
			pkg, err := f.fetch(ctx, f.state.Origin(repository), d)
			if err != nil {
				none.until = time.Now().Add(findAgain)
				continue
			}
			if tree := within(pkg, key, defining); tree != nil {
				return f.types.keep(key, found[map[string]any]{what: tree, where: repository + " " + version})
			}
		}
	}
	if asked.Err() != nil {
		return nil, "" // the registry may have it
	}
	return f.types.keep(key, none)
}

// within finds the definition in a package. If the package defines the kind, it adds its
// repository to defining.
func within(pkg *sources.Package, key typeKey, defining map[string]bool) map[string]any {
	if pkg == nil {
		return nil
	}
	for _, doc := range pkg.Documents {
		if !defines(doc.Tree, key.gvk) {
			continue
		}
		defining[pkg.Repository] = true
		if has(doc.Tree, key) {
			return doc.Tree
		}
	}
	return nil
}

// defines reports whether an object is the definition of a kind.
func defines(tree map[string]any, gvk schema.GroupVersionKind) bool {
	return types.Read(tree).Defines(manifest.GroupKind(gvk.GroupKind()))
}

// has reports whether a definition has the type with the digest.
func has(definition map[string]any, key typeKey) bool {
	all, err := types.Of(definition)
	return err == nil && slices.ContainsFunc(all, func(t types.Type) bool {
		return t.Digest == key.digest && t.Version == key.gvk.Version && t.Kind == key.gvk.Kind
	})
}

// Definition returns the CRD or XRD of a kind that is rendered for the cluster; nil if there is
// none.
func (c *Unit) Definition(gvk schema.GroupVersionKind) *manifest.Object {
	if c.Objects == nil {
		return nil
	}
	for _, o := range c.Objects.All() {
		if o.ID().Is(manifest.Definitions...) && defines(o.Tree(), gvk) {
			return o
		}
	}
	return nil
}
