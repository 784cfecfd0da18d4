// Package exact reads and writes JSON without changing a number, and compares what it
// read.
//
// Integers that an int64 holds are int64. Any other number is a [json.Number] with its
// own text, so that 1.50, 1e3 and 9223372036854775808 are written as they were read.
package exact

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strconv"
	"unicode/utf8"
)

// maxDepth is how deep a value may be nested, as for objects of the API server.
const maxDepth = 500

// Decode reads one JSON value. Text behind it is an error.
func Decode(data []byte) (any, error) {
	if !utf8.Valid(data) {
		return nil, errors.New("the text is not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("there is text behind the JSON value")
	}
	return numbered(v, 0)
}

// numbered replaces numbers by int64 where these have the same text.
func numbered(v any, depth int) (any, error) {
	if depth > maxDepth {
		return nil, errors.New("the value is nested too deep")
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

// Number returns a number as this package holds it.
func Number(n json.Number) any {
	if i, err := strconv.ParseInt(string(n), 10, 64); err == nil && strconv.FormatInt(i, 10) == string(n) {
		return i
	}
	return n
}

// Float returns a float64 as this package holds it, with the shortest text that
// means it; false if JSON has none.
func Float(f float64) (any, bool) {
	text, err := json.Marshal(f)
	if err != nil {
		return nil, false
	}
	return Number(json.Number(text)), true
}

// Encode writes a value as JSON: keys sorted, no white space, no escapes for HTML. It
// takes what Decode returns, and float64.
func Encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
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
