package validate

import (
	"sync"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// mostTypes is the number of compiled types that a cache keeps. Each may take a megabyte. A
// type is compiled only if its definition changes while the repository has objects of it.
const mostTypes = 64

// Cache compiles types on first use, once for each definition, and keeps some of them. The
// zero value is ready to use. It is safe for concurrent use.
type Cache struct {
	mu    sync.Mutex
	types map[cacheKey]func() (*Type, error)
}

type cacheKey struct {
	definition    sources.Digest
	kind, version string
}

// Type returns a kind in one version. It fails as [Compile] does.
func (c *Cache) Type(definition *manifest.Object, kind, version string) (*Type, error) {
	key := cacheKey{definition.Hash(), kind, version}
	c.mu.Lock()
	compile := c.types[key]
	if compile == nil {
		if c.types == nil || len(c.types) >= mostTypes {
			c.types = make(map[cacheKey]func() (*Type, error))
		}
		compile = sync.OnceValues(func() (*Type, error) { return Compile(definition.Tree(), kind, version) })
		c.types[key] = compile
	}
	c.mu.Unlock()
	return compile()
}
