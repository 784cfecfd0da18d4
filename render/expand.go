package render

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/kustomize"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/pins"
	"gitopsd.dev/render/runtime"
	"gitopsd.dev/render/webhook"
	"gitopsd.dev/sources"
)

// Renderer renders clusters and shares results between clusters and commits: objects
// of packages with equal declarations, objects with the same patches, and builds
// from unchanged files. The zero value is ready to use. It is safe for concurrent use.
type Renderer struct {
	builder kustomize.Builder

	mu         sync.Mutex
	packages   map[packageKey]*memo[*expansion]
	selections map[selectionKey]*memo[*selection]
	delegated  map[delegatedKey]*memo[[]PackageType]
	patches    map[string]*memo[*kustomize.Patches]
	rules      map[rulesKey]*memo[compiled]
	schemas    map[schemaKey]*memo[*manifest.Object]
}

// selectionKey identifies the types that a cluster gets of a package.
type selectionKey struct {
	of       *expansion
	policies string
}

// packageKey identifies the objects of a package.
type packageKey struct {
	pin         sources.Pin
	runtime     string
	declaration string // and configuration
}

// delegatedKey identifies the types of a package that Crossplane installs.
type delegatedKey struct {
	content *sources.Package
	name    string
}

// memo is a value that is made once.
type memo[T any] struct {
	once sync.Once
	made atomic.Pointer[outcome[T]]
	// asked for since the last Sweep; guarded by the Renderer's mutex.
	asked bool
}

type outcome[T any] struct {
	value T
	err   error
}

// Expand renders a cluster: it expands the packages, adds the plain objects and
// applies the patches. packages are the resolved packages of w and their dependencies.
//
// If the patches fail, the Rendered is nil. Otherwise it has everything that could
// be rendered, and the error joins every [PackageError], [ObjectError] and
// [manifest.DuplicateError].
func (r *Renderer) Expand(ctx context.Context, in Input, w *Wanted, packages []sources.Selected) (*Rendered, error) {
	patches, err := r.compile(in.Patches)
	if err != nil {
		return nil, err
	}
	c := newCluster(in, w, packages)
	if c.plain, err = c.withTargets(); err != nil {
		return nil, err
	}
	if err := c.withEtcd(); err != nil {
		return nil, err
	}
	expanded, pins, err := r.expandPackages(ctx, c)
	if err != nil {
		return nil, err
	}
	r.activate(c, expanded)
	c.bind(expanded)
	r.describe(c)
	server, err := c.server()
	if err != nil {
		return nil, err
	}
	c.refuseOwn(server)
	c.settle()
	c.freezePlain()
	objects, err := c.objects(server)
	if err != nil {
		return nil, err
	}
	if objects, err = open(objects); err != nil {
		return nil, err
	}
	before, idle := objects, patches.Idle(objects)
	if objects, err = patches.Apply(ctx, objects); err != nil {
		return nil, err
	}
	if objects, err = open(objects); err != nil { // what a patch has set
		return nil, err
	}
	objects = c.refuseInvalid(objects)
	if err := checkPins(objects, pins); err != nil {
		return nil, err
	}
	objects, conversions := r.convert(c, objects)
	objects, required, err := c.withRules(objects, conversions)
	if err != nil {
		return nil, err
	}
	set, duplicates := manifest.NewSet(objects)
	if len(duplicates) > 0 {
		// There were no duplicates before the patches.
		return nil, fmt.Errorf("patches: %w", duplicates[0])
	}
	if in.EnforcePins {
		if set, err = withPins(set, packages); err != nil {
			return nil, err
		}
	}
	rendered := c.rendered(set)
	rendered.Conversions, rendered.Idle = conversions, idle
	rendered.noteThawed()
	rendered.noteAnnotations()
	rendered.noteUnserved()
	rendered.noteTraps()
	rendered.noteRequests(packages)
	if in.EnforcePins {
		rendered.keepPins()
		if in.Delegate {
			rendered.noteDelegated()
		}
	}
	rendered.Patched = make(map[manifest.ID]*manifest.Object)
	for _, o := range before {
		after := set.Get(o.ID())
		if c := conversions[o.ID().Name]; c != nil && c.Definition == after {
			after = c.Before
		}
		if server := required[after]; server != nil {
			after = server
		}
		if after != nil && after != o {
			rendered.Patched[o.ID()] = o
		}
	}
	return rendered, rendered.Err()
}

// expandPackages expands the packages of a cluster, and pins those that Crossplane
// installs. It fails only if ctx is done; other errors are recorded for their package.
func (r *Renderer) expandPackages(ctx context.Context, c *cluster) (expanded map[packageName]*expansion, pins map[manifest.ID]string, err error) {
	expanded, pins = make(map[packageName]*expansion), make(map[manifest.ID]string)
	for _, s := range c.packages {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		if delegates(c.input, s.Declaration.Kind) {
			o, err := delegated(s)
			if err != nil {
				c.fail(s, err)
				continue
			}
			types, err := recall(r, &r.delegated, delegatedKey{s.Package, s.Declaration.Name}, func() ([]PackageType, error) { return delegatedTypes(s), nil })
			if err != nil {
				c.fail(s, err)
				continue
			}
			c.held[name(s)], pins[o.ID()] = []*manifest.Object{o}, s.Pin.String()
			c.delegated = share(c.delegated, types)
			continue
		}
		var e *expansion
		config, err := c.wanted.runtimeOf(s)
		if err == nil {
			e, err = r.expand(s, config)
		}
		if err != nil {
			c.fail(s, err)
			continue
		}
		c.held[name(s)], expanded[name(s)] = e.objects, e
		c.notes = append(c.notes, e.notes...)
		c.noteAdopt(s)
		c.freezePackage(s, e)
	}
	return expanded, pins, nil
}

// open removes the CA bundles that another controller fills in.
func open(objects []*manifest.Object) ([]*manifest.Object, error) {
	opened, cloned := objects, false
	for i, o := range objects {
		other, err := webhook.Open(o)
		if err != nil {
			return nil, err
		}
		if other == o {
			continue
		}
		if !cloned {
			opened, cloned = slices.Clone(objects), true
		}
		opened[i] = other
	}
	return opened, nil
}

// withPins adds the policies that enforce pins to a cluster's types, as patched.
func withPins(set *manifest.Set, packages []sources.Selected) (*manifest.Set, error) {
	policies, err := pins.Objects(set, behaviour.NewIndex(set, packages).Of)
	if err != nil {
		return nil, err
	}
	all, duplicates := manifest.NewSet(append(slices.Clone(set.All()), policies...))
	if len(duplicates) > 0 {
		return nil, fmt.Errorf("spec.pins: enforce makes an object that the repository has too: %w", duplicates[0])
	}
	return all, nil
}

// keepPins keeps the objects that enforce pins to the types of plain definitions with
// unknown digests: definitions that are in conflict or have errors. It notes the
// definitions that cannot have pins enforced.
func (r *Rendered) keepPins() {
	r.pinned = true
	keep := func(definition string) {
		for _, id := range pins.OfDefinition(definition) {
			r.conflict[id] = true
		}
	}
	for _, id := range slices.Collect(maps.Keys(r.conflict)) {
		if id.Is(manifest.Definitions...) {
			keep(id.Name)
		}
	}
	for _, o := range r.Objects.All() {
		if !o.ID().Is(manifest.Definitions...) {
			continue
		}
		if pins.TooLong(o) {
			r.notef("spec.pins: enforce means nothing for %s: its name, or that of its package, is too long for it; only plan and run compare pins to its types", o.ID())
		}
		if o.Label(manifest.PackageLabel) == "" && r.Objects.Get(pins.OfDefinition(o.ID().Name)[0]) == nil {
			keep(o.ID().Name)
		}
	}
}

// notef adds a note.
func (r *Rendered) notef(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// noteAnnotations notes unknown annotations of gitopsd's group.
func (r *Rendered) noteAnnotations() {
	for _, o := range r.Objects.All() {
		for _, unknown := range o.UnknownAnnotations() {
			r.notef("%s: %s (%s)", o.ID(), unknown, o.Origin())
		}
	}
}

// noteUnserved notes the types of packages that no webhook is going to convert. They are
// installed nevertheless: objects that are stored in the requested version need no
// conversion, and a controller does not start without its types.
func (r *Rendered) noteUnserved() {
	why := make(map[string]string)
	types := make(map[string][]string)
	for _, o := range r.Objects.All() {
		if !o.ID().Is(manifest.CRD) || !webhook.Needed(o.Tree()) {
			continue
		}
		pkg := o.Label(manifest.PackageLabel)
		if _, asked := why[pkg]; !asked { // a package's webhooks have one Service
			why[pkg] = webhook.Unserved(r.Objects.All(), o)
		}
		types[pkg] = append(types[pkg], o.ID().Name)
	}
	for _, pkg := range slices.Sorted(maps.Keys(types)) {
		if why[pkg] != "" {
			r.notef("Provider %s: nothing converts objects between the versions of %s: %s; requests that need it fail", pkg, first(types[pkg]), why[pkg])
		}
	}
}

// noteTraps notes the webhooks of packages that keep their own server from starting.
func (r *Rendered) noteTraps() {
	for _, o := range r.Objects.All() {
		if resources, namespace := webhook.Traps(r.Objects.All(), o); len(resources) > 0 {
			r.notef("Provider %s: %s fails closed for %s in %s, which its own controller needs to come up: once that is down, it stays down; have one of the Cluster's spec.patches give it a namespaceSelector that leaves out %s",
				o.Label(manifest.PackageLabel), o.ID(), strings.Join(resources, ", "), namespace, namespace)
		}
	}
}

// first returns the first of some names, and the number of the others.
func first(names []string) string {
	if len(names) == 1 {
		return names[0]
	}
	return fmt.Sprintf("%s and %d more", names[0], len(names)-1)
}

// noteDelegated notes the packages that Crossplane installs: pins to their types are not
// enforced.
func (r *Rendered) noteDelegated() {
	var names []string
	for _, t := range r.Delegated {
		names = append(names, t.Package)
	}
	slices.Sort(names)
	if names = slices.Compact(names); len(names) > 0 {
		r.notef("spec.pins: enforce means nothing for the types of packages that Crossplane installs: %s; only plan and run compare pins to these", strings.Join(names, ", "))
	}
}

// Sweep drops the results that neither Want nor Expand used since the last Sweep.
// Call it after each pass over the fleet.
func (r *Renderer) Sweep() {
	r.builder.Sweep()
	r.mu.Lock()
	defer r.mu.Unlock()
	sweep(r.packages)
	sweep(r.selections)
	sweep(r.delegated)
	sweep(r.patches)
	sweep(r.rules)
	sweep(r.schemas)
	for _, m := range r.patches {
		if o := m.made.Load(); o != nil && o.value != nil {
			o.value.Sweep()
		}
	}
}

func sweep[K comparable, T any](memos map[K]*memo[T]) {
	maps.DeleteFunc(memos, func(_ K, m *memo[T]) bool {
		asked := m.asked
		m.asked = false
		return !asked
	})
}

// recall returns the value of a key. The first call for a key builds it. A panic of build
// is the error of all calls.
func recall[K comparable, T any](r *Renderer, memos *map[K]*memo[T], key K, build func() (T, error)) (T, error) {
	r.mu.Lock()
	if *memos == nil {
		*memos = make(map[K]*memo[T])
	}
	m, ok := (*memos)[key]
	if !ok {
		m = &memo[T]{}
		(*memos)[key] = m
	}
	m.asked = true
	r.mu.Unlock()
	m.once.Do(func() {
		var o outcome[T]
		defer m.made.Store(&o)
		defer func() {
			if v := recover(); v != nil {
				o.err = panicked(v)
			}
		}()
		o.value, o.err = build()
	})
	o := m.made.Load()
	return o.value, o.err
}

// panicked returns the error for a value that recover returned, with the place of the
// panic. Call it in the deferred function. It includes only values of the runtime: others
// may have secret data.
func panicked(v any) error {
	what := fmt.Sprintf("panic with a value of type %T", v)
	if err, ok := v.(goruntime.Error); ok {
		what = "panic: " + err.Error()
	}
	pcs := make([]uintptr, 32)
	frames := goruntime.CallersFrames(pcs[:goruntime.Callers(3, pcs)]) // behind the deferred function
	for {
		f, more := frames.Next()
		if !strings.HasPrefix(f.Function, "runtime.") || !more {
			return fmt.Errorf("a bug in gitopsd: %s in %s, line %d", what, f.Function, f.Line)
		}
	}
}

func (r *Renderer) compile(patches []kustomize.Patch) (*kustomize.Patches, error) {
	key, err := json.Marshal(patches)
	if err != nil {
		return nil, err
	}
	return recall(r, &r.patches, string(key), func() (*kustomize.Patches, error) { return kustomize.NewPatches(patches) })
}

func (r *Renderer) expand(s sources.Selected, config *runtime.Config) (*expansion, error) {
	declaration, err := describe(s, config)
	if err != nil {
		return nil, err
	}
	key := packageKey{pin: s.Pin, runtime: s.Runtime, declaration: declaration}
	return recall(r, &r.packages, key, func() (*expansion, error) { return contents(s, config) })
}
