package servers

import (
	"bytes"
	"runtime/debug"
	"strings"
	"testing"

	"k8s.io/component-base/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"

	"gitopsd.dev/cmd/devcluster/internal/component"
)

func TestEtcdConfig(t *testing.T) {
	t.Parallel()
	want := component.EtcdConfig{Dir: "/d", ClientPort: 1, PeerPort: 2, HTTPPort: 3}
	var got component.EtcdConfig
	if err := parse(component.Etcd(want)[1:], &got); err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
	if err := etcdConfig(got).Validate(); err != nil {
		t.Errorf("etcd refuses it: %v", err)
	}
	if err := parse([]string{"--data-dir=/d"}, &got); err == nil {
		t.Error("flags are taken for a configuration")
	}
}

// The API server accepts all our flags. The test of whole clusters tests their values.
func TestKubernetesFlags(t *testing.T) {
	t.Parallel()
	if err := apiserver.NewAPIServerCommand().ParseFlags(component.APIServer(component.APIServerConfig{StorageMigration: true})[1:]); err != nil {
		t.Error(err)
	}
}

func TestModuleVersion(t *testing.T) {
	t.Parallel()
	info := &debug.BuildInfo{Deps: []*debug.Module{{Path: "k8s.io/api", Version: "v0.36.3"}, {Path: kubernetesModule, Version: "v1.36.3"}}}
	if got, err := moduleVersion(info, kubernetesModule); err != nil || got != "v1.36.3" {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := moduleVersion(&debug.BuildInfo{}, kubernetesModule); err == nil {
		t.Error("no module: no error")
	}
}

func TestSetVersion(t *testing.T) {
	t.Parallel()
	if err := setVersion("v1.36.3"); err != nil {
		t.Fatal(err)
	}
	if got := version.Get(); got.GitVersion != "v1.36.3" || got.Major != "1" || got.Minor != "36" {
		t.Errorf("components report %+v", got)
	}
	if err := setVersion("(devel)"); err == nil {
		t.Error("no version: no error")
	}
}

func TestRunRefuses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		args  []string
		stdin string
		want  string
	}{
		{"nothing", nil, "", "no component"},
		{"nobody started it", []string{component.NameEtcd}, "", "before its start message"},
		{"unknown", []string{"kube-proxy"}, "{}\n", "kube-proxy"},
		{"not what a starter says", []string{component.NameEtcd}, "\n", "start message"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var stderr bytes.Buffer
			if code := Run(tt.args, strings.NewReader(tt.stdin), &stderr); code != 1 || !strings.Contains(stderr.String(), tt.want) {
				t.Errorf("status %d, %s", code, &stderr)
			}
		})
	}
}
