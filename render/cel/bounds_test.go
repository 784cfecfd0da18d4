package cel

import (
	"strings"
	"testing"
)

// TestTooLarge checks that short expressions with values larger than any memory fail.
func TestTooLarge(t *testing.T) {
	long := strings.Repeat("a", 2000)
	object := map[string]any{"status": map[string]any{"text": long}}
	times := strings.Repeat
	for name, text := range map[string]string{
		"format":         "['aaaaaaaaaa']" + times(".map(a, '%s%s%s%s%s%s%s%s%s%s'.format([a,a,a,a,a,a,a,a,a,a]))", 12) + "[0]",
		"quote":          times("strings.quote(", 60) + "'a'" + times(")", 60),
		"encode":         "['aaaaaaaaaa']" + times(".map(a, base64.encode(bytes(a)))", 100) + "[0]",
		"replace":        "[status.text.replace('a', 'aaaaaaaaaa')].map(a, a.replace('', a))[0]",
		"replace some":   "[status.text.replace('a', 'aaaaaaaaaa')].map(a, a.replace('', a, 15000))[0]",
		"join":           "[status.text.split('')].map(a, (a + a + a).join(status.text))[0]",
		"lists in lists": "[[1,2,3,4,5,6,7,8]]" + times(".map(a, [a,a,a,a,a,a,a,a])", 12) + ".map(a, '%s'.format([a]))[0]",
		"equal lists":    "[[1,2,3,4,5,6,7,8]]" + times(".map(a, [a,a,a,a,a,a,a,a])", 12) + ".map(a, a == a ? 'x' : 'y')[0]",
		"lists joined":   "[[1,2,3,4,5,6,7,8]]" + times(".map(a, a+a+a+a+a+a+a+a)", 12) + ".map(a, a == a ? 'x' : 'y')[0]",
		"maps in maps":   "[{'a': 1}]" + times(".map(a, {'a': a, 'b': a, 'c': a, 'd': a})", 15) + ".map(a, a == a ? 'x' : 'y')[0]",
		"optional":       "[optional.of([1,2,3,4])]" + times(".map(a, optional.of([a,a,a,a,a,a,a,a]))", 12) + ".map(a, a == a ? 'x' : 'y')[0]",
	} {
		t.Run(name, func(t *testing.T) {
			p, err := Compile(text, nil, String)
			if err != nil {
				if !strings.Contains(err.Error(), "at most") {
					t.Fatal(err)
				}
				return
			}
			if got, err := p.Text(object); err == nil || !strings.Contains(err.Error(), "larger than") && !strings.Contains(err.Error(), "cost limit") {
				t.Errorf("gave %d bytes, error %v", len(got), err)
			}
		})
	}
}

// TestBoundedFunctions checks that the limited functions give the same results as cel-go's
// own.
func TestBoundedFunctions(t *testing.T) {
	object := map[string]any{"status": map[string]any{"text": "a-b-c", "list": []any{"x", "y"}, "mixed": []any{"x", int64(1)}}}
	for text, want := range map[string]string{
		"status.text.replace('-', '+')":                      "a+b+c",
		"status.text.replace('-', '+', 1)":                   "a+b-c",
		"status.text.replace('-', '+', 0)":                   "a-b-c",
		"status.text.replace('-', '+', -1)":                  "a+b+c",
		"status.list.join()":                                 "xy",
		"status.list.join(', ')":                             "x, y",
		"status.text.split('-').map(p, p + p).join('-')":     "aa-bb-cc",
		"['%s is %s'.format([status.text, status.list])][0]": `a-b-c is [x, y]`,
	} {
		p, err := Compile(text, nil, String)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got, err := p.Text(object); err != nil || got != want {
			t.Errorf("%s: gave %q, %v; want %q", text, got, err, want)
		}
	}
	p, err := Compile("status.mixed.join()", nil, String)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := p.Text(object); err == nil {
		t.Errorf("joining a list that has a number gave %q", got)
	}
}

// TestNesting checks that short expressions are refused if cel-go would take minutes to
// check their types.
func TestNesting(t *testing.T) {
	times := strings.Repeat
	for text, want := range map[string]string{
		"[dyn(1)]" + times(".map(a, {a: [a]})", 16) + ".size() > 0": "16 loops",
		times("[", 60) + "1" + times("]", 60) + " == []":            "lists and maps 60 deep",
		"status" + times(".a", 60) + " == 1":                        "calls and fields",
	} {
		if _, err := Compile(text, nil, Bool); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v", text, err)
		}
	}
}
