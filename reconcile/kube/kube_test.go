package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"gitopsd.dev/render/manifest"
)

const fleetFile = `
apiVersion: v1
kind: Config
current-context: main
contexts:
- {name: main, context: {cluster: c, user: u}}
- {name: other, context: {cluster: nowhere, user: u}}
- {name: nobody, context: {cluster: c, user: nobody}}
clusters:
- name: c
  cluster: {server: "https://127.0.0.1:1"}
users:
- name: u
  user: {token: hunter2}
`

// A kubeconfig of the fleet can do no harm, whoever writes it.
func TestKubeconfig(t *testing.T) {
	t.Parallel()
	const server, user = `server: "https://127.0.0.1:1"`, "token: hunter2"
	for _, tt := range []struct {
		name, from, to string
		config         Config
		want           string // in the error; empty for none
	}{
		{name: "plain"},
		{name: "context", config: Config{Context: "missing"}, want: `there is no context "missing"; it has "main", "nobody", "other"`},
		{name: "no context", from: "current-context: main", want: "it has no current-context; say which of"},
		{name: "no contexts", from: fleetFile, to: "{apiVersion: v1, kind: Config}", want: "it has no contexts: give it one"},
		{name: "no cluster", config: Config{Context: "other"}, want: `context "other": there is no cluster "nowhere"; it has "c"`},
		{name: "no user", config: Config{Context: "nobody"}, want: `there is no user "nobody"; it has "u"`},
		{name: "exec", from: user, to: "exec: {apiVersion: client.authentication.k8s.io/v1, command: touch}", want: `user "u": exec plugins are refused`},
		{name: "auth provider", from: user, to: "auth-provider: {name: gcp}", want: "auth-provider plugins are refused"},
		{name: "token file", from: user, to: "tokenFile: /etc/passwd", want: "tokenFile names a file of the machine gitopsd runs on"},
		{name: "certificate file", from: user, to: "client-certificate: /a", want: "client-certificate names a file"},
		{name: "key file", from: user, to: "client-key: /a", want: "client-key names a file"},
		{name: "certificate without key", from: user, to: "client-certificate-data: aHVudGVyMg==", want: `user "u": it has client-certificate-data but no client-key-data; a client certificate needs both`},
		{name: "key without certificate", from: user, to: "client-key-data: aHVudGVyMg==", want: `user "u": it has client-key-data but no client-certificate-data`},
		{name: "authority file", from: server, to: server + ", certificate-authority: /a", want: "certificate-authority names a file"},
		{name: "insecure", from: server, to: server + ", insecure-skip-tls-verify: true", want: "insecure-skip-tls-verify is refused"},
		{name: "plain HTTP", from: "https:", to: "http:", want: "server http://127.0.0.1:1 is not https"},
		{name: "no scheme", from: "https://127.0.0.1:1", to: "localhost", want: "server must be an https URL"},
		{name: "password in URL", from: "https://", to: "https://a:hunter2@", want: "has credentials in it"},
		{name: "proxy", from: server, to: server + `, proxy-url: "ftp://x"`, want: "proxy-url must be an http, https or socks5 URL"},
		{name: "groups", from: user, to: "as-groups: [a]", want: `as-groups, as-uid or as-user-extra without "as"`},
		{name: "token of two lines", from: user, to: `token: "hunter2\nx"`, want: "its token has a line break or another control character in it"},
		{name: "no credentials", from: user, to: "", want: `user "u": it holds no credentials`},
		{name: "empty token", from: user, to: "token: ''", want: `user "u": it holds no credentials`},
		{name: "blank token", from: user, to: `token: " \n"`, want: `user "u": it holds no credentials`},
		{name: "impersonation alone", from: user, to: "as: root", want: `user "u": it holds no credentials`},
		{name: "user name alone", from: user, to: "username: hunter2", want: "a user name needs a password"},
		{name: "password alone", from: user, to: "password: hunter2", want: "a user name needs a password"},
		{name: "password", from: user, to: "username: a, password: hunter2"},
		{name: "all at once", from: user, to: "exec: {apiVersion: client.authentication.k8s.io/v1, command: x, interactiveMode: Never}, tokenFile: /y", want: "tokenFile names"},
		{name: "not YAML", from: fleetFile, to: "}hunter2", want: "it is not a kubeconfig file"},
		{name: "empty", from: fleetFile, want: "it is empty"},
		{name: "no name", config: Config{Name: "-"}, want: "needs a name"},
		{name: "in cluster too", config: Config{InCluster: true}, want: "exclude each other"},
		{name: "service account", config: Config{ServiceAccount: &ServiceAccount{"a", "b"}}},
		{name: "empty service account", config: Config{ServiceAccount: &ServiceAccount{}}, want: "not the name of a service account"},
		{name: "odd service account", config: Config{ServiceAccount: &ServiceAccount{"a", "b:c"}}, want: "not the name of a service account"},
		{name: "two impersonations", from: user, to: user + ", as: root", config: Config{ServiceAccount: &ServiceAccount{"a", "b"}}, want: `it impersonates "root" already`},
		{name: "trusted", from: user, to: "exec: {apiVersion: client.authentication.k8s.io/v1, command: touch, interactiveMode: Never}", config: Config{Trusted: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := tt.config
			switch c.Name {
			case "":
				c.Name = "prod"
			case "-":
				c.Name = ""
			}
			c.Kubeconfig = []byte(strings.ReplaceAll(fleetFile, tt.from, tt.to))
			if tt.from == "" {
				c.Kubeconfig = []byte(fleetFile)
			}
			_, err := New(c)
			if tt.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hunter2") {
				t.Fatalf("error %v, want one with %q and no secret", err, tt.want)
			}
		})
	}
}

// A token that was read from a file, and ends with a newline, fits into a header.
func TestTokenOfALine(t *testing.T) {
	t.Parallel()
	cfg, err := restConfig(Config{Name: "a", Kubeconfig: []byte(strings.Replace(fleetFile, "token: hunter2", `token: "hunter2\n"`, 1))})
	if err != nil || cfg.BearerToken != "hunter2" {
		t.Errorf("the token is %q, %v", cfg.BearerToken, err)
	}
}

// No program runs and no file is read, whatever a kubeconfig says.
func FuzzKubeconfig(f *testing.F) {
	f.Add([]byte(fleetFile))
	f.Add([]byte(strings.Replace(fleetFile, "token: hunter2", "exec: {apiVersion: client.authentication.k8s.io/v1, command: x}, tokenFile: /y", 1)))
	f.Add([]byte(`{"apiVersion":"v1","kind":"Config","current-context":"","contexts":[{"name":""}],"users":[{}],"clusters":[null]}`))
	f.Fuzz(func(t *testing.T, content []byte) {
		cfg, err := restConfig(Config{Name: "a", Kubeconfig: content})
		if err != nil {
			return
		}
		tls := cfg.TLSClientConfig
		if cfg.ExecProvider != nil || cfg.AuthProvider != nil || cfg.BearerTokenFile != "" || tls.Insecure ||
			tls.CAFile != "" || tls.CertFile != "" || tls.KeyFile != "" || !strings.HasPrefix(strings.ToLower(cfg.Host), "https://") {
			t.Errorf("%q became %v", content, cfg)
		}
	})
}

func cluster(t *testing.T, server string) *Client {
	t.Helper()
	return open(t, Config{Name: "prod", Kubeconfig: []byte(strings.Replace(fleetFile, "https://127.0.0.1:1", server, 1)), Timeout: 500 * time.Millisecond})
}

// open returns a client that is closed after the test.
func open(t *testing.T, cfg Config) *Client {
	t.Helper()
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

var (
	services = Type{Version: "v1", Kind: "Service", Resource: "services", Namespaced: true, HasStatus: true}
	aSecret  = manifest.ID{Kind: "Secret", Namespace: "ns", Name: "a"}
	aService = manifest.ID{Kind: "Service", Namespace: "ns", Name: "a"}
)

// The answers were taken from a kube-apiserver v1.36; the test is how they are read.
func TestErrors(t *testing.T) {
	t.Parallel()
	status := func(fields string) string {
		return `{"kind":"Status","apiVersion":"v1","status":"Failure",` + fields + `}`
	}
	for _, tt := range []struct {
		name   string
		code   int
		header http.Header
		body   string
		want   Error // Cluster, Verb and ID apart
	}{
		{
			name: "unauthorized", code: 401, body: status(`"message":"Unauthorized","reason":"Unauthorized","code":401`),
			want: Error{Class: Unauthorized, Message: "the API server does not accept the credentials; they are wrong or have expired"},
		},
		{
			name: "forbidden", code: 403, body: status(`"message":"services \"a\" is forbidden: User \"u\" cannot patch resource \"services\" in API group \"\" in the namespace \"ns\"","reason":"Forbidden"`),
			want: Error{Class: Forbidden, Message: `services "a" is forbidden: User "u" cannot patch resource "services" in API group "" in the namespace "ns"; that user needs the rule {apiGroups: [""], resources: [services], verbs: [create, patch, delete]} in a Role in namespace ns`},
		},
		{
			name: "namespace is going", code: 403, body: status(`"message":"services \"a\" is forbidden: unable to create new content in namespace ns because it is being terminated","reason":"Forbidden","details":{"causes":[{"reason":"NamespaceTerminating","message":"x","field":"metadata.namespace"}]}`),
			want: Error{Class: NoNamespace, Message: `services "a" is forbidden: unable to create new content in namespace ns because it is being terminated`},
		},
		{
			name: "no namespace", code: 404, body: status(`"message":"namespaces \"ns\" not found","reason":"NotFound","details":{"name":"ns","kind":"namespaces"}`),
			want: Error{Class: NoNamespace, Message: `namespace "ns" not found`},
		},
		{
			name: "not found", code: 404, body: status(`"message":"services \"a\" not found","reason":"NotFound","details":{"name":"a","kind":"services"}`),
			want: Error{Class: NotFound, Message: "not found"},
		},
		{
			name: "another is not found", code: 404, body: status(`"message":"secrets \"b\" not found","reason":"NotFound","details":{"name":"b","kind":"secrets"}`),
			want: Error{Class: NotFound, Message: `secrets "b" not found`},
		},
		{
			name: "no such type", code: 404, body: "404 page not found\n",
			want: Error{Class: NoSuchType, Message: "the cluster serves no kind Service in the core group; is its CRD or package missing?"},
		},
		{
			name: "conflict", code: 409, body: status(`"message":"Apply failed with 2 conflicts","reason":"Conflict","details":{"causes":[{"reason":"FieldManagerConflict","message":"conflict with \"kubectl-edit\" using v1","field":".spec.type"},{"reason":"FieldManagerConflict","message":"conflict with \"kubectl-edit\" using v1 at 2026-01-01T00:00:00Z","field":".spec.ports"},{"reason":"FieldManagerConflict","message":"conflict with \"helm\" with subresource \"scale\" using v1","field":".spec.x"}]}`),
			want: Error{Class: Conflict, Message: "kubectl-edit owns .spec.type, .spec.ports; helm owns .spec.x"},
		},
		{
			name: "changed", code: 409, body: status(`"message":"the UID in the precondition does not match","reason":"Conflict"`),
			want: Error{Class: Changed, Message: "the UID in the precondition does not match"},
		},
		{
			name: "invalid", code: 422, body: status(`"message":"Service \"a\" is invalid: [...]","reason":"Invalid","details":{"causes":[{"reason":"FieldValueInvalid","message":"Invalid value: 99999","field":"spec.ports[0].port"}]}`),
			want: Error{Class: Invalid, Message: "spec.ports[0].port: Invalid value: 99999", Fields: []Field{{"spec.ports[0].port", "Invalid value: 99999"}}},
		},
		{
			name: "invalid and long", code: 422, body: status(`"message":"Job \"a\" is invalid: [...]","reason":"Invalid","details":{"causes":[{"reason":"FieldValueInvalid","message":"Invalid value: {\"labels\":{\"a\":\"` + strings.Repeat("b", 300) + `\"}}: field is immutable","field":"spec.template"}]}`),
			want: Error{Class: Invalid, Message: "spec.template: field is immutable", Fields: []Field{{"spec.template", "field is immutable"}}, immutable: true},
		},
		{
			name: "immutable and invalid", code: 422, body: status(`"message":"x","reason":"Invalid","details":{"causes":[{"reason":"FieldValueForbidden","message":"Forbidden: field is immutable","field":"data"},{"reason":"FieldValueInvalid","message":"Invalid value: \"a b\": no key","field":"data[a b]"}]}`),
			want: Error{Class: Invalid, Message: "data: Forbidden: field is immutable, data[a b]: Invalid value: \"a b\": no key",
				Fields: []Field{{"data", "Forbidden: field is immutable"}, {"data[a b]", `Invalid value: "a b": no key`}}},
		},
		{
			name: "exists", code: 409, body: status(`"message":"services \"a\" already exists","reason":"AlreadyExists"`),
			want: Error{Class: Exists, Message: `services "a" already exists`},
		},
		{
			name: "untyped", code: 500, body: status(`"message":"failed to create typed patch object (ns/a; /v1, Kind=Service): errors:\n  .spec.a: field not declared in schema\n  .spec.b: expected string, got 1"`),
			want: Error{
				Class: Invalid, Message: "spec.a: field not declared in schema, spec.b: expected string, got 1",
				Fields: []Field{{"spec.a", "field not declared in schema"}, {"spec.b", "expected string, got 1"}},
			},
		},
		{
			name: "webhook says no", code: 400, body: status(`"message":"admission webhook \"a.b.c\" denied the request: because"`),
			want: Error{Class: Refused, Webhook: "a.b.c", Message: `admission webhook "a.b.c" denied the request: because`},
		},
		{
			name: "webhook says no with 401", code: 401, body: status(`"message":"admission webhook \"a.b.c\" denied the request: because","reason":"Unauthorized"`),
			want: Error{Class: Refused, Webhook: "a.b.c", Message: `admission webhook "a.b.c" denied the request: because`},
		},
		{
			name: "policy says no", code: 422, body: status(`"message":"services \"a\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: because","reason":"Invalid"`),
			want: Error{Class: Refused, Webhook: "p", Message: `services "a" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: because`},
		},
		{
			name: "webhook is dead", code: 500, body: status(`"message":"Internal error occurred: failed calling webhook \"a.b.c\": failed to call webhook: Post \"https://x\": dial tcp: refused","reason":"InternalError"`),
			want: Error{Class: WebhookFailed, Webhook: "a.b.c", Message: `Internal error occurred: failed calling webhook "a.b.c": failed to call webhook: Post "https://x": dial tcp: refused`},
		},
		{
			name: "no dry run", code: 400, body: status(`"message":"admission webhook \"a.b.c\" does not support dry run","reason":"BadRequest"`),
			want: Error{Class: NoDryRun, Webhook: "a.b.c", Message: `admission webhook "a.b.c" does not support dry run`},
		},
		{
			name: "throttled for long", code: 429, header: http.Header{"Retry-After": {"3600"}}, body: status(`"message":"too many requests","reason":"TooManyRequests"`),
			want: Error{Class: Throttled, Message: "too many requests", RetryAfter: time.Hour},
		},
		{
			name: "some proxy", code: 502, body: "<html>hunter2", want: Error{Class: Server, Message: "the server answered 502 Bad Gateway"},
		},
		{
			name: "redirect", code: 302, header: http.Header{"Location": {"https://evil.example.org/"}},
			want: Error{Class: Server, Message: "the server answered 302 Found"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := cluster(t, "https://127.0.0.1:1").statusError(t.Context(), operation{"apply", aService}, tt.code, tt.header, []byte(tt.body))
			tt.want.Cluster, tt.want.Verb, tt.want.ID = "prod", "apply", aService
			if !reflect.DeepEqual(*e, tt.want) {
				t.Errorf("have %#v\nwant %#v", *e, tt.want)
			}
		})
	}
}

// Whatever an API server says about a Secret, its values stay out of errors.
func TestSecretsInErrors(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		code int
		body string
		want string
	}{
		{"invalid", 422, `"message":"Secret is invalid: data[p]: Invalid value: \"hunter2\"","details":{"causes":[{"message":"Invalid value: \"hunter2\"","field":"data[p]"}]}`, "data[p]: not valid (the"},
		{"malformed", 400, `"message":"json: cannot unmarshal \"hunter2\""`, "not valid (the"},
		{"untyped", 500, `"message":"failed to convert new object (ns/a; /v1, Kind=Secret) to proper version: illegal base64 data in hunter2"`, "not valid (the"},
		{"webhook", 400, `"message":"admission webhook \"a.b\" denied the request: hunter2"`, `admission by "a.b": refused (the`},
		{"webhook fails", 500, `"message":"failed calling webhook \"a.b\": hunter2"`, `admission by "a.b": webhook failed (the`},
		{"quota", 403, `"message":"forbidden: hunter2"`, "forbidden (the"},
		{"server", 500, `"message":"hunter2"`, "server error (the"},
		{"changed", 409, `"message":"hunter2"`, "changed (the"},
		{"throttled", 429, `"message":"hunter2"`, "throttled (the"},
		{"webhook throttles", 429, `"message":"admission webhook \"a.b\" denied the request: hunter2"`, `admission by "a.b": refused (the`},
		{"gone", 410, `"message":"hunter2"`, "expired (the"},
		{"another is not found", 404, `"message":"hunter2 not found","details":{"name":"hunter2"}`, "apply secret/ns/a: not found"},
		{"access", 403, `"message":"secrets \"a\" is forbidden: User \"u\" cannot patch"`, `forbidden: User "u" cannot patch`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := cluster(t, "https://127.0.0.1:1").statusError(t.Context(), operation{"apply", aSecret}, tt.code, nil,
				[]byte(`{"kind":"Status","status":"Failure",`+tt.body+`}`))
			if shown := fmt.Sprintf("%v %+v", e, *e); strings.Contains(shown, "hunter2") {
				t.Fatalf("the error shows a value: %s", shown)
			}
			if !strings.Contains(e.Error(), tt.want) {
				t.Errorf("error %v, want one with %q", e, tt.want)
			}
		})
	}
}

// The API server's warnings about a Secret may quote it, such as those of a
// ValidatingAdmissionPolicy with the action Warn.
func TestWarnings(t *testing.T) {
	t.Parallel()
	const header = `299 - "the password \"hunter2\" is weak"`
	c, err := New(Config{Name: "prod", Kubeconfig: []byte(fleetFile), WrapTransport: func(http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			return &http.Response{
				StatusCode: http.StatusOK, Request: r, Header: http.Header{"Warning": {header}},
				Body: io.NopCloser(strings.NewReader(`{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"a"}}`)),
			}, nil
		})
	}})
	if err != nil {
		t.Fatal(err)
	}
	secrets := Type{Version: "v1", Kind: "Secret", Resource: "secrets", Namespaced: true}
	for _, tt := range []struct {
		of   Type
		want string
	}{
		{services, "the password 'hunter2' is weak"},
		{secrets, withheld},
	} {
		answer, err := c.Apply(t.Context(), tt.of, tt.of.ID("ns", "a"), []byte("{}"), ApplyOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(answer.Warnings, []string{tt.want}) {
			t.Errorf("warnings about a %s: %q, want %q", tt.of.Kind, answer.Warnings, tt.want)
		}
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	// It takes connections, and says nothing.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	c := cluster(t, "https://"+listener.Addr().String())
	if _, err := c.GetMetadata(t.Context(), services, aService); ClassOf(err) != Unreachable || !strings.Contains(err.Error(), "did not answer within 500ms") {
		t.Errorf("a server that hangs: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.GetMetadata(ctx, services, aService); ClassOf(err) != Canceled || !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that gave up: %v", err)
	}
	gone := cluster(t, "https://127.0.0.1:1")
	if _, err := gone.GetMetadata(t.Context(), services, aService); !IsClusterWide(err) || !strings.HasPrefix(err.Error(), "cluster prod: https://127.0.0.1:1 cannot be reached: ") {
		t.Errorf("a server that is gone: %v", err)
	}
}

// A path never means another object than the ID.
func TestPaths(t *testing.T) {
	t.Parallel()
	c := cluster(t, "https://127.0.0.1:1")
	nodes := Type{Version: "v1", Kind: "Node", Resource: "nodes"}
	for _, tt := range []struct {
		t    Type
		id   manifest.ID
		want string
	}{
		{services, manifest.ID{Kind: "Service", Namespace: "ns", Name: "../b"}, "cannot be part of a name"},
		{services, manifest.ID{Kind: "Service", Namespace: "..", Name: "b"}, "cannot be part of a name"},
		{services, manifest.ID{Kind: "Service", Name: "b"}, "lives in namespaces, and the object has none"},
		{nodes, manifest.ID{Kind: "Node", Namespace: "ns", Name: "b"}, "is cluster-wide, and the object has namespace"},
	} {
		_, err := c.Apply(t.Context(), tt.t, tt.id, nil, ApplyOptions{})
		if ClassOf(err) != Invalid || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: %v, want an error with %q", tt.id, err, tt.want)
		}
	}
}

// The error about a context says if it is the whole file that is missing.
func TestMissingKubeconfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "none")
	t.Setenv("KUBECONFIG", file)
	_, err := New(Config{Name: "prod", Trusted: true, Context: "my-prod"})
	if want := "cluster prod: the user's kubeconfig: " + file + " does not exist; name your kubeconfig in KUBECONFIG"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}
