package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/x509"
	"debug/elf"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"gitopsd.dev/testscripts/registry"
)

// hello is a program with a dependency.
const hello = `package main

import (
	"fmt"

	"golang.org/x/mod/semver"
)

func main() { fmt.Println("hello", semver.Major("v1.2.3")) }
`

// module makes a module of the program in a new directory, with the dependencies of this one.
func module(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join("../..", name))
		if err != nil {
			t.Fatal(err)
		}
		text = bytes.Replace(text, []byte("module gitopsd.dev\n"), []byte("module example.org/hello\n"), 1)
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	source := filepath.Join(dir, "cmd/greet")
	if err := os.MkdirAll(source, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(source, "main.go"), []byte(hello), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// made returns the image of the program, built in a directory of its own.
func made(t *testing.T) *image {
	t.Helper()
	i, err := makeImage(t.Context(), module(t), "./cmd/greet", io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func TestImage(t *testing.T) {
	i := made(t)

	// Neither the environment nor the directory changes the image.
	t.Setenv("GOFLAGS", "-tags=other")
	t.Setenv("GOAMD64", "v3")
	t.Setenv("CGO_ENABLED", "1")
	kept := filepath.Join(t.TempDir(), "env") // as `go env -w` keeps it
	if err := os.WriteFile(kept, []byte("GOFLAGS=-tags=other\nGOEXPERIMENT=fieldtrack\nGOFIPS140=latest\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOENV", kept)
	if again := made(t); again.digest != i.digest {
		t.Errorf("%s in one directory, %s in another", i.digest, again.digest)
	}

	dir := filepath.Join(t.TempDir(), "image")
	for _, name := range []string{dir + "/", dir} { // the second replaces the first
		if err := i.write(name); err != nil {
			t.Fatal(err)
		}
	}
	written, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	one, err := written.ImageIndex(i.digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(one); err != nil {
		t.Error(err)
	}
	all, err := written.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if first := all.Manifests[0].Digest; first != i.digest || len(all.Manifests) != 1+2*len(platforms) {
		t.Errorf("the layout has %d manifests, and %s first; want the image, and its modules for each platform", len(all.Manifests), first)
	}

	server := registry.Start(t, registry.Config{})
	tag := tagIn(t, server.Host())
	if err := i.push(t.Context(), tag, time.Hour); err != nil {
		t.Fatal(err)
	}
	pushed, err := remote.Index(tag)
	if err != nil {
		t.Fatal(err)
	}
	if digest, err := pushed.Digest(); err != nil || digest != i.digest {
		t.Errorf("the tag is %s, %v; want %s", digest, err, i.digest)
	}
	index, err := pushed.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, d := range index.Manifests {
		have = append(have, d.Platform.String())
		one, err := pushed.Image(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(d.Platform.Architecture, func(t *testing.T) {
			checkImage(t, one, *d.Platform)
			checkModules(t, tag.Context().Digest(d.Digest.String()), d.Platform.Architecture)
		})
	}
	if want := []string{"linux/amd64", "linux/arm64"}; !slices.Equal(have, want) {
		t.Errorf("the image is for %v, want %v", have, want)
	}
	checkModules(t, tag.Context().Digest(i.digest.String()), "amd64", "arm64")
}

// checkImage checks the image for one platform: its configuration, and its files.
func checkImage(t *testing.T, one v1.Image, p v1.Platform) {
	t.Helper()
	config, err := one.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.OS != p.OS || config.Architecture != p.Architecture {
		t.Errorf("the image for %s says that it is for %s/%s", p, config.OS, config.Architecture)
	}
	if config.Config.User != "65532:65532" || !slices.Equal(config.Config.Entrypoint, []string{"/usr/local/bin/greet"}) || len(config.Config.Cmd) > 0 {
		t.Errorf("it runs %v %v as %s", config.Config.Entrypoint, config.Config.Cmd, config.Config.User)
	}
	files := make(map[string][]byte)
	rc := mutate.Extract(one)
	defer rc.Close()
	for r := tar.NewReader(rc); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[strings.TrimSuffix(h.Name, "/")], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
		if writable := h.Mode&0o022 != 0; writable != (strings.Trim(h.Name, "/") == "tmp") {
			t.Errorf("%s has mode %o", h.Name, h.Mode)
		}
	}
	checkRoots(t, files["etc/ssl/certs/ca-certificates.crt"])
	binary := files["usr/local/bin/greet"]
	program, err := elf.NewFile(bytes.NewReader(binary))
	if err != nil {
		t.Fatal(err)
	}
	if machine := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[p.Architecture]; program.Machine != machine {
		t.Errorf("the program is for %s", program.Machine)
	}
	for _, part := range program.Progs {
		if part.Type == elf.PT_INTERP {
			t.Error("the program is not static")
		}
	}
	if p.OS != runtime.GOOS || p.Architecture != runtime.GOARCH {
		return
	}
	file := filepath.Join(t.TempDir(), "greet")
	if err := os.WriteFile(file, binary, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(file).CombinedOutput(); err != nil || string(out) != "hello v1\n" {
		t.Errorf("it prints %q, %v", out, err)
	}
}

// checkRoots checks the certificates of authorities.
func checkRoots(t *testing.T, text []byte) {
	t.Helper()
	n := 0
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil || !c.IsCA {
			t.Errorf("authority %d: %v", n, err)
		}
		n++
	}
	if n < 50 {
		t.Errorf("the image trusts %d authorities", n)
	}
}

// checkModules checks which lists of modules a registry has for a digest: one for each
// architecture.
func checkModules(t *testing.T, of name.Digest, architectures ...string) {
	t.Helper()
	index, err := remote.Referrers(of)
	if err != nil {
		t.Fatal(err)
	}
	referrers, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, d := range referrers.Manifests {
		one, err := remote.Image(of.Context().Digest(d.Digest.String()))
		if err != nil {
			t.Fatal(err)
		}
		manifest, err := one.Manifest()
		if err != nil {
			t.Fatal(err)
		}
		// The registry's list has the media type of the configuration instead.
		if manifest.ArtifactType != sbomType {
			t.Errorf("%s has the type %s", d.Digest, manifest.ArtifactType)
		}
		layers, err := one.Layers()
		if err != nil || len(layers) != 1 {
			t.Fatal(len(layers), err)
		}
		rc, err := layers[0].Compressed()
		if err != nil {
			t.Fatal(err)
		}
		defer rc.Close()
		var list bom
		if err := json.NewDecoder(rc).Decode(&list); err != nil {
			t.Fatal(err)
		}
		main, arch, _ := strings.Cut(list.Metadata.Component.PURL, "?goarch=")
		arch, _, _ = strings.Cut(arch, "&goos=linux#cmd/greet")
		if main != "pkg:golang/example.org/hello" || list.Metadata.Component.Name != "greet" || list.SpecVersion != "1.6" {
			t.Errorf("the list is of %+v, by version %s", list.Metadata.Component, list.SpecVersion)
		}
		have = append(have, arch)
		for _, m := range []struct{ path, version string }{
			{"golang.org/x/mod", required(t, "golang.org/x/mod")},
			{rootsModule, required(t, rootsModule)},
			{"stdlib", strings.TrimPrefix(runtime.Version(), "go")},
		} {
			url := "pkg:golang/" + m.path + "@" + m.version
			if !slices.ContainsFunc(list.Components, func(c component) bool {
				return c.Type == "library" && c.Name == m.path && c.Version == m.version && c.PURL == url && c.Ref == url
			}) {
				t.Errorf("%s %s is not listed: %+v", m.path, m.version, list.Components)
			}
		}
		if len(list.Components) != 3 {
			t.Errorf("%d modules are listed, want those that are in the image", len(list.Components))
		}
	}
	slices.Sort(have)
	if !slices.Equal(have, architectures) {
		t.Errorf("%s has lists for %v, want %v", of, have, architectures)
	}
}

// required returns the version of a module that go.mod requires.
func required(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\t"+path+" ")
	version, _, ok := strings.Cut(rest, "\n")
	if !ok {
		t.Fatalf("go.mod does not require %s", path)
	}
	return version
}

// Mistakes are reported before anything is compiled, and existing files stay.
func TestMistakes(t *testing.T) {
	t.Parallel()
	full := t.TempDir()
	beside := t.TempDir()
	for _, file := range []string{filepath.Join(full, "thesis.txt"), filepath.Join(beside, "thesis.txt"), filepath.Join(beside, "oci-layout")} {
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{nil, 2, "usage: image"},
		{[]string{"registry.example.org/gitopsd:v1"}, 2, "usage: image"},
		{[]string{"-push", "gitopsd"}, 1, "-push gitopsd: want a registry, a repository and a tag, such as "},
		{[]string{"-push", "registry.example.org/gitopsd"}, 1, "want a registry, a repository and a tag, such as "},
		{[]string{"-layout", full}, 1, "-layout " + full + ": the directory is not empty, and no OCI image layout; name another"},
		{[]string{"-layout", filepath.Join(full, "thesis.txt")}, 1, "-layout: "},
		{[]string{"-layout", beside}, 1, "the directory is an OCI image layout, and has thesis.txt beside it, which would be lost; name another"},
	} {
		var out, say bytes.Buffer
		if code := run(t.Context(), tt.args, &out, &say); code != tt.code || !strings.Contains(say.String(), tt.want) || strings.Contains(say.String(), "compiling") || out.Len() > 0 {
			t.Errorf("%v: status %d, %q, %q", tt.args, code, &out, &say)
		}
	}
	if _, err := os.Stat(filepath.Join(full, "thesis.txt")); err != nil {
		t.Error(err)
	}
}

// If a program does not compile, the error has the compiler's output. The end of the
// context ends the compiler.
func TestMakeImageFails(t *testing.T) {
	t.Parallel()
	dir := module(t)
	if err := os.WriteFile(filepath.Join(dir, "cmd/greet/main.go"), []byte("package main\n\nfunc main() { missing() }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := makeImage(t.Context(), dir, "./cmd/greet", io.Discard); err == nil || !strings.Contains(err.Error(), "for linux/amd64") || !strings.Contains(err.Error(), "undefined: missing") {
		t.Errorf("have %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := makeImage(ctx, dir, "./cmd/greet", io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("have %v", err)
	}
}

// tiny returns an image of a program of one byte, and a tag in a registry.
func tiny(t *testing.T, host string) (*image, name.Tag) {
	t.Helper()
	i, err := assemble([]*program{{platform: platforms[0], content: []byte("x"), info: &debug.BuildInfo{Path: "example.org/hello"}}})
	if err != nil {
		t.Fatal(err)
	}
	return i, tagIn(t, host)
}

// tagIn returns a tag in a registry.
func tagIn(t *testing.T, host string) name.Tag {
	t.Helper()
	tag, err := name.NewTag(host + "/platform/hello:v1.0.0")
	if err != nil {
		t.Fatal(err)
	}
	return tag
}

// When a registry refuses the credentials, the error says what to do, and no tag is pushed.
func TestPushRefused(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	server := registry.Start(t, registry.Config{Auth: registry.BasicAuth, Username: "robot", Password: "s3cret"})
	i, tag := tiny(t, server.Host())
	if err := i.push(t.Context(), tag, time.Hour); err == nil || !strings.Contains(err.Error(), "log in with `docker login "+server.Host()+"`") {
		t.Errorf("have %v", err)
	}
	if n := server.Count(http.MethodPut, "/v2/platform/hello/manifests/"); n > 0 {
		t.Errorf("%d manifests were pushed", n)
	}
}

// push gives up when a registry accepts the connection and never answers.
func TestPushTakesTooLong(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	hanging := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hanging }))
	defer server.Close()
	defer close(hanging)
	i, tag := tiny(t, strings.TrimPrefix(server.URL, "http://"))
	err := i.push(t.Context(), tag, 50*time.Millisecond)
	if want := "push " + tag.String() + ": " + tag.RegistryStr() + " did not take everything within 50ms"; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("have %v, want %s", err, want)
	}
}
