package hub

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gitopsd.dev/sources/clusters"
	"gitopsd.dev/testscripts/devcluster"
)

// A cluster is emptied only if it is no other registered one, by its address or its UID, and
// if the addresses of all others are known.
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
		"down": fleetFile, "slash": strings.Replace(fleetFile, "127.0.0.1:1", "127.0.0.1:1/", 1),
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
		{"by a copy", "hub", []clusters.Cluster{cluster("other", "down", false), cluster("new", "copy", false)}, "it is not emptied: it is also cluster new,"},
		{"by another address", "hub", []clusters.Cluster{cluster("new", "name", false)}, "it is not emptied: it is also cluster new,"},
		{"by the same address of one that is down", "slash", []clusters.Cluster{cluster("new", "down", false)}, "it is not emptied: it is also cluster new,"},
		{"both are removed", "hub", []clusters.Cluster{cluster("new", "copy", true)}, ""},
		{"beside one without a kubeconfig", "hub", []clusters.Cluster{cluster("new", "missing", false)}, "it is not emptied, since it may be cluster new: spec.kubeconfig.file missing.yaml: not found"},
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
