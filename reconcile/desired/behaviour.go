package desired

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/lockfile"
)

// Behaviour returns what acts on the types of a definition of the cluster, as rendered; nil if
// nothing is declared. It fails if the definition names a controller that is not rendered.
func (c *Unit) Behaviour(definition *manifest.Object) (*behaviour.Identity, error) {
	switch {
	case c.index != nil:
		return c.index().Of(definition)
	case c.Objects != nil:
		return behaviour.NewIndex(c.Objects, c.Packages).Of(definition)
	}
	return nil, nil
}

// maxRendered bounds how often clusters are rendered with another version of a package to find
// a behaviour.
const maxRendered = 16

// behaviourKey identifies a behaviour behind a kind.
type behaviourKey struct {
	kind   manifest.GroupKind
	digest string
}

// findBehaviour searches the rendered clusters. Then it renders clusters with other versions,
// from the lock, of the package that defines the kind. Like find it remembers the result.
func (f *finder) findBehaviour(ctx context.Context, gk schema.GroupKind, digest string) (*behaviour.Identity, string) {
	key := behaviourKey{manifest.GroupKind(gk), digest}
	if known, ok := f.behaviours.get(key); ok {
		return known.what, known.where
	}
	asked := ctx
	ctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	for _, c := range f.state.Clusters {
		if i := having(c.Definition(gk.WithVersion("")), digest, c.Behaviour); i != nil {
			return f.behaviours.keep(key, found[*behaviour.Identity]{what: i, where: "cluster " + c.Name})
		}
	}
	var none found[*behaviour.Identity]
	tried := make(map[string]bool) // "cluster version"
	for _, c := range f.state.Clusters {
		definition := c.Definition(gk.WithVersion(""))
		if definition == nil || c.with == nil {
			continue
		}
		n := slices.IndexFunc(c.Packages, func(s sources.Selected) bool {
			return s.Declaration.Name == definition.Label(manifest.PackageLabel)
		})
		if n < 0 {
			continue
		}
		s := c.Packages[n]
		versions := f.state.Lock.Versions(s.Pin.Ref.Repository)
		for _, version := range versions[:min(len(versions), maxOlder)] {
			if version == s.Pin.Ref.Version() || tried[c.Name+" "+version] {
				continue
			}
			if len(tried) == maxRendered {
				break
			}
			tried[c.Name+" "+version] = true
			older, ok := f.older(ctx, s, version)
			if !ok {
				none.until = time.Now().Add(findAgain)
				continue
			}
			packages := slices.Clone(c.Packages)
			packages[n] = older
			objects := c.with(ctx, packages)
			if objects == nil {
				continue
			}
			index := behaviour.NewIndex(objects, packages)
			for _, o := range objects.All() {
				if o.ID().Is(manifest.Definitions...) && defines(o.Tree(), gk.WithVersion("")) {
					if i := having(o, digest, index.Of); i != nil {
						return f.behaviours.keep(key, found[*behaviour.Identity]{what: i, where: s.Pin.Ref.Repository + " " + version})
					}
				}
			}
		}
	}
	if asked.Err() != nil {
		return nil, "" // the registry may have it
	}
	return f.behaviours.keep(key, none)
}

// having returns the behaviour behind a definition if it has the digest.
func having(definition *manifest.Object, digest string, of func(*manifest.Object) (*behaviour.Identity, error)) *behaviour.Identity {
	if definition == nil {
		return nil
	}
	if i, err := of(definition); err == nil && i != nil && i.Digest() == digest {
		return i
	}
	return nil
}

// older returns a package in another version of the lock. ok is false if it cannot be read.
func (f *finder) older(ctx context.Context, s sources.Selected, version string) (older sources.Selected, ok bool) {
	d, ok := f.state.Lock.Digest(s.Pin.Ref.Repository, version)
	if !ok {
		return s, false
	}
	pkg, err := f.fetch(ctx, s.Origin, d)
	if err != nil {
		return s, false
	}
	older = s
	older.Package = pkg
	older.Pin.Digest = d
	older.Pin.Ref.Tag, older.Pin.Ref.Digest = version, ""
	older.Runtime = ""
	if runtime, ok := f.state.Lock.Lookup(lockfile.Key{Repository: s.Pin.Ref.Repository, Version: version, Item: lockfile.ItemRuntime}); ok && (pkg.Runnable || pkg.Meta.Image != "") {
		image, _, _ := strings.Cut(cmp.Or(s.Runtime, s.Origin.Repository), "@")
		older.Runtime = image + "@" + runtime
	}
	return older, true
}
