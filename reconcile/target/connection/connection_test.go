package connection

import (
	"encoding/base64"
	"maps"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/kube/kubeconfig"
)

const file = `
apiVersion: v1
kind: Config
current-context: b
contexts:
- {name: a, context: {cluster: a, user: a}}
- {name: b, context: {cluster: b, user: b, namespace: team}}
- {name: lost, context: {cluster: b, user: c}}
clusters:
- {name: a, cluster: {server: "https://a.example:6443"}}
- {name: b, cluster: {server: "https://b.example:6443", certificate-authority-data: Q0E=, tls-server-name: api, proxy-url: "socks5://proxy:1080"}}
users:
- {name: a, user: {token: secret-of-a}}
- {name: b, user: {token: secret-of-b}}
`

func user(text string) map[string][]byte {
	return map[string][]byte{"kubeconfig": []byte(strings.Replace(file, "{token: secret-of-b}", text, 1))}
}

func cluster(text string) map[string][]byte {
	return map[string][]byte{"kubeconfig": []byte(strings.Replace(file, `server: "https://b.example:6443", certificate-authority-data: Q0E=`, text, 1))}
}

func TestParse(t *testing.T) {
	separate := func(changes map[string]string) map[string][]byte {
		data := map[string][]byte{"endpoint": []byte("https://b.example"), "clusterCA": []byte("CA"), "token": []byte("secret-of-b\n")}
		for key, value := range changes {
			data[key] = []byte(value)
		}
		return data
	}
	for _, tt := range []struct {
		name string
		data map[string][]byte
		// endpoint and token of the result, or a part of the error.
		endpoint, token, err string
	}{
		{name: "kubeconfig", data: user("{token: secret-of-b}"), endpoint: "https://b.example:6443", token: "secret-of-b"},
		{name: "Cluster API", data: map[string][]byte{"value": []byte(file)}, endpoint: "https://b.example:6443", token: "secret-of-b"},
		{name: "ClusterProfile", data: map[string][]byte{"Config": []byte(file)}, endpoint: "https://b.example:6443", token: "secret-of-b"},
		{name: "keys", data: separate(nil), endpoint: "https://b.example", token: "secret-of-b"},
		{name: "a host alone", data: separate(map[string]string{"endpoint": "b.example:6443"}), endpoint: "https://b.example:6443", token: "secret-of-b"},
		{name: "kubeconfig before keys", data: separate(map[string]string{"kubeconfig": file}), endpoint: "https://b.example:6443", token: "secret-of-b"},

		{name: "empty", err: `neither the key "kubeconfig" nor "endpoint", but nothing`},
		{name: "other keys", data: map[string][]byte{"password": []byte("secret")}, err: "but password"},
		{name: "garbage", data: map[string][]byte{"kubeconfig": []byte("secret: [")}, err: `key "kubeconfig": kubeconfig: it is not a kubeconfig`},
		{name: "no such context", data: map[string][]byte{"kubeconfig": []byte(strings.Replace(file, "current-context: b", "current-context: x", 1))}, err: `no context "x"; it has "a", "b", "lost"`},
		{name: "no such user", data: map[string][]byte{"kubeconfig": []byte(strings.Replace(file, "current-context: b", "current-context: lost", 1))}, err: `there is no user "c"`},
		{name: "no credentials", data: user("{}"), err: "holds no credentials"},
		{name: "exec", data: user("{exec: {apiVersion: client.authentication.k8s.io/v1, command: secret, interactiveMode: Never}}"), err: "exec plugins are refused"},
		{name: "auth provider", data: user("{auth-provider: {name: gcp}}"), err: "auth-provider plugins are refused"},
		{name: "token file", data: user("{tokenFile: /etc/secret}"), err: "tokenFile names a file"},
		{name: "certificate files", data: user("{client-certificate: /etc/secret, client-key: /etc/secret}"), err: "client-key names a file"},
		{name: "half a pair", data: user("{client-certificate-data: c2VjcmV0}"), err: "needs its key"},
		{name: "no password", data: separate(map[string]string{"username": "secret"}), err: "needs a password"},
		{name: "CA file", data: cluster(`server: "https://b.example", certificate-authority: /etc/secret`), err: "certificate-authority names a file"},
		{name: "unverified", data: cluster(`server: "https://b.example", insecure-skip-tls-verify: true`), err: "insecure-skip-tls-verify"},
		{name: "in clear", data: cluster(`server: "http://b.example"`), err: "not https"},
		{name: "credentials in the URL", data: separate(map[string]string{"endpoint": "https://me:secret@b.example"}), err: "has credentials in it"},
		{name: "no URL", data: separate(map[string]string{"endpoint": "https:// secret"}), err: "must be an https URL"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := Parse(tt.data, kubeconfig.Restricted)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("have error %v, want one with %q", err, tt.err)
				} else if strings.Contains(err.Error(), "secret") {
					t.Errorf("the error quotes a value: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if c.entry.Cluster.Server != tt.endpoint || c.entry.User.Token != tt.token {
				t.Errorf("have %s with %s", c.entry.Cluster.Server, c.entry.User.Token)
			}
		})
	}
}

// An operator can allow plugins.
func TestAllowPlugins(t *testing.T) {
	c, err := Parse(user("{exec: {apiVersion: client.authentication.k8s.io/v1, command: login, interactiveMode: Never}}"), kubeconfig.Plugins)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := c.Kubeconfig(); err != nil || !strings.Contains(string(text), "command: login") {
		t.Errorf("have %s, %v", text, err)
	}
}

// What is written reads back the same, and holds nothing of other contexts.
func TestData(t *testing.T) {
	for name, data := range map[string]map[string][]byte{
		"kubeconfig": user("{token: secret-of-b}"),
		"keys":       {"endpoint": []byte("https://b.example:6443"), "clusterCA": []byte("CA"), "username": []byte("u"), "password": []byte("p")},
	} {
		c, err := Parse(data, kubeconfig.Restricted)
		if err != nil {
			t.Fatal(err)
		}
		written, err := c.Data()
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(written["kubeconfig"]), "secret-of-a") {
			t.Errorf("%s: the credentials of another context are written", name)
		}
		encoded := make(map[string]any)
		for key, value := range written {
			encoded[key] = base64.StdEncoding.EncodeToString(value)
		}
		whole, err := ParseSecret(map[string]any{"data": encoded}, kubeconfig.Restricted)
		if err != nil {
			t.Fatal(err)
		}
		delete(encoded, "kubeconfig")
		parts, err := ParseSecret(map[string]any{"data": encoded}, kubeconfig.Restricted)
		if err != nil {
			t.Fatal(err)
		}
		for layout, back := range map[string]*Connection{"kubeconfig": whole, "keys": parts} {
			again, err := back.Data()
			delete(again, "kubeconfig") // names in it may differ
			if err != nil || len(again) != len(encoded) {
				t.Errorf("%s by %s: have %v, %v; written were %v", name, layout, slices.Sorted(maps.Keys(again)), err, slices.Sorted(maps.Keys(written)))
			}
			for key, value := range again {
				if string(value) != string(written[key]) {
					t.Errorf("%s by %s: %s is %q, want %q", name, layout, key, value, written[key])
				}
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(file), []byte("https://b.example"), []byte("token"))
	f.Add([]byte(nil), []byte("b.example"), []byte("token"))
	f.Fuzz(func(t *testing.T, text, endpoint, token []byte) {
		c, err := Parse(map[string][]byte{"kubeconfig": text, "endpoint": endpoint, "token": token}, kubeconfig.Restricted)
		if err == nil && !strings.HasPrefix(strings.ToLower(c.entry.Cluster.Server), "https://") {
			t.Errorf("%q was accepted", c.entry.Cluster.Server)
		}
	})
}
