package oci

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"

	"gitopsd.dev/sources"
	"gitopsd.dev/testscripts/registry"
)

func dockerConfig(keys ...string) string {
	var entries []string
	for _, k := range keys {
		entries = append(entries, fmt.Sprintf("%q:{%q:%q}", k, "auth", base64.StdEncoding.EncodeToString([]byte(userOf(k)+":secret"))))
	}
	return `{"auths":{` + strings.Join(entries, ",") + `}}`
}

// userOf is the user in the entry of a key; a colon would end it.
func userOf(key string) string { return "user of " + strings.ReplaceAll(key, ":", "_") }

func TestCredentials(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		keys       []string
		repository string
		want       string // the key whose user is found
	}{
		"host":             {[]string{"r.example.com"}, "r.example.com/a/b", "r.example.com"},
		"other host":       {[]string{"r.example.com"}, "s.example.com/a/b", ""},
		"port":             {[]string{"r.example.com:5000"}, "r.example.com:5000/a/b", "r.example.com:5000"},
		"other port":       {[]string{"r.example.com:5000"}, "r.example.com/a/b", ""},
		"default port":     {[]string{"r.example.com:443"}, "r.example.com/a/b", "r.example.com:443"},
		"URL":              {[]string{"https://r.example.com/v2/"}, "r.example.com/a/b", "https://r.example.com/v2/"},
		"Docker Hub":       {[]string{"https://index.docker.io/v1/"}, "docker.io/a/b", "https://index.docker.io/v1/"},
		"Docker Hub short": {[]string{"docker.io"}, "docker.io/a/b", "docker.io"},
		"path":             {[]string{"r.example.com", "r.example.com/team"}, "r.example.com/team/b", "r.example.com/team"},
		"path is whole":    {[]string{"r.example.com", "r.example.com/team"}, "r.example.com/teamwork", "r.example.com"},
		"repository":       {[]string{"r.example.com/team/b"}, "r.example.com/team/b", "r.example.com/team/b"},
		"capitals":         {[]string{"https://R.Example.com/team"}, "r.example.com/team/b", "https://R.Example.com/team"},
		"glob":             {[]string{"*.example.com"}, "r.example.com/a/b", "*.example.com"},
		"glob, one label":  {[]string{"*.example.com"}, "r.s.example.com/a/b", ""},
		"broken glob":      {[]string{"[.example.com"}, "r.example.com/a/b", ""},
	}
	for what, test := range tests {
		creds, err := ParseCredentials("test", []byte(dockerConfig(test.keys...)))
		if err != nil {
			t.Fatal(err)
		}
		repo, err := name.NewRepository(test.repository)
		if err != nil {
			t.Fatal(err)
		}
		where, ok := lookup(creds.auths, repo)
		auth := creds.auths[where]
		if ok != (test.want != "") || ok && auth.Username != userOf(test.want) {
			t.Errorf("%s: %q, %v; want that of %q", what, auth.Username, ok, test.want)
		}
	}

	old, err := ParseCredentials("test", []byte(`{"r.example.com":{"username":"u","password":"secret"}}`))
	if err != nil || old.auths["r.example.com"].Username != "u" {
		t.Errorf(".dockercfg: %v, %v", old, err)
	}
	for _, garbage := range []string{"", "null secret", `{"auths":[]}`, `{"auths":{"r":{"auth":"c2VjcmV0"}}}`, `["secret"]`} {
		if _, err := ParseCredentials("Secret a/b", []byte(garbage)); err == nil || !strings.HasPrefix(err.Error(), "Secret a/b: ") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", garbage, err)
		}
	}
	creds, _ := ParseCredentials("the source", []byte(dockerConfig("r.example.com")))
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		if s := fmt.Sprintf(format, creds); s != "the source" {
			t.Errorf("%s prints %s", format, s)
		}
	}
}

// Of several pull secrets the one counts that names the longest part, and the first of two that
// name the same. Entries without credentials, as Docker Desktop writes them, are none.
func TestSeveralSecrets(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		secrets []string
		want    string // the user
		text    string // of the advice
	}{
		{"the longest", []string{dockerConfig("r.example.com"), dockerConfig("r.example.com/acme")}, userOf("r.example.com/acme"), "one of 1, which has some for it"},
		{"the first", []string{`{"auths":{"r.example.com":{"username":"a"}}}`, `{"auths":{"r.example.com":{"username":"b"}}}`}, "a", "one of 0, which has some for it"},
		{"an empty entry", []string{`{"auths":{"r.example.com":{}},"credsStore":"desktop"}`, dockerConfig("r.example.com")}, userOf("r.example.com"), "one of 1, which has some for it"},
		{"nothing but an empty entry", []string{`{"auths":{"r.example.com":{}},"credsStore":"desktop"}`}, "", "one of 0 (whose entry for it is empty: the password is in a store of Docker's, credsStore, that the file was copied without), then in Docker's"},
	} {
		var all []*Credentials
		for i, text := range tt.secrets {
			creds, err := ParseCredentials(fmt.Sprintf("one of %d", i), []byte(text))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, creds)
		}
		c, err := New(Config{})
		if err != nil {
			t.Fatal(err)
		}
		c = c.With(with(all...))
		own, err := c.keyring(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		repo, err := name.NewRepository("r.example.com/acme/b")
		if err != nil {
			t.Fatal(err)
		}
		if _, auth := own.lookup(repo); auth.Username != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, auth.Username, tt.want)
		}
		if text := c.lookedIn("r.example.com/acme/b"); !strings.HasPrefix(text, tt.text) {
			t.Errorf("%s: %s", tt.name, text)
		}
	}
}

func FuzzParseCredentials(f *testing.F) {
	f.Add([]byte(dockerConfig("r.example.com", "https://index.docker.io/v1/")))
	f.Add([]byte(`{"r.example.com":{"username":"u","password":"p"}}`))
	repo, err := name.NewRepository("r.example.com/a/b")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if creds, err := ParseCredentials("fuzz", data); err == nil {
			lookup(creds.auths, repo)
		}
	})
}

// TestTagsPages: a list in pages, and registries that would send us elsewhere or
// round in circles with them.
func TestTagsPages(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		links map[string]string // next page by the query of this one
		want  string
	}{
		"one page":      {nil, "n=1000"},
		"three":         {map[string]string{"n=1000": "</v2/a/b/tags/list?last=x>; rel=\"next\"", "last=x": "<?last=y>; rel=next"}, "last=x last=y n=1000"},
		"elsewhere":     {map[string]string{"n=1000": "<http://169.254.169.254/v2/a/b/tags/list?last=x>; rel=\"next\""}, "last=x n=1000"},
		"circle of one": {map[string]string{"n=1000": "<?n=1000>; rel=next"}, "n=1000"},
		"not a link":    {map[string]string{"n=1000": "next page please"}, "n=1000"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				if link := test.links[req.URL.RawQuery]; link != "" {
					w.Header().Set("Link", link)
				}
				fmt.Fprintf(w, `{"tags":[%q]}`, req.URL.RawQuery)
			}))
			defer server.Close()
			c, err := New(Config{})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			tags, err := c.Tags(t.Context(), strings.TrimPrefix(server.URL, "http://")+"/a/b")
			if err != nil || strings.Join(tags, " ") != test.want {
				t.Errorf("tags %v, %v; want %s", tags, err, test.want)
			}
		})
	}
}

// TestTooMuch: answers that never end.
func TestTooMuch(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch {
		case strings.Contains(req.URL.Path, "/manifests/"):
			w.Write(make([]byte, maxManifestBytes+1))
		case strings.Contains(req.URL.Path, "/tags/"):
			w.Header().Set("Link", fmt.Sprintf("<?last=%s>; rel=next", req.URL.RawQuery[2:]+"x"))
			fmt.Fprint(w, `{"tags":["a"`+strings.Repeat(`,"a"`, 60_000)+`]}`)
		}
	}))
	defer server.Close()
	c, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	repository := strings.TrimPrefix(server.URL, "http://") + "/a/b"
	if _, err := c.Manifest(t.Context(), repository, "sha256:"+sourcesZero); err == nil || !strings.Contains(err.Error(), "more than 4194304 bytes") {
		t.Errorf("manifest: %v", err)
	}
	if _, err := c.Tags(t.Context(), repository); err == nil || !strings.Contains(err.Error(), "more than 100000 tags") {
		t.Errorf("tags: %v", err)
	}
}

const sourcesZero = "0000000000000000000000000000000000000000000000000000000000000000"

// TestRedirects: where a registry may send us, and what goes along.
func TestRedirects(t *testing.T) {
	t.Parallel()
	request := func(url string) *http.Request {
		req, err := http.NewRequest(http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer secret")
		return req
	}
	for _, test := range []struct {
		from, to string
		want     string
		token    bool
	}{
		{"https://r.example.com/a", "https://r.example.com/b", "", true},
		{"https://r.example.com/a", "https://storage.example.net/b", "", false},
		{"https://r.example.com/a", "https://r.example.com:8443/b", "", false},
		{"https://r.example.com/a", "http://r.example.com/b", "without TLS", false},
		{"https://r.example.com/a", "https://169.254.169.254/b", "inside this network", false},
		{"https://r.example.com/a", "https://127.0.0.1/b", "inside this network", false},
		{"https://10.0.0.1/a", "https://10.0.0.2/b", "", false},
	} {
		req := request(test.to)
		err := checkRedirect(req, []*http.Request{request(test.from)})
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s to %s: %v, want %q", test.from, test.to, err, test.want)
		}
		if err == nil && (req.Header.Get("Authorization") != "") != test.token {
			t.Errorf("%s to %s: token goes along: %v", test.from, test.to, !test.token)
		}
	}
}

// Credentials from a Client's find are used for one request: rotated ones are used at
// once, cached contents need none, and other hosts get none.
func TestFoundCredentials(t *testing.T) {
	t.Parallel()
	reg := newRegistry(t, registry.Config{Auth: registry.TokenAuth, Username: "robot", Password: "s3cret"})
	other := newRegistry(t, registry.Config{Auth: registry.BasicAuth, Username: "robot", Password: "s3cret"})
	right, err := ParseCredentials("Secret test/pull", reg.DockerConfig())
	if err != nil {
		t.Fatal(err)
	}
	wrong, err := ParseCredentials("Secret test/pull", []byte(strings.ReplaceAll(dockerConfig(reg.Host()), "user of", "nobody")))
	if err != nil {
		t.Fatal(err)
	}
	var found []*Credentials
	var fails error
	asked := 0
	client, err := New(Config{CacheDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	c := client.With(func(context.Context) ([]*Credentials, error) {
		asked++
		return found, fails
	})
	raw := []byte(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[]}`)
	ref := sources.Ref{Repository: reg.Host() + "/acme/types", Tag: "v1"}
	found = []*Credentials{right}
	if err := c.PushManifest(t.Context(), ref, "application/vnd.oci.image.index.v1+json", raw); err != nil {
		t.Fatal(err)
	}
	resolve := func(repository string) error {
		_, err := c.Resolve(t.Context(), sources.Ref{Repository: repository, Tag: "v1"})
		return err
	}
	found = []*Credentials{wrong}
	if err := resolve(ref.Repository); err == nil || !strings.Contains(err.Error(), "Secret test/pull, which has some for it") || strings.Contains(err.Error(), "nobody") {
		t.Errorf("with the wrong ones: %v", err)
	}
	found = []*Credentials{right}
	if err := resolve(ref.Repository); err != nil {
		t.Errorf("with the right ones after the wrong: %v", err)
	}
	found, fails = nil, errors.New("Secret test/pull has no key x")
	if err := resolve(ref.Repository); err == nil || err.Error() != ref.String()+": Secret test/pull has no key x" {
		t.Errorf("without: %v", err)
	}
	fails, found = nil, []*Credentials{right}
	if _, err := c.Manifest(t.Context(), ref.Repository, sources.DigestOf(raw)); err != nil {
		t.Fatal(err)
	}
	before := asked
	if _, err := c.Manifest(t.Context(), ref.Repository, sources.DigestOf(raw)); err != nil || asked != before {
		t.Errorf("from the cache: %v, credentials were looked for %d times", err, asked-before)
	}
	// Another host with the same user and password is not told them.
	if err := resolve(other.Host() + "/acme/types"); err == nil || !strings.Contains(err.Error(), "looked for credentials in Secret test/pull, then in Docker's configuration") {
		t.Errorf("at another host: %v", err)
	}
}

// TestReferrers: from the API, its pages, and the tag that stands in for it.
func TestReferrers(t *testing.T) {
	t.Parallel()
	const wanted = "application/vnd.example.wanted"
	d := sources.DigestOf([]byte("subject"))
	a, b, c := sources.DigestOf([]byte("a")), sources.DigestOf([]byte("b")), sources.DigestOf([]byte("c"))
	index := func(entries ...string) string {
		return `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[` + strings.Join(entries, ",") + `]}`
	}
	entry := func(d sources.Digest, typ string) string {
		return fmt.Sprintf(`{"digest":%q,"artifactType":%q}`, d, typ)
	}
	for name, tt := range map[string]struct {
		answers map[string]string // path and query -> body
		next    string            // the first page's link
		want    []sources.Digest
		err     string
	}{
		"API":            {answers: map[string]string{"referrers": index(entry(a, wanted), entry(b, "application/other"), entry(c, emptyConfig))}, want: []sources.Digest{a, c}},
		"none":           {answers: map[string]string{"referrers": index()}},
		"pages":          {answers: map[string]string{"referrers": index(entry(b, "application/other")), "referrers?page=2": index(entry(a, wanted))}, next: "?page=2", want: []sources.Digest{a}},
		"tag":            {answers: map[string]string{"manifests": index(entry(a, wanted))}, want: []sources.Digest{a}},
		"neither":        {},
		"garbage":        {answers: map[string]string{"referrers": "{"}, err: "a list of referrers that is not one"},
		"a proxy's page": {answers: map[string]string{"referrers": "<html>", "manifests": index(entry(a, wanted))}, want: []sources.Digest{a}},
		"garbled digest": {answers: map[string]string{"referrers": index(`{"digest":"sha256:../x","artifactType":"` + wanted + `"}`)}, err: "by a digest that is not one"},
		"no end":         {answers: map[string]string{"referrers": index(), "referrers?page=2": index()}, next: "?page=%d", err: "without an end"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pages := 1
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				key := ""
				switch r.URL.Path {
				case "/v2/":
					return
				case "/v2/acme/types/referrers/" + string(d):
					key = "referrers"
				case "/v2/acme/types/manifests/sha256-" + d.Hex():
					key = "manifests"
				}
				if r.URL.Query().Has("page") {
					key += "?page=2"
				}
				body, ok := tt.answers[key]
				if !ok {
					http.NotFound(w, r)
					return
				}
				if strings.Contains(tt.next, "%d") || tt.next != "" && !r.URL.Query().Has("page") {
					pages++
					w.Header().Set("Link", "<"+strings.Replace(tt.next, "%d", fmt.Sprint(pages), 1)+`>; rel="next"`)
				}
				if strings.HasPrefix(body, "{") {
					w.Header().Set("Content-Type", "application/vnd.oci.image.index.v1+json")
				}
				fmt.Fprint(w, body)
			}))
			defer server.Close()
			client, err := New(Config{})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			have, err := client.Referrers(t.Context(), strings.TrimPrefix(server.URL, "http://")+"/acme/types", d, wanted)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("have %v, want %q", err, tt.err)
				}
				return
			}
			if err != nil || !slices.Equal(have, tt.want) {
				t.Errorf("have %v, %v; want %v", have, err, tt.want)
			}
		})
	}
}
