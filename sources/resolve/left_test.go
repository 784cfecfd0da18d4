package resolve

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/lockfile"
)

// Packages that cannot be resolved are told as the lock has them, by the names that their
// controllers may have.
func TestLeft(t *testing.T) {
	for _, tt := range []struct {
		name       string
		declared   []string
		unreadable []sources.Declaration
		kind       sources.PackageKind // of all declarations, if set
		change     func(*shelf, *Config)
		want       []string
	}{
		{name: "nothing", declared: []string{"reg.io/p:v1", "reg.io/q:v1"}},
		{name: "a version that does not exist, and a dependency", declared: []string{"reg.io/p:v9", "reg.io/q:v1"}, want: []string{"lib: lib:v1.0.0 runs", "p: p:v1 runs"}},
		{name: "a misspelt repository", declared: []string{"reg.io/pp:v1", "reg.io/q:v1"}, want: []string{"lib: lib:v1.0.0 runs", "pp: unknown p:v1 runs"}},
		{name: "a declaration without a repository", declared: []string{"reg.io/q:v1"}, unreadable: []sources.Declaration{{Name: "bad"}}, want: []string{"bad: p:v1 runs"}},
		{name: "a second declaration of it", declared: []string{"reg.io/p:v1", "reg.io/q:v1", "reg.io/q:v1"}, want: []string{"q: q:v1", "q: q:v1"}},
		{name: "no longer declared", declared: []string{"reg.io/q:v1"}},
		{name: "another kind", declared: []string{"reg.io/p:v9", "reg.io/q:v1"}, kind: sources.Function, want: []string{"lib: lib:v1.0.0 runs", "p: unknown p:v1 runs"}},
		{name: "nothing can be read", declared: []string{"reg.io/p:v1", "reg.io/q:v1"}, change: func(s *shelf, _ *Config) { s.down = true },
			want: []string{"lib: unknown lib:v1.0.0 runs", "p: unknown p:v1 runs", "q: unknown q:v1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var s shelf
			s.put("reg.io/p:v1", "p", "reg.io/lib ^1")
			s.put("reg.io/lib:v1.0.0", "lib")
			s.put("reg.io/q:v1", "q")
			for ref, pkg := range s.packages {
				pkg.Meta.Kind, pkg.Runnable = sources.Provider, ref != "reg.io/q:v1"
			}
			req := func(refs ...string) Request {
				r := request("dev", refs...)
				for i := range r.Declarations {
					r.Declarations[i].Kind = sources.Provider
				}
				return r
			}
			lock := resolve(t, s.config(), new(lockfile.File), req("reg.io/p:v1", "reg.io/q:v1")).Lock
			cfg := s.config()
			if tt.change != nil {
				tt.change(&s, &cfg)
			}
			now := req(tt.declared...)
			now.Unreadable = tt.unreadable
			for i := range now.Declarations {
				if tt.kind != "" && now.Declarations[i].Name == "p" {
					now.Declarations[i].Kind = tt.kind
				}
			}
			var have []string
			for _, l := range resolve(t, cfg, lock, now).Clusters["dev"].Left {
				text := l.Declaration.Name + ": "
				if l.Package == nil {
					text += "unknown "
				} else if l.Declaration.Kind != sources.Provider {
					text += fmt.Sprintf("%q ", l.Declaration.Kind)
				}
				text += strings.TrimPrefix(l.Pin.Ref.String(), "reg.io/")
				if l.Runtime != "" {
					text += " runs"
				}
				have = append(have, text)
			}
			slices.Sort(have)
			if !slices.Equal(have, tt.want) {
				t.Errorf("have %q, want %q", have, tt.want)
			}
		})
	}
}
