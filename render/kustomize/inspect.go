package kustomize

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/kustomize/api/konfig"
	"sigs.k8s.io/kustomize/api/provider"
	"sigs.k8s.io/kustomize/api/resmap"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/resid"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/remote"
	"gitopsd.dev/sources"
)

// inspection walks a kustomization as kustomize does, reads the files that it will read, and
// fails on anything that gitopsd does not support.
type inspection struct {
	repo   fs.FS
	bases  remote.Bases
	given  *snapshot
	budget budget
	growth growth
	turn   *turn
	// modes of the inspected paths and their parents.
	modes map[string]fs.FileMode
	// written are the objects in the files, to find the origins of the output.
	written []written
	// from is the index of the first one that the inspected transformers see.
	from int
	// sensitive are the files that generators of Secrets read.
	sensitive map[string]sensitivity
	// aimed are the patches with a target. renames reports whether the build changes
	// names; namespaces are those that it sets. opaque reports whether it may make other
	// changes to kinds, names and namespaces.
	aimed           []aim
	renames, opaque bool
	namespaces      []string
	// parser is kustomize's own. It distinguishes paths from YAML in fields that accept
	// both.
	parser *resmap.Factory
	// schema reports whether the build sets kustomize's process-wide schema.
	schema bool
	// mounts are the remote trees in use, by their roots.
	mounts map[string]fs.FS
	// missing are the remote bases that are not in bases.
	missing []Missing
	// notes are about files that look like manifests and are not read.
	notes []string
	// localised are the kustomizations that name remote bases, rewritten with local
	// paths.
	localised map[string][]byte
}

// written is an object that a file of the repository holds or generates.
type written struct {
	id      manifest.ID
	version string
	origin  manifest.Origin
	// bytes is about its size as YAML, and names the number of its names and references.
	bytes, names int
	// rounded is the error if JSON 6902 operations are for it; may be nil.
	rounded error
}

func (w written) resID() resid.ResId {
	return resid.NewResIdWithNamespace(resid.NewGvk(w.id.Group, w.version, w.id.Kind), w.id.Name, w.id.Namespace)
}

// role is the relation of a directory to the kustomization that names it.
type role int

const (
	base role = iota
	component
	plugins // generators, transformers or validators
)

// visit is one kustomization on the path from the root.
type visit struct {
	dir string
	as  role
	// up is the kustomization that names this one.
	up *visit
	// pluginDir is the directory for relative paths in plugins: the directory of the
	// kustomization that lists the plugins, not that of the file with the plugin.
	pluginDir string
	depth     int
	// from is the index of the first written object that the kustomization sees: its own,
	// and for a component those before it.
	from int
}

func newInspection(repo fs.FS, bases remote.Bases) *inspection {
	return &inspection{
		repo:   repo,
		bases:  bases,
		given:  newSnapshot(),
		budget: newBudget(),
		modes:  make(map[string]fs.FileMode),

		sensitive: make(map[string]sensitivity),
		parser:    resmap.NewFactory(provider.NewDefaultDepProvider().GetResourceFactory()),
	}
}

// root inspects the directory of a build.
func (in *inspection) root(ctx context.Context, dir string) error {
	dir, err := in.local("the build", ".", dir)
	if err != nil {
		return err
	}
	if mode := in.modes[dir]; !mode.IsDir() {
		return fmt.Errorf("%s: is a file; a build starts from a directory", dir)
	}
	v := &visit{dir: dir}
	file, err := in.kustomizationFile(dir)
	if errors.Is(err, fs.ErrNotExist) {
		file, err = in.autodetect(ctx, dir)
	}
	if err != nil {
		return err
	}
	if _, err = in.kustomization(ctx, v, file, 0); err != nil {
		return err
	}
	if len(in.missing) > 0 {
		return &MissingError{Bases: in.missing}
	}
	if err := in.budget.settle(in.schema); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	for file, content := range in.localised {
		in.given.add(file, content)
	}
	return nil
}

// directory inspects a kustomization that another one names, and returns the number
// of its objects; above is the number of objects that a component sees already.
func (in *inspection) directory(ctx context.Context, v *visit, above int) (int, error) {
	if v.depth > maxNesting {
		return 0, fmt.Errorf("%s: kustomizations are nested deeper than %d: %w", v.dir, maxNesting, sources.ErrLimit)
	}
	for up := v.up; up != nil; up = up.up {
		if within(up.dir, v.dir) {
			return 0, fmt.Errorf("%s: is used by %s, which is in it: kustomizations must not form a loop; move what they share to a directory beside them", v.dir, up.chain(v))
		}
	}
	file, err := in.kustomizationFile(v.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("%s: has no kustomization file (%s)%s", v.dir, strings.Join(konfig.RecognizedKustomizationFileNames(), ", "), in.misnamed(v.dir))
	}
	if err != nil {
		return 0, err
	}
	return in.kustomization(ctx, v, file, above)
}

// within reports whether name is dir or below it.
func within(name, dir string) bool {
	return name == dir || dir == "." || strings.HasPrefix(name, dir+"/")
}

// kustomizeGroup is the API group of kustomizations.
const kustomizeGroup = "kustomize.config.k8s.io"

// misspelt reports whether a file's name is most likely a misspelling of a kustomization
// file's.
func misspelt(file string) bool {
	names := konfig.RecognizedKustomizationFileNames()
	return !slices.Contains(names, file) && sources.Closest(file, names) != ""
}

// misnamed suggests renaming a file in a directory without a kustomization file.
func (in *inspection) misnamed(dir string) string {
	for _, name := range in.names(dir) {
		if misspelt(name) {
			return "; rename " + path.Join(dir, name)
		}
	}
	return ""
}

// meant suggests an existing path for one that does not exist.
func (in *inspection) meant(name string) string {
	dir := path.Dir(name)
	if c := sources.Closest(path.Base(name), in.names(dir)); c != "" {
		return "; did you mean " + path.Join(dir, c) + "?"
	}
	return ""
}

// names returns the names in a directory; nil if it cannot be read.
func (in *inspection) names(dir string) []string {
	if mode, err := in.mode(dir); err != nil || !mode.IsDir() {
		return nil
	}
	files, at := in.place(dir)
	entries, _ := fs.ReadDir(files, at) // an error suggests nothing
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// chain returns the path from v down to the directory that closes a loop.
func (v *visit) chain(last *visit) string {
	var dirs []string
	for up := last.up; up != nil; up = up.up {
		dirs = append(dirs, up.dir)
		if up == v {
			break
		}
	}
	slices.Reverse(dirs)
	return strings.Join(dirs, " -> ")
}

// kustomizationFile returns the path of the one kustomization file in dir. The error
// is [fs.ErrNotExist] if there is none.
func (in *inspection) kustomizationFile(dir string) (string, error) {
	var found []string
	for _, name := range konfig.RecognizedKustomizationFileNames() {
		file := path.Join(dir, name)
		switch mode, err := in.mode(file); {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, sources.ErrIgnored):
		case err != nil:
			return "", err
		case !mode.IsDir():
			found = append(found, file)
		}
	}
	switch len(found) {
	case 0:
		return "", fs.ErrNotExist
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("%s: has several kustomization files (%s); keep one", dir, strings.Join(found, ", "))
}

func (in *inspection) kustomization(ctx context.Context, v *visit, file string, above int) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	// Count it before reading it: kustomizations that each use the next one twice would
	// take practically for ever.
	if err := in.budget.step(kustomizationSteps); err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	content, err := in.read(file)
	if err != nil {
		return 0, err
	}
	docs, err := in.documents(file, content)
	switch {
	case err != nil:
		return 0, err
	case len(docs) == 0:
		return 0, fmt.Errorf("%s: is empty; list the resources, or remove the file to take all YAML files of the directory", file)
	case len(docs) > 1:
		return 0, at(file, docs[1].Line, errors.New("a kustomization file holds one document"))
	}
	var k types.Kustomization
	if err := k.Unmarshal(content); err != nil {
		return 0, decodeError(file, content, err)
	}
	k.FixKustomization()
	if k.CheckEmpty() != nil {
		return 0, fmt.Errorf("%s: has no fields; list the resources, or remove the file to take all YAML files of the directory", file)
	}
	if faults := k.EnforceFields(); len(faults) > 0 {
		return 0, fmt.Errorf("%s: %s", file, strings.Join(faults, "; "))
	}
	switch isComponent := k.Kind == types.ComponentKind; {
	case isComponent && v.as != component && v.up != nil:
		return 0, fmt.Errorf("%s: is a Component; name %s under components, not resources", file, v.dir)
	case !isComponent && v.as == component:
		return 0, fmt.Errorf("%s: is not a Component (kind: Component, apiVersion: %s); name %s under resources", file, types.ComponentVersion, v.dir)
	}
	if v.from = len(in.written); v.as == component && v.up != nil {
		v.from = v.up.from
	}
	n, err := in.fields(ctx, v, field{file: file, content: content}, &k, above)
	if err != nil {
		return 0, err
	}
	if err := in.budget.step(n); err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	return n, in.localise(v.dir, file, &k)
}

// resource inspects a file or directory named as a resource.
func (in *inspection) resource(ctx context.Context, v *visit, f field, entry string) (int, error) {
	name, err := in.base(v, f, entry)
	if err != nil || name == "" {
		return 0, err
	}
	if in.modes[name].IsDir() {
		down := &visit{dir: name, as: v.as, up: v, pluginDir: v.pluginDir, depth: v.depth + 1}
		if v.as == component {
			down.as = base
		}
		return in.directory(ctx, down, 0)
	}
	content, err := in.read(name)
	if err != nil {
		return 0, err
	}
	if v.as == plugins {
		return 0, in.plugins(v.pluginDir, name, content)
	}
	return in.objects(name, content)
}

// objects records the objects that a file holds.
func (in *inspection) objects(file string, content []byte) (int, error) {
	docs, err := in.documents(file, content)
	if err != nil {
		return 0, err
	}
	n := 0
	for _, doc := range docs {
		trees := []any{doc.Tree}
		var above []string
		if items, ok := doc.Tree["items"].([]any); ok && strings.HasSuffix(manifest.Text(doc.Tree, "kind"), "List") {
			trees, above = items, []string{"items", ""}
		}
		for i, tree := range trees {
			id, err := identify(tree)
			if group, _ := manifest.GroupVersion(manifest.Text(doc.Tree, "apiVersion")); group == kustomizeGroup || err != nil && misspelt(path.Base(file)) {
				err = fmt.Errorf("a kustomization is found by its name: rename the file to %s", konfig.DefaultKustomizationFileName())
			}
			if err != nil {
				return n, at(file, doc.Line, err)
			}
			m, _ := tree.(map[string]any) // identify has checked that
			where, err := checkTexts(m, false, false)
			if err == nil {
				where, err = checkKept(m, false)
			}
			if err != nil {
				if above != nil {
					above[1] = strconv.Itoa(i)
				}
				return n, at(file, lineBelow(content, doc.Line, slices.Concat(above, where)...), fmt.Errorf("%s: %w", id, err))
			}
			_, version := manifest.GroupVersion(manifest.Text(m, "apiVersion"))
			_, rounded := checkKept(m, true)
			w := written{id: id, version: version, origin: manifest.Origin{File: file, Line: doc.Line}, bytes: size(tree), names: names(tree), rounded: rounded}
			in.written = append(in.written, w)
			in.budget.names += w.names
			n++
		}
	}
	if line, err := checkDates(content, docs); err != nil {
		return n, at(file, line, err)
	}
	if err := in.budget.hold(n); err != nil {
		return n, fmt.Errorf("%s: %w", file, err)
	}
	return n, nil
}

// names returns the number of fields of an object that may be names of objects.
func names(v any) int {
	n := 0
	switch v := v.(type) {
	case map[string]any:
		for key, item := range v {
			if strings.HasSuffix(key, "name") || strings.HasSuffix(key, "Name") {
				n++
			}
			n += names(item)
		}
	case []any:
		for _, item := range v {
			n += names(item)
		}
	}
	return n
}

// size returns about the size of a value as YAML, in bytes.
func size(v any) int {
	n := 8
	switch v := v.(type) {
	case string:
		n += len(v)
	case map[string]any:
		for key, item := range v {
			n += len(key) + size(item)
		}
	case []any:
		for _, item := range v {
			n += size(item)
		}
	}
	return n
}

// identify reads the fields that kustomize requires of an object. Patches may correct the
// others.
func identify(tree any) (manifest.ID, error) {
	m, _ := tree.(map[string]any)
	meta := manifest.Mapping(m, "metadata")
	kind, name := manifest.Text(m, "kind"), manifest.Text(meta, "name")
	if kind == "" {
		return manifest.ID{}, errors.New("is not a Kubernetes object: kind is missing")
	}
	// Kustomize reads YAML 1.1's booleans (y, on, no) as strings. Such a name is valid, but
	// not known here.
	if _, isBool := meta["name"].(bool); name == "" && !isBool {
		switch n := meta["name"].(type) {
		case int64, float64, json.Number:
			return manifest.ID{}, fmt.Errorf("%s: metadata.name is the number %v: quote it", kind, n)
		}
		return manifest.ID{}, fmt.Errorf("%s: metadata.name is missing", kind)
	}
	group, _ := manifest.GroupVersion(manifest.Text(m, "apiVersion"))
	return manifest.ID{Group: group, Kind: kind, Namespace: manifest.Text(meta, "namespace"), Name: name}, nil
}

// path checks a string that kustomize reads as a path, and returns the path in the
// repository. The path must be a regular file or a directory.
func (in *inspection) path(f field, dir, entry string) (string, error) {
	name, err := in.local(f.name, dir, entry)
	if err != nil {
		return "", f.fault(entry, err)
	}
	return name, nil
}

// clonable matches text that kustomize would clone. Unlike [remote.Looks], it does not match
// YAML that begins with a word and a colon.
var clonable = regexp.MustCompile(`(?i)^\s*(?:git::)?(?:[a-z][a-z0-9+.-]*://|[a-z][a-z0-9-]*@|github\.com[/:])`)

func (in *inspection) local(field, dir, entry string) (string, error) {
	switch {
	case entry == "":
		return "", fmt.Errorf("%s: names an empty path", field)
	case remote.Looks(entry):
		return "", fmt.Errorf("%s: %q is remote, or looks so, and only resources and components may be; copy what it names into the repository (a local path that looks like this is written ./%s)", field, remote.Shown(entry), remote.Shown(entry))
	case path.IsAbs(entry):
		return "", fmt.Errorf("%s: %q is an absolute path; write it relative to the kustomization", field, entry)
	}
	name := path.Join(dir, entry)
	if name == ".." || strings.HasPrefix(name, "../") || in.mount(name) != in.mount(dir) {
		return "", fmt.Errorf("%s: %q leads out of the repository; move what it names into it", field, entry)
	}
	if !fs.ValidPath(name) || strings.ContainsRune(name, 0) {
		return "", fmt.Errorf("%s: %q is not a path", field, entry)
	}
	mode, err := in.mode(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("%s: %q is not in the repository (looked for %s)%s", field, entry, name, in.meant(name))
	case err != nil:
		return "", fmt.Errorf("%s: %w", field, err)
	}
	if mode.IsDir() {
		in.given.addDir(name)
	}
	return name, nil
}

// mode returns the mode of a path. It checks the parents too, for symbolic links.
func (in *inspection) mode(name string) (fs.FileMode, error) {
	if mode, ok := in.modes[name]; ok {
		return mode, nil
	}
	if name != "." {
		parent, err := in.mode(path.Dir(name))
		if err != nil {
			return 0, err
		}
		if !parent.IsDir() {
			return 0, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
		}
	}
	info, err := fs.Lstat(in.place(name))
	if err != nil {
		var pathErr *fs.PathError
		if errors.As(err, &pathErr) { // its path is relative to its own repository
			err = fmt.Errorf("%s: %w", name, pathErr.Err)
		}
		return 0, err
	}
	switch mode := info.Mode(); {
	case mode&fs.ModeSymlink != 0:
		return 0, fmt.Errorf("%s: is a symbolic link, which gitopsd does not follow; name what it points to", name)
	case !mode.IsDir() && !mode.IsRegular():
		return 0, fmt.Errorf("%s: is neither a regular file nor a directory", name)
	default:
		in.modes[name] = mode
		return mode, nil
	}
}

// file reads a file that a field names.
func (in *inspection) file(f field, dir, entry string) (string, []byte, error) {
	name, err := in.path(f, dir, entry)
	if err != nil {
		return "", nil, err
	}
	if in.modes[name].IsDir() {
		return "", nil, f.fault(entry, fmt.Errorf("%s: %q is a directory, want a file", f.name, entry))
	}
	content, err := in.read(name)
	return name, content, err
}

// read adds a file to the snapshot. It reads each file once, so that the build gets the
// inspected content even if the repository is a working tree that changes meanwhile.
func (in *inspection) read(name string) ([]byte, error) {
	content, ok := in.given.files[name]
	if !ok {
		files, at := in.place(name)
		f, err := files.Open(at)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		content, err = io.ReadAll(io.LimitReader(f, int64(in.budget.bytes)+1))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		in.given.add(name, content)
	}
	if err := in.budget.read(len(content)); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return content, nil
}
