package sources

import (
	"errors"
	"strings"
	"testing"
)

func mustRef(t *testing.T, s string) Ref {
	t.Helper()
	r, err := ParseRef(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestOrigin(t *testing.T) {
	t.Parallel()
	mirror := ImageConfig{Name: "mirror", Prefixes: []string{"xpkg.example.org/", "other.example.org/team"}, Rewrite: "mirror.example.org/x/"}
	closer := ImageConfig{Name: "closer", Prefixes: []string{"xpkg.example.org/acme/"}, Rewrite: "near.example.org:5000/acme/", PullSecret: "wrong"}
	secret := ImageConfig{Name: "secret", Prefixes: []string{"mirror.example.org/"}, PullSecret: "pull"}
	for _, tt := range []struct {
		name, ref string
		declared  []string
		configs   ImageConfigs
		want      Origin
		err       string
	}{
		{name: "none", ref: "xpkg.example.org/acme/a:v1", declared: []string{"a", "b"}, want: Origin{Repository: "xpkg.example.org/acme/a", PullSecrets: "a,b"}},
		{name: "no match", ref: "else.example.org/a:v1", configs: ImageConfigs{mirror, closer, secret}, want: Origin{Repository: "else.example.org/a"}},
		{name: "rewritten, the secret of the mirror", ref: "xpkg.example.org/a@" + string(DigestOf(nil)), declared: []string{"a"}, configs: ImageConfigs{secret, mirror},
			want: Origin{Repository: "mirror.example.org/x/a", RewrittenBy: "mirror", PullSecrets: "a,pull"}},
		{name: "longest prefix", ref: "xpkg.example.org/acme/a:v1", configs: ImageConfigs{closer, mirror}, want: Origin{Repository: "near.example.org:5000/acme/a", RewrittenBy: "closer"}},
		{name: "longest prefix, other order", ref: "xpkg.example.org/acme/a:v1", configs: ImageConfigs{mirror, closer}, want: Origin{Repository: "near.example.org:5000/acme/a", RewrittenBy: "closer"}},
		{name: "a prefix in the middle of a name", ref: "other.example.org/team-b/a:v1", configs: ImageConfigs{mirror}, err: "ImageConfig mirror: rewriteImage makes"},
		{name: "same prefix, and a longer one", ref: "xpkg.example.org/acme/a:v1",
			configs: ImageConfigs{mirror, {Name: "twin", Prefixes: []string{"xpkg.example.org/"}, Rewrite: "b.example.org/"}, closer},
			want:    Origin{Repository: "near.example.org:5000/acme/a", RewrittenBy: "closer"}},
		{name: "same prefix", ref: "xpkg.example.org/a:v1", configs: ImageConfigs{mirror, {Name: "twin", Prefixes: []string{"xpkg.example.org/"}, Rewrite: "b.example.org/"}},
			err: `ImageConfigs mirror and twin both have rewriteImage for xpkg.example.org/a:v1 by the prefix "xpkg.example.org/"`},
		{name: "same prefix and value", ref: "xpkg.example.org/a:v1", configs: ImageConfigs{mirror, {Name: "twin", Prefixes: []string{"xpkg.example.org/"}, Rewrite: mirror.Rewrite}},
			want: Origin{Repository: "mirror.example.org/x/a", RewrittenBy: "mirror"}},
		{name: "another name of the registry", ref: "index.docker.io/acme/a:v1", configs: ImageConfigs{{Name: "hub", Prefixes: []string{"docker.io/"}, Rewrite: "mirror.example.org/"}}, want: Origin{Repository: "mirror.example.org/acme/a", RewrittenBy: "hub"}},
		{name: "another name in the prefix", ref: "docker.io/acme/a:v1", configs: ImageConfigs{{Name: "hub", Prefixes: []string{"index.docker.io"}, Rewrite: "mirror.example.org"}}, want: Origin{Repository: "mirror.example.org/acme/a", RewrittenBy: "hub"}},
		{name: "the default port in the prefix", ref: "xpkg.example.org/acme/a:v1", configs: ImageConfigs{mirror, {Name: "port", Prefixes: []string{"xpkg.example.org:443/acme/"}, Rewrite: "b.example.org/"}}, want: Origin{Repository: "b.example.org/a", RewrittenBy: "port"}},
		{name: "longest prefix under another name", ref: "docker.io/acme/a:v1", configs: ImageConfigs{{Name: "long", Prefixes: []string{"index.docker.io/acme/"}, Rewrite: "b.example.org/"}, {Name: "longer", Prefixes: []string{"docker.io/acme/a"}, Rewrite: "c.example.org/a"}},
			want: Origin{Repository: "c.example.org/a", RewrittenBy: "longer"}},
		{name: "version in the prefix", ref: "xpkg.example.org/a:v1", configs: ImageConfigs{{Name: "c", Prefixes: []string{"xpkg.example.org/a:v1"}, Rewrite: "b"}}, err: "reaches into the version"},
		{name: "a broken one that concerns it", ref: "xpkg.example.org/a:v1", configs: ImageConfigs{mirror, {Name: "broken", Prefixes: []string{"xpkg.example.org/"}, Err: errors.New("x")}},
			err: "ImageConfig broken applies to it and has errors"},
		{name: "a broken one that concerns everything", ref: "xpkg.example.org/a:v1", configs: ImageConfigs{{Name: "broken", Err: errors.New("x")}}, err: "ImageConfig broken applies to it and has errors"},
		{name: "a broken one elsewhere", ref: "xpkg.example.org/a:v1", configs: ImageConfigs{{Name: "broken", Prefixes: []string{"b.example.org/"}, Err: errors.New("x")}}, want: Origin{Repository: "xpkg.example.org/a"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			o, err := tt.configs.Origin(mustRef(t, tt.ref), tt.declared)
			switch {
			case tt.err != "":
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("have %v, want %q", err, tt.err)
				}
			case err != nil:
				t.Error(err)
			case o != tt.want:
				t.Errorf("have %+v, want %+v", o, tt.want)
			}
		})
	}
}

// A policy for the declared name holds behind a mirror that has none.
func TestVerificationBehindMirror(t *testing.T) {
	t.Parallel()
	declared := &Verification{ImageConfig: "declared"}
	mirrored := &Verification{ImageConfig: "mirrored"}
	ref := mustRef(t, "xpkg.example.org/a:v1")
	o := Origin{Repository: "mirror.example.org/a", RewrittenBy: "m"}
	byDeclared := ImageConfig{Name: "declared", Prefixes: []string{"xpkg.example.org/"}, Verification: declared}
	byMirror := ImageConfig{Name: "mirrored", Prefixes: []string{"mirror.example.org/"}, Verification: mirrored}
	for _, tt := range []struct {
		configs ImageConfigs
		want    *Verification
	}{
		{nil, nil},
		{ImageConfigs{byDeclared}, declared},
		{ImageConfigs{byMirror}, mirrored},
		{ImageConfigs{byDeclared, byMirror}, mirrored},
	} {
		if v, err := tt.configs.Verification(ref, o); err != nil || v != tt.want {
			t.Errorf("%v: have %+v, %v", tt.configs, v, err)
		}
	}
	twin := byDeclared
	twin.Name = "twin"
	if v, err := (ImageConfigs{byDeclared, twin}).Verification(ref, o); err == nil {
		t.Errorf("two policies by one prefix: have %+v", v)
	}
}

func TestParseImagePrefix(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ in, want, err string }{
		{"registry.example.org/acme/", "registry.example.org/acme/", ""},
		{"Registry.Example.ORG/acme/", "registry.example.org/acme/", ""},
		{"registry.example.org", "registry.example.org", ""},
		{"registry.example.org:5000/", "registry.example.org:5000/", ""},
		{"localhost:5000/a", "localhost:5000/a", ""},
		{"[::1]:5000/a", "[::1]:5000/a", ""},
		{"xpkg.", "xpkg.", ""},
		{"crossplane-contrib/", DefaultRegistry + "/crossplane-contrib/", ""},
		{"crossplane-contrib/provider-helm:v1.", DefaultRegistry + "/crossplane-contrib/provider-helm:v1.", ""},
		{"a.io/b:V1", "a.io/b:V1", ""},
		{"a.io/b@sha256:00", "a.io/b@sha256:00", ""},
		{"", "", "is missing"},
		{"acme", "", "could be the beginning of a host or of a path"},
		{"https://a.io/b", "", "write a.io/b"},
		{"oci://a.io/b", "", "write a.io/b"},
		{"a.io/Acme/", "", "matches no reference"},
		{"a.io/*", "", "matches no reference"},
		{"*.example.org/", "", "matches no reference"},
		{" a.io/", "", "matches no reference"},
		{"a.io//b", "", "matches no reference"},
		{"/a.io", "", "matches no reference"},
		{"a.io/../b", "", "matches no reference"},
		{"a.io/b:v1/c", "", "matches no reference"},
	} {
		have, err := ParseImagePrefix(tt.in)
		if have != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%q: have %q, %v; want %q, %q", tt.in, have, err, tt.want, tt.err)
		}
	}
}

// A registry has one policy under all of its names.
func TestVerificationWhateverTheName(t *testing.T) {
	for _, tt := range []struct {
		prefix, image string
		want          bool
	}{
		{"docker.io/acme/", "index.docker.io/acme/w:v1", true},
		{"docker.io/acme", "registry-1.docker.io/acme/w:v1", true},
		{"index.docker.io/acme/", "docker.io/acme/w:v1", true},
		{"index.docker.io", "docker.io/acme/w:v1", true},
		{"index.docker.io", "docker.io.example.org/acme/w:v1", false},
		{"reg.example.org:443", "reg.example.org/acme/w:v1", true},
		{"registry.example.org/acme", "registry.example.org:443/acme/w:v1", true},
		{"registry.example.org:443/", "registry.example.org/acme/w:v1", true},
		{"registry.example.org/acme", "registry.example.org:8443/acme/w:v1", false},
		{"docker.io/acme/", "index.docker.io/other/w:v1", false},
		{"registry.example.org/acme", "registry.example.org:0443/acme/w:v1", true},
		{"registry.example.org:5000/acme", "registry.example.org:05000/acme/w:v1", true},
		{"registry.example.org:05000/acme", "registry.example.org:5000/acme/w:v1", true},
		{"registry.example.org:5000/acme", "registry.example.org:50000/acme/w:v1", false},
	} {
		prefix, err := ParseImagePrefix(tt.prefix)
		if err != nil {
			t.Fatal(err)
		}
		ref, err := ParseRef(tt.image)
		if err != nil {
			t.Fatal(err)
		}
		configs := ImageConfigs{{Name: "signed", Prefixes: []string{prefix}, Verification: &Verification{ImageConfig: "signed"}}}
		mirror := Origin{Repository: "mirror.example.org/w"}
		for _, o := range []Origin{{Repository: ref.Repository}, mirror} {
			if v, err := configs.Verification(ref, o); err != nil || (v != nil) != tt.want {
				t.Errorf("prefix %s, package %s from %s: policy %v, error %v, want a policy: %t", prefix, ref, o, v, err, tt.want)
			}
		}
	}
}

// A reference has the usual name of its registry.
func TestParseRefUsualName(t *testing.T) {
	for in, want := range map[string]string{
		"Index.Docker.io/acme/w:v1":           "docker.io/acme/w:v1",
		"registry-1.docker.io:443/acme/w:v1":  "docker.io/acme/w:v1",
		"registry.example.org:0443/acme/w:v1": "registry.example.org/acme/w:v1",
		"registry.example.org:5000/acme/w:v1": "registry.example.org:5000/acme/w:v1",
		"registry.example.org:00/acme/w:v1":   "registry.example.org:0/acme/w:v1",
		"[::1]:443/acme/w:v1":                 "[::1]/acme/w:v1",
		"harbor:443/acme/w:v1":                "harbor:443/acme/w:v1", // harbor/acme/w is Docker Hub's
	} {
		ref, err := ParseRef(in)
		if err != nil || ref.String() != want {
			t.Errorf("%s is %s, %v, want %s", in, ref, err, want)
		}
		if again, err := ParseRef(ref.String()); err != nil || again != ref {
			t.Errorf("%s is read as %s, %v", ref, again, err)
		}
	}
}

// A host in capitals is no way around a policy.
func TestVerificationWhateverTheCase(t *testing.T) {
	t.Parallel()
	prefix, err := ParseImagePrefix("Registry.example.org/acme/")
	if err != nil {
		t.Fatal(err)
	}
	configs := ImageConfigs{{Name: "signed", Prefixes: []string{prefix, "else.example.org/"}, Verification: &Verification{ImageConfig: "signed"}}}
	ref := mustRef(t, "REGISTRY.example.org/acme/a:v1")
	if v, err := configs.Verification(ref, Origin{Repository: ref.Repository}); err != nil || v == nil {
		t.Errorf("have %v, %v", v, err)
	}
	if idle := configs.Idle([]Ref{ref}); len(idle) != 1 || !strings.Contains(idle[0], `"else.example.org/"`) {
		t.Errorf("idle: %q", idle)
	}
}

func TestSameRepository(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want bool
	}{
		{"ghcr.io/acme/a", "ghcr.io/acme/a", true},
		{"ghcr.io/acme/a", "ghcr.io:443/acme/a", true},
		{"ghcr.io:0443/acme/a", "ghcr.io/acme/a", true},
		{"ghcr.io:00443/acme/a", "ghcr.io:443/acme/a", true},
		{"ghcr.io:4430/acme/a", "ghcr.io/acme/a", false},
		{"ghcr.io:0/acme/a", "ghcr.io/acme/a", false},
		{"[::1]:0443/a", "[::1]/a", true},
		{"[::0443]/a", "[::]/a", false},
		{"index.docker.io/acme/a", "registry-1.docker.io:443/acme/a", true},
		{"docker.io/acme/a", "index.docker.io/acme/a", true},
		{"docker.io/acme/a", "index.docker.io/acme/b", false},
		{"docker.io:5000/acme/a", "docker.io/acme/a", false},
		{"", "", true},
	} {
		if SameRepository(tt.a, tt.b) != tt.want || SameRepository(tt.b, tt.a) != tt.want {
			t.Errorf("%s and %s: want %t", tt.a, tt.b, tt.want)
		}
	}
}
