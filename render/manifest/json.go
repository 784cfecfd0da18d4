package manifest

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"
)

// AppendJSON appends the object's canonical JSON to dst: keys sorted bytewise, no
// white space, no HTML escapes, exact integers, floats as encoding/json writes them.
// Equal objects have equal bytes, in every process.
func (o *Object) AppendJSON(dst []byte) []byte { return AppendJSON(dst, o.tree) }

// AppendJSON appends the canonical JSON of a value to dst. The value has the types
// that [sources.DecodeYAML] returns; AppendJSON panics on others.
func AppendJSON(dst []byte, value any) []byte {
	e := encoder{dst: dst}
	e.value(value)
	return e.dst
}

type encoder struct {
	dst []byte
	// keys is a stack of the keys of each mapping being written.
	keys []string
}

func (e *encoder) value(v any) {
	switch v := v.(type) {
	case string:
		e.dst = appendString(e.dst, v)
	case map[string]any:
		e.mapping(v)
	case []any:
		if v == nil {
			e.dst = append(e.dst, "null"...)
			return
		}
		e.dst = append(e.dst, '[')
		for i, item := range v {
			if i > 0 {
				e.dst = append(e.dst, ',')
			}
			e.value(item)
		}
		e.dst = append(e.dst, ']')
	case bool:
		e.dst = strconv.AppendBool(e.dst, v)
	case int64:
		e.dst = strconv.AppendInt(e.dst, v, 10)
	case float64:
		e.dst = appendFloat(e.dst, v)
	case nil:
		e.dst = append(e.dst, "null"...)
	default:
		panic(fmt.Sprintf("manifest: a tree holds a %T", v))
	}
}

func (e *encoder) mapping(m map[string]any) {
	if m == nil {
		e.dst = append(e.dst, "null"...)
		return
	}
	start := len(e.keys)
	for k := range m {
		e.keys = append(e.keys, k)
	}
	slices.Sort(e.keys[start:])
	e.dst = append(e.dst, '{')
	for i := start; i < start+len(m); i++ {
		if i > start {
			e.dst = append(e.dst, ',')
		}
		k := e.keys[i]
		e.dst = appendString(e.dst, k)
		e.dst = append(e.dst, ':')
		e.value(m[k])
	}
	e.dst = append(e.dst, '}')
	e.keys = e.keys[:start]
}

// appendFloat writes encoding/json's format, which is ECMAScript's. A number that
// JSON cannot hold is null; sources.DecodeYAML admits none.
func appendFloat(dst []byte, f float64) []byte {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return append(dst, "null"...)
	}
	format := byte('f')
	if abs := math.Abs(f); abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		format = 'e'
	}
	dst = strconv.AppendFloat(dst, f, format, -1, 64)
	if n := len(dst); format == 'e' && dst[n-4] == 'e' && dst[n-3] == '-' && dst[n-2] == '0' {
		dst[n-2] = dst[n-1] // e-09 is written e-9
		dst = dst[:n-1]
	}
	return dst
}

const hexDigits = "0123456789abcdef"

// appendString quotes s as encoding/json does without HTML escapes: invalid UTF-8
// becomes U+FFFD, and U+2028 and U+2029 are escaped for JavaScript.
func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c < utf8.RuneSelf && c != '"' && c != '\\' {
			i++
			continue
		}
		if c < utf8.RuneSelf {
			dst = append(dst, s[start:i]...)
			dst = appendEscaped(dst, c)
			i++
			start = i
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			dst = append(append(dst, s[start:i]...), `\ufffd`...)
			start = i + size
		case r == '\u2028' || r == '\u2029':
			dst = append(append(dst, s[start:i]...), `\u202`...)
			dst = append(dst, hexDigits[r&0xf])
			start = i + size
		}
		i += size
	}
	return append(append(dst, s[start:]...), '"')
}

func appendEscaped(dst []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\b':
		return append(dst, '\\', 'b')
	case '\f':
		return append(dst, '\\', 'f')
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	}
	return append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&0xf])
}
