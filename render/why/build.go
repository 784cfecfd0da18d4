package why

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"gitopsd.dev/render"
	"gitopsd.dev/render/conversion"
	"gitopsd.dev/render/kustomize"
	"gitopsd.dev/render/manifest"
)

// maxBuilds bounds the number of builds for an answer.
const maxBuilds = 2000

// kustomized explains an object that kustomize builds: where it was written, and the
// entries of kustomizations that changed it.
func (e *explainer) kustomized(ctx context.Context, a *Answer) ([]Step, error) {
	files := e.everything()
	with, err := e.build(ctx, files)
	if err != nil {
		return nil, err
	}
	generated := isDir(files, a.Written.File)
	if !generated {
		e.written(a)
	}
	way := &way{files: files, origin: a.Written.File, all: generated, passes: make(map[string]bool)}
	way.directory(e.in.Path)
	var steps []Step
	builds := 0
	for _, file := range way.kustomizations {
		entries, err := entriesOf(files, file)
		if err != nil {
			return nil, err
		}
		for _, entry := range entries {
			if builds++; builds > maxBuilds {
				return nil, fmt.Errorf("the kustomizations that %s passes through have more than %d entries, too many to leave out one by one", e.id, maxBuilds)
			}
			s, ok, err := e.leaveOut(ctx, file, entry, with)
			if err != nil {
				return nil, err
			}
			if ok {
				s.File, s.Line, s.What = file, entry.line, entry.what
				if named := path.Join(path.Dir(file), entry.path); entry.path != "" && isFile(files, named) {
					s.File, s.Line, s.What = named, 0, fmt.Sprintf("%s of %s:%d", entry.what, file, entry.line)
				}
				steps = append(steps, s)
			}
		}
	}
	return steps, nil
}

// leaveOut builds without an entry, and returns the step of the entry. ok is false if it has
// no effect.
func (e *explainer) leaveOut(ctx context.Context, file string, entry entry, with *manifest.Object) (s Step, ok bool, err error) {
	without, err := e.build(ctx, e.everything().with(file, entry.without))
	if ctx.Err() != nil {
		return Step{}, false, ctx.Err()
	}
	switch {
	case err == nil:
	case entry.names():
		// A patch needs the name that the entry sets.
		return Step{Effect: Names}, e.field.ofName(), nil
	default:
		// Something else needs the entry. Usually that does not concern the
		// object; report it if it may.
		return Step{Effect: Unknown}, entry.mayTouch(e.id), nil
	}
	missing := Names
	if entry.makes() {
		missing = Makes
	}
	s, ok = e.compare(without, with, missing)
	return s, ok, nil
}

// build builds the cluster's kustomization from files, and returns the object, or nil.
func (e *explainer) build(ctx context.Context, files everything) (*manifest.Object, error) {
	var builder kustomize.Builder
	objects, _, err := builder.Build(ctx, files.repository, e.in.Path, files.remote)
	if err != nil {
		return nil, err
	}
	for _, o := range objects {
		if o.ID() == e.id {
			return o, nil
		}
		if e.id.Is(manifest.CRD) && o.ID().Is(manifest.ResourceSchema) && conversion.Defined(o.Tree()) == e.id.Name {
			return render.Described(o, objects)
		}
	}
	return nil, nil
}

// written finds the field in the file where the object was written.
func (e *explainer) written(a *Answer) {
	content, err := fs.ReadFile(e.everything(), a.Written.File)
	if err != nil || len(e.field) == 0 {
		return
	}
	value, line, _, ok := e.field.find(content, a.Written.Line, is(e.id))
	if !ok {
		return
	}
	a.Original, a.Written.Line = Value{Set: true, Value: value}, line
}

func isDir(files fs.FS, name string) bool {
	info, err := fs.Stat(files, name)
	return err == nil && info.IsDir()
}

func isFile(files fs.FS, name string) bool {
	info, err := fs.Stat(files, name)
	return err == nil && info.Mode().IsRegular()
}

// way collects the kustomization files that an object passes through, the nearest to its
// origin first.
type way struct {
	files everything
	// origin is the file where it was written. all collects every kustomization, for
	// an object that a generator makes.
	origin string
	all    bool
	// passes are the results for the directories that were walked.
	passes         map[string]bool
	kustomizations []string
}

// directory walks a directory of the build, and reports whether the object comes from it.
func (w *way) directory(dir string) bool {
	passes, known := w.passes[dir]
	if !known {
		w.passes[dir] = false // kustomize refuses cycles
		passes = w.walk(dir)
		w.passes[dir] = passes
	}
	return passes
}

func (w *way) walk(dir string) bool {
	file, content := kustomization(w.files, dir)
	if file == "" {
		return w.below(dir)
	}
	var k struct {
		Kind                         string
		Resources, Bases, Components []string
	}
	if yaml.Unmarshal(content, &k) != nil {
		return false
	}
	passes := w.all || file == w.origin || k.Kind == "Component"
	for _, entry := range slices.Concat(k.Resources, k.Bases) {
		name := w.files.named(dir, entry)
		if name == w.origin || isDir(w.files, name) && w.directory(name) {
			passes = true
		}
	}
	for _, entry := range k.Components {
		if w.directory(w.files.named(dir, entry)) {
			passes = true
		}
	}
	if passes {
		w.kustomizations = append(w.kustomizations, file)
	}
	return passes
}

// below walks a directory without a kustomization, for which kustomize builds all files below it,
// and the kustomizations of subdirectories.
func (w *way) below(dir string) bool {
	passes := false
	_ = fs.WalkDir(w.files, dir, func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case name == w.origin:
			passes = true
		case entry.IsDir() && name != dir:
			if file, _ := kustomization(w.files, name); file != "" {
				passes = w.directory(name) || passes
				return fs.SkipDir
			}
		}
		return nil
	})
	return passes
}

// kustomization returns the kustomization file of a directory, "" if it has none.
func kustomization(files fs.FS, dir string) (file string, content []byte) {
	for _, name := range []string{"kustomization.yaml", "kustomization.yml", "Kustomization"} {
		if content, err := fs.ReadFile(files, path.Join(dir, name)); err == nil {
			return path.Join(dir, name), content
		}
	}
	return "", nil
}

// entry is a part of a kustomization file that can be left out.
type entry struct {
	// what is the entry for people, "patches[1]".
	what string
	key  string
	line int
	// path is the file that the entry names; may be empty.
	path string
	// text is the entry, and without the kustomization file without it.
	text, without []byte
}

// makes reports whether the entry generates objects.
func (e entry) makes() bool {
	return strings.HasSuffix(e.key, "Generator") || e.key == "generators"
}

// names reports whether the entry sets names or namespaces.
func (e entry) names() bool {
	return e.key == "namespace" || e.key == "namePrefix" || e.key == "nameSuffix"
}

// mayTouch reports whether the text of the entry mentions an object's name or kind.
func (e entry) mayTouch(id manifest.ID) bool {
	return bytes.Contains(e.text, []byte(id.Name)) || bytes.Contains(e.text, []byte(id.Kind))
}

// entriesOf returns the parts of a kustomization that can be left out: each element of its
// lists, and its other fields as a whole.
func entriesOf(files fs.FS, file string) ([]entry, error) {
	content, err := fs.ReadFile(files, file)
	if err != nil {
		return nil, err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(content, &doc); err != nil || len(doc.Content) == 0 || doc.Content[0].Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s: is not a mapping", file)
	}
	top := resolved(doc.Content[0])
	var list []entry
	for i := 0; i+1 < len(top.Content); i += 2 {
		key, value := top.Content[i], top.Content[i+1]
		switch key.Value {
		case "apiVersion", "kind", "metadata", "resources", "bases", "components":
			continue // way follows these
		}
		if value.Kind != yaml.SequenceNode {
			rest := slices.Concat(top.Content[:i], top.Content[i+2:])
			e, err := newEntry(key, value, key.Value, rest)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			list = append(list, e)
			continue
		}
		for j, element := range value.Content {
			shorter := *value
			shorter.Content = slices.Concat(value.Content[:j], value.Content[j+1:])
			rest := slices.Clone(top.Content)
			rest[i+1] = &shorter
			e, err := newEntry(key, element, fmt.Sprintf("%s[%d]", key.Value, j), rest)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			list = append(list, e)
		}
	}
	return list, nil
}

// resolved returns a copy of a node without aliases and anchors: an alias must not lose its anchor
// with another entry. The build has limited the size of the copy.
func resolved(n *yaml.Node) *yaml.Node {
	copied := *n
	if n.Kind == yaml.AliasNode {
		copied = *n.Alias
		copied.Line = n.Line
	}
	copied.Anchor = ""
	copied.Content = make([]*yaml.Node, len(copied.Content))
	for i, below := range cmp.Or(n.Alias, n).Content {
		copied.Content[i] = resolved(below)
	}
	return &copied
}

func newEntry(key, value *yaml.Node, what string, rest []*yaml.Node) (entry, error) {
	e := entry{what: what, key: key.Value, line: value.Line}
	var named struct{ Path string }
	if value.Kind == yaml.ScalarNode {
		e.path = value.Value
	} else if value.Decode(&named) == nil {
		e.path = named.Path
	}
	var err error
	if e.text, err = yaml.Marshal(value); err != nil {
		return e, err
	}
	// Kustomize refuses a kustomization without fields. This field has no effect.
	options := func(n *yaml.Node) bool { return n.Value == "generatorOptions" }
	if !slices.ContainsFunc(rest, options) {
		rest = append(slices.Clone(rest), &yaml.Node{Kind: yaml.ScalarNode, Value: "generatorOptions"}, &yaml.Node{Kind: yaml.MappingNode})
	}
	e.without, err = yaml.Marshal(&yaml.Node{Kind: yaml.MappingNode, Content: rest})
	return e, err
}
