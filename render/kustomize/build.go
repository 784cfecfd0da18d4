package kustomize

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"reflect"
	"slices"
	"sort"
	"strings"
	"sync"

	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/kustomize/api/konfig"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resmap"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/openapi"
	"sigs.k8s.io/kustomize/kyaml/resid"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/remote"
	"gitopsd.dev/sources"
)

// Builder builds kustomizations and caches the results by the files that were read, since
// most commits change few clusters of a fleet. The zero value is ready to use. It is safe
// for concurrent use.
type Builder struct {
	mu    sync.Mutex
	built map[sources.Digest]*built
}

// built is a build, and its result once done is closed.
type built struct {
	done    chan struct{}
	objects []*manifest.Object
	notes   []string
	err     error
	// asked for since the last Sweep.
	asked bool
}

// Build builds the kustomization in a directory of files, and returns the
// objects that `kustomize build` would print, in its order. The directory may
// have no kustomization file; see the package comment.
//
// Build reads each file once, writes none, and uses no network. Concurrent calls for
// the same files share one build. Its time is bounded. When ctx is done, Build
// returns its error, and kustomize finishes in the background.
//
// The notes are about likely misspellings: patches in kustomizations with a target that
// matches no object, and files whose names do not end in .yaml or .yml.
//
// Errors name the file, and the line if it is known. A [*MissingError] lists remote
// bases to fetch first. An error that wraps [sources.ErrLimit] names the limit. No error
// contains a value of a Secret.
func (b *Builder) Build(ctx context.Context, files fs.FS, dir string, bases remote.Bases) (objects []*manifest.Object, notes []string, err error) {
	in := newInspection(files, bases)
	in.turn = &turn{ctx: ctx}
	passed := false // whether the build has the turn
	defer func() {
		if !passed {
			in.turn.end()
		}
	}()
	if err := in.root(ctx, dir); err != nil {
		return nil, nil, in.hide(err)
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	// Kustomize sees only the snapshot.
	key := in.given.digest(dir)
	b.mu.Lock()
	it, known := b.built[key]
	if !known {
		it = &built{done: make(chan struct{})}
		if b.built == nil {
			b.built = make(map[sources.Digest]*built)
		}
		b.built[key] = it
		passed = true
		go func() {
			defer close(it.done)
			defer in.turn.end()
			defer func() {
				if v := recover(); v != nil {
					it.err = fmt.Errorf("%s: a bug in gitopsd: panic with a value of type %T", dir, v)
				}
			}()
			if it.objects, it.err = in.build(dir); it.err != nil {
				it.err = in.hide(it.err)
				return
			}
			for _, miss := range in.misses(it.objects) {
				it.notes = append(it.notes, miss.Error())
			}
		}()
	}
	it.asked = true
	b.mu.Unlock()
	select {
	case <-it.done:
		return it.objects, slices.Concat(in.notes, it.notes), it.err
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
}

// Sweep drops the results that no Build returned since the last Sweep.
func (b *Builder) Sweep() {
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.built, func(_ sources.Digest, k *built) bool {
		asked := k.asked
		k.asked = false
		return !asked
	})
}

// build builds the inspected kustomization.
func (in *inspection) build(dir string) ([]*manifest.Object, error) {
	rm, err := run(in.given, dir, in.schema)
	if err != nil {
		explained := explain(dir, err, in.written)
		if place, patch := in.blame(dir, err); patch != "" {
			_, text, _ := strings.Cut(explained.Error(), ": ")
			return nil, at(place.File, place.Line, fmt.Errorf("%s: %s", patch, text))
		}
		return nil, explained
	}
	return objectsOf(rm, newOrigins(in.written, manifest.Origin{File: dir}))
}

// blame returns the patch that an error of kustomize comes from, as "patches[1] (p.yaml, for kind:
// Pod)", and its place; "" if it comes from none. Kustomize does not name the patch. So blame
// builds again with fewer patches of the kustomization that failed: they apply in order, and the
// error is gone without the one. It takes three builds, and the logarithm of the patches.
func (in *inspection) blame(dir string, failure error) (place manifest.Origin, patch string) {
	where, _ := strip(dir, failure.Error())
	var file string
	for _, name := range konfig.RecognizedKustomizationFileNames() {
		if name = path.Join(where, name); in.given.files[name] != nil {
			file = name
		}
	}
	content := in.given.files[file]
	docs, err := sources.DecodeYAML(bytes.NewReader(content), sources.Limits{})
	if err != nil || len(docs) != 1 {
		return place, ""
	}
	for _, name := range []string{"patchesStrategicMerge", "patches", "patchesJson6902"} {
		list := manifest.List(docs[0].Tree, name)
		fails := func(n int) bool { // with the first n patches
			fewer := &snapshot{files: maps.Clone(in.given.files), dirs: in.given.dirs}
			fewer.files[file] = manifest.AppendJSON(nil, manifest.With(docs[0].Tree, list[:n], name))
			_, err := run(fewer, dir, in.schema)
			return err != nil && err.Error() == failure.Error()
		}
		if len(list) == 0 || fails(0) {
			continue
		}
		i := sort.Search(len(list)-1, func(i int) bool { return fails(i + 1) })
		entry, _ := list[i].(map[string]any)
		var about []string
		if name := manifest.Text(entry, "path"); name != "" {
			about = append(about, name)
		}
		if text, ok := list[i].(string); ok && in.given.files[path.Join(where, text)] != nil {
			about = append(about, text)
		}
		if t := manifest.Mapping(entry, "target"); t != nil {
			field := func(name string) string { return manifest.Text(t, name) }
			id := resid.ResId{Gvk: resid.Gvk{Group: field("group"), Version: field("version"), Kind: field("kind")}, Name: field("name"), Namespace: field("namespace")}
			about = append(about, "for "+target(&types.Selector{ResId: id, LabelSelector: field("labelSelector"), AnnotationSelector: field("annotationSelector")}))
		}
		patch = fmt.Sprintf("%s[%d]", name, i)
		if len(about) > 0 {
			patch += " (" + strings.Join(about, ", ") + ")"
		}
		return manifest.Origin{File: file, Line: linesOfTargets(content, name)(i)}, patch
	}
	return place, ""
}

// run runs `kustomize build` on a directory of a snapshot. If the build sets a schema, run
// restores the default.
func run(files *snapshot, dir string, setsSchema bool) (rm resmap.ResMap, err error) {
	options := krusty.MakeDefaultOptions()
	options.Reorder = krusty.ReorderOptionUnspecified
	// The root of the snapshot is the restriction.
	options.LoadRestrictions = types.LoadRestrictionsNone
	options.PluginConfig = types.DisabledPluginConfig()
	err = guarded(func() (err error) {
		if setsSchema {
			openapi.ResetOpenAPI()
			defer openapi.ResetOpenAPI()
		}
		rm, err = krusty.MakeKustomizer(options).Run(files, abs(dir))
		return err
	})
	return rm, err
}

// objectsOf makes objects of kustomize's resources.
func objectsOf(rm resmap.ResMap, origins *origins) ([]*manifest.Object, error) {
	objects := make([]*manifest.Object, 0, rm.Size())
	var errs []error
	for _, res := range rm.Resources() {
		content, err := res.MarshalJSON()
		var mapping *json.UnsupportedTypeError
		if errors.As(err, &mapping) && mapping.Type.Kind() == reflect.Map {
			err = errors.New("a key is a number, true, false or null; quote it")
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", reword(res.CurId().String()), err)
		}
		o, err := object(content, origins)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		objects = append(objects, o)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return objects, nil
}

func object(content []byte, origins *origins) (*manifest.Object, error) {
	var tree map[string]any
	if err := utiljson.Unmarshal(content, &tree); err != nil {
		return nil, err
	}
	id, err := identify(tree)
	if err != nil {
		return nil, err
	}
	return manifest.New(tree, origins.find(id))
}

// origins finds the origins of objects of the output. It compares them with the objects as
// written; their names differ at most by a prefix, a suffix or a hash. Kustomize's own origin
// annotations are not usable, since patches would see them.
type origins struct {
	byType map[[2]string][]written
	// unknown is the origin of objects without a match, or with several.
	unknown manifest.Origin
}

func newOrigins(all []written, unknown manifest.Origin) *origins {
	o := &origins{byType: make(map[[2]string][]written), unknown: unknown}
	for _, w := range all {
		key := [2]string{w.id.Group, w.id.Kind}
		o.byType[key] = append(o.byType[key], w)
	}
	return o
}

// find returns the origin of an object. It prefers the same name to a part of the name, a
// longer part to a shorter one, and the same namespace to another. A tie gives unknown.
func (o *origins) find(id manifest.ID) manifest.Origin {
	best, origin, ties := 0, o.unknown, 0
	for _, w := range o.byType[[2]string{id.Group, id.Kind}] {
		score := 0
		switch {
		case w.id.Name == id.Name:
			score = 4 * 1024
		case strings.Contains(id.Name, w.id.Name):
			score = 4 * len(w.id.Name)
		default:
			continue
		}
		if w.id.Namespace == id.Namespace {
			score += 2
		}
		switch {
		case score > best:
			best, origin, ties = score, w.origin, 0
		case score == best && w.origin != origin:
			ties++
		}
	}
	if ties > 0 {
		return o.unknown
	}
	return origin
}
