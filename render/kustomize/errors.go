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
	text = wrongKind.ReplaceAllStringFunc(text, func(text string) string {
		kinds := wrongKind.FindStringSubmatch(text)
		return "want " + nodeKinds[kinds[1]] + ", have " + nodeKinds[kinds[2]]
	})
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

// wrongKind is kustomize's error for a value of the wrong kind; nodeKinds are common words for
// its kinds.
var (
	wrongKind = regexp.MustCompile(`(?s)wrong node kind: expected (\w+) but got (\w+): node contents:.*`)
	nodeKinds = map[string]string{"MappingNode": "a mapping", "SequenceNode": "a list", "ScalarNode": "a scalar", "AliasNode": "an alias", "DocumentNode": "a document"}
)

// neither is the text for a patch that is neither kind.
const neither = "is neither a list of JSON 6902 operations nor a strategic merge patch, which has a kind and metadata.name"

// clearer are patterns of kustomize's errors, and what replaces them. The first ones quote the
// input, which may be a Secret: their texts say the same without it.
var clearer = []struct {
	pattern *regexp.Regexp
	text    string
}{
	{regexp.MustCompile(`(?s)^trouble configuring builtin (\w+) with config: .*?\n` + "`" + `: `), `$1: `},
	{regexp.MustCompile(`^want an? `), `a patch or another entry does not fit its object: want a `},
	{regexp.MustCompile(`(?s)(options\.index -?\d+ is out of bounds) for value .*`), `$1: the value has fewer parts`},
	{regexp.MustCompile(`unable to parse SM or JSON patch from \[path: "([^"]*)"\]`), `$1 ` + neither},
	{regexp.MustCompile(`(?s)unable to parse SM or JSON patch from \[patch: .*`), `the patch ` + neither},
	{regexp.MustCompile(`(?s)illegally qualifies as both an SM and JSON patch: .*`), `the patch may be a list of JSON 6902 operations and a strategic merge patch; write one`},
	{regexp.MustCompile("(?s)Multiple Strategic-Merge Patches in one `patches` entry is not allowed to set `patches.target` field: .*"), `a strategic merge patch with a target is one document; write several patches`},
	{regexp.MustCompile(`(?s)must specify a target for (?:JSON )?patch .*`), `a list of JSON 6902 operations needs a target`},
	{regexp.MustCompile(`(?s)must specify one of patch and path in\n.*`), `a patch has neither patch nor path; write one`},
	{regexp.MustCompile(`(?s)patch and path can't be set at the same time\n.*`), `a patch has both patch and path; keep one`},
	{regexp.MustCompile(`(?s)patch appears to be empty; .*`), `the patch is empty`},
	{regexp.MustCompile(`(?s)decoding .*: (invalid character .*|unexpected end of JSON input|json: .*)`), `jsonOp is not a list of JSON 6902 operations: $1`},
	{regexp.MustCompile(`(?s)no implemented strategic merge patch strategy for '([^']*)' .*`), `a value of type $1 cannot be merged; want a mapping or a list`},
	{regexp.MustCompile(`(?s)unknown patch strategy '.*'`), `unknown patch strategy; $$patch is delete, merge or replace`},
	{regexp.MustCompile(`(?s)(?:literal sources \[.*\]: )?invalid literal source .*, expected key=value`), `a literal is not key=value`},
	{regexp.MustCompile(`(?s)line \[[\d ]*\] has invalid utf8 bytes : .*`), `a line is not valid UTF-8`},
	{regexp.MustCompile("configmap (.*) illegally repeats the key `.*`"), `the generator of $1 has a key twice`},
	{regexp.MustCompile(`(?s)missing (kind|metadata\.name) in object .*`), `$1 is missing`},
	{regexp.MustCompile(`(?s)validator shouldn't modify the resource map: .*`), `a validator changes objects; name it under transformers`},
	{regexp.MustCompile(`(?s)namespace transformation produces ID conflict: .*`), `in the namespace, several objects would have the same kind and name; rename one`},
	{regexp.MustCompile(`(?s)found multiple possible referrals: ([^\n]*)\n.*`), `a reference may mean any of $1`},
	{regexp.MustCompile(`(?s)found multiple objects .* that could accept merge of `), `several objects could be merged with `},
	{regexp.MustCompile(`(?s)(roleRef|apiGroup|kind) cannot be found in .*`), `roleRef, or a field of it, is missing`},
	{regexp.MustCompile(`(?s)received error (.*) for the following resource:\n.*`), `$1`},
	{regexp.MustCompile(`(?s)empty item at (\S+) in object .*`), `an item is empty at $1`},
	{regexp.MustCompile(`(?s)node (\S+) is not a string: .*`), `$1 is not a string`},
	{regexp.MustCompile(`(?s)yaml MappingNodes must have even length contents: .*`), `a mapping is malformed`},
	{regexp.MustCompile(`(?s)anchor ".*" defined using alias .*`), `an anchor is defined by an alias`},
	{regexp.MustCompile("(?s)cannot unmarshal (!!\\w+) `.*?` into"), `cannot unmarshal $1 into`},
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
