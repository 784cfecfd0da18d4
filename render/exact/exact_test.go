package exact

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// TestNumbers checks that numbers are written as they were read.
func TestNumbers(t *testing.T) {
	for _, text := range []string{`0`, `-0`, `1.50`, `1e3`, `9007199254740993`, `-9223372036854775808`, `18446744073709551616`,
		`{"a":[1.0,null,true,"<&>"],"b":{}}`} {
		v, err := Decode([]byte(text))
		if err != nil {
			t.Error(text, err)
			continue
		}
		if have, err := Encode(v); string(have) != text || err != nil {
			t.Errorf("%s is written %s, %v", text, have, err)
		}
	}
	for _, text := range []string{``, `{`, `1 2`, `{"a":1}}`, "\"\xff\""} {
		if v, err := Decode([]byte(text)); err == nil {
			t.Errorf("%q is %v", text, v)
		}
	}
}

// TestDepth reads values with the nesting that an API server accepts, and refuses deeper
// ones.
func TestDepth(t *testing.T) {
	nested := func(levels int) []byte {
		return []byte(strings.Repeat(`{"a":`, levels) + "{}" + strings.Repeat("}", levels))
	}
	v, err := Decode(nested(maxDepth))
	if err != nil {
		t.Fatal(err)
	}
	if have, err := Encode(v); string(have) != string(nested(maxDepth)) || err != nil {
		t.Errorf("%d levels are written as %d bytes, %v", maxDepth, len(have), err)
	}
	if _, err := Decode(nested(maxDepth + 1)); err == nil {
		t.Errorf("%d levels are read", maxDepth+1)
	}
}

func TestEqual(t *testing.T) {
	for _, tt := range []struct {
		a, b any
		want bool
	}{
		{int64(1), int64(1), true},
		{int64(1), float64(1), true}, // YAML's
		{json.Number("1.50"), json.Number("1.5"), false},
		{float64(1.5), json.Number("1.5"), true},
		{int64(1), "1", false},
		{nil, nil, true},
		{nil, map[string]any{}, false},
		{"a", []any{"a"}, false},
		{map[string]any{"a": nil}, map[string]any{"b": nil}, false},
		{map[string]any{"a": []any{int64(1)}}, map[string]any{"a": []any{int64(1)}}, true},
	} {
		if Equal(tt.a, tt.b) != tt.want || Equal(tt.b, tt.a) != tt.want {
			t.Errorf("%v and %v: want %t", tt.a, tt.b, tt.want)
		}
	}
}

// FuzzDecode checks that a tape reads the same as encoding/json, and that Encode writes the
// same as encoding/json.
func FuzzDecode(f *testing.F) {
	for _, text := range []string{
		`{"a":[1.0,-0,null,true,false,"<&>\u00e9\n\ud800"],"b":{},"aa":[],"c":"\u2028é"}`, ` [ 1 , 2e-7 , {"a" : "b\\\"" } ] `, `{"a":1,"a":2}`, `{"b":1,"a":2,"b":3}`,
		`{"\u0061":1}`, "\"\x01\"", `"\x"`, `01`, `-`, `1.`, `1e`, `tru`, `[1,]`, `{"a":1,}`, `{"a" 1}`, `"abcdefgh`, `9223372036854775807`, `9223372036854775808`,
	} {
		f.Add([]byte(text))
	}
	f.Add([]byte(strings.Repeat("[", 10_001) + strings.Repeat("]", 10_001)))
	f.Add([]byte(strings.Repeat("[", 502) + strings.Repeat("]", 502)))
	f.Fuzz(func(t *testing.T, text []byte) {
		want, problem := decode(text)
		have, err := Decode(text)
		if (err == nil) != (problem == nil) || err != nil && err.Error() != problem.Error() {
			t.Fatalf("%q: error %v, want %v", text, err, problem)
		}
		if !reflect.DeepEqual(have, want) {
			t.Fatalf("%q is %v, want %v", text, have, want)
		}
		var tape Tape
		if scanned := tape.Scan(text); scanned == nil && problem != nil {
			t.Fatalf("%q is scanned; want %v", text, problem)
		} else if scanned == nil {
			for n := range tape.Nodes {
				if tape.Nodes[n].Kind == Numeral {
					if _, is := tape.Value(int32(n)).(int64); is != tape.Integer(int32(n)) {
						t.Fatalf("%s is an integer: %t", tape.Span(int32(n)), !is)
					}
				}
			}
		}
		if err != nil {
			return
		}
		written, err := Encode(have)
		if err != nil {
			t.Fatal(err)
		}
		standard, err := appendAny(nil, have)
		if err != nil || string(written) != string(standard) {
			t.Fatalf("%q is written %s; want %s (%v)", text, written, standard, err)
		}
	})
}
