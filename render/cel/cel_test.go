package cel

import (
	"fmt"
	"testing"
)

func TestForm(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		same bool
	}{
		{`self.a > 1`, ` self.a>1 // always`, true},
		{`self.a == 'x'`, "self.a == \"x\"", true},
		{`self.a == 'x'`, `self.a == r"x"`, true},
		{`(self.a) && (self.b == 1)`, `self.a && self.b == 1`, true},
		{`self.a == 16`, `self.a == 0x10`, true},
		{`has(self.a)`, "has( self.a\n)", true},
		{`self.all(k, k == 'a')`, `self.all(k,k=="a")`, true},
		{`self[?'a'].orValue(1) == 1`, `self[?"a"].orValue(1)==1`, true},
		{`[1, 2]`, `[1,2]`, true},
		{`{'a': 1}`, `{"a":1}`, true},
		{`self.a > 1`, `self.a > 2`, false},
		{`self.a - (self.b - 1) > 0`, `self.a - self.b - 1 > 0`, false},
		{`self.a == 'x '`, `self.a == 'x'`, false},
		{`self.a == 1`, `self.a == 1u`, false},
		{`self.a == 1`, `self.a == 1.0`, false},
		{`self.a == 'a'`, `self.a == b'a'`, false},
		{`self.a == true`, `self.a == "true"`, false},
		{`has(self.a)`, `self.a`, false},
		{`[?self.a]`, `[self.a]`, false},
		{`[1, 2]`, `[2, 1]`, false},
		{`self.a('b')`, `a(self, 'b')`, false},
		{`self.a.b`, `self["a"].b`, false},
		{`self.`, `self..`, false},
		{`self.`, `self.`, true},
		{``, ``, true},
	} {
		if same := Read(tt.a).Form() == Read(tt.b).Form(); same != tt.same {
			t.Errorf("%q and %q: same is %t\n%s\n%s", tt.a, tt.b, same, Read(tt.a).Form(), Read(tt.b).Form())
		}
	}
}

func TestIndex(t *testing.T) {
	for _, tt := range []struct {
		text, field string
		want        bool
	}{
		{`has(self.spec.a)`, "a", true},
		{`has(self.spec.a)`, "self", false},
		{`self["a.b"] == 1`, "a.b", true},
		{`self.a__dot__b == 1`, "a.b", true},
		{`self.__namespace__ == 'a'`, "namespace", true},
		{`self.all(x, x.a > 1)`, "a", true},
		{`self.b > 1`, "a", false},
		{`self. `, "a", true},
	} {
		if _, have := NewIndex([]Expression{Read(tt.text)}).First(tt.field); have != tt.want {
			t.Errorf("%s names %q: %t", tt.text, tt.field, have)
		}
	}
	for _, tt := range []struct {
		list  []string
		field string
		want  int
	}{
		{[]string{`self.b`, `self.a`, `self.a > 1`}, "a", 1},
		{[]string{`self.b`, `self.`, `self.a`}, "a", 1},
		{[]string{`self.a__dot__b`, `self["a.b"]`}, "a.b", 0},
		{[]string{`self["a.b"]`, `self.a__dot__b`}, "a.b", 0},
	} {
		var list []Expression
		for _, text := range tt.list {
			list = append(list, Read(text))
		}
		if i, ok := NewIndex(list).First(tt.field); !ok || i != tt.want {
			t.Errorf("%q: the first that names %q is %d, %t; want %d", tt.list, tt.field, i, ok, tt.want)
		}
	}
	if i, ok := NewIndex(nil).First("a"); ok {
		t.Errorf("an empty index has an expression at %d", i)
	}
}

func TestReadsParsed(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{`!has(self.a) || self.?b.c.orValue(1) == self["d"].e`, "[{self [a]} {self [b c]} {self [d e]}] true"},
		{`self == oldSelf`, "[{self []} {oldSelf []}] true"},
		{`[self].all(x, has(x.a))`, "[{self []}] true"},
		{`[1].all(self, self.a)`, "[{self []} {self [a]}] true"},
		{`{"k": self}.k.a == T{f: size(self)}`, "[{self []} {self []}] true"},
		{`self[self.a].b`, "[{self []} {self [a]}] true"},
		{`.self.a`, "[{.self [a]}] true"},
		{`other.a`, "[] true"},
		{`self.`, "[] false"},
	} {
		reads, ok := Reads(tt.text, "self", "oldSelf", ".self")
		if have := fmt.Sprint(reads, ok); have != tt.want {
			t.Errorf("%s: %s, want %s", tt.text, have, tt.want)
		}
	}
}

func FuzzRead(f *testing.F) {
	for _, s := range []string{`self.a > 1`, `[1, {'a': self.?b}]`, `a.b{c: 1}`, `self.`, ``} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if e := Read(text); e.Form() == "" && e.parsed {
			t.Errorf("%q has no form", text)
		}
	})
}
