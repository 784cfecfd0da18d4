package exact

import (
	"encoding/json"
	"testing"
)

// TestNumbers writes numbers as they were read.
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
