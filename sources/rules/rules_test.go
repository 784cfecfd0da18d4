package rules

import (
	"strings"
	"testing"

	"gitopsd.dev/sources"
)

func TestRange(t *testing.T) {
	t.Parallel()
	digest := string(sources.DigestOf(nil))
	for _, tt := range []struct {
		text    string
		in, out string // tags, with spaces between
		err     string
	}{
		{text: "v1.2.0", in: "v1.2.0 1.2.0", out: "v1.2.1 v1.2 v1.2.0-rc.1 stable"},
		{text: "v1.2.0-rc.1", in: "v1.2.0-rc.1 1.2.0-rc.1", out: "v1.2.0 v1.2.0-rc.2"},
		{text: "v1.2", in: "v1.2 v1.2.0 v1.2.7", out: "v1.3.0 v1.1.9 20240102"},
		{text: "stable", in: "stable", out: "v1.2.0 latest"},
		{text: digest, in: digest, out: "v1.0.0 " + string(sources.DigestOf([]byte("x")))},
		{text: ">=1.2.0 <1.2.4", in: "v1.2.0 v1.2.3 1.2.1-rc.1", out: "v1.2.4 v1.1.9 v1.2 20240102"},
		{text: "[v1.3.0, v1.3.4]", in: "v1.3.0 v1.3.4 1.3.2 v1.3.1-rc.1", out: "v1.3.5 v1.2.9 v1.3.0-rc.1 main"},
		{text: "[v1.3.0,v1.3.0]", in: "v1.3.0", out: "v1.3.1"},
		{text: "", err: "no version is named"},
		{text: "[v1.3.4, v1.3.0]", err: "write the lower one first"},
		{text: "[v1.3.0]", err: "is no interval"},
		{text: "[v1.3.0, stable]", err: "is no interval"},
		{text: "[v1.3.0, v1.3.4", err: "is no interval"},
		{text: "sha256:12", err: "64 lower-case hexadecimal digits"},
		{text: "no tag", err: "is no version"},
		{text: "v1.3.0, v1.3.4", err: `"v1.3.0, v1.3.4" contains no version`},
		{text: ">=1.2.4 <1.2.0", err: "contains no version"},
		{text: ">=2 <1 || >3 <3", err: "contains no version"},
		{text: "*", in: "v0.0.1 v7.1.2-rc.1"},
		{text: "<0.0.1", in: "v0.0.0 v0.0.1-rc.1", out: "v0.0.1"},
		{text: ">1.2.3-alpha <1.2.3-beta", in: "v1.2.3-alpha.1", out: "v1.2.3"},
		{text: ">1.2.3 <1.2.5", in: "v1.2.4", out: "v1.2.3 v1.2.5"},
		{text: "!=1.2.3", in: "v1.2.4", out: "v1.2.3"},
		{text: ">1.2 <1.4", in: "v1.3.0", out: "v1.2.3 v1.4.0"},
		{text: "1.2 - 1.4.5", in: "v1.3.0", out: "v1.4.6"},
		{text: "~1.2 || ^3", in: "v1.2.7 v3.9.0", out: "v2.0.0"},
	} {
		r, err := ParseRange(tt.text)
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%q: error %v, want %q", tt.text, err, tt.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", tt.text, err)
			continue
		}
		for tag := range strings.FieldsSeq(tt.in) {
			if !r.Contains(tag) {
				t.Errorf("%s does not contain %s", r, tag)
			}
		}
		for tag := range strings.FieldsSeq(tt.out) {
			if r.Contains(tag) {
				t.Errorf("%s contains %s", r, tag)
			}
		}
	}
	if (Range{}).Contains("") {
		t.Error("the zero range contains a version")
	}
}

func TestParseRetractions(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, text, want, err string }{
		{name: "none"},
		{name: "one line", text: "v1.2.0: loses data; [v1.3.0, v1.3.4]: see https://acme.example/3", want: "v1.2.0=loses data|[v1.3.0, v1.3.4]=see https://acme.example/3"},
		{name: "lines", text: "\n  v1.2.0: a\n\n>=1.3.0 <1.4.0: b\n", want: "v1.2.0=a|>=1.3.0 <1.4.0=b"},
		{name: "a digest", text: string(sources.DigestOf(nil)) + ": signed by mistake", want: string(sources.DigestOf(nil)) + "=signed by mistake"},
		{name: "what a terminal would obey", text: "v1.0.0: \x1b[2J\u202egone\u009b", want: "v1.0.0=[2Jgone"},
		{name: "no reason", text: "v1.2.0; v1.3.0: b", want: "v1.3.0=b", err: `"v1.2.0": want VERSIONS: reason`},
		{name: "an empty reason", text: "v1.2.0:", err: "want VERSIONS: reason"},
		{name: "no version", text: ": why", err: "no version is named"},
		{name: "a semicolon in a reason", text: "v1.2.0: bad; do not use", want: "v1.2.0=bad", err: `"do not use": want VERSIONS: reason`},
	} {
		all, err := ParseRetractions(tt.text)
		var have []string
		for _, r := range all {
			have = append(have, r.Versions.String()+"="+r.Reason)
		}
		if joined := strings.Join(have, "|"); joined != tt.want {
			t.Errorf("%s: have %q, want %q", tt.name, joined, tt.want)
		}
		if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: error %v, want %q", tt.name, err, tt.err)
		}
	}
	if all, err := ParseRetractions(strings.Repeat("v1.0.0: x;", 2000)); len(all) != maxRetractions || err == nil {
		t.Errorf("%d entries, %v", len(all), err)
	}
}

func TestExcluded(t *testing.T) {
	t.Parallel()
	digest := sources.DigestOf(nil)
	one, err := ParseRange("v1.2.0")
	if err != nil {
		t.Fatal(err)
	}
	byDigest, err := ParseRange(string(digest))
	if err != nil {
		t.Fatal(err)
	}
	r := &Rules{Excludes: []Exclude{{Repository: "reg.io/a", Versions: one, Reason: "x", Place: "clusters.yaml:3"}, {Repository: "reg.io/b", Versions: byDigest, Reason: "y"}}}
	for _, tt := range []struct {
		ref  sources.Ref
		want bool
	}{
		{sources.Ref{Repository: "reg.io/a", Tag: "v1.2.0"}, true},
		{sources.Ref{Repository: "reg.io/a", Tag: "v1.2.0", Digest: digest}, true},
		{sources.Ref{Repository: "reg.io/a", Tag: "v1.2.1"}, false},
		{sources.Ref{Repository: "reg.io/a", Digest: digest}, false},
		{sources.Ref{Repository: "reg.io/b", Tag: "v1.2.0"}, false},
		{sources.Ref{Repository: "reg.io/b", Tag: "v1.2.0", Digest: digest}, true},
		{sources.Ref{Repository: "reg.io/b", Digest: digest}, true},
	} {
		if have := r.Excluded(tt.ref); (have != nil) != tt.want {
			t.Errorf("%s: %v", tt.ref, have)
		}
	}
	if text := r.Excludes[0].String(); text != "excluded: x (clusters.yaml:3)" {
		t.Error(text)
	}
}

// Rules are for a package under all names of its registry.
func TestNamesOfARegistry(t *testing.T) {
	t.Parallel()
	const named, other = "index.docker.io/acme/a", "docker.io:0443/acme/a"
	one, err := ParseRange("v1.2.0")
	if err != nil {
		t.Fatal(err)
	}
	r := &Rules{
		Excludes: []Exclude{{Repository: named, Versions: one}},
		Selects:  []Select{{Ref: sources.Ref{Repository: named, Tag: "v1.3.0"}}},
		Replaces: []Replace{{Repository: named, Version: "v1.4.0", With: sources.Ref{Repository: "reg.io/b", Tag: "v1"}}},
	}
	if r.Excluded(sources.Ref{Repository: other, Tag: "v1.2.0"}) == nil {
		t.Error("it is not excluded")
	}
	if r.Selected(other) == nil {
		t.Error("it is not selected")
	}
	if r.Replaced(sources.Ref{Repository: other, Tag: "v1.4.0"}) == nil {
		t.Error("it is not replaced")
	}
	if r.Selected("docker.io/acme/b") != nil {
		t.Error("another is selected")
	}
}

func FuzzParseRetractions(f *testing.F) {
	f.Add("v1.2.0: loses data; [v1.3.0, v1.3.4]: b\n>=1 <2 || 3.x: c", "v1.3.1")
	f.Fuzz(func(t *testing.T, text, tag string) {
		all, _ := ParseRetractions(text)
		for _, r := range all {
			r.Versions.Contains(tag)
			if r.Reason == "" || strings.ContainsAny(r.Reason, "\n\x1b") {
				t.Errorf("%q gives the reason %q", text, r.Reason)
			}
		}
	})
}
