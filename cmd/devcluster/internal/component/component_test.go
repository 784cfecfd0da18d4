package component

import (
	"bytes"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"

	"k8s.io/component-base/version"
)

func TestEtcdArguments(t *testing.T) {
	t.Parallel()
	want := EtcdConfig{DataDir: "/d", ClientPort: 1, PeerPort: 2, HTTPPort: 3, CAFile: "ca", CertFile: "crt", KeyFile: "key"}
	args := Etcd(want)
	got, err := parseEtcd(args[1:])
	if err != nil || got != want || args[0] != NameEtcd {
		t.Errorf("got %+v, %v", got, err)
	}
	if err := got.embed().Validate(); err != nil {
		t.Errorf("etcd refuses it: %v", err)
	}
}

// The components know all our flags; their values are tried by the test of
// whole clusters.
func TestKubernetesFlags(t *testing.T) {
	t.Parallel()
	if err := apiserver.NewAPIServerCommand().ParseFlags(APIServer(APIServerConfig{})[1:]); err != nil {
		t.Error(err)
	}
	if err := controllermanager.NewControllerManagerCommand().ParseFlags(ControllerManager(ControllerManagerConfig{})[1:]); err != nil {
		t.Error(err)
	}
}

func TestControllersExist(t *testing.T) {
	t.Parallel()
	known := controllermanager.KnownControllers()
	for _, name := range controllers {
		if !slices.Contains(known, name) {
			t.Errorf("Kubernetes has no %s", name)
		}
	}
	if !slices.IsSorted(controllers) {
		t.Error("the list is not sorted")
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

func TestEnvironment(t *testing.T) {
	t.Setenv("GOGC", "")
	os.Unsetenv("GOGC")
	if got := Environment(NameAPIServer); len(got) == 0 {
		t.Error("API server: nothing")
	}
	if got := Environment(NameEtcd); len(got) != 0 {
		t.Errorf("etcd: %v", got)
	}
	t.Setenv("GOGC", "50")
	if got := Environment(NameAPIServer); len(got) != 0 {
		t.Errorf("the user's GOGC is overridden: %v", got)
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
		{"nobody started it", []string{NameEtcd}, "", "said go"},
		{"unknown", []string{"kube-proxy"}, "{}\n", "kube-proxy"},
		{"not what a starter says", []string{NameEtcd}, "\n", "start message"},
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
