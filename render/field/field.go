// Package field has the paths of fields of objects, as plans and errors print them and
// `gitopsd why` reads them.
//
//	spec.template.spec.containers[name=web].image
//	metadata.labels["a.b/c"]
//	spec.versions[0].schema
//	metadata.finalizers[=acme.example/wait]
//
// A key of a mapping follows a dot, or is quoted in brackets if it has characters
// other than letters, digits, '_', '$' and '-'. An element of a list is identified by its
// index, by some of its fields, or by its value.
//
// A path of a schema may also go through every element of a list or every value of a
// mapping:
//
//	spec.template.spec.containers[*].image
//	spec.selector{*}
//
// hidden.go says which fields must not be shown.
package field

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Path leads from an object to a field; the empty Path is the whole object.
type Path []Step

// Step is one step down: into a mapping by Key, or into a list by Match, or by Index
// if Match is nil. In a path of a schema it may also be Every.
type Step struct {
	Key   string
	List  bool
	Index int
	Match []Pair
	// Every stands for all elements of a list, or without List for all values of a
	// mapping. [Step.In] finds nothing for such a step.
	Every bool
}

// Pair is a field of a list's element and its value as text. The empty Field is the
// element itself.
type Pair struct{ Field, Value string }

// Key returns the step to the value of a mapping's key.
func Key(key string) Step { return Step{Key: key} }

// Index returns the step to an element of a list, counted from 0.
func Index(i int) Step { return Step{List: true, Index: i} }

// Element returns the step to the element of a list with the given fields.
func Element(match ...Pair) Step { return Step{List: true, Match: match} }

// The steps of a path of a schema.
const (
	everyElement = "[*]"
	everyValue   = "{*}"
)

// Parse parses a path. A leading dot is ignored.
func Parse(text string) (Path, error) { return parse(text, parseStep) }

// ParseSchema parses a path of a schema, with "[*]" for every element of a list and
// "{*}" for every value of a mapping. A leading dot is ignored.
func ParseSchema(text string) (Path, error) {
	return parse(text, func(text string) (Step, string, error) {
		if rest, ok := strings.CutPrefix(text, everyElement); ok {
			return Step{List: true, Every: true}, rest, nil
		}
		if rest, ok := strings.CutPrefix(text, everyValue); ok {
			return Step{Every: true}, rest, nil
		}
		if n := strings.Index(text, everyValue); n > 0 && text[0] != '[' && !strings.ContainsAny(text[:n], ".[") {
			return Key(text[:n]), text[n:], nil
		}
		return parseStep(text)
	})
}

func parse(text string, parseStep func(text string) (s Step, rest string, err error)) (Path, error) {
	var p Path
	rest := strings.TrimPrefix(text, ".")
	if rest == "" {
		return nil, fmt.Errorf("%q names no field", text)
	}
	for rest != "" {
		step, after, err := parseStep(rest)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", text, err)
		}
		p = append(p, step)
		if rest = after; strings.HasPrefix(rest, ".") {
			if rest = rest[1:]; rest == "" {
				return nil, fmt.Errorf("%q: ends in a dot", text)
			}
		}
	}
	return p, nil
}

func parseStep(text string) (s Step, rest string, err error) {
	switch {
	case strings.HasPrefix(text, `["`):
		key, rest, ok := quoted(text[1:])
		if !ok || !strings.HasPrefix(rest, "]") {
			return s, "", fmt.Errorf(`want ["key"] at %q`, text)
		}
		return Key(key), rest[1:], nil
	case text[0] == '[':
		s, rest, ok := parseElement(text[1:])
		if !ok {
			return s, "", fmt.Errorf(`want [index], [name=value] or ["key"] at %q`, text)
		}
		return s, rest, nil
	}
	n := strings.IndexAny(text, ".[")
	switch n {
	case 0:
		return s, "", fmt.Errorf("a name is missing before %q", text)
	case -1:
		n = len(text)
	}
	return Key(text[:n]), text[n:], nil
}

// parseElement parses the text between brackets and the closing one.
func parseElement(text string) (s Step, rest string, ok bool) {
	if inside, after, ok := strings.Cut(text, "]"); ok {
		if n, err := strconv.Atoi(inside); err == nil && n >= 0 {
			return Index(n), after, true
		}
	}
	for {
		name, after, ok := strings.Cut(text, "=")
		if !ok || name != "" && !plain.MatchString(name) {
			return s, "", false
		}
		pair := Pair{Field: name}
		if strings.HasPrefix(after, `"`) {
			pair.Value, rest, ok = quoted(after)
		} else {
			n := strings.IndexAny(after, ",]")
			if ok = n >= 0; ok {
				pair.Value, rest = after[:n], after[n:]
			}
		}
		if !ok || rest == "" {
			return s, "", false
		}
		s.List, s.Match = true, append(s.Match, pair)
		switch text = rest[1:]; rest[0] {
		case ']':
			return s, text, true
		case ',':
		default:
			return s, "", false
		}
	}
}

func quoted(text string) (value, rest string, ok bool) {
	prefix, err := strconv.QuotedPrefix(text)
	if err != nil || prefix[0] != '"' {
		return "", "", false
	}
	value, err = strconv.Unquote(prefix)
	return value, text[len(prefix):], err == nil
}

// plain matches a key that needs no quotes.
var plain = regexp.MustCompile(`^[A-Za-z_$][A-Za-z0-9_$-]*$`)

// String returns the path in the form that [Parse] reads.
func (p Path) String() string {
	text := ""
	for _, s := range p {
		text = Join(text, s)
	}
	return text
}

// Join returns the text of a path with one more step.
func Join(path string, s Step) string {
	text := s.String()
	if path == "" {
		return strings.TrimPrefix(text, ".")
	}
	return path + text
}

// String returns the step as it follows another: ".image", ["a.b/c"], [0] or
// [name=web].
func (s Step) String() string {
	switch {
	case s.Every && s.List:
		return everyElement
	case s.Every:
		return everyValue
	case s.Match != nil:
		pairs := make([]string, len(s.Match))
		for i, m := range s.Match {
			value := m.Value
			if strings.ContainsAny(value, "\",]\n") {
				value = strconv.Quote(value)
			}
			pairs[i] = m.Field + "=" + value
		}
		return "[" + strings.Join(pairs, ",") + "]"
	case s.List:
		return "[" + strconv.Itoa(s.Index) + "]"
	case plain.MatchString(s.Key):
		return "." + s.Key
	}
	return "[" + strconv.Quote(s.Key) + "]"
}

// In returns the value that the step leads to.
func (s Step) In(v any) (child any, ok bool) {
	if s.Every {
		return nil, false
	}
	if !s.List {
		m, _ := v.(map[string]any)
		child, ok = m[s.Key]
		return child, ok
	}
	list, _ := v.([]any)
	i := s.Index
	if s.Match != nil {
		i = slices.IndexFunc(list, s.fits)
	}
	if i < 0 || i >= len(list) {
		return nil, false
	}
	return list[i], true
}

func (s Step) fits(element any) bool {
	m, _ := element.(map[string]any)
	return !slices.ContainsFunc(s.Match, func(p Pair) bool {
		v, ok := element, p.Field == ""
		if !ok {
			v, ok = m[p.Field]
		}
		if text, is := v.(string); is {
			return text != p.Value
		}
		return !ok || fmt.Sprint(v) != p.Value
	})
}

// In returns the value of the field in a decoded object.
func (p Path) In(tree any) (v any, ok bool) {
	for _, s := range p {
		if tree, ok = s.In(tree); !ok {
			return nil, false
		}
	}
	return tree, true
}
