package cel

import (
	"fmt"
	"strings"
	"testing"
)

// Constants that may decide about a result are found, with the fields that they are used
// with.
func TestConstants(t *testing.T) {
	for _, tt := range []struct{ text, want, reads string }{
		{`self.a == 'x' ? 'C' : 'A'`, `_==_ "x" self.a`, "self.a"},
		{`self.a == 'x' && self.b > 3 ? 1 : -2`, `_==_ "x" self.a; _>_ 3 self.b`, "self.a self.b"},
		{`v1.a == -5 || self.b == 2u || self.c < 1.5`, `_==_ -5 v1.a; _==_ 2 self.b; _<_ 1.5 self.c`, "v1.a self.b self.c"},
		{`size(self.a) > 3`, `_>_ 3 self.a size`, "self.a"},
		{`duration(self.a).getSeconds() > 3`, `_>_ 3 self.a duration getSeconds`, "self.a"},
		{`self.a.startsWith('x-')`, `startsWith "x-" self.a`, "self.a"},
		{`duration(self.a) > duration('5m')`, `duration "5m" self.a duration duration`, "self.a"},
		{`self.a in ['x', 'y']`, ` "x" self.a;  "y" self.a`, "self.a"},
		{`self.l.exists(e, e.kind == 'x')`, `_==_ "x" self.l _==_`, "self.l"},
		{`{'x': 'C'}[self.a]`, ` "x" self.a;  "C" self.a`, "self.a"},
		{`(self.a ? 'x' : 'y') == self.b`, `_?_:_ "x" self.a self.b _?_:_; _?_:_ "y" self.a self.b _?_:_`, "self.a self.b"},
		{`has(self.a) && self.?b.orValue('z') == "q"`, `orValue "z" self.b; _==_ "q" self.b orValue`, "self.a self.b"},
		{`self.m['k'] == 'x'`, `_==_ "x" self.m.k`, "self.m.k"},
		{`self.l[0] == 'x' && self.m.split('/')[1] == "y"`, `_==_ "x" self.l _[_]; split "/" self.m; _==_ "y" self.m split _[_]`, "self.l self.m"},
		{"self.`a.b` == 'x'", `_==_ "x" self.a.b`, "self.a.b"},
		{`{'kind': self.a}`, ``, "self.a"},
		{`'x' + 'y'`, ``, ""},
		{`other == 'x'`, ``, ""},
		{`self.a == 18446744073709551615u`, ``, "self.a"},
		{`self.a + 'x' + string(self.b * 60)`, ``, "self.a self.b"},
		{`self.a + 1 == 3`, `_==_ 3 self.a _+_`, "self.a"},
		{`self.a ==`, ``, ""},
		{`'` + strings.Repeat("x", maxLength) + `' == self.a`, ``, ""},
	} {
		constants, reads := Constants(tt.text, "self", "v1")
		var have []string
		for _, c := range constants {
			text := fmt.Sprintf("%s %#v", c.Function, c.Value)
			for _, r := range c.Reads {
				text += " " + r.Variable + "." + strings.Join(r.Fields, ".")
			}
			for _, through := range c.Through {
				text += " " + through
			}
			have = append(have, text)
		}
		if have := strings.Join(have, "; "); have != tt.want {
			t.Errorf("%s has %s, want %s", tt.text, have, tt.want)
		}
		var fields []string
		for _, r := range reads {
			fields = append(fields, r.Variable+"."+strings.Join(r.Fields, "."))
		}
		if have := strings.Join(fields, " "); have != tt.reads {
			t.Errorf("%s reads %s, want %s", tt.text, have, tt.reads)
		}
	}
}
