// Package exact reads and writes JSON without changing numbers, and compares values.
//
// Integers that fit into an int64 are int64. Any other number is a [json.Number] with its
// original text, so that 1.50, 1e3 and 9223372036854775808 are written as they were read.
//
// exact.go has the functions on values; tape.go has [Tape], which finds values in a text
// without decoding it.
package exact

import (
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"strconv"
	"sync"
	"unicode/utf8"
)

// maxDepth is the maximum nesting of a value, as for encoding/json and API servers, which
// store objects with 10,000 levels.
const maxDepth = 9_999

// Decode reads one JSON value. Text after it is an error.
func Decode(data []byte) (any, error) {
	t := tapes.Get().(*Tape)
	defer t.release()
	if t.Scan(data) == nil {
		return t.Value(0), nil
	}
	return decode(data)
}

// tapes are the tapes of Decode. Large ones are left to the garbage collector.
var tapes = sync.Pool{New: func() any { return new(Tape) }}

func (t *Tape) release() {
	t.Text = nil
	if cap(t.Nodes) <= 1<<14 {
		tapes.Put(t)
	}
}

// decode is Decode with encoding/json. It returns the errors of encoding/json, and reads
// values that a [Tape] refuses.
func decode(data []byte) (any, error) {
	if !utf8.Valid(data) {
		return nil, errNotUTF8
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errTrailing
	}
	return numbered(v, 0)
}

// numbered replaces numbers by int64 if that has the same text.
func numbered(v any, depth int) (any, error) {
	if depth > maxDepth {
		return nil, errTooDeep
	}
	var err error
	switch v := v.(type) {
	case json.Number:
		return Number(v), nil
	case map[string]any:
		for k, child := range v {
			if v[k], err = numbered(child, depth+1); err != nil {
				return nil, err
			}
		}
	case []any:
		for i, child := range v {
			if v[i], err = numbered(child, depth+1); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}

// Number returns a number in the package's form: an int64 if that has the same text.
func Number(n json.Number) any {
	if i, err := strconv.ParseInt(string(n), 10, 64); err == nil && strconv.FormatInt(i, 10) == string(n) {
		return i
	}
	return n
}

// Float returns a float64 in the package's form, with the shortest exact text; false if
// JSON cannot represent it.
func Float(f float64) (any, bool) {
	text, err := json.Marshal(f)
	if err != nil {
		return nil, false
	}
	return Number(json.Number(text)), true
}

// Encode returns the JSON of a value: keys sorted, no white space, no HTML escapes. It
// accepts the values that Decode returns, and float64.
func Encode(v any) ([]byte, error) { return Append(nil, v) }

// Append appends the JSON of a value, as [Encode] returns it. After an error the text is not
// JSON.
func Append(text []byte, v any) ([]byte, error) {
	var err error
	switch v := v.(type) {
	case nil:
		return append(text, "null"...), nil
	case bool:
		return strconv.AppendBool(text, v), nil
	case int64:
		return strconv.AppendInt(text, v, 10), nil
	case string:
		return appendText(text, v)
	case map[string]any:
		if v == nil {
			return append(text, "null"...), nil
		}
		var few [16]string
		names := few[:0]
		for name := range v {
			names = append(names, name)
		}
		slices.Sort(names)
		text = append(text, '{')
		for i, name := range names {
			if i > 0 {
				text = append(text, ',')
			}
			if text, err = appendText(text, name); err != nil {
				return text, err
			}
			if text, err = Append(append(text, ':'), v[name]); err != nil {
				return text, err
			}
		}
		return append(text, '}'), nil
	case []any:
		if v == nil {
			return append(text, "null"...), nil
		}
		text = append(text, '[')
		for i, item := range v {
			if i > 0 {
				text = append(text, ',')
			}
			if text, err = Append(text, item); err != nil {
				return text, err
			}
		}
		return append(text, ']'), nil
	}
	return appendAny(text, v)
}

func appendText(text []byte, s string) ([]byte, error) {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			return appendAny(text, s)
		}
	}
	text = append(text, '"')
	text = append(text, s...)
	return append(text, '"'), nil
}

func appendAny(text []byte, v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return text, err
	}
	return append(text, bytes.TrimSuffix(b.Bytes(), []byte("\n"))...), nil
}

// Equal reports whether two values are the same. Numbers are compared by their text.
func Equal(a, b any) bool {
	switch a := plain(a).(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for k, v := range a {
			other, ok := b[k]
			if !ok || !Equal(v, other) {
				return false
			}
		}
		return true
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, Equal)
	default:
		switch b := plain(b).(type) {
		case map[string]any, []any:
			return false
		default:
			return a == b
		}
	}
}

func plain(v any) any {
	if f, ok := v.(float64); ok {
		if n, ok := Float(f); ok {
			return n
		}
	}
	return v
}

// Clone copies a value.
func Clone[T any](v T) T {
	switch tree := any(v).(type) {
	case map[string]any:
		out := make(map[string]any, len(tree))
		for k, value := range tree {
			out[k] = Clone(value)
		}
		return any(out).(T)
	case []any:
		out := make([]any, len(tree))
		for i, value := range tree {
			out[i] = Clone(value)
		}
		return any(out).(T)
	}
	return v
}
