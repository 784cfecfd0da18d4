package kube

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/testscripts/devcluster"
)

func TestMain(m *testing.M) { os.Exit(devcluster.Main(m)) }

var (
	namespaces = Type{Version: "v1", Kind: "Namespace", Resource: "namespaces"}
	configMaps = Type{Version: "v1", Kind: "ConfigMap", Resource: "configmaps", Namespaced: true}
	accounts   = Type{Version: "v1", Kind: "ServiceAccount", Resource: "serviceaccounts", Namespaced: true}
)

// connect connects to a control plane that all tests share.
func connect(t *testing.T, cfg Config) *Client {
	t.Helper()
	cfg.Name, cfg.Kubeconfig = "prod", planeKubeconfig(t)
	return open(t, cfg)
}

// withToken returns the control plane's kubeconfig with a token as its only credential.
func withToken(t *testing.T, token string) []byte {
	t.Helper()
	loaded, err := clientcmd.Load(planeKubeconfig(t))
	if err != nil {
		t.Fatal(err)
	}
	for name := range loaded.AuthInfos {
		loaded.AuthInfos[name] = &api.AuthInfo{Token: token}
	}
	text, err := clientcmd.Write(*loaded)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// planeKubeconfig returns the administrator's kubeconfig of the control plane that all tests share.
func planeKubeconfig(t *testing.T) []byte {
	t.Helper()
	text, err := os.ReadFile(devcluster.Start(t, "kube").Kubeconfig("kube"))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// object returns an object as JSON; fields are those beside its identity.
func object(t *testing.T, typ Type, namespace, name string, fields map[string]any) []byte {
	t.Helper()
	tree := map[string]any{"apiVersion": typ.APIVersion(), "kind": typ.Kind, "metadata": map[string]any{
		"namespace": namespace, "name": name, "annotations": map[string]any{"example.org/a": "b"},
	}}
	for k, v := range fields {
		tree[k] = v
	}
	body, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func balancer(status string) map[string]any {
	return map[string]any{
		"spec":   map[string]any{"type": "LoadBalancer", "ports": []any{map[string]any{"port": 80}}},
		"status": map[string]any{"loadBalancer": map[string]any{"ingress": []any{map[string]any{"ip": status}}}},
	}
}

// withObjects makes a namespace with one object of each type that is written to.
func withObjects(t *testing.T, namespace string) *Client {
	t.Helper()
	c := connect(t, Config{})
	for _, o := range []struct {
		typ    Type
		id     manifest.ID
		fields map[string]any
	}{
		{namespaces, namespaces.ID("", namespace), nil},
		{configMaps, configMaps.ID(namespace, "a"), nil},
		{services, services.ID(namespace, "a"), balancer("192.0.2.1")},
		{accounts, accounts.ID(namespace, "a"), nil},
	} {
		if _, err := c.Apply(t.Context(), o.typ, o.id, object(t, o.typ, o.id.Namespace, o.id.Name, o.fields), ApplyOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// versions returns the resourceVersions of the objects that the tests write to, without
// those that do not exist.
func versions(t *testing.T, c *Client, namespace string) (v [4]string) {
	t.Helper()
	for i, o := range []struct {
		typ  Type
		name string
	}{{configMaps, "a"}, {configMaps, "new"}, {services, "a"}, {accounts, "a"}} {
		meta, err := c.GetMetadata(t.Context(), o.typ, o.typ.ID(namespace, o.name))
		if err == nil {
			v[i] = meta.ResourceVersion
		} else if ClassOf(err) != NotFound {
			t.Fatal(err)
		}
	}
	return v
}

var errNotHeld = errors.New("the Lease of prod is not held")

// Each kind of write asks whether it may be sent, once. Where it may not, nothing is
// sent and nothing changes.
func TestMayWrite(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		verb  string // in the error; empty for what asks nobody
		still bool   // it changes no object
		do    func(ctx context.Context, c *Client, namespace string) error
	}{
		{name: "create", verb: "create configmap/may-create/new", do: func(ctx context.Context, c *Client, ns string) error {
			_, err := c.Create(ctx, configMaps, configMaps.ID(ns, "new"), object(t, configMaps, ns, "new", nil))
			return err
		}},
		{name: "apply", verb: "apply configmap/may-apply/a", do: func(ctx context.Context, c *Client, ns string) error {
			_, err := c.Apply(ctx, configMaps, configMaps.ID(ns, "a"), object(t, configMaps, ns, "a", map[string]any{"data": map[string]any{"k": "v"}}), ApplyOptions{})
			return err
		}},
		{name: "apply-status", verb: "apply the status of service/may-apply-status/a", do: func(ctx context.Context, c *Client, ns string) error {
			_, err := c.Apply(ctx, services, services.ID(ns, "a"), object(t, services, ns, "a", balancer("192.0.2.2")), ApplyOptions{Status: true})
			return err
		}},
		{name: "managed-fields", verb: "adopt configmap/may-managed-fields/a", do: func(ctx context.Context, c *Client, ns string) error {
			id := configMaps.ID(ns, "a")
			meta, err := c.GetMetadata(ctx, configMaps, id)
			if err != nil {
				return err
			}
			return c.SetManagedFields(ctx, configMaps, id, meta.ManagedFields, meta.ResourceVersion, "example.org/a")
		}},
		{name: "delete", verb: "delete configmap/may-delete/a", do: func(ctx context.Context, c *Client, ns string) error {
			id := configMaps.ID(ns, "a")
			meta, err := c.GetMetadata(ctx, configMaps, id)
			if err != nil {
				return err
			}
			_, _, err = c.Delete(ctx, configMaps, id, string(meta.UID))
			return err
		}},
		{name: "delete-unchanged", verb: "delete configmap/may-delete-unchanged/a", do: func(ctx context.Context, c *Client, ns string) error {
			id := configMaps.ID(ns, "a")
			meta, err := c.GetMetadata(ctx, configMaps, id)
			if err != nil {
				return err
			}
			_, _, err = c.DeleteUnchanged(ctx, configMaps, id, string(meta.UID), meta.ResourceVersion)
			return err
		}},
		{name: "token", verb: "request a token of serviceaccount/may-token/a", still: true, do: func(ctx context.Context, c *Client, ns string) error {
			_, _, err := c.Token(ctx, ServiceAccount{ns, "a"}, time.Hour)
			return err
		}},
		{name: "apply-dry", still: true, do: func(ctx context.Context, c *Client, ns string) error {
			_, err := c.Apply(ctx, configMaps, configMaps.ID(ns, "a"), object(t, configMaps, ns, "a", map[string]any{"data": map[string]any{"k": "v"}}), ApplyOptions{DryRun: true})
			return err
		}},
		{name: "creatable", still: true, do: func(ctx context.Context, c *Client, ns string) error {
			return c.Creatable(ctx, configMaps, configMaps.ID(ns, "new"), object(t, configMaps, ns, "new", nil))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ns := "may-" + tt.name
			reader := withObjects(t, ns)
			before := versions(t, reader, ns)
			var asked, sent atomic.Int32
			may := errNotHeld
			c := connect(t, Config{
				MayWrite: func(context.Context) error {
					asked.Add(1)
					return may
				},
				WrapTransport: func(next http.RoundTripper) http.RoundTripper {
					return roundTripper(func(r *http.Request) (*http.Response, error) {
						if r.Method != http.MethodGet {
							sent.Add(1)
						}
						return next.RoundTrip(r)
					})
				},
			})
			err := tt.do(t.Context(), c, ns)
			if tt.verb == "" {
				if err != nil || asked.Load() != 0 || versions(t, reader, ns) != before {
					t.Errorf("a dry run: %v, asked %d times", err, asked.Load())
				}
				return
			}
			if !IsClusterWide(err) || ClassOf(err) != Fenced || !errors.Is(err, errNotHeld) || err.Error() != "cluster prod: "+tt.verb+": not sent: the Lease of prod is not held" {
				t.Errorf("refused: %v", err)
			}
			if n := sent.Load(); n != 0 || asked.Load() != 1 || versions(t, reader, ns) != before {
				t.Errorf("refused: %d requests were sent, asked %d times", n, asked.Load())
			}
			may = nil
			if err := tt.do(t.Context(), c, ns); err != nil || sent.Load() != 1 || asked.Load() != 2 {
				t.Errorf("allowed: %v, %d requests were sent, asked %d times", err, sent.Load(), asked.Load())
			}
			if changed := versions(t, reader, ns) != before; changed == tt.still {
				t.Errorf("allowed: it changed something: %t", changed)
			}
		})
	}
}

// A write that the API server puts off asks again before it is sent again.
func TestMayWriteAgain(t *testing.T) {
	t.Parallel()
	reader := withObjects(t, "may-again")
	before := versions(t, reader, "may-again")
	asked := 0
	c := connect(t, Config{
		MayWrite: func(context.Context) error {
			if asked++; asked > 1 {
				return errNotHeld
			}
			return nil
		},
		WrapTransport: func(http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"1"}}, Body: http.NoBody, Request: r}, nil
			})
		},
	})
	_, err := c.Create(t.Context(), configMaps, configMaps.ID("may-again", "new"), object(t, configMaps, "may-again", "new", nil))
	if ClassOf(err) != Fenced || asked != 2 || versions(t, reader, "may-again") != before {
		t.Errorf("%v, asked %d times", err, asked)
	}
}

// Applying an object's status changes nothing else of it, and the other way round.
func TestApplyStatus(t *testing.T) {
	t.Parallel()
	c := withObjects(t, "status")
	id := services.ID("status", "a")
	ingress := func() string {
		tree, _, err := c.Get(t.Context(), services, id)
		if err != nil {
			t.Fatal(err)
		}
		if affinity := tree["spec"].(map[string]any)["sessionAffinity"]; affinity != "None" {
			t.Errorf("its session affinity is %v", affinity)
		}
		list, _ := tree["status"].(map[string]any)["loadBalancer"].(map[string]any)["ingress"].([]any)
		if len(list) == 0 {
			return ""
		}
		return list[0].(map[string]any)["ip"].(string)
	}
	if ip := ingress(); ip != "" {
		t.Errorf("apply set the status to %s", ip)
	}
	fields := balancer("192.0.2.2")
	fields["spec"].(map[string]any)["sessionAffinity"] = "ClientIP"
	if _, err := c.Apply(t.Context(), services, id, object(t, services, "status", "a", fields), ApplyOptions{Status: true}); err != nil {
		t.Fatal(err)
	}
	if ip := ingress(); ip != "192.0.2.2" {
		t.Errorf("the status is %q", ip)
	}
	_, err := c.Apply(t.Context(), configMaps, configMaps.ID("status", "a"), object(t, configMaps, "status", "a", nil), ApplyOptions{Status: true})
	if ClassOf(err) != Invalid || !strings.Contains(err.Error(), "apply the status of configmap/status/a: kind ConfigMap has no status that can be applied") {
		t.Errorf("of a kind without one: %v", err)
	}
}

// An object that exists is not created; one that is not valid cannot be.
func TestCreate(t *testing.T) {
	t.Parallel()
	c := withObjects(t, "create")
	for _, tt := range []struct {
		name, object string
		fields       map[string]any
		want         Class // of Create
		creatable    Class // of Creatable
	}{
		{name: "new", object: "new", fields: map[string]any{"data": map[string]any{"k": "v"}}},
		{name: "it exists", object: "a", want: Exists},
		{name: "unknown field", object: "odd", fields: map[string]any{"dada": 1}, want: Invalid, creatable: Invalid},
	} {
		id, body := configMaps.ID("create", tt.object), object(t, configMaps, "create", tt.object, tt.fields)
		if err := c.Creatable(t.Context(), configMaps, id, body); ClassOf(err) != tt.creatable {
			t.Errorf("%s: creatable: %v", tt.name, err)
		}
		meta, err := c.Create(t.Context(), configMaps, id, body)
		if ClassOf(err) != tt.want {
			t.Errorf("%s: %v", tt.name, err)
		}
		if err == nil && (meta.Name != tt.object || meta.ManagedFields[0].Manager != FieldManager) {
			t.Errorf("%s: created %s by %v", tt.name, meta.Name, meta.ManagedFields)
		}
	}
}

// A token is the service account's, for the same API server.
func TestToken(t *testing.T) {
	t.Parallel()
	c := withObjects(t, "token")
	token, expires, err := c.Token(t.Context(), ServiceAccount{"token", "a"}, time.Hour)
	if err != nil || expires.IsZero() {
		t.Fatalf("expires %s, %v", expires, err)
	}
	robot := open(t, Config{Name: "prod", Kubeconfig: withToken(t, token)})
	_, err = robot.GetMetadata(t.Context(), configMaps, configMaps.ID("token", "a"))
	if ClassOf(err) != Forbidden || !strings.Contains(err.Error(), `User "system:serviceaccount:token:a"`) {
		t.Errorf("with the token: %v", err)
	}
	for _, tt := range []struct {
		name     string
		account  ServiceAccount
		lifetime time.Duration
		want     Class
	}{
		{"no such account", ServiceAccount{"token", "b"}, time.Hour, NotFound},
		{"no namespace", ServiceAccount{"", "a"}, time.Hour, Invalid},
		{"too short", ServiceAccount{"token", "a"}, time.Minute, Invalid},
	} {
		if token, _, err := c.Token(t.Context(), tt.account, tt.lifetime); ClassOf(err) != tt.want || token != "" {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
