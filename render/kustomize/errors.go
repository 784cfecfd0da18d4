package kustomize

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"sigs.k8s.io/kustomize/api/types"

	"gitopsd.dev/sources"
)

// field is a field of a kustomization or plugin, for errors.
type field struct {
	file    string
	content []byte
	name    string
}

func (f field) named(name string) field {
	f.name = name
	return f
}

// fault returns an error about a value of the field, with file and line.
func (f field) fault(value string, err error) error {
	return at(f.file, lineOf(f.content, value), err)
}

// placed is an error with its place.
type placed struct {
	file string
	line int
	err  error
}

func (p *placed) Error() string {
	if p.line == 0 {
		return p.file + ": " + p.err.Error()
	}
	return p.file + ":" + strconv.Itoa(p.line) + ": " + p.err.Error()
}

func (p *placed) Unwrap() error { return p.err }

func at(file string, line int, err error) error { return &placed{file: file, line: line, err: err} }

var atLine = regexp.MustCompile(`^line (\d+): `)

// yamlError turns "line 3: …" into "file:3: …".
func yamlError(file string, err error) error {
	m := atLine.FindStringSubmatch(err.Error())
	if m == nil {
		return at(file, 0, err)
	}
	line, _ := strconv.Atoi(m[1])
	return at(file, line, trimmed{err, m[0]})
}

// inline returns an error about YAML in a field rather than in a file.
func inline(err error) error {
	var p *placed
	switch {
	case !errors.As(err, &p):
		return fmt.Errorf(": %w", err)
	case p.line == 0:
		return fmt.Errorf(": %w", p.err)
	}
	return fmt.Errorf(", line %d: %w", p.line, p.err)
}

// trimmed is an error without the first part of its text.
type trimmed struct {
	error
	prefix string
}

func (t trimmed) Error() string { return strings.TrimPrefix(t.error.Error(), t.prefix) }
func (t trimmed) Unwrap() error { return t.error }

var unknownField = regexp.MustCompile(`unknown field "([^"]*)"`)

// decodeError returns an error for a field of a kustomization that is unknown or has
// another type.
func decodeError(file string, content []byte, err error) error {
	text := strings.TrimPrefix(err.Error(), "invalid Kustomization: ")
	if m := unknownField.FindStringSubmatch(text); m != nil {
		return at(file, lineOf(content, m[1]), fmt.Errorf("a kustomization has no field %q%s", m[1], sources.Meant(m[1], kustomizationFields())))
	}
	return at(file, 0, errors.New(strings.TrimPrefix(text, "json: ")))
}

// kustomizationFields returns the names of a kustomization's fields.
func kustomizationFields() []string {
	var names []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[types.Kustomization]()) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			names = append(names, name)
		}
	}
	return names
}

// lineOf returns the line of a scalar in a YAML file, for an error about it; 0 if it
// is not found.
func lineOf(content []byte, value string) int { return lines(content)[value] }

// lines returns the first line of each scalar in a YAML file.
func lines(content []byte) map[string]int {
	first := make(map[string]int)
	var n yaml.Node
	if yaml.Unmarshal(content, &n) != nil {
		return first
	}
	var walk func(n *yaml.Node)
	walk = func(n *yaml.Node) {
		if _, there := first[n.Value]; n.Kind == yaml.ScalarNode && !there {
			first[n.Value] = n.Line
		}
		for _, c := range n.Content {
			walk(c)
		}
	}
	walk(&n)
	return first
}

// explain rewrites an error of kustomize so that it names its subject once. Kustomize wraps
// an error at each directory, together with earlier attempts. The cause comes last.
func explain(dir string, err error, all []written) error {
	where, text := strip(dir, err.Error())
	if m := twice.FindStringSubmatch(text); m != nil {
		switch places := definitions(m[1], m[2], all); len(places) {
		case 0:
		case 1:
			return fmt.Errorf("%s: %s %s is defined more than once: by %s, which is used more than once", where, m[1], m[2], places[0])
		default:
			return fmt.Errorf("%s: %s %s is defined more than once: by %s; keep one definition", where, m[1], m[2], strings.Join(places, " and by "))
		}
	}
	return fmt.Errorf("%s: %s", where, reword(text))
}

// reword replaces kustomize's terms in an error by common ones.
func reword(text string) string {
	for _, r := range clearer {
		text = r.pattern.ReplaceAllString(text, r.text)
	}
	return text
}

// strip removes the prefixes of an error of kustomize, and returns the last path in them.
func strip(dir, text string) (where, rest string) {
	for {
		text = strings.TrimSpace(text)
		if m := wrapper.FindStringSubmatch(text); m != nil {
			if m[1] != "" {
				dir = rel(m[1])
			}
			text = text[len(m[0]):]
			continue
		}
		if m := quoting.FindStringSubmatch(text); m != nil {
			unquoted, err := strconv.Unquote(text[len(m[0])-1:])
			if err != nil {
				return dir, text
			}
			text = unquoted
			continue
		}
		first, ok := strings.CutPrefix(text, attempt)
		if !ok {
			return dir, text
		}
		// Kustomize then tried a file that it could not use as a directory.
		if i := strings.LastIndex(text, "': must build at directory"); i >= 0 {
			text = text[:i]
			text = text[strings.LastIndex(text, attempt)+len(attempt):]
			continue
		}
		m := second.FindStringIndex(first)
		if m == nil {
			return dir, text
		}
		text = first[m[0]+len("': "):]
	}
}

const attempt = "accumulation err='"

var (
	wrapper = regexp.MustCompile(`^(?:accumulating (?:resources|components): |(?:recursed accumulation of path|recursed merging from path|couldn't make target for path) '([^']*)': |(?:accumulating|merging) resources from '[^']*': |merging from generator &\{[^}]*\}: )`)
	quoting = regexp.MustCompile(`^(?:accumulateDirectory:|loader\.New) "`)
	second  = regexp.MustCompile(`': (?:recursed |couldn't )`)
	twice   = regexp.MustCompile(`already registered id: ([^./]+)\.[^/]*/([^/]+)\.[^./]+$`)
)

var clearer = []struct {
	pattern *regexp.Regexp
	text    string
}{
	{regexp.MustCompile(`resid\.ResId\{Gvk:resid\.Gvk\{Group:"([^"]*)", Version:"[^"]*", Kind:"([^"]*)", isClusterScoped:\w+\}, Name:"([^"]*)", Namespace:"[^"]*"\}`), `$2 $3`},
	{regexp.MustCompile(`\b([A-Za-z0-9]+)\.(?:v[a-z0-9]+|\[noVer\])\.(?:\[noGrp\]|[a-z0-9.-]+)/(\S+?)\.(?:\[noNs\]|[a-z0-9-]+)([:;,)"]|\s|$)`), `$1 $2$3`},
	{regexp.MustCompile(`^no (?:resource matches strategic merge patch "(.*?)".*|matches for Id (.*?); failed to find unique target.*)`), `a patch is for $1$2, which is not among the resources`},
	{regexp.MustCompile(`^may not add resource with an already registered id: (.*)`), `more than one object would be $1`},
	{regexp.MustCompile(`^multiple matches for Id (.*?); failed to find unique target.*`), `a patch is for $1, and several resources match`},
	{regexp.MustCompile(`^id (.*) does not exist; cannot merge or replace`), `a generator is to merge with or replace $1, which is not among the resources`},
}

// definitions returns the places where an object of a kind and name is written.
func definitions(kind, name string, all []written) []string {
	var places []string
	for _, w := range all {
		if w.id.Kind == kind && w.id.Name == name {
			places = append(places, w.origin.String())
		}
	}
	slices.Sort(places)
	return slices.Compact(places)
}
