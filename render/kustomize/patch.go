package kustomize

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/resid"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/remote"
	"gitopsd.dev/sources"
)

// Patch changes existing objects, in kustomize's format.
type Patch struct {
	// Target selects objects. A strategic merge patch without a target changes the
	// object that it names, which must exist.
	Target *Selector
	// Patch is a strategic merge patch, or a list of JSON 6902 operations, as
	// YAML.
	Patch string
}

// Selector selects objects as in kustomize's patches: all fields that are not
// empty must match. Group, Version, Kind, Name and Namespace are regular
// expressions for the whole value; the others are label selectors.
type Selector struct {
	Group, Version, Kind, Name, Namespace string
	LabelSelector, AnnotationSelector     string
}

// Patches are the compiled patches of a cluster. They cache the result for each object
// that depends on no other, so that clusters with the same patches share patched
// objects. They are safe for concurrent use.
type Patches struct {
	compiled []compiled

	mu   sync.Mutex
	made map[*manifest.Object]*result
}

// result is the result of the patches for an object.
type result struct {
	object *manifest.Object // nil if a patch deletes it
	// asked for since the last Sweep.
	asked bool
}

// compiled is a compiled patch.
type compiled struct {
	patch types.Patch
	// Either names is set, or selector and the two label selectors are.
	selector    *types.SelectorRegex
	labels      labels.Selector
	annotations labels.Selector
	// names are the objects of a strategic merge patch without a target.
	names []resid.ResId
	// operations reports whether the patch is a list of JSON 6902 operations. After
	// these, kustomize updates references to the patched object.
	operations bool
}

// batch is the number of independent objects that kustomize patches at a time. It needs a
// megabyte for a large CRD.
const batch = 50

// NewPatches compiles patches. Errors name the patch by its index, "patches.2".
func NewPatches(patches []Patch) (*Patches, error) {
	p := &Patches{made: make(map[*manifest.Object]*result)}
	in := newInspection(nil, remote.Bases{})
	for i, patch := range patches {
		c, err := in.compile(patch)
		if err != nil {
			var values secrets
			values.documents([]byte(patch.Patch))
			return nil, fmt.Errorf("patches.%d: %w", i, values.hide(err))
		}
		p.compiled = append(p.compiled, c)
	}
	if err := in.budget.widths.check(len(patches), false); err != nil {
		return nil, fmt.Errorf("patches: %w", err)
	}
	return p, nil
}

func (in *inspection) compile(patch Patch) (compiled, error) {
	text := strings.TrimSpace(patch.Patch)
	if text == "" {
		return compiled{}, errors.New("the patch is empty")
	}
	docs, ops, err := in.documentsOrList("", []byte(text))
	if err != nil {
		return compiled{}, fmt.Errorf("patch%w", inline(err))
	}
	if err := in.growth.patch(ops); err != nil {
		return compiled{}, err
	}
	for _, doc := range docs {
		var all any = doc.Tree
		if ops != nil {
			all = ops
		}
		if _, err := checkKept(all, ops != nil); err != nil {
			return compiled{}, err
		}
	}
	c := compiled{patch: types.Patch{Patch: text}, operations: ops != nil}
	if t := patch.Target; t != nil {
		c.patch.Target = &types.Selector{
			ResId: resid.ResId{
				Gvk:  resid.Gvk{Group: t.Group, Version: t.Version, Kind: t.Kind},
				Name: t.Name, Namespace: t.Namespace,
			},
			LabelSelector: t.LabelSelector, AnnotationSelector: t.AnnotationSelector,
		}
		if c.selector, err = types.NewSelectorRegex(c.patch.Target); err != nil {
			return compiled{}, fmt.Errorf("target: %w", err)
		}
		if c.labels, err = labels.Parse(t.LabelSelector); err != nil {
			return compiled{}, fmt.Errorf("target.labelSelector: %w", err)
		}
		if c.annotations, err = labels.Parse(t.AnnotationSelector); err != nil {
			return compiled{}, fmt.Errorf("target.annotationSelector: %w", err)
		}
	}
	switch {
	case c.operations && c.selector == nil:
		return compiled{}, errors.New("a list of JSON 6902 operations needs a target")
	case c.operations:
		return c, nil
	}
	if _, err := checkDates([]byte(text), docs); err != nil {
		return compiled{}, err
	}
	merges, err := in.parse(text, false)
	if err != nil {
		return compiled{}, fmt.Errorf("is neither a list of JSON 6902 operations nor a strategic merge patch: %s", reword(err.Error()))
	}
	if c.selector == nil {
		schema.Lock() // kustomize looks up which kinds have a namespace
		defer schema.Unlock()
		for _, merge := range merges {
			c.names = append(c.names, merge.OrgId())
		}
	} else if len(merges) != 1 {
		return compiled{}, fmt.Errorf("a strategic merge patch with a target is one document, not %d", len(merges))
	}
	return c, nil
}

// candidate is an object as kustomize's selectors see it.
type candidate struct {
	*manifest.Object
	id resid.ResId
}

func newCandidate(o *manifest.Object) candidate {
	id := o.ID()
	return candidate{o, resid.NewResIdWithNamespace(resid.NewGvk(id.Group, o.Version(), id.Kind), id.Name, id.Namespace)}
}

func (c *compiled) matches(o candidate) bool {
	if c.selector == nil {
		return slices.ContainsFunc(c.names, func(id resid.ResId) bool { return o.id.Equals(id) })
	}
	return c.selector.MatchNamespace(o.id.EffectiveNamespace()) && c.selector.MatchName(o.id.Name) && c.selector.MatchGvk(o.id.Gvk) &&
		(c.labels.Empty() || c.labels.Matches(labels.Set(o.Labels()))) &&
		(c.annotations.Empty() || c.annotations.Matches(labels.Set(o.Annotations())))
}

// Apply applies the patches, in order, and returns the objects in the given order.
// Unchanged objects are the same pointers; deleted ones are missing. The result is the same
// as for `kustomize build` with all the objects, although kustomize gets only the objects
// that a patch can match, and those that refer to them.
//
// A patch with a target that matches nothing has no effect, as in kustomize: clusters
// with different packages share patches. If a strategic merge patch has no target, its
// object must exist. Errors name the patch by its index.
func (p *Patches) Apply(ctx context.Context, objects []*manifest.Object) ([]*manifest.Object, error) {
	if len(p.compiled) == 0 {
		return objects, nil
	}
	linked, independent, err := p.split(objects)
	if err != nil {
		return nil, err
	}
	made := make(map[*manifest.Object]*manifest.Object, len(linked)+len(independent))
	if err := p.run(linked, true, made); err != nil {
		return nil, err
	}
	for some := range slices.Chunk(p.recall(independent, made), batch) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		fresh := make(map[*manifest.Object]*manifest.Object, len(some))
		if err := p.run(some, false, fresh); err != nil {
			return nil, err
		}
		p.remember(fresh, made)
	}
	after := make([]*manifest.Object, 0, len(objects))
	for _, o := range objects {
		patched, touched := made[o]
		switch {
		case !touched:
			after = append(after, o)
		case patched != nil:
			after = append(after, patched)
		}
	}
	return after, nil
}

// Idle is a patch with a target that matches nothing.
type Idle struct {
	// Index is the index of the patch, from 0.
	Index int
	// Target has the fields of the target that are set, and Meant a suggestion: "kind:
	// Deploymnt" and "; did you mean Deployment?". Meant may be empty.
	Target, Meant string
}

// Idle returns the patches with a target that matches none of the objects. Most likely the
// target is misspelt; [Patches.Apply] documents why it is not an error.
func (p *Patches) Idle(objects []*manifest.Object) []Idle {
	var idle []Idle
	schema.Lock() // kustomize looks up which kinds have a namespace
	defer schema.Unlock()
	for i := range p.compiled {
		c := &p.compiled[i]
		switch matches := slices.ContainsFunc(objects, func(o *manifest.Object) bool { return c.matches(newCandidate(o)) }); {
		case !matches && c.selector != nil:
			idle = append(idle, Idle{Index: i, Target: target(c.patch.Target), Meant: c.meant(objects)})
		case matches && c.operations:
			return idle // it may have renamed an object that a later patch matches
		}
	}
	return idle
}

// target prints the fields of a target that are set.
func target(t *types.Selector) string {
	var set []string
	for _, f := range []struct{ name, value string }{
		{"group", t.Group}, {"version", t.Version}, {"kind", t.Kind}, {"name", t.Name}, {"namespace", t.Namespace},
		{"labelSelector", t.LabelSelector}, {"annotationSelector", t.AnnotationSelector},
	} {
		if f.value != "" {
			set = append(set, f.name+": "+f.value)
		}
	}
	return strings.Join(set, ", ")
}

// meant suggests a kind or name for the patch's target.
func (c *compiled) meant(objects []*manifest.Object) string {
	t := c.patch.Target
	var kinds, names []string
	for _, o := range objects {
		kinds = append(kinds, o.ID().Kind)
		if t.Kind == "" || o.ID().Kind == t.Kind {
			names = append(names, o.ID().Name)
		}
	}
	return meant(t, kinds, names)
}

// meant suggests one of the kinds or names for a target. names are of objects of the target's
// kind.
func meant(t *types.Selector, kinds, names []string) string {
	if t.Kind != "" && !slices.Contains(kinds, t.Kind) {
		return sources.Meant(t.Kind, kinds)
	}
	if t.Name != "" && !slices.Contains(names, t.Name) {
		return sources.Meant(t.Name, names)
	}
	return ""
}

// recall fills in the cached results and returns the objects that have none.
func (p *Patches) recall(objects []*manifest.Object, made map[*manifest.Object]*manifest.Object) (unknown []*manifest.Object) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range objects {
		if r, ok := p.made[o]; ok {
			r.asked, made[o] = true, r.object
		} else {
			unknown = append(unknown, o)
		}
	}
	return unknown
}

// remember caches results. An existing result, which another cluster has added meanwhile, is
// shared.
func (p *Patches) remember(fresh, made map[*manifest.Object]*manifest.Object) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for old, o := range fresh {
		r, ok := p.made[old]
		if !ok {
			r = &result{object: o}
			p.made[old] = r
		}
		r.asked, made[old] = true, r.object
	}
}

// Sweep drops the results for objects that Apply was not given since the last Sweep.
func (p *Patches) Sweep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.made, func(_ *manifest.Object, r *result) bool {
		asked := r.asked
		r.asked = false
		return !asked
	})
}

// split returns the objects that patches may change. Kustomize must patch linked objects
// together: objects that a patch without a target names, objects that JSON 6902 operations
// may rename, and objects that refer to these, since kustomize updates references. The
// others are independent.
//
// If no patch matches an object at first, none does later, since only patches change its
// name, kind or labels.
func (p *Patches) split(objects []*manifest.Object) (linked, independent []*manifest.Object, err error) {
	schema.Lock() // kustomize looks up which kinds have a namespace
	defer schema.Unlock()
	found := make([]bool, len(p.compiled))
	touched := make([]bool, len(objects))
	together := make([]bool, len(objects))
	referred := make(map[string]bool)
	for i, object := range objects {
		o := newCandidate(object)
		for j := range p.compiled {
			c := &p.compiled[j]
			matches := c.matches(o)
			if matches {
				found[j], touched[i] = true, true
				together[i] = together[i] || c.selector == nil
			}
			// An earlier patch may have made a later one match.
			if touched[i] && c.operations && canBeReferred(object.ID()) {
				together[i] = true
				referred[object.ID().Name] = true
			}
		}
	}
	for j, c := range p.compiled {
		switch {
		case c.selector != nil || found[j]:
		case slices.ContainsFunc(p.compiled[:j], func(c compiled) bool { return c.operations }):
			// It may name an object that an earlier patch renames.
			copy(together, touched)
		default:
			return nil, nil, fmt.Errorf("patches.%d: there is no %s; give the patch a target if it is for objects that may be missing", j, named(c.names))
		}
	}
	for i, o := range objects {
		switch {
		case together[i], len(referred) > 0 && mentions(o.Tree(), referred):
			linked = append(linked, o)
		case touched[i]:
			independent = append(independent, o)
		}
	}
	return linked, independent, nil
}

func named(ids []resid.ResId) string {
	var names []string
	for _, id := range ids {
		names = append(names, id.Kind+" "+id.Name)
	}
	return strings.Join(names, ", ")
}

// canBeReferred reports whether kustomize knows references to objects of the kind. There are
// none to CRDs, of which packages have hundreds.
func canBeReferred(id manifest.ID) bool {
	return !id.Is(manifest.CRD) && !id.Is(manifest.Webhooks...)
}

// mentions reports whether a string in a tree equals one of the names. Only kustomize
// knows which fields are references.
func mentions(v any, names map[string]bool) bool {
	switch v := v.(type) {
	case string:
		return names[v]
	case map[string]any:
		for _, item := range v {
			if mentions(item, names) {
				return true
			}
		}
	case []any:
		for _, item := range v {
			if mentions(item, names) {
				return true
			}
		}
	}
	return false
}

// run patches objects with kustomize, and records each result in made: the same pointer if
// unchanged, nil if deleted. Patches without a target run only if all is set.
func (p *Patches) run(objects []*manifest.Object, all bool, made map[*manifest.Object]*manifest.Object) error {
	if len(objects) == 0 {
		return nil
	}
	if len(objects) > maxObjects {
		return fmt.Errorf("patches: more than %d objects that refer to each other: %w", maxObjects, sources.ErrLimit)
	}
	var wide widths
	for _, o := range objects {
		if !all {
			wide = widths{} // they are independent
		}
		wide.add(o.Tree())
		if err := wide.check(len(p.compiled), false); err != nil {
			return fmt.Errorf("patches: %s: %w", o.ID(), err)
		}
		if _, err := checkKept(o.Tree(), p.operate(o)); err != nil {
			return fmt.Errorf("patches: %s: %w", o.ID(), err)
		}
	}
	var patches []types.Patch
	var index []int
	for i, c := range p.compiled {
		if all || c.selector != nil {
			patches = append(patches, c.patch)
			index = append(index, i)
		}
	}
	var stream []byte
	for i, o := range objects {
		if i > 0 {
			stream = append(stream, "\n---\n"...)
		}
		stream = appendYAML(stream, o)
	}
	results, err := applyAll(stream, patches)
	if err != nil {
		// Kustomize does not name the patch.
		i := 0
		for ; i < len(patches)-1; i++ {
			if _, e := applyAll(stream, patches[:i+1]); e != nil {
				err = e
				break
			}
		}
		return fmt.Errorf("patches.%d: %w", index[i], p.hide(err, objects))
	}
	return match(objects, results, made)
}

// operate reports whether JSON 6902 operations may change an object that a patch matches.
func (p *Patches) operate(o *manifest.Object) bool {
	schema.Lock() // kustomize looks up which kinds have a namespace
	defer schema.Unlock()
	candidate := newCandidate(o)
	touched := false // an earlier patch may make a later one match
	for i := range p.compiled {
		c := &p.compiled[i]
		touched = touched || c.matches(candidate)
		if touched && c.operations {
			return true
		}
	}
	return false
}

// applyAll runs `kustomize build` on objects and patches.
func applyAll(stream []byte, patches []types.Patch) ([]*manifest.Object, error) {
	kustomization, err := json.Marshal(types.Kustomization{Resources: []string{"objects.yaml"}, Patches: patches})
	if err != nil {
		return nil, err
	}
	files := newSnapshot()
	files.add("kustomization.yaml", kustomization)
	files.add("objects.yaml", stream)
	rm, err := run(files, ".", false)
	if err != nil {
		_, text := strip(".", err.Error())
		return nil, errors.New(reword(text))
	}
	return objectsOf(rm, newOrigins(nil, manifest.Origin{}))
}

// match pairs objects with their results. Kustomize keeps the order, and the ID of every
// object that is not renamed.
func match(objects, results []*manifest.Object, made map[*manifest.Object]*manifest.Object) error {
	byID := make(map[manifest.ID]*manifest.Object, len(results))
	for _, o := range results {
		byID[o.ID()] = o
	}
	var missing []*manifest.Object
	for _, old := range objects {
		o, ok := byID[old.ID()]
		if !ok {
			missing = append(missing, old)
			made[old] = nil
			continue
		}
		delete(byID, old.ID())
		made[old] = become(old, o)
	}
	for _, o := range results {
		if byID[o.ID()] == nil {
			continue
		}
		// Renamed: the first missing object of its kind, else the first one.
		if len(missing) == 0 {
			return fmt.Errorf("patches: they add %s; a patch changes or deletes objects", o.ID())
		}
		i := max(0, slices.IndexFunc(missing, func(old *manifest.Object) bool { return old.ID().Kind == o.ID().Kind }))
		made[missing[i]] = become(missing[i], o)
		missing = slices.Delete(missing, i, i+1)
	}
	return nil
}

// become returns the patched object with the origin of the old one.
func become(old, o *manifest.Object) *manifest.Object {
	if old.Hash() == o.Hash() {
		return old
	}
	return o.WithOrigin(old.Origin())
}

// appendYAML appends an object's JSON in a form that is also YAML: YAML requires escapes for
// some characters that JSON does not.
func appendYAML(dst []byte, o *manifest.Object) []byte {
	start := len(dst)
	dst = o.AppendJSON(dst)
	if !strings.ContainsFunc(string(dst[start:]), unprintable) {
		return dst
	}
	text := string(dst[start:])
	dst = dst[:start]
	for _, r := range text {
		if unprintable(r) {
			dst = fmt.Appendf(dst, `\u%04x`, r)
		} else {
			dst = utf8.AppendRune(dst, r)
		}
	}
	return dst
}

// unprintable reports whether YAML 1.2 (section 5.1) requires an escape for a character that
// JSON does not, or YAML 1.1 reads it as the end of a line (NEL).
func unprintable(r rune) bool {
	return r >= 0x7f && r < 0xa0 || r == 0xfeff || r == 0xfffe || r == 0xffff
}
