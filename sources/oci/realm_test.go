package oci

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"gitopsd.dev/sources"
	"gitopsd.dev/testscripts/registry"
)

// To which token servers credentials go, by the registry's own address.
func TestRealm(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, host, scheme, realm, want, refused string }{
		{name: "its own", host: "r.example.org", scheme: "https", realm: "https://r.example.org/token", want: "https://r.example.org/token"},
		{name: "its own, at a private address", host: "10.0.0.1:5000", scheme: "https", realm: "https://10.0.0.1:5000/token", want: "https://10.0.0.1:5000/token"},
		{name: "another", host: "r.example.org", scheme: "https", realm: "https://auth.example.org/token", want: "https://auth.example.org/token"},
		{name: "by another name of this machine", host: "localhost:5000", scheme: "http", realm: "http://127.0.0.1:5000/token?a=b", want: "http://localhost:5000/token?a=b"},
		{name: "beside it on this machine", host: "127.0.0.1:5000", scheme: "http", realm: "http://127.0.0.1:5001/token", want: "http://localhost:5001/token"},
		{name: "this machine, for another's registry", host: "r.example.org", scheme: "https", realm: "https://127.0.0.1:5000/token", refused: "r.example.org has credentials sent to the private address 127.0.0.1:5000"},
		{name: "metadata of a cloud", host: "localhost:5000", scheme: "http", realm: "http://169.254.169.254/token", refused: "private address 169.254.169.254"},
		{name: "a private address", host: "r.example.org", scheme: "https", realm: "https://10.0.0.1/token", refused: "have whoever runs the registry name its token server by a DNS name"},
		{name: "in clear text", host: "r.example.org", scheme: "https", realm: "http://auth.example.org/token", refused: "r.example.org speaks TLS and has credentials sent to auth.example.org without it"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			given := &transport.Challenge{Scheme: "Bearer", Parameters: map[string]string{"realm": tt.realm, "service": "s"}}
			p := ping{challenge: given, scheme: tt.scheme}
			err := followRealm(&p, tt.host)
			if own := (*problem)(nil); tt.refused != "" {
				if !errors.As(err, &own) || own.reason != Untrusted || !strings.Contains(own.text, tt.refused) {
					t.Errorf("have %v, want %q", err, tt.refused)
				}
				return
			}
			if err != nil || p.challenge.Parameters["realm"] != tt.want || p.challenge.Parameters["service"] != "s" || given.Parameters["realm"] != tt.realm {
				t.Errorf("have %v, %v, want %s", p.challenge.Parameters, err, tt.want)
			}
		})
	}
}

// A registry on this machine, without TLS, exchanges credentials for tokens under any name of
// the machine. Errors about credentials have the reference.
func TestLocalTokens(t *testing.T) {
	t.Parallel()
	reg := newRegistry(t, registry.Config{Auth: registry.TokenAuth})
	_, port, _ := strings.Cut(reg.Host(), ":")
	host := "localhost:" + port
	c := newClient(t, reg, Config{})
	ref := sources.Ref{Repository: host + "/acme/w", Tag: "v1"}
	raw := []byte(`{"schemaVersion":2,"mediaType":"` + manifestType + `","config":{"mediaType":"x","digest":"` + string(sources.DigestOf(nil)) + `","size":0},"layers":[]}`)
	for _, tt := range []struct {
		name, config string
		want         string // of the error
	}{
		{"none", `{"auths":{}}`, host + "/acme/w:v1: " + host + " refuses access; looked for credentials in test, then in Docker's configuration"},
		{"wrong", dockerConfig(host), "looked for credentials in test, which has some for it: are they right, and not expired?"},
		{"right", strings.ReplaceAll(string(reg.DockerConfig()), reg.Host(), host), ""},
	} {
		creds, err := ParseCredentials("test", []byte(tt.config))
		if err != nil {
			t.Fatal(err)
		}
		err = c.With(with(creds)).PushManifest(t.Context(), ref, manifestType, raw)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "packagePullSecrets")) {
			t.Errorf("%s: have %v, want %q", tt.name, err, tt.want)
		}
	}
}
