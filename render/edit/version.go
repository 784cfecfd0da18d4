package edit

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"

	"gitopsd.dev/render"
	"gitopsd.dev/sources"
)

// Place is the place of a reference in a file. Places are comparable.
type Place struct {
	// File is the path in the repository.
	File string
	// Line in File, from 1.
	Line int
	// Offset in File, in bytes.
	Offset int
	// Text is the reference as written.
	Text string
}

func (p Place) String() string { return p.File + ":" + strconv.Itoa(p.Line) }

func (p Place) with(text string) edit { return edit{p.Offset, p.Offset + len(p.Text), text} }

// Declared identifies a package's declaration in a cluster. It is comparable.
type Declared struct {
	Cluster string
	Kind    sources.PackageKind
	Name    string
}

// Sources has the places of package references in a repository.
type Sources struct {
	// Places are the places of declarations, except for references that are composed of
	// parts, as by kustomize's replacements.
	Places map[Declared]Place
	// Unknown are the clusters that could not be rendered. They may use references in
	// the files in Read.
	Unknown []string
	// Err is why nothing of a cluster in Unknown could be rendered, perhaps only since a
	// patch tests a reference.
	Err map[string]error
	// Read are the files that were read for each cluster in Unknown.
	Read map[string][]string
}

// Find returns the places of references in the clusters. It fails only if ctx is done.
//
// A kustomization can set a field in too many ways to follow them (a base, a component, a
// patch in a file or inline, an anchor). Instead, Find replaces every occurrence of a
// reference by a mark, renders the clusters once, and looks for the marks in the output.
func Find(ctx context.Context, clusters []render.Input, references []string) (*Sources, error) {
	m := &marks{references: slices.Compact(slices.Sorted(slices.Values(references))), files: make(map[string][]byte)}
	s := &Sources{Places: make(map[Declared]Place), Read: make(map[string][]string), Err: make(map[string]error)}
	var renderer render.Renderer
	for _, in := range clusters {
		read := make(map[string]bool)
		files := in.Files
		in.Files = overlay{files, func(name string) ([]byte, error) {
			read[name] = true
			return m.content(files, name)
		}}
		w, err := renderer.Want(ctx, in)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			s.Unknown = append(s.Unknown, in.Cluster)
			s.Read[in.Cluster] = slices.Sorted(maps.Keys(read))
		}
		if w == nil {
			s.Err[in.Cluster] = err
			continue
		}
		for _, d := range w.Packages {
			if p, ok := m.place(d.Ref.Tag); ok {
				s.Places[Declared{in.Cluster, d.Kind, d.Name}] = p
			}
		}
	}
	return s, nil
}

// marks has the files of a repository with a mark in place of every reference, and the
// places of the marks. It is not safe for concurrent use.
type marks struct {
	references []string
	files      map[string][]byte
	places     []Place
}

// mark is the prefix of tags that do not exist: using one is an error, and gives no other
// package.
const mark = "gitopsd-place-"

func (m *marks) place(tag string) (Place, bool) {
	n, ok := strings.CutPrefix(tag, mark)
	if !ok {
		return Place{}, false
	}
	i, err := strconv.Atoi(n)
	if err != nil || i < 0 || i >= len(m.places) {
		return Place{}, false
	}
	return m.places[i], true
}

// content returns a file with marks in place of its references.
func (m *marks) content(files fs.FS, name string) ([]byte, error) {
	if known, ok := m.files[name]; ok {
		return known, nil
	}
	content, err := fs.ReadFile(files, name)
	if err != nil {
		return nil, err
	}
	var edits []edit
	for _, p := range m.find(name, content) {
		repository, _ := cutVersion(p.Text)
		edits = append(edits, p.with(fmt.Sprintf("%s:%s%d", repository, mark, len(m.places))))
		m.places = append(m.places, p)
	}
	m.files[name] = splice(content, edits)
	return m.files[name], nil
}

// find returns the references in a file that are not part of longer ones.
func (m *marks) find(name string, content []byte) []Place {
	var found []Place
	for _, ref := range m.references {
		for at := 0; ; {
			i := bytes.Index(content[at:], []byte(ref))
			if i < 0 {
				break
			}
			start, end := at+i, at+i+len(ref)
			at = end
			if start > 0 && partOfReference(content[start-1]) || end < len(content) && partOfReference(content[end]) {
				continue
			}
			line := 1 + bytes.Count(content[:start], []byte("\n"))
			found = append(found, Place{File: name, Line: line, Offset: start, Text: ref})
		}
	}
	slices.SortFunc(found, func(a, b Place) int { return cmp.Compare(a.Offset, b.Offset) })
	return found
}

func partOfReference(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("._-/:@", c) >= 0
}

// cutVersion splits a reference, as written, before its tag or digest.
func cutVersion(ref string) (repository, version string) {
	end := len(ref)
	if i := strings.IndexByte(ref, '@'); i >= 0 {
		end = i
	}
	if i := strings.LastIndexByte(ref[:end], ':'); i > strings.LastIndexByte(ref[:end], '/') {
		end = i
	}
	return ref[:end], ref[end:]
}

// Version returns a reference as written, which may lack the registry, with the tag and
// digest of to.
func Version(written string, to sources.Ref) string {
	to.Repository, _ = cutVersion(written)
	return to.String()
}

// Apply returns the changed files, with the new text for the reference at each place. It
// fails if a file cannot be read, or has changed since the place was found.
func Apply(files fs.FS, changes map[Place]string) (map[string][]byte, error) {
	byFile := make(map[string][]Place)
	for p := range changes {
		byFile[p.File] = append(byFile[p.File], p)
	}
	changed := make(map[string][]byte)
	for _, name := range slices.Sorted(maps.Keys(byFile)) {
		content, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, err
		}
		var edits []edit
		for _, p := range byFile[name] {
			if p.Offset > len(content) || !bytes.HasPrefix(content[p.Offset:], []byte(p.Text)) {
				return nil, fmt.Errorf("%s: was changed meanwhile; try again", p)
			}
			edits = append(edits, p.with(changes[p]))
		}
		changed[name] = splice(content, edits)
	}
	return changed, nil
}
