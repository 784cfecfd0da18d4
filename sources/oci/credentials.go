package oci

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"

	"gitopsd.dev/sources"
)

// Credentials are the registry credentials of one Docker configuration, usually
// a Kubernetes pull secret. They print as their source.
type Credentials struct {
	source string
	auths  map[string]authn.AuthConfig // by host[/path]
	// empty are those entries of the file that have no credentials.
	empty map[string]authn.AuthConfig
	key   string
}

// String returns the source of the credentials, and nothing secret.
func (c *Credentials) String() string { return c.source }

// GoString returns the same as String, so that %#v shows nothing secret.
func (c *Credentials) GoString() string { return c.source }

// ParseCredentials reads the Docker configuration of a pull secret: the value
// of .dockerconfigjson ({"auths": {…}}), or of the older .dockercfg. Credential helpers
// are ignored: a pull secret must not choose a program that runs here. Source is for
// error messages, for instance "Secret crossplane-system/package-pull-secret". The
// error quotes nothing of the configuration.
func ParseCredentials(source string, dockerConfig []byte) (*Credentials, error) {
	var file struct {
		Auths map[string]authn.AuthConfig `json:"auths"`
	}
	err := json.Unmarshal(dockerConfig, &file)
	if err == nil && file.Auths == nil {
		err = json.Unmarshal(dockerConfig, &file.Auths)
	}
	if err != nil {
		// The cause may quote a part of the configuration.
		return nil, fmt.Errorf(`%s: not a Docker configuration; want {"auths": {"<registry>": {"auth": "<base64 of user:password>"}}}`, source)
	}
	c := &Credentials{source: source, auths: make(map[string]authn.AuthConfig, len(file.Auths)), empty: make(map[string]authn.AuthConfig), key: string(sources.DigestOf(dockerConfig))}
	for where, auth := range file.Auths {
		if auth == (authn.AuthConfig{}) {
			c.empty[normalize(where)] = auth
			continue
		}
		c.auths[normalize(where)] = auth
	}
	return c, nil
}

// NoCredentials returns a source without credentials, for error messages.
func NoCredentials(source string) *Credentials { return &Credentials{source: source} }

// normalize returns host[/path] for a key of "auths", which may be "https://host/v1/" or
// "host/path/".
func normalize(where string) string {
	where = strings.TrimPrefix(strings.TrimPrefix(where, "https://"), "http://")
	where = strings.TrimRight(where, "/")
	host, path, _ := strings.Cut(where, "/")
	where = strings.TrimSuffix(strings.ToLower(host)+"/"+path, "/")
	for _, api := range []string{"/v1", "/v2"} {
		where = strings.TrimSuffix(where, api)
	}
	if where == "docker.io" || strings.HasPrefix(where, "docker.io/") {
		where = "index." + where
	}
	return where
}

// lookup returns the key that names the longest part of a repository, as the kubelet does: the
// host's labels may be globs, the path is a prefix.
func lookup(auths map[string]authn.AuthConfig, repo name.Repository) (best string, found bool) {
	for where := range auths {
		host, prefix, _ := strings.Cut(where, "/")
		if registry := repo.RegistryStr(); !matchHost(host, registry) && sources.UsualRegistry(host) != sources.UsualRegistry(registry) {
			continue
		}
		if prefix != "" && repo.RepositoryStr() != prefix && !strings.HasPrefix(repo.RepositoryStr(), prefix+"/") {
			continue
		}
		if !found || len(where) > len(best) || len(where) == len(best) && where < best {
			best, found = where, true
		}
	}
	return best, found
}

// lookup returns the credentials that have the longest key for a repository, and whose they are;
// nil if there are none. Of several the first count.
func (k *keyring) lookup(repo name.Repository) (of *Credentials, auth authn.AuthConfig) {
	longest := ""
	for _, c := range k.credentials {
		if where, ok := lookup(c.auths, repo); ok && (of == nil || len(where) > len(longest)) {
			of, auth, longest = c, c.auths[where], where
		}
	}
	return of, auth
}

func matchHost(pattern, host string) bool {
	if pattern == host {
		return true
	}
	p, h := strings.Split(pattern, "."), strings.Split(host, ".")
	if len(p) != len(h) || !strings.Contains(pattern, "*") {
		return false
	}
	for i := range p {
		if ok, err := path.Match(p[i], h[i]); err != nil || !ok {
			return false
		}
	}
	return true
}

// keyring has the credentials that a Client's find returned.
type keyring struct {
	credentials []*Credentials
	// key distinguishes sessions by their credentials.
	key string
}

// keyring returns the Client's own credentials.
func (c *Client) keyring(ctx context.Context) (*keyring, error) {
	k := new(keyring)
	if c.find != nil {
		var err error
		if k.credentials, err = c.find(ctx); err != nil {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			return nil, &problem{Unauthorized, err.Error()}
		}
		for _, creds := range k.credentials {
			k.key += creds.key
		}
	}
	c.found.Store(k)
	return k, nil
}

// authenticator returns the credentials for a repository: the Client's own,
// then Docker's, else none.
func (c *Client) authenticator(ctx context.Context, repo name.Repository, own *keyring) (authn.Authenticator, error) {
	if of, auth := own.lookup(repo); of != nil {
		return authn.FromConfig(auth), nil
	}
	auth, err := c.dockerCredentials(ctx, repo)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.docker[repo.RegistryStr()] = auth != authn.Anonymous
	c.mu.Unlock()
	return auth, nil
}

// namePullSecret ends the advice on credentials for packages that are fetched.
const namePullSecret = ", or have the package name a pull secret (packagePullSecrets), or for a dependency an ImageConfig"

// lookedIn describes the sources that were searched for credentials of a repository, and
// what to do.
func (c *Client) lookedIn(repository string) string {
	repo, err := name.NewRepository(repository)
	if err != nil {
		return "nothing, since that is not a repository"
	}
	var places []string
	found := c.found.Load()
	if found == nil {
		found = new(keyring)
	}
	if of, _ := found.lookup(repo); of != nil {
		return of.source + ", which has some for it: are they right, and not expired?"
	}
	for _, creds := range found.credentials {
		place := creds.source
		if _, ok := lookup(creds.empty, repo); ok {
			place += " (whose entry for it is empty: the password is in a store of Docker's, credsStore, that the file was copied without)"
		}
		places = append(places, place)
	}
	c.mu.Lock()
	has := c.docker[repo.RegistryStr()]
	c.mu.Unlock()
	if has {
		return fmt.Sprintf("Docker's configuration, which has some for it: are they right, and not expired? docker login %s replaces them", repo.RegistryStr())
	}
	places = append(places, "Docker's configuration ($DOCKER_CONFIG or ~/.docker/config.json, Podman's auth.json)")
	return fmt.Sprintf("%s, and found none: run docker login %s%s", strings.Join(places, ", then in "), repo.RegistryStr(), namePullSecret)
}
