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
		{name: "half a pair", data: user("{client-certificate-data: c2VjcmV0}"), err: "but no client-key-data"},
		{name: "half a pair of keys", data: separate(map[string]string{"clientKey": "secret"}), err: "but no client-certificate-data"},
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

// Every key of the second layout is used.
func TestKeys(t *testing.T) {
	data := map[string][]byte{"endpoint": []byte("https://b.example"), "clusterCA": []byte("CA")}
	for _, keys := range [][]string{{"clientCert", "clientKey"}, {"username", "password"}, {"token"}, {"clientCert", "clientKey", "token", "username", "password"}} {
		one := maps.Clone(data)
		for _, key := range keys {
			one[key] = []byte("of " + key)
		}
		c, err := Parse(one, kubeconfig.Restricted)
		if err != nil {
			t.Fatal(err)
		}
		user := c.entry.User
		have := map[string]string{
			"endpoint": c.entry.Cluster.Server, "clusterCA": string(c.entry.Cluster.CertificateAuthorityData), "token": user.Token,
			"clientCert": string(user.ClientCertificateData), "clientKey": string(user.ClientKeyData), "username": user.Username, "password": user.Password,
		}
		for key, value := range have {
			if value != string(one[key]) {
				t.Errorf("%v: %s is %q", keys, key, value)
			}
		}
	}
}

// Addresses are refused as they are written; what names mean is asked when somebody
// connects.
func TestCheck(t *testing.T) {
	loopback, err := kubeconfig.ParseReach([]string{"127.0.0.0/8"})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		server string
		reach  kubeconfig.Reach
		want   string
	}{
		{server: "https://b.example"},
		{server: "https://192.0.2.1:6443"},
		{server: "https://127.0.0.1:6443", want: "address 127.0.0.1 is refused"},
		{server: "https://127.0.0.1:6443", reach: loopback},
		{server: "https://[::1]:6443", reach: loopback, want: "address ::1 is refused"},
		{server: "https://[::ffff:127.0.0.1]:6443", want: "is refused"},
		{server: "https://169.254.169.254", reach: loopback, want: "address 169.254.169.254 is refused"},
		{server: `https://b.example", proxy-url: "http://127.0.0.1:3128`, want: "address 127.0.0.1 is refused"},
	} {
		text := strings.ReplaceAll(file, `proxy-url: "socks5://proxy:1080"`, "")
		c, err := Parse(map[string][]byte{"kubeconfig": []byte(strings.Replace(text, `server: "https://b.example:6443`, `server: "`+tt.server, 1))}, kubeconfig.Restricted)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Check(tt.reach); (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want %q", tt.server, err, tt.want)
		}
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
