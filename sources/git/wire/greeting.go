package wire

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Ref is a ref of the server and the object that it names.
type Ref struct {
	Name string
	Hash string
	// Peeled is the object of an annotated tag, set by Tips.
	Peeled string
}

// greeting is a server's first message: its capabilities, and in version 0 of
// the protocol its refs.
type greeting struct {
	v2   bool
	caps map[string]string
	// listed reports whether the server listed its refs. refs are the ones that the
	// filter keeps.
	listed bool
	refs   []Ref
}

// at returns the object that a ref names, or noHash if there is no such ref, and reports
// whether that is known.
func (g *greeting) at(ref string) (hash string, known bool) {
	for _, r := range g.refs {
		if r.Name == ref {
			return r.Hash, true
		}
	}
	return noHash, g.listed
}

// capabilities keeps the part of a stateless server's greetings that is the same for each
// request: for version 2 everything, and for receive-pack everything except refs.
type capabilities struct {
	mu        sync.Mutex
	greetings map[string]*greeting // by service
}

func (c *capabilities) get(service string) *greeting {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.greetings[service]
}

func (c *capabilities) set(service string, g *greeting) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.greetings == nil {
		c.greetings = make(map[string]*greeting)
	}
	c.greetings[service] = g
}

// filter selects refs of a list.
type filter struct {
	// prefixes of the names to keep.
	prefixes []string
	// most bounds the refs to keep; 0 means all.
	most int
	// peel asks for the objects of annotated tags.
	peel bool
}

func (f filter) keep(name string, have int) bool {
	if f.most > 0 && have >= f.most || strings.HasSuffix(name, "^{}") {
		return false
	}
	return slices.ContainsFunc(f.prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// readGreeting reads the greeting of any version.
func readGreeting(p *pktReader, f filter) (*greeting, error) {
	line, kind, err := p.line()
	if err != nil {
		return nil, err
	}
	if kind == dataPacket && strings.HasPrefix(line, "# service=") {
		// Over HTTP the service is named first (gitprotocol-http(5)).
		if _, kind, err = p.line(); err != nil {
			return nil, err
		} else if kind != flushPacket {
			return nil, errors.New("not the Git protocol: no flush after the name of the service")
		}
		if line, kind, err = p.line(); err != nil {
			return nil, err
		}
	}
	g := &greeting{caps: make(map[string]string)}
	switch {
	case kind == flushPacket: // an empty repository on an old server
		g.listed = true
		return g, nil
	case line == "version 2":
		g.v2 = true
		return g, g.readCapabilities(p)
	case line == "version 1":
		if line, kind, err = p.line(); err != nil {
			return nil, err
		}
	}
	g.listed = true
	return g, g.readRefs(p, f, line, kind)
}

func (g *greeting) readCapabilities(p *pktReader) error {
	for {
		line, kind, err := p.line()
		if err != nil {
			return err
		}
		if kind != dataPacket {
			break
		}
		name, value, _ := strings.Cut(line, "=")
		g.caps[name] = value
	}
	return g.checkFormat()
}

func (g *greeting) checkFormat() error {
	if format, ok := g.caps["object-format"]; ok && format != "sha1" {
		return fmt.Errorf("the repository's object format is %s; only sha1 is supported", format)
	}
	return nil
}

// readRefs reads the lines of version 0: first, which was read already, with the
// capabilities behind the ref, and the others.
func (g *greeting) readRefs(p *pktReader, f filter, first string, kind packet) error {
	line, caps, _ := strings.Cut(first, "\x00")
	for c := range strings.FieldsSeq(caps) {
		name, value, _ := strings.Cut(c, "=")
		g.caps[name] = value
	}
	if err := g.checkFormat(); err != nil {
		return err
	}
	for kind == dataPacket {
		hash, name, ok := strings.Cut(line, " ")
		switch {
		case !ok:
			return fmt.Errorf("not the Git protocol: %q in a list of refs", clean(line))
		case hash == "shallow": // of a shallow clone on the server
		case !isHash(hash):
			return fmt.Errorf("not the Git protocol: object name %q", clean(hash))
		case f.peel && len(g.refs) > 0 && name == g.refs[len(g.refs)-1].Name+"^{}":
			g.refs[len(g.refs)-1].Peeled = hash
		case name != "capabilities^{}" && f.keep(name, len(g.refs)):
			g.refs = append(g.refs, Ref{Name: name, Hash: hash})
		}
		var err error
		if line, kind, err = p.line(); err != nil {
			return err
		}
	}
	return nil
}

// supports reports whether the server has a capability, with a feature unless that is
// empty. In version 2 capabilities may list features.
func (g *greeting) supports(name, feature string) bool {
	value, ok := g.caps[name]
	return ok && (feature == "" || slices.Contains(strings.Fields(value), feature))
}

// require returns an error for a capability that the server does not have.
func (g *greeting) require(names ...string) error {
	for _, name := range names {
		if !g.supports(name, "") {
			return fmt.Errorf("the server's protocol has no %s, which is required", name)
		}
	}
	return nil
}

func isHash(s string) bool {
	return len(s) == 40 && strings.Trim(s, "0123456789abcdef") == ""
}
