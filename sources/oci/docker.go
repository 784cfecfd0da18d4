package oci

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/docker/cli/cli/config"
	"github.com/docker/cli/cli/config/configfile"
	"github.com/docker/cli/cli/config/types"
	"github.com/docker/docker-credential-helpers/client"
	"github.com/docker/docker-credential-helpers/credentials"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
)

// mostHelpers bounds the credential helpers that run for one registry at a time.
const mostHelpers = 4

// dockerCredentials returns the credentials in Docker's configuration, or else Podman's. It
// finds the same as the library (authn.DefaultKeychain), which runs one credential helper
// at a time for all registries, and waits for it without an end.
func (c *Client) dockerCredentials(ctx context.Context, repo name.Repository) (authn.Authenticator, error) {
	cf, file, err := loadDocker()
	if err != nil {
		// The cause may quote the file.
		return nil, &problem{Unauthorized, fmt.Sprintf("credentials for %s are looked for in %s, which cannot be read or is not a Docker configuration", repo.RegistryStr(), file)}
	}
	// A login may take c.timeout. The error should be about the helper.
	helping, cancel := context.WithTimeout(ctx, c.timeout/2)
	defer cancel()
	keys := []string{repo.String(), repo.RegistryStr()}
	https := repo.RegistryStr() + ":443" // as a login may have named it
	if _, named := cf.AuthConfigs[https]; named || cf.CredentialHelpers[https] != "" {
		keys = append(keys, https)
	}
	for _, key := range keys {
		if key == name.DefaultRegistry {
			key = authn.DefaultAuthKey
		}
		found, err := c.dockerEntry(helping, cf, key, repo.RegistryStr())
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err != nil:
			return nil, err
		case isSet(found):
			return authn.FromConfig(authn.AuthConfig{
				Username: found.Username, Password: found.Password, Auth: found.Auth,
				IdentityToken: found.IdentityToken, RegistryToken: found.RegistryToken,
			}), nil
		}
	}
	return authn.Anonymous, nil
}

// dockerEntry returns the credentials under a key, which may have none.
func (c *Client) dockerEntry(ctx context.Context, cf *configfile.ConfigFile, key, registry string) (types.AuthConfig, error) {
	helper, ok := cf.CredentialHelpers[key]
	if !ok {
		helper = cf.CredentialsStore
	}
	if helper == "" {
		return cf.GetAuthConfig(key)
	}
	// $DOCKER_AUTH_CONFIG comes before helpers.
	if found, err := new(configfile.ConfigFile).GetAuthConfig(key); err != nil || isSet(found) {
		return found, err
	}
	return c.help(ctx, "docker-credential-"+helper, key, registry)
}

// isSet reports whether there are credentials; the address may be there without.
func isSet(a types.AuthConfig) bool {
	a.ServerAddress = ""
	return a != types.AuthConfig{}
}

// loadDocker reads the configuration of Docker or Podman, which is empty if there is none.
// The file is for errors.
func loadDocker() (cf *configfile.ConfigFile, file string, err error) {
	exists := func(file string) bool {
		info, err := os.Stat(file)
		return err == nil && !info.IsDir()
	}
	home, _ := os.UserHomeDir()
	usual, dir := filepath.Join(home, ".docker"), os.Getenv("DOCKER_CONFIG")
	if home != "" && exists(filepath.Join(usual, config.ConfigFileName)) || dir != "" && exists(filepath.Join(dir, config.ConfigFileName)) {
		dir = cmp.Or(dir, usual)
		cf, err := config.Load(dir)
		return cf, filepath.Join(dir, config.ConfigFileName), err
	}
	podman := []string{os.Getenv("REGISTRY_AUTH_FILE")}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		podman = append(podman, filepath.Join(dir, "containers", "auth.json"))
	}
	if dir := os.Getenv("XDG_CONFIG_HOME"); dir != "" {
		podman = append(podman, filepath.Join(dir, "containers", "auth.json"))
	} else if home != "" {
		podman = append(podman, filepath.Join(home, ".config", "containers", "auth.json"))
	}
	for _, file := range podman {
		if !exists(file) {
			continue
		}
		f, err := os.Open(file)
		if err != nil {
			return nil, file, err
		}
		defer f.Close()
		cf, err := config.LoadFromReader(f)
		return cf, file, err
	}
	return new(configfile.ConfigFile), "", nil
}

// help asks a credential helper for the credentials under a key. It kills the helper when
// ctx ends.
func (c *Client) help(ctx context.Context, program, key, registry string) (types.AuthConfig, error) {
	named := fmt.Sprintf("%s, which Docker's configuration names for the credentials of %s,", program, registry)
	late := &problem{TimedOut, fmt.Sprintf("%s did not answer within %v; `echo %s | %s get` shows why", named, c.timeout/2, key, program)}
	path, err := exec.LookPath(program)
	if err != nil {
		return types.AuthConfig{}, &problem{Unauthorized, named + " is not installed; install it, or remove it from credHelpers or credsStore there"}
	}
	c.mu.Lock()
	running := c.helpers[registry]
	if running == nil {
		running = make(chan struct{}, mostHelpers)
		c.helpers[registry] = running
	}
	c.mu.Unlock()
	select {
	case running <- struct{}{}:
		defer func() { <-running }()
	case <-ctx.Done():
		return types.AuthConfig{}, late
	}
	found, err := client.Get(func(args ...string) client.Program {
		cmd := exec.CommandContext(ctx, path, args...)
		cmd.Stderr = os.Stderr
		cmd.WaitDelay = time.Second // for its output, which others may have open
		killGroup(cmd)
		return helper{cmd}
	}, key)
	switch {
	case credentials.IsErrCredentialsNotFound(err):
		return types.AuthConfig{}, nil
	case err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
		return types.AuthConfig{}, late
	case err != nil:
		// The cause may quote its output.
		return types.AuthConfig{}, &problem{Unauthorized, fmt.Sprintf("%s fails; `echo %s | %s get` shows why", named, key, program)}
	case found.Username == "<token>":
		return types.AuthConfig{IdentityToken: found.Secret}, nil
	}
	return types.AuthConfig{Username: found.Username, Password: found.Secret}, nil
}

// helper is a run of a credential helper for the library.
type helper struct{ cmd *exec.Cmd }

func (h helper) Output() ([]byte, error) { return h.cmd.Output() }
func (h helper) Input(in io.Reader)      { h.cmd.Stdin = in }
