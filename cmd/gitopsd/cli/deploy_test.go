package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path"
	"strings"
	"testing"
	"testing/fstest"

	"k8s.io/apimachinery/pkg/api/resource"

	"gitopsd.dev/render/kustomize"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/remote"
)

// examples/deploy and its component set existing flags, to files that are mounted and addresses
// with declared ports. GOMEMLIMIT is less than the memory limit.
func TestDeployment(t *testing.T) {
	t.Parallel()
	files := make(fstest.MapFS)
	deploy := os.DirFS("../../../examples/deploy")
	for _, pattern := range []string{"*.yaml", "*/*.yaml"} {
		names, err := fs.Glob(deploy, pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			content, err := fs.ReadFile(deploy, name)
			if err != nil {
				t.Fatal(err)
			}
			files[name] = &fstest.MapFile{Data: content}
		}
	}
	flags := []string{"repo", "git-password-file", "listen", "status-token-file", "lease", "pod-name"}
	checkDeployment(t, files, flags)
	with := bytes.Replace(files["kustomization.yaml"].Data, []byte("# components:"), []byte("components:"), 1)
	files["kustomization.yaml"] = &fstest.MapFile{Data: with}
	checkDeployment(t, files, append(flags, "conversion-listen", "conversion-tls-dir"))
}

// checkDeployment checks the Deployment of a kustomization, which must set the flags.
func checkDeployment(t *testing.T, files fs.FS, flags []string) {
	t.Helper()
	objects, _, err := new(kustomize.Builder).Build(t.Context(), files, ".", remote.Bases{})
	if err != nil {
		t.Fatal(err)
	}
	at := func(v any, keys ...any) any {
		for _, key := range keys {
			switch key := key.(type) {
			case string:
				v = v.(map[string]any)[key]
			case int:
				v = v.([]any)[key]
			}
		}
		return v
	}
	var pod any
	var services []map[string]any
	for _, o := range objects {
		switch o.ID().Kind {
		case "Deployment":
			pod = at(o.Tree(), "spec", "template", "spec")
		case "Service":
			services = append(services, o.Tree())
		}
	}
	container := at(pod, "containers", 0)
	var args []string
	for _, arg := range at(container, "args").([]any) {
		args = append(args, arg.(string))
	}
	env := make(map[string]string)
	for _, e := range at(container, "env").([]any) {
		value, given := at(e, "value").(string)
		if !given {
			value = fmt.Sprintf("the pod's %v", at(e, "valueFrom", "fieldRef", "fieldPath"))
		}
		env[at(e, "name").(string)] = value
	}
	root := newRoot(&Env{LookupEnv: variables(env)})
	run, rest, err := root.Find(args)
	if err != nil || run.Name() != "run" {
		t.Fatalf("%v is the command %v, %v", args, run.Name(), err)
	}
	if err := errors.Join(run.ParseFlags(rest), flagsFromEnvironment(run.Flags(), variables(env))); err != nil {
		t.Error(err)
	}
	for _, name := range flags {
		if f := run.Flags().Lookup(name); f == nil || !f.Changed {
			t.Errorf("--%s is not set", name)
		}
	}
	mounts := make(map[string]string)
	for _, m := range at(container, "volumeMounts").([]any) {
		mounts[at(m, "mountPath").(string)] = at(m, "name").(string)
	}
	ports := make(map[string]string)
	for _, p := range at(container, "ports").([]any) {
		ports[fmt.Sprint(at(p, "containerPort"))] = at(p, "name").(string)
	}
	for name, value := range env {
		flag, ours := strings.CutPrefix(name, "GITOPSD_")
		flag = strings.ReplaceAll(strings.ToLower(flag), "_", "-")
		if ours && run.Flags().Lookup(flag) == nil && run.InheritedFlags().Lookup(flag) == nil {
			t.Errorf("%s sets --%s, which there is not", name, flag)
		}
		if strings.HasSuffix(flag, "-file") && mounts[path.Dir(value)] == "" || strings.HasSuffix(flag, "-dir") && mounts[value] == "" {
			t.Errorf("%s is %s, where nothing is mounted", name, value)
		}
		if _, port, _ := net.SplitHostPort(value); strings.HasSuffix(flag, "listen") && ports[port] == "" {
			t.Errorf("%s is %s, a port that the container does not declare", name, value)
		}
	}
	volumes := make(map[any]bool)
	for _, v := range at(pod, "volumes").([]any) {
		volumes[at(v, "name")] = true
		if at(v, "name") == mounts[path.Dir(env["GITOPSD_STATUS_TOKEN_FILE"])] && at(v, "secret", "optional") != true {
			t.Error("the Secret with the status token is not optional")
		}
	}
	for at, volume := range mounts {
		if !volumes[volume] {
			t.Errorf("%s is mounted at %s, and is no volume", volume, at)
		}
	}
	for _, s := range services {
		target, found := at(s, "spec", "ports", 0, "targetPort"), false
		for _, name := range ports {
			found = found || name == target
		}
		if !found {
			t.Errorf("the Service leads to the port %v, which the container does not declare", target)
		}
		if leader := at(s, "spec", "selector", manifest.LeaderLabel); leader != env["GITOPSD_LEASE"] {
			t.Errorf("a Service selects the pods of the leader by Lease %v", leader)
		}
	}
	if name := env["GITOPSD_POD_NAME"]; name != "the pod's metadata.name" {
		t.Errorf("the pod's name is %q", name)
	}
	hard := resource.MustParse(fmt.Sprint(at(container, "resources", "limits", "memory")))
	soft := resource.MustParse(strings.TrimSuffix(env["GOMEMLIMIT"], "B"))
	if most := hard.Value() / 10 * 9; soft.Value() > most || soft.Value() < 1<<30 {
		t.Errorf("GOMEMLIMIT is %s; want at most nine tenths of limits.memory, %s, and a GiB", env["GOMEMLIMIT"], hard.String())
	}
}
