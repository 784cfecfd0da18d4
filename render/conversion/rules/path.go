package rules

import (
	"fmt"
	"strconv"
	"strings"

	"gitopsd.dev/render/field"
)

// Path is a path in a rule: "self.spec.names[0]", "spec.colors[i].name". A path to read
// may start with the name of a variable.
type Path []Step

// Step is one step of a [Path]: a field or key, an element, or every element.
type Step struct {
	Key string
	// Index is the element's index if Element is set.
	Index   int
	Element bool
	// Each is set for [], [*] and [name]: all elements of a list, or all values of a
	// map. Key is then the name, "i" or "key".
	Each bool
}

// Keys returns the path of fields with these names, each in the one before.
func Keys(names []string) Path {
	var p Path
	for _, name := range names {
		p = append(p, Step{Key: name})
	}
	return p
}

// String writes the path as [ParsePath] reads it.
func (p Path) String() string {
	text := ""
	for _, s := range p {
		switch {
		case s.Each:
			text += "[" + s.Key + "]"
		case s.Element:
			text = field.Join(text, field.Index(s.Index))
		default:
			text = field.Join(text, field.Key(s.Key))
		}
	}
	return text
}

// maxSteps limits the length of a path. The time to compile rules for elements of
// elements grows faster than their depth.
const maxSteps = 64

// ParsePath parses a path. A leading dot is ignored. A name has letters, digits, '_',
// '$' and '-'; others are quoted: spec."a.b", spec.`a.b` or spec["a.b"].
func ParsePath(text string) (Path, error) {
	rest := strings.TrimPrefix(strings.TrimSpace(text), ".")
	if rest == "" {
		return nil, fmt.Errorf("%q names no field", text)
	}
	var p Path
	for first := true; rest != ""; first = false {
		var s Step
		var ok bool
		switch {
		case rest[0] == '[':
			s, rest, ok = bracket(rest[1:])
		case first:
			s, rest, ok = name(rest)
		case rest[0] == '.' && len(rest) > 1:
			s, rest, ok = name(rest[1:])
		}
		if !ok {
			return nil, fmt.Errorf(`%q is not a path; paths look like spec.names[0], spec.colors[].name or metadata.labels["a.b/c"]`, text)
		}
		if p = append(p, s); len(p) > maxSteps {
			return nil, fmt.Errorf("%.40q… is a path of more than %d steps", text, maxSteps)
		}
	}
	return p, nil
}

func name(text string) (s Step, rest string, ok bool) {
	if strings.ContainsRune("\"'`", rune(text[0])) {
		s.Key, rest, ok = quoted(text)
		return s, rest, ok
	}
	n := 0
	for n < len(text) && inName(text[n]) {
		n++
	}
	return Step{Key: text[:n]}, text[n:], n > 0
}

func inName(c byte) bool {
	return c == '_' || c == '$' || c == '-' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// bracket parses a step in brackets, after the opening one.
func bracket(text string) (s Step, rest string, ok bool) {
	if text != "" && (text[0] == '"' || text[0] == '\'') {
		s.Key, rest, ok = quoted(text)
		rest, closed := strings.CutPrefix(rest, "]")
		return s, rest, ok && closed
	}
	inside, rest, ok := strings.Cut(text, "]")
	if !ok {
		return s, "", false
	}
	if inside == "" || inside == "*" {
		return Step{Each: true}, rest, true
	}
	if n, err := strconv.ParseUint(inside, 10, 31); err == nil {
		return Step{Index: int(n), Element: true}, rest, true
	}
	for i := range len(inside) {
		if !inName(inside[i]) || i == 0 && (inside[i] <= '9' || inside[i] == '-') {
			return s, "", false
		}
	}
	return Step{Key: inside, Each: true}, rest, true
}

// quoted parses a quoted text: "…" with Go's escapes, and '…' and `…` without any.
func quoted(text string) (value, rest string, ok bool) {
	if text[0] == '"' {
		prefix, err := strconv.QuotedPrefix(text)
		if err != nil {
			return "", "", false
		}
		value, err = strconv.Unquote(prefix)
		return value, text[len(prefix):], err == nil
	}
	return strings.Cut(text[1:], text[:1])
}
