package kustomize

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"sigs.k8s.io/yaml"

	fieldpath "gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// secrets are the values of Secrets in the input of a build. Errors of kustomize may quote its
// input anywhere. errors.go replaces those that are known to, and hide is the last line of
// defence. Values are collected when there is an error, not before.
type secrets struct {
	values map[string]bool
	// public are names of objects and files, one a line. Errors need these.
	public strings.Builder
	// secret reports whether there is a Secret or something that makes one.
	secret bool
	// spent counts the bytes of values and of YAML in strings. Aliases can repeat these.
	spent int
}

// maxSpent bounds the work for an error. Beyond it the whole error is withheld.
const maxSpent = 4 * maxBytes

// shortestHidden is the length of the shortest value that is searched for, in bytes: shorter
// ones are too often parts of other words.
const shortestHidden = 6

// spend counts bytes, and reports whether the limit allows them.
func (s *secrets) spend(n int) bool {
	s.spent = min(s.spent+n, maxSpent+1)
	return s.spent <= maxSpent
}

// hide returns an error of the build without values of Secrets.
func (in *inspection) hide(err error) error {
	var missing *MissingError
	if err == nil || errors.As(err, &missing) || errors.Is(err, sources.ErrLimit) {
		return err // these quote no values
	}
	s := new(secrets)
	for name, content := range in.given.files {
		switch in.sensitive[name] {
		case valueFile:
			s.add(string(content))
		case envFile:
			s.environment(content)
		default:
			s.documents(content)
		}
		s.publish(name)
	}
	s.secret = s.secret || len(in.sensitive) > 0
	for dir := range in.given.dirs {
		s.publish(dir)
	}
	for _, w := range in.written {
		s.publishID(w.id)
	}
	return s.hide(err)
}

// hide returns an error of patches for objects without values of Secrets.
func (p *Patches) hide(err error, objects []*manifest.Object) error {
	s := new(secrets)
	for _, o := range objects {
		s.collect(o.Tree())
		s.publishID(o.ID())
	}
	for _, c := range p.compiled {
		s.documents([]byte(c.patch.Patch))
	}
	return s.hide(err)
}

// The kinds of files that a generator of Secrets reads.
type sensitivity int

const (
	valueFile sensitivity = iota + 1
	envFile
)

func (s *secrets) publish(name string) { s.public.WriteString(name + "\n") }

func (s *secrets) publishID(id manifest.ID) {
	s.publish(id.Group)
	s.publish(id.Kind)
	s.publish(id.Namespace)
	s.publish(id.Name)
}

// add adds a value: as it is, in base64 and decoded, each line of it, and with the escapes of Go
// and JSON.
func (s *secrets) add(value string) {
	if !s.spend(len(value)) {
		return
	}
	if s.values == nil {
		s.values = make(map[string]bool)
	}
	forms := []string{value, base64.StdEncoding.EncodeToString([]byte(value))}
	if decoded, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(value), "")); err == nil && utf8.Valid(decoded) {
		forms = append(forms, string(decoded))
	}
	for _, form := range forms {
		for line := range strings.Lines(form) {
			if line = strings.TrimSpace(line); len(line) < shortestHidden {
				continue
			}
			s.values[line] = true
			quoted := strconv.Quote(line)
			s.values[quoted[1:len(quoted)-1]] = true
			if inJSON, err := json.Marshal(line); err == nil {
				s.values[string(inJSON[1:len(inJSON)-1])] = true
			}
		}
	}
}

// all adds every scalar in a value.
func (s *secrets) all(v any) {
	switch v := v.(type) {
	case nil, bool:
	case string:
		s.add(v)
	case map[string]any:
		for _, item := range v {
			s.all(item)
		}
	case []any:
		for _, item := range v {
			s.all(item)
		}
	default:
		s.add(fmt.Sprint(v))
	}
}

// environment adds the values of an env file. A line without a key may be a part of a value.
func (s *secrets) environment(content []byte) {
	for line := range strings.Lines(string(content)) {
		s.literal(line)
	}
}

// literal adds the value of a literal, which is key=value.
func (s *secrets) literal(text string) {
	text = strings.TrimSpace(text)
	s.add(text)
	if _, value, ok := strings.Cut(text, "="); ok {
		s.add(value)
		s.add(strings.Trim(value, `"'`))
	}
}

// documents collects values from YAML: documents, or a list of operations. It ignores what it
// cannot read: kustomize cannot either.
func (s *secrets) documents(content []byte) {
	if !s.spend(len(content)) {
		return
	}
	docs, err := sources.DecodeYAML(bytes.NewReader(content), sources.Limits{Documents: maxObjects + 1, Nodes: maxValues + 1, TotalNodes: maxValues + 1})
	for _, doc := range docs {
		s.collect(doc.Tree)
	}
	if err == nil || len(docs) > 0 || errors.Is(err, sources.ErrLimit) {
		return
	}
	if _, values := sources.CountYAML(content); values > sources.DefaultMaxSeparators {
		return
	}
	var list []any
	if yaml.Unmarshal(content, &list) == nil {
		s.collect(list)
	}
}

// collect collects values from objects, patches, operations and kustomizations.
func (s *secrets) collect(v any) {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			s.collect(item)
		}
	case map[string]any:
		if v["kind"] == "ConfigMapGenerator" {
			return
		}
		s.secret = s.secret || v["kind"] == manifest.Secret.Kind || v["kind"] == "SecretGenerator"
		for key, item := range v {
			s.field(v, key, item)
		}
	}
}

// field collects values from a field of a mapping. A patch may omit apiVersion and kind.
func (s *secrets) field(of map[string]any, key string, v any) {
	name := strings.ToLower(key) // kustomize ignores case in its own types
	s.secret = s.secret || name == "secretgenerator" || name == "stringdata"
	switch {
	case fieldpath.Hides(of, key), name == "stringdata", name == "data" && manifest.Text(of, "kind") == "":
		s.all(v)
		if text, ok := v.(string); ok {
			s.documents([]byte(text)) // the last applied configuration
		}
	case name == "configmapgenerator":
	case name == "literals":
		list, _ := v.([]any)
		for _, item := range list {
			if text, ok := item.(string); ok {
				s.literal(text)
			} else {
				s.all(item)
			}
		}
	case name == "sourcevalue", name == "value" && of["op"] != nil && sensitivePath(manifest.Text(of, "path")):
		s.all(v)
	case slices.Contains([]string{"patch", "jsonop", "patches", "patchesstrategicmerge", "paths", "generators", "transformers", "validators"}, name):
		s.inline(v)
		s.collect(v)
	default:
		s.collect(v)
	}
}

// inline collects values from YAML in a string, or in the strings of a list.
func (s *secrets) inline(v any) {
	switch v := v.(type) {
	case string:
		s.documents([]byte(v))
	case []any:
		for _, item := range v {
			if text, ok := item.(string); ok {
				s.documents([]byte(text))
			}
		}
	}
}

// sensitivePath reports whether the field that a JSON 6902 operation sets may be a value of a
// Secret.
func sensitivePath(path string) bool {
	first := pointer(path)
	switch first[0] {
	case "apiVersion", "kind", "type", "immutable":
		return false
	case "metadata":
		return unescaped.Replace(first[len(first)-1]) == fieldpath.LastApplied
	}
	return true
}

// hide replaces the values in an error by "(hidden)". Errors that were joined stay so.
func (s *secrets) hide(err error) error {
	switch {
	case err == nil || !s.secret:
		return err
	case s.spent > maxSpent:
		return &withheld{text: "the input is wrong; the error is withheld, since it may quote one of many values of Secrets", err: err}
	}
	return without(s.in(err.Error()), err)
}

// in returns the values in a text. There may be many values, so it looks for their beginnings
// first.
func (s *secrets) in(text string) []string {
	begins := make(map[string]bool)
	for i := range len(text) - shortestHidden + 1 {
		begins[text[i:i+shortestHidden]] = true
	}
	var found []string
	public := s.public.String()
	for value := range s.values {
		if begins[value[:shortestHidden]] && strings.Contains(text, value) && !strings.Contains(public, value) {
			found = append(found, value)
		}
	}
	return found
}

func without(values []string, err error) error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok && errors.Join(joined.Unwrap()...).Error() == err.Error() {
		var all []error
		for _, e := range joined.Unwrap() {
			all = append(all, without(values, e))
		}
		return errors.Join(all...)
	}
	text := err.Error()
	if clean := replaced(values, text); clean != text {
		return &withheld{text: clean, err: err}
	}
	return err
}

// replaced replaces values, which may overlap, in a text.
func replaced(values []string, text string) string {
	secret := make([]bool, len(text))
	for _, value := range values {
		for from := 0; ; from++ {
			i := strings.Index(text[from:], value)
			if i < 0 {
				break
			}
			from += i
			for j := range len(value) {
				secret[from+j] = true
			}
		}
	}
	var b strings.Builder
	for i := range len(text) {
		switch {
		case !secret[i]:
			b.WriteByte(text[i])
		case i == 0 || !secret[i-1]:
			b.WriteString("(hidden)")
		}
	}
	return b.String()
}

// withheld is an error with another text. It does not unwrap, so that nobody prints the error
// that it replaces.
type withheld struct {
	text string
	err  error
}

func (w *withheld) Error() string { return w.text }

// Is reports whether the replaced error is target.
func (w *withheld) Is(target error) bool { return errors.Is(w.err, target) }
