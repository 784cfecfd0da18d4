//go:build unix

package oci

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/docker/cli/cli/config"
	"github.com/google/go-containerregistry/pkg/authn"
	"golang.org/x/sync/errgroup"

	"gitopsd.dev/sources"
	"gitopsd.dev/testscripts/await"
	"gitopsd.dev/testscripts/registry"
)

// TestDockerConfig: credentials come from where Docker keeps them, from a helper
// too, and one that hangs is not waited for.
func TestDockerConfig(t *testing.T) {
	reg := newRegistry(t, registry.Config{Auth: registry.BasicAuth})
	push(t, newClient(t, reg, Config{}), reg.Host()+"/acme/types", "v1", []byte("content"))
	home, bin := t.TempDir(), t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("DOCKER_CONFIG", filepath.Join(home, ".docker"))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	helper := func(name, script string) {
		if err := os.WriteFile(filepath.Join(bin, "docker-credential-"+name), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	helper("good", fmt.Sprintf(`echo '{"ServerURL":"x","Username":"alice","Secret":%q}'`, password))
	helper("bad", "echo "+password+"; exit 1")
	helper("hanging", "exec sleep 1")
	if err := os.Mkdir(filepath.Join(home, ".docker"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct{ config, want string }{
		"password": {string(reg.DockerConfig()), ""},
		"helper":   {`{"credsStore":"good"}`, ""},
		"nothing":  {`{}`, "refuses access"},
		"garbage":  {`{"auths": "` + password, ".docker/config.json, which cannot be read"},
		"missing":  {`{"credsStore":"none"}`, "docker-credential-none, which Docker's configuration names for the credentials of " + reg.Host() + ", is not installed"},
		"failing":  {`{"credsStore":"bad"}`, "docker-credential-bad, which Docker's configuration names for the credentials of " + reg.Host() + ", fails; `echo " + reg.Host() + "/acme/types | docker-credential-bad get` shows why"},
		"hanging":  {`{"credsStore":"hanging"}`, "did not answer before the deadline"},
	} {
		if err := os.WriteFile(filepath.Join(home, ".docker", "config.json"), []byte(test.config), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := New(Config{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if name == "hanging" {
			ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
		}
		_, err = c.Resolve(ctx, sources.Ref{Repository: reg.Host() + "/acme/types", Tag: "v1"})
		cancel()
		c.Close()
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), password)) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

// TestHangingHelper: a credential helper that hangs is killed with what it started. Other
// registries need not wait for it.
func TestHangingHelper(t *testing.T) {
	reg, other := newRegistry(t, registry.Config{Auth: registry.BasicAuth}), newRegistry(t, registry.Config{Auth: registry.BasicAuth})
	for _, r := range []*registry.Registry{reg, other} {
		push(t, newClient(t, r, Config{}), r.Host()+"/acme/types", "v1", []byte("content"))
	}
	dir := t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	started := filepath.Join(dir, "started")
	for file, text := range map[string]string{
		"docker-credential-test": fmt.Sprintf("#!/bin/sh\nread registry\n"+`case $registry in %s*) sleep 1000 & echo $! >%q.$$; mv %[2]q.$$ %[2]q; wait;; esac`+
			"\n"+`echo '{"Username":"alice","Secret":%q}'`+"\n", reg.Host(), started, password),
		"config.json": `{"credsStore":"test"}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	c, err := New(Config{Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var group errgroup.Group
	var ended atomic.Bool
	for i := range 2 * mostHelpers {
		group.Go(func() error {
			_, err := c.Resolve(t.Context(), sources.Ref{Repository: fmt.Sprintf("%s/acme/types-%d", reg.Host(), i), Tag: "v1"})
			ended.Store(true)
			var e *Error
			if !errors.As(err, &e) || e.Reason != TimedOut ||
				!strings.Contains(e.Text, "docker-credential-test, which Docker's configuration names for the credentials of "+reg.Host()+", did not answer within 10s") {
				t.Errorf("hanging: %v", err)
			}
			return nil
		})
	}
	await.True(t, "the helper runs", func() bool {
		_, err := os.Stat(started)
		return err == nil
	})
	if _, err := c.Resolve(t.Context(), sources.Ref{Repository: other.Host() + "/acme/types", Tag: "v1"}); err != nil || ended.Load() {
		t.Errorf("another registry: %v, after the one that hangs: %v", err, ended.Load())
	}
	_ = group.Wait()
	text, err := os.ReadFile(started)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	await.True(t, "what the helper started is gone", func() bool { return syscall.Kill(pid, 0) != nil })
}

// TestDockerKeychain: the same credentials are found as by the library.
func TestDockerKeychain(t *testing.T) {
	for name, test := range map[string]struct {
		files, env map[string]string
	}{
		"nothing":                       {},
		"home":                          {files: map[string]string{".docker/config.json": dockerConfig("r.example.com")}},
		"repository":                    {files: map[string]string{".docker/config.json": dockerConfig("r.example.com/acme/types")}},
		"legacy key":                    {files: map[string]string{".docker/config.json": dockerConfig("https://r.example.com/v1/")}},
		"other registry":                {files: map[string]string{".docker/config.json": dockerConfig("s.example.com")}},
		"empty entry":                   {files: map[string]string{".docker/config.json": `{"auths":{"r.example.com":{}}}`}},
		"token":                         {files: map[string]string{".docker/config.json": `{"auths":{"r.example.com":{"identitytoken":"t"}}}`}},
		"$DOCKER_CONFIG":                {files: map[string]string{"d/config.json": dockerConfig("r.example.com"), ".docker/config.json": dockerConfig("s.example.com")}, env: map[string]string{"DOCKER_CONFIG": "d"}},
		"empty directory":               {files: map[string]string{".docker/config.json": dockerConfig("r.example.com")}, env: map[string]string{"DOCKER_CONFIG": "d"}},
		"$REGISTRY_AUTH_FILE":           {files: map[string]string{"a.json": dockerConfig("r.example.com")}, env: map[string]string{"REGISTRY_AUTH_FILE": "a.json"}},
		"Podman, runtime":               {files: map[string]string{"x/containers/auth.json": dockerConfig("r.example.com")}, env: map[string]string{"XDG_RUNTIME_DIR": "x"}},
		"Podman, settings":              {files: map[string]string{"x/containers/auth.json": dockerConfig("r.example.com")}, env: map[string]string{"XDG_CONFIG_HOME": "x"}},
		"Podman, home":                  {files: map[string]string{".config/containers/auth.json": dockerConfig("r.example.com")}},
		"helper":                        {files: map[string]string{".docker/config.json": `{"credHelpers":{"r.example.com":"test"}}`}},
		"helper's token":                {files: map[string]string{".docker/config.json": `{"credHelpers":{"r.example.com":"token"}}`}},
		"helper of another":             {files: map[string]string{".docker/config.json": `{"credHelpers":{"s.example.com":"none"}}`}},
		"store":                         {files: map[string]string{".docker/config.json": `{"credsStore":"test","auths":{"r.example.com":{}}}`}},
		"store finds nothing":           {files: map[string]string{".docker/config.json": `{"credsStore":"empty"}`}},
		"$DOCKER_AUTH_CONFIG":           {files: map[string]string{".docker/config.json": `{"credsStore":"empty"}`}, env: map[string]string{"DOCKER_AUTH_CONFIG": dockerConfig("r.example.com")}},
		"$DOCKER_AUTH_CONFIG and store": {files: map[string]string{".docker/config.json": `{"credsStore":"test"}`}, env: map[string]string{"DOCKER_AUTH_CONFIG": dockerConfig("r.example.com/acme/types")}},
	} {
		t.Run(name, func(t *testing.T) {
			home := t.TempDir()
			t.Setenv("HOME", home)
			t.Setenv("PATH", home+":"+os.Getenv("PATH"))
			for _, name := range []string{"DOCKER_CONFIG", "REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "DOCKER_AUTH_CONFIG"} {
				value := test.env[name]
				if value != "" && name != "DOCKER_AUTH_CONFIG" {
					value = filepath.Join(home, value)
				}
				t.Setenv(name, value)
			}
			files := maps.Clone(test.files)
			if files == nil {
				files = make(map[string]string)
			}
			files["docker-credential-test"] = "#!/bin/sh\necho '{\"Username\":\"u\",\"Secret\":\"s\"}'\n"
			files["docker-credential-token"] = "#!/bin/sh\necho '{\"Username\":\"<token>\",\"Secret\":\"s\"}'\n"
			files["docker-credential-empty"] = "#!/bin/sh\necho credentials not found in native keychain; exit 1\n"
			for file, text := range files {
				file = filepath.Join(home, file)
				if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o700)); err != nil {
					t.Fatal(err)
				}
			}
			c, err := New(Config{})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			repo, err := parseRepository("r.example.com/acme/types")
			if err != nil {
				t.Fatal(err)
			}
			config.SetDir(filepath.Join(home, ".docker")) // the library reads $HOME once
			want, err := authn.DefaultKeychain.Resolve(repo)
			if err != nil {
				t.Fatal(err)
			}
			have, err := c.dockerCredentials(t.Context(), repo)
			if err != nil || !reflect.DeepEqual(have, want) {
				t.Errorf("have %+v, %v; want %+v", have, err, want)
			}
		})
	}
}
