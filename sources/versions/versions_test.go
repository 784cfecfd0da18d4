package versions

import (
	"slices"
	"strings"
	"testing"

	"github.com/Masterminds/semver/v3"
)

var tags = []string{"latest", "stable", "v1", "20250101", "v1.0.0", "v1.1.0", "v1.10.0", "v1.9.0", "1.10.0", "v1.11.0-rc.1", "v2.0.0", "v2.1.0", "v3.0.0-beta.1", "sha256-abc.sig"}

func TestFind(t *testing.T) {
	for _, tt := range []struct {
		name    string
		current string
		opts    Options
		want    Newer
		err     string
	}{
		{name: "both", current: "v1.0.0", want: Newer{Update: "v1.10.0", Latest: "v2.1.0"}},
		{name: "written without v", current: "1.9.0", want: Newer{Update: "1.10.0", Latest: "v2.1.0"}},
		{name: "newest of its major", current: "v1.10.0", want: Newer{Latest: "v2.1.0"}},
		{name: "newest", current: "v2.1.0"},
		{name: "newer than all", current: "v4.0.0"},
		{name: "a pre-release", current: "v1.11.0-rc.0", want: Newer{Update: "v1.11.0-rc.1", Latest: "v3.0.0-beta.1"}},
		{name: "pre-releases by flag", current: "v2.1.0", opts: Options{Prerelease: true}, want: Newer{Latest: "v3.0.0-beta.1"}},
		{name: "held by a dependant", current: "v1.0.0", opts: Options{Needs: []Need{{"reg.io/app:v1", ">=1.0.0 <1.10.0"}}},
			want: Newer{Update: "v1.9.0", Latest: "v2.1.0", Held: []Need{{"reg.io/app:v1", ">=1.0.0 <1.10.0"}}}},
		{name: "held by a digest", current: "v1.0.0", opts: Options{Needs: []Need{{"reg.io/app:v1", "sha256:" + strings.Repeat("a", 64)}}},
			want: Newer{Latest: "v2.1.0", Held: []Need{{"reg.io/app:v1", "sha256:" + strings.Repeat("a", 64)}}}},
		{name: "a moving tag", current: "stable", err: "stable is not a semantic version"},
		{name: "two numbers", current: "v1", err: "v1 is not a semantic version"},
		{name: "a range that is none", current: "v1.0.0", opts: Options{Needs: []Need{{"reg.io/app:v1", "newest"}}}, err: `reg.io/app:v1 needs "newest"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			have, err := Find(tags, tt.current, tt.opts)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("error %v, want %q", err, tt.err)
				}
				return
			}
			if err != nil || have.Update != tt.want.Update || have.Latest != tt.want.Latest || join(have.Held) != join(tt.want.Held) {
				t.Errorf("have %+v, %v; want %+v", have, err, tt.want)
			}
		})
	}
}

func TestSelect(t *testing.T) {
	held := Options{Needs: []Need{{"reg.io/app:v1", "<2.0.0"}}}
	for _, tt := range []struct {
		name, query, current string
		opts                 Options
		want, err            string
	}{
		{name: "a tag", query: "v1.1.0", current: "v1.0.0", want: "v1.1.0"},
		{name: "a tag that is also a range", query: "v1", current: "v1.0.0", want: "v1"},
		{name: "a moving tag", query: "stable", current: "v1.0.0", want: "stable"},
		{name: "latest is not the tag of that name", query: "latest", current: "v1.0.0", want: "v2.1.0"},
		{name: "latest from a moving tag", query: "latest", current: "stable", want: "v2.1.0"},
		{name: "latest pre-release", query: "latest", current: "v1.0.0", opts: Options{Prerelease: true}, want: "v3.0.0-beta.1"},
		{name: "latest that suits dependants", query: "latest", current: "v1.0.0", opts: held, want: "v1.10.0"},
		{name: "a range", query: "^1.1", current: "v1.0.0", want: "v1.10.0"},
		{name: "a range down", query: "<1.1", current: "v1.9.0", want: "v1.0.0"},
		{name: "a range of pre-releases", query: "~3.0.0-0", current: "v1.0.0", want: "v3.0.0-beta.1"},
		{name: "a range without pre-releases", query: ">=3", current: "v1.0.0", err: "no version is >=3; the registry has v3.0.0-beta.1, v2.1.0, "},
		{name: "a range that dependants refuse", query: ">=2", current: "v1.0.0", opts: held, err: "no version that is >=2 satisfies <2.0.0 (needed by reg.io/app:v1) too"},
		{name: "no such tag", query: "v1.2.3", current: "v1.0.0", err: "no version is v1.2.3"},
		{name: "neither", query: "newest", current: "v1.0.0", err: `"newest" is none of its tags`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			have, err := Select(tt.query, tags, tt.current, tt.opts)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("%q, error %v, want %q", have, err, tt.err)
				}
			} else if err != nil || have != tt.want {
				t.Errorf("have %q, %v; want %q", have, err, tt.want)
			}
		})
	}
}

func TestList(t *testing.T) {
	if have, want := List(tags), "v3.0.0-beta.1, v2.1.0, v2.0.0, v1.11.0-rc.1, 1.10.0, and 5 older"; have != want {
		t.Errorf("have %s, want %s", have, want)
	}
	if have := List([]string{"stable"}); have != "no tag that is a semantic version" {
		t.Error(have)
	}
}

func TestLasting(t *testing.T) {
	for _, tt := range []struct{ tags, want []string }{
		{[]string{"v1", "1", "v1.2", "1.2", "v1.2.0"}, []string{"v1.2.0"}},
		{[]string{"v1.2", "v1.3", "v1.2.0-rc.1", "1.3.0", "v2", "v10", "stable"}, []string{"v1.2", "v1.2.0-rc.1", "1.3.0", "v2", "v10", "stable"}},
		{[]string{"v1", "v1.2", "20240102"}, []string{"v1", "v1.2", "20240102"}},
	} {
		if have := Lasting(tt.tags); !slices.Equal(have, tt.want) {
			t.Errorf("of %q last %q, want %q", tt.tags, have, tt.want)
		}
	}
}

// Dates and commits are no versions, and of equal ones the tag that does not move
// is taken, in any order.
func TestHighest(t *testing.T) {
	any := func(*semver.Version) (bool, error) { return true, nil }
	for _, tt := range []struct {
		tags []string
		want string
	}{
		{[]string{"20240102", "2024-01-02", "2024", "v20240102", "1234567", "1e10", "01", "1.02", "latest", ""}, ""},
		{[]string{"v1", "v1.2", "v1.2.0", "20240102"}, "v1.2.0"},
		{[]string{"v1.0.0", "v1", "1"}, "v1.0.0"},
		{[]string{"v1", "v1.0", "1"}, "v1.0"},
		{[]string{"v1", "1"}, "1"},
		{[]string{"v1.9.0", "v1.10.0", "v2"}, "v2"},
		{[]string{"v2.0.0-rc.1", "v1"}, "v2.0.0-rc.1"},
		{[]string{"1.2.0", "v1.2.0"}, "1.2.0"},
	} {
		for range len(tt.tags) {
			tt.tags = append(tt.tags[1:], tt.tags[0])
			if have, err := Highest(tt.tags, any); err != nil || have != tt.want {
				t.Errorf("highest of %q is %q, %v, want %q", tt.tags, have, err, tt.want)
			}
		}
	}
}
