package hub

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/sources/clusters"
	"gitopsd.dev/testscripts/devcluster"
)

// A cluster is emptied only if it is known to be no other registered one: by the UID, or if
// that one cannot be connected to, by the address and the CAs.
func TestAlone(t *testing.T) {
	t.Parallel()
	admin(t)
	there, err := os.ReadFile(devcluster.Start(t, "hub").Kubeconfig("hub"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	byName := strings.Replace(string(there), "server: https://127.0.0.1:", "server: https://LOCALHOST:", 1)
	if byName == string(there) {
		t.Fatal("the kubeconfig has another address")
	}
	for name, text := range map[string]string{
		"hub": string(there), "copy": string(there), "name": byName,
		"down":  changed(t, fleetFile, authority(strangeAuthority(t))),
		"typo":  strings.Replace(string(there), "server: https://127.0.0.1:", "server: https://api.prod.invalid:", 1),
		"early": changed(t, string(there), func(tree map[string]any) { clusterOf(tree)["server"] = "https://127.0.0.1:1" }),
		"plain": fleetFile, "stranger": stranger(t, byName), "unverified": unverified(t, byName),
	} {
		if err := os.WriteFile(filepath.Join(dir, name+".yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cluster := func(name, file string, removed bool) clusters.Cluster {
		return clusters.Cluster{Name: name, Remove: removed, Spec: clusters.Spec{Kubeconfig: clusters.Kubeconfig{File: file + ".yaml"}}}
	}
	connector := &Connector{Hub: New(Config{Namespace: DefaultNamespace}), Dir: dir}
	for _, tt := range []struct {
		name, file string
		others     []clusters.Cluster
		want       string
	}{
		{"alone", "hub", nil, ""},
		{"beside one that is down", "hub", []clusters.Cluster{cluster("other", "down", false)}, ""},
		{"beside one that is down, and may be any", "hub", []clusters.Cluster{cluster("other", "plain", false)}, "or one of the two names none; make it reachable, or take its document out of clusters.yaml until it is"},
		{"by another address, which does not resolve", "hub", []clusters.Cluster{cluster("new", "typo", false)}, "it is not emptied before it is known whether it is also cluster new: cluster new: https://api.prod.invalid:"},
		{"by another address, where nothing listens yet", "hub", []clusters.Cluster{cluster("new", "early", false)}, "its kubeconfig has a certificate authority of this cluster's"},
		{"by a copy", "hub", []clusters.Cluster{cluster("other", "down", false), cluster("new", "copy", false)}, "it is not emptied: it is also cluster new,"},
		{"by another address", "hub", []clusters.Cluster{cluster("new", "name", false)}, "it is not emptied: it is also cluster new,"},
		{"by another address, with credentials that are not accepted", "hub", []clusters.Cluster{cluster("new", "stranger", false)}, "it is not emptied before it is known whether it is also cluster new: "},
		{"by another address, with another CA", "hub", []clusters.Cluster{cluster("new", "unverified", false)}, "failed to verify certificate"},
		{"which is down", "down", []clusters.Cluster{cluster("new", "hub", false)}, "it is not emptied, since it may be another registered cluster: cluster old: https://127.0.0.1:1 cannot be reached"},
		{"which is down, and the only one", "down", nil, ""},
		{"both are removed", "hub", []clusters.Cluster{cluster("new", "copy", true)}, ""},
		{"beside one without a kubeconfig", "hub", []clusters.Cluster{cluster("new", "missing", false)}, "it is not emptied before it is known whether it is also cluster new: spec.kubeconfig.file missing.yaml: not found"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			old := cluster("old", tt.file, true)
			client, err := connector.Connect(t.Context(), old)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			expect(t, connector.Alone(t.Context(), client, append([]clusters.Cluster{old}, tt.others...)), tt.want)
		})
	}
}

// stranger returns a kubeconfig with a token that the API server does not know.
func stranger(t *testing.T, text string) string {
	t.Helper()
	return changed(t, text, func(tree map[string]any) {
		tree["users"].([]any)[0].(map[string]any)["user"] = map[string]any{"token": hidden}
	})
}

// unverified returns a kubeconfig without the API server's CA.
func unverified(t *testing.T, text string) string {
	t.Helper()
	return changed(t, text, func(tree map[string]any) {
		delete(clusterOf(tree), "certificate-authority-data")
	})
}

// clusterOf returns the cluster of a kubeconfig.
func clusterOf(tree map[string]any) map[string]any {
	return tree["clusters"].([]any)[0].(map[string]any)["cluster"].(map[string]any)
}

// authority sets the CAs of a kubeconfig.
func authority(pem []byte) func(tree map[string]any) {
	return func(tree map[string]any) {
		clusterOf(tree)["certificate-authority-data"] = base64.StdEncoding.EncodeToString(pem)
	}
}

// strangeAuthority returns the certificate of a CA that no cluster has.
func strangeAuthority(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func changed(t *testing.T, text string, change func(tree map[string]any)) string {
	t.Helper()
	tree := manifesttest.Tree(t, text)
	change(tree)
	out, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// One UID that both accounts may read decides.
func TestIdentity(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		a, b        identity
		same, known bool
	}{
		{identity{"a", "x"}, identity{"a", "y"}, true, true},
		{identity{"a", "x"}, identity{"b", "x"}, false, true},
		{identity{"", "x"}, identity{"b", "x"}, true, true},
		{identity{"a", ""}, identity{"", "x"}, false, false},
		{identity{"a", "x"}, identity{}, false, false},
	} {
		if same, known := tt.a.compare(tt.b); same != tt.same || known != tt.known {
			t.Errorf("%q and %q: %t, %t", tt.a, tt.b, same, known)
		}
	}
}
