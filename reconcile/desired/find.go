package desired

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/sources"
)

// maxOlder is how many other versions of a package are searched for a type,
// findTimeout for how long, and findAgain the pause after a registry did not answer:
// the result is only for an explanation, and must not delay every pass.
const (
	maxOlder    = 8
	findTimeout = 20 * time.Second
	findAgain   = 10 * time.Minute
)

// finder finds the definitions of types by their digests, in everything that a
// state and its lock know. It is safe for concurrent use.
type finder struct {
	state *State
	fetch func(context.Context, sources.Origin, sources.Digest) (*sources.Package, error)

	mu    sync.Mutex
	found map[typeKey]found
	// behaviours are the results of findBehaviour.
	behaviours map[behaviourKey]foundBehaviour
}

type typeKey struct {
	gvk    schema.GroupVersionKind
	digest string
}

type found struct {
	definition map[string]any
	where      string
	// until is when this is looked for again; zero for never.
	until time.Time
}

// find searches the rendered objects of the clusters, then their packages before
// patches, and last the other versions in the lock of the packages that define the
// kind. It remembers the result; after an error of the registry it remembers "not
// found" for some time.
func (f *finder) find(ctx context.Context, gvk schema.GroupVersionKind, digest string) (definition map[string]any, where string) {
	key := typeKey{gvk, digest}
	f.mu.Lock()
	known, ok := f.found[key]
	f.mu.Unlock()
	if ok && (known.until.IsZero() || time.Now().Before(known.until)) {
		return known.definition, known.where
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
				return f.keep(key, found{definition: o.Tree(), where: "cluster " + c.Name})
			}
		}
		for _, p := range c.Packages {
			tree := within(p.Package, key, defining)
			if tree != nil {
				return f.keep(key, found{definition: tree, where: fmt.Sprintf("%s %s as published", p.Pin.Ref.Repository, p.Pin.Ref.Version())})
			}
		}
	}
	var none found
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
				return f.keep(key, found{definition: tree, where: repository + " " + version})
			}
		}
	}
	if asked.Err() != nil {
		return nil, "" // the caller gave up, which says nothing about the registry
	}
	return f.keep(key, none)
}

func (f *finder) keep(key typeKey, what found) (map[string]any, string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.found[key] = what
	return what.definition, what.where
}

// within finds the definition in a package, and notes the package's repository
// if it defines the kind at all.
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

// has reports whether a definition has a type of that digest.
func has(definition map[string]any, key typeKey) bool {
	all, err := types.Of(definition)
	return err == nil && slices.ContainsFunc(all, func(t types.Type) bool {
		return t.Digest == key.digest && t.Version == key.gvk.Version && t.Kind == key.gvk.Kind
	})
}

// Definition is the CRD or XRD of a kind that is rendered for the cluster, nil if
// there is none.
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
