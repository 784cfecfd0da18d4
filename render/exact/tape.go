package exact

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"unicode/utf8"
)

// Kind is the kind of a JSON value.
type Kind uint8

// The kinds of values.
const (
	Null Kind = iota
	False
	True
	Numeral
	String
	Array
	Object
)

// Node is one value of a [Tape].
type Node struct {
	Kind Kind
	// escaped reports whether a string has a backslash.
	escaped bool
	// Start and End are the offsets of the value in the text.
	Start, End int32
	// nameStart and nameEnd are the offsets of its name, without quotes, if the value is
	// in an object.
	nameStart, nameEnd int32
	// Next is the number of the first node after the value and everything in it.
	Next int32
}

// Tape is a valid JSON text with the places of its values. Values have numbers: 0 is the
// whole. The values in n are n+1, the Next of that, and so on up to the Next of n. A Tape
// can be reused for another text. The zero Tape is ready to use.
type Tape struct {
	Text  []byte
	Nodes []Node
	// Null reports whether the text has a null.
	Null bool
}

// Scan reads a text with one JSON value. It fails where [Decode] fails, and for two things
// that no Kubernetes client writes: an object with the same name twice, and a name with a
// backslash. The text must not change while the tape is used.
func (t *Tape) Scan(text []byte) error {
	t.Text, t.Nodes, t.Null = text, t.Nodes[:0], false
	if len(text) > math.MaxInt32 {
		return errors.New("the text is larger than 2 GiB")
	}
	if !utf8.Valid(text) {
		return errNotUTF8
	}
	s := scanner{t}
	i, err := s.value(s.space(0), 0, 0, 0)
	if err != nil {
		return err
	}
	if i = s.space(i); i < len(text) {
		return errTrailing
	}
	return nil
}

var (
	errNotUTF8  = errors.New("the text is not UTF-8")
	errTrailing = errors.New("there is text behind the JSON value")
	errTooDeep  = errors.New("the value is nested too deep")
)

type scanner struct{ *Tape }

func (s scanner) space(i int) int {
	for i < len(s.Text) && s.Text[i] <= ' ' {
		switch s.Text[i] {
		case ' ', '\t', '\n', '\r':
			i++
		default:
			return i
		}
	}
	return i
}

func (s scanner) fault(i int, want string) error {
	return fmt.Errorf("byte %d is not JSON; want %s", i, want)
}

// value reads the value at i, and returns its end.
func (s scanner) value(i, name, nameEnd, depth int) (end int, err error) {
	if i >= len(s.Text) {
		return 0, s.fault(i, "a value")
	}
	if depth > maxDepth {
		return 0, errTooDeep
	}
	n := len(s.Nodes)
	s.Nodes = append(s.Nodes, Node{Start: int32(i), nameStart: int32(name), nameEnd: int32(nameEnd)})
	var kind Kind
	var escaped bool
	switch c := s.Text[i]; c {
	case '{':
		kind = Object
		end, err = s.object(i, n, depth)
	case '[':
		kind = Array
		end, err = s.array(i, depth)
	case '"':
		kind = String
		end, escaped, err = s.text(i)
	case 't':
		kind = True
		end, err = s.literal(i, "true")
	case 'f':
		kind = False
		end, err = s.literal(i, "false")
	case 'n':
		kind, s.Null = Null, true
		end, err = s.literal(i, "null")
	default:
		kind = Numeral
		end, err = s.number(i)
	}
	node := &s.Nodes[n]
	node.Kind, node.escaped, node.End, node.Next = kind, escaped, int32(end), int32(len(s.Nodes))
	return end, err
}

func (s scanner) literal(i int, want string) (end int, err error) {
	end = i + len(want)
	if end > len(s.Text) || string(s.Text[i:end]) != want {
		return 0, s.fault(i, want)
	}
	return end, nil
}

func (s scanner) number(i int) (end int, err error) {
	digits := func() bool {
		from := i
		for i < len(s.Text) && '0' <= s.Text[i] && s.Text[i] <= '9' {
			i++
		}
		return i > from
	}
	at := func(chars ...byte) bool { return i < len(s.Text) && slices.Contains(chars, s.Text[i]) }
	if at('-') {
		i++
	}
	if at('0') {
		i++
	} else if !digits() {
		return 0, s.fault(i, "a value")
	}
	if at('.') {
		if i++; !digits() {
			return 0, s.fault(i, "a digit")
		}
	}
	if at('e', 'E') {
		if i++; at('+', '-') {
			i++
		}
		if !digits() {
			return 0, s.fault(i, "a digit")
		}
	}
	return i, nil
}

// text reads the string at i.
func (s scanner) text(i int) (end int, escaped bool, err error) {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	text := s.Text
	i++
	for {
		// Skip eight bytes at once, up to a quote, a backslash or a control character.
		// The lowest byte found is exact; higher ones may be false positives.
		for i+8 <= len(text) {
			x := binary.LittleEndian.Uint64(text[i:])
			quote, slash := x^(ones*'"'), x^(ones*'\\')
			found := ((quote-ones)&^quote | (slash-ones)&^slash | (x-ones*' ')&^x) & highs
			if found != 0 {
				i += bits.TrailingZeros64(found) >> 3
				break
			}
			i += 8
		}
		if i >= len(text) {
			return 0, false, s.fault(i, `"`)
		}
		switch c := text[i]; {
		case c == '"':
			return i + 1, escaped, nil
		case c < ' ':
			return 0, false, s.fault(i, "a character of a string")
		case c == '\\':
			escaped = true
			n := s.escape(i)
			if n == 0 {
				return 0, false, s.fault(i, "an escaped character")
			}
			i += n
		default:
			i++
		}
	}
}

// escape returns the length of the escaped character at i; 0 if it is invalid.
func (s scanner) escape(i int) int {
	if i+1 >= len(s.Text) {
		return 0
	}
	switch s.Text[i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if i+6 > len(s.Text) {
			return 0
		}
		for _, c := range s.Text[i+2 : i+6] {
			if !('0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F') {
				return 0
			}
		}
		return 6
	}
	return 0
}

func (s scanner) array(i, depth int) (end int, err error) {
	if i = s.space(i + 1); i < len(s.Text) && s.Text[i] == ']' {
		return i + 1, nil
	}
	for {
		if i, err = s.value(i, 0, 0, depth+1); err != nil {
			return 0, err
		}
		i = s.space(i)
		switch {
		case i < len(s.Text) && s.Text[i] == ',':
			i = s.space(i + 1)
		case i < len(s.Text) && s.Text[i] == ']':
			return i + 1, nil
		default:
			return 0, s.fault(i, `"," or "]"`)
		}
	}
}

func (s scanner) object(i, n, depth int) (end int, err error) {
	if i = s.space(i + 1); i < len(s.Text) && s.Text[i] == '}' {
		return i + 1, nil
	}
	sorted := true
	var last []byte
	for first := true; ; first = false {
		if i >= len(s.Text) || s.Text[i] != '"' {
			return 0, s.fault(i, "a name in quotes")
		}
		after, escaped, err := s.text(i)
		if err != nil {
			return 0, err
		}
		if escaped {
			return 0, fmt.Errorf("byte %d: a name with a backslash", i)
		}
		name := s.Text[i+1 : after-1]
		sorted = sorted && (first || string(last) < string(name))
		last = name
		colon := s.space(after)
		if colon >= len(s.Text) || s.Text[colon] != ':' {
			return 0, s.fault(colon, `":"`)
		}
		if i, err = s.value(s.space(colon+1), i+1, after-1, depth+1); err != nil {
			return 0, err
		}
		i = s.space(i)
		switch {
		case i < len(s.Text) && s.Text[i] == ',':
			i = s.space(i + 1)
		case i < len(s.Text) && s.Text[i] == '}':
			if !sorted {
				err = s.unique(n)
			}
			return i + 1, err
		default:
			return 0, s.fault(i, `"," or "}"`)
		}
	}
}

// unique fails if an object has a name twice.
func (s scanner) unique(n int) error {
	var names []string
	for c := n + 1; c < len(s.Nodes); c = int(s.Nodes[c].Next) {
		names = append(names, string(s.Name(int32(c))))
	}
	slices.Sort(names)
	for i := range names {
		if i > 0 && names[i] == names[i-1] {
			return fmt.Errorf("byte %d: an object has %q twice", s.Nodes[n].Start, names[i])
		}
	}
	return nil
}

// Name returns the name of a value in an object.
func (t *Tape) Name(n int32) []byte { return t.Text[t.Nodes[n].nameStart:t.Nodes[n].nameEnd] }

// Span returns the text of a value.
func (t *Tape) Span(n int32) []byte { return t.Text[t.Nodes[n].Start:t.Nodes[n].End] }

// Field returns the number of the value with a name in an object; ok is false if there is
// none, or if n is not an object.
func (t *Tape) Field(n int32, name string) (field int32, ok bool) {
	if t.Nodes[n].Kind != Object {
		return 0, false
	}
	for c := n + 1; c < t.Nodes[n].Next; c = t.Nodes[c].Next {
		if string(t.Name(c)) == name {
			return c, true
		}
	}
	return 0, false
}

// Integer reports whether [Decode] returns the number as an int64.
func (t *Tape) Integer(n int32) bool {
	text := t.Span(n)
	digits := text
	if digits[0] == '-' {
		digits = digits[1:]
	}
	for _, c := range digits {
		if c < '0' || c > '9' {
			return false
		}
	}
	if len(digits) <= 18 {
		return len(digits) == len(text) || digits[0] != '0'
	}
	_, ok := Number(json.Number(text)).(int64)
	return ok
}

// Value returns the value as [Decode] does.
func (t *Tape) Value(n int32) any {
	node := &t.Nodes[n]
	switch node.Kind {
	case False:
		return false
	case True:
		return true
	case Numeral:
		return Number(json.Number(t.Span(n)))
	case String:
		if !node.escaped {
			return string(t.Text[node.Start+1 : node.End-1])
		}
		var text string
		_ = json.Unmarshal(t.Span(n), &text) // it was checked
		return text
	case Array:
		count := 0
		for c := n + 1; c < node.Next; c = t.Nodes[c].Next {
			count++
		}
		list := make([]any, 0, count)
		for c := n + 1; c < node.Next; c = t.Nodes[c].Next {
			list = append(list, t.Value(c))
		}
		return list
	case Object:
		count := 0
		for c := n + 1; c < node.Next; c = t.Nodes[c].Next {
			count++
		}
		object := make(map[string]any, count)
		for c := n + 1; c < node.Next; c = t.Nodes[c].Next {
			object[string(t.Name(c))] = t.Value(c)
		}
		return object
	}
	return nil
}
