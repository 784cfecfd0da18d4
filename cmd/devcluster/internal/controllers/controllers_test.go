package controllers

import (
	"path/filepath"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"gitopsd.dev/cmd/devcluster/internal/component"
)

// The test of whole clusters tests what the controllers do.
func TestControllers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: "https://127.0.0.1:1"}},
		Contexts:       map[string]*clientcmdapi.Context{"c": {Cluster: "c"}},
		CurrentContext: "c",
	}, filepath.Join(dir, "controller-manager.kubeconfig")); err != nil {
		t.Fatal(err)
	}
	for _, migration := range []bool{false, true} {
		m, err := newManager(t.Context(), component.ControllersConfig{Dir: dir, StorageMigration: migration})
		if err != nil {
			t.Fatal(err)
		}
		names := map[string]bool{}
		for _, c := range m.controllers() {
			if names[c.name] {
				t.Errorf("two controllers are named %s", c.name)
			}
			if names[c.name] = true; c.workers < 1 {
				t.Errorf("%s has %d workers", c.name, c.workers)
			}
		}
		if names[storageMigratorName] != migration {
			t.Errorf("migration wanted: %t; controllers: %v", migration, names)
		}
	}
}

func TestRunRefuses(t *testing.T) {
	t.Parallel()
	if err := Run(t.Context(), component.ControllersConfig{Dir: t.TempDir()}); err == nil {
		t.Error("runs without a kubeconfig")
	}
}
