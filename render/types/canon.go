package types

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strconv"

	"gitopsd.dev/render/field"
)

// canon appends canonical JSON to a buffer: no spaces, the keys of objects sorted by
// their bytes, only U+007F and the characters escaped that JSON requires, and numbers as
// integer and float write them. Its buffers are reused between documents, so that writing
// a type allocates almost nothing.
type canon struct {
	buf []byte
	// keys is a stack of the sorted keys of each object being written.
	keys []string
	// ends is a stack of the ends of the elements of each set being written.
	ends []int
}

// fieldError is an error about the value at a path. The path is built while the error is
// returned, so that success costs nothing.
type fieldError struct {
	path field.Path // outermost last
	what string
}

func (e *fieldError) Error() string {
	path := slices.Clone(e.path)
	slices.Reverse(path)
	return path.String() + ": " + e.what
}

// at adds a key to an error's path.
func at(key string, err error) error {
	if e, ok := err.(*fieldError); ok {
		e.path = append(e.path, field.Key(key))
	}
	return err
}

// atIndex adds the index of a list's element to an error's path.
func atIndex(i int, err error) error {
	if e, ok := err.(*fieldError); ok {
		e.path = append(e.path, field.Index(i))
	}
	return err
}

func want(what string, have any) error {
	return &fieldError{what: "want " + what + ", have " + describe(have)}
}

func describe(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case map[string]any:
		return "a mapping"
	case []any:
		return "a list"
	case string:
		return "a string"
	case bool:
		return "a boolean"
	case int64, float64:
		return "a number"
	}
	return fmt.Sprintf("a %T", v)
}

// sortedKeys pushes an object's keys, sorted, and returns their range in c.keys. When
// the caller is done, it truncates c.keys to from.
func (c *canon) sortedKeys(m map[string]any) (from, to int) {
	from = len(c.keys)
	for k := range m {
		c.keys = append(c.keys, k)
	}
	slices.Sort(c.keys[from:])
	return from, len(c.keys)
}

// key writes an object's key, and the comma or brace before it. closeObject writes the
// brace of an empty object.
func (c *canon) key(start int, k string) {
	c.buf = append(c.buf, "{,"[min(1, len(c.buf)-start)])
	c.str(k)
	c.buf = append(c.buf, ':')
}

func (c *canon) closeObject(start int) {
	if len(c.buf) == start {
		c.buf = append(c.buf, '{')
	}
	c.buf = append(c.buf, '}')
}

// data writes a whole JSON value, with the keys of objects sorted.
func (c *canon) data(v any) error {
	switch v := v.(type) {
	case nil:
		c.buf = append(c.buf, "null"...)
	case bool:
		c.buf = strconv.AppendBool(c.buf, v)
	case string:
		c.str(v)
	case int64:
		c.integer(v)
	case float64:
		return c.float(v)
	case []any:
		c.buf = append(c.buf, '[')
		for i, item := range v {
			if i > 0 {
				c.buf = append(c.buf, ',')
			}
			if err := c.data(item); err != nil {
				return atIndex(i, err)
			}
		}
		c.buf = append(c.buf, ']')
	case map[string]any:
		start := len(c.buf)
		from, to := c.sortedKeys(v)
		for i := from; i < to; i++ {
			k := c.keys[i]
			c.key(start, k)
			if err := c.data(v[k]); err != nil {
				return at(k, err)
			}
		}
		c.keys = c.keys[:from]
		c.closeObject(start)
	default:
		return want("a value of JSON", v)
	}
	return nil
}

const hexDigits = "0123456789abcdef"

func (c *canon) str(s string) {
	c.buf = append(c.buf, '"')
	from := 0
	for i := 0; i < len(s); i++ {
		b := s[i]
		if b >= ' ' && b != '"' && b != '\\' && b != 0x7f {
			continue
		}
		c.buf = append(c.buf, s[from:i]...)
		from = i + 1
		switch b {
		case '"', '\\':
			c.buf = append(c.buf, '\\', b)
		case '\b':
			c.buf = append(c.buf, `\b`...)
		case '\f':
			c.buf = append(c.buf, `\f`...)
		case '\n':
			c.buf = append(c.buf, `\n`...)
		case '\r':
			c.buf = append(c.buf, `\r`...)
		case '\t':
			c.buf = append(c.buf, `\t`...)
		default:
			c.buf = append(c.buf, '\\', 'u', '0', '0', hexDigits[b>>4], hexDigits[b&15])
		}
	}
	c.buf = append(c.buf, s[from:]...)
	c.buf = append(c.buf, '"')
}

// Numbers are the decimal digits without zeros at the end, then "e" and a power of
// ten unless that is zero: 63, 1e2, 5e-1. Any notation of a number can be brought to
// this form without arithmetic, and the same number has one form as int64 and as
// float64, as in the API server.

func (c *canon) integer(i int64) {
	start := len(c.buf)
	c.buf = strconv.AppendInt(c.buf, i, 10)
	c.trimZeros(start, 0)
}

func (c *canon) float(f float64) error {
	if math.IsInf(f, 0) || math.IsNaN(f) {
		return &fieldError{what: "want a number that JSON can hold, have " + strconv.FormatFloat(f, 'g', -1, 64)}
	}
	if f == 0 {
		c.buf = append(c.buf, '0') // minus zero, too
		return nil
	}
	// d.ddde±xx with the fewest digits that identify f.
	text := strconv.AppendFloat(make([]byte, 0, 32), f, 'e', -1, 64)
	digits, power, _ := bytes.Cut(text, []byte{'e'})
	exp, err := strconv.Atoi(string(power))
	if err != nil {
		return &fieldError{what: err.Error()}
	}
	start := len(c.buf)
	whole, fraction, _ := bytes.Cut(digits, []byte{'.'})
	c.buf = append(append(c.buf, whole...), fraction...)
	c.trimZeros(start, exp-len(fraction))
	return nil
}

// trimZeros removes the zeros at the end of the digits after start, all but the first
// digit, and writes the resulting power of ten unless it is zero.
func (c *canon) trimZeros(start, exp int) {
	for end := len(c.buf); end > start+1 && c.buf[end-1] == '0'; end-- {
		c.buf = c.buf[:end-1]
		exp++
	}
	if exp != 0 {
		c.buf = strconv.AppendInt(append(c.buf, 'e'), int64(exp), 10)
	}
}

// set writes a list whose order has no meaning, sorted by the canonical form of its
// elements. If unique is set, equal elements are written once.
func (c *canon) set(list []any, unique bool, element func(*canon, any) error) error {
	c.buf = append(c.buf, '[')
	start, from := len(c.buf), len(c.ends)
	for i, item := range list {
		if err := element(c, item); err != nil {
			return atIndex(i, err)
		}
		c.ends = append(c.ends, len(c.buf))
	}
	ends := c.ends[from:]
	c.ends = c.ends[:from]
	if len(ends) > 1 {
		c.sortElements(start, ends, unique)
	}
	c.buf = append(c.buf, ']')
	return nil
}

func (c *canon) sortElements(start int, ends []int, unique bool) {
	text := bytes.Clone(c.buf[start:])
	elements := make([][]byte, len(ends))
	from := 0
	for i, end := range ends {
		elements[i] = text[from : end-start]
		from = end - start
	}
	slices.SortFunc(elements, bytes.Compare)
	if unique {
		elements = slices.CompactFunc(elements, bytes.Equal)
	}
	c.buf = c.buf[:start]
	for i, e := range elements {
		if i > 0 {
			c.buf = append(c.buf, ',')
		}
		c.buf = append(c.buf, e...)
	}
}
