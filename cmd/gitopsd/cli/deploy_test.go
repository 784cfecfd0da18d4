package cli

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	"gitopsd.dev/sources"
)

// examples/deploy sets flags that there are, to files that are mounted, and leaves
// room between what Go may use and what the kernel allows.
func TestDeployment(t *testing.T) {
	t.Parallel()
	f, err := os.Open("../../../examples/deploy/deployment.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	docs, err := sources.DecodeYAML(f, sources.Limits{})
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
	pod := at(docs[0].Tree, "spec", "template", "spec")
	container := at(pod, "containers", 0)
	var args []string
	for _, arg := range at(container, "args").([]any) {
		args = append(args, arg.(string))
	}
	env := make(map[string]string)
	for _, e := range at(container, "env").([]any) {
		env[at(e, "name").(string)] = at(e, "value").(string)
	}
	root := newRoot(&Env{Getenv: func(name string) string { return env[name] }})
	run, rest, err := root.Find(args)
	if err != nil || run.Name() != "run" {
		t.Fatalf("%v is the command %v, %v", args, run.Name(), err)
	}
	if err := errors.Join(run.ParseFlags(rest), flagsFromEnvironment(run.Flags(), func(name string) string { return env[name] })); err != nil {
		t.Error(err)
	}
	mounts := make(map[string]string)
	for _, m := range at(container, "volumeMounts").([]any) {
		mounts[at(m, "mountPath").(string)] = at(m, "name").(string)
	}
	for name, value := range env {
		flag, ours := strings.CutPrefix(name, "GITOPSD_")
		flag = strings.ReplaceAll(strings.ToLower(flag), "_", "-")
		if ours && run.Flags().Lookup(flag) == nil && run.InheritedFlags().Lookup(flag) == nil {
			t.Errorf("%s sets --%s, which there is not", name, flag)
		}
		if strings.HasSuffix(flag, "-file") && mounts[path.Dir(value)] == "" {
			t.Errorf("%s is %s, where nothing is mounted", name, value)
		}
	}
	for _, v := range at(pod, "volumes").([]any) {
		if at(v, "name") == mounts[path.Dir(env["GITOPSD_STATUS_TOKEN_FILE"])] && at(v, "secret", "optional") != true {
			t.Error("the Secret with the status token is not optional")
		}
	}
	hard := resource.MustParse(fmt.Sprint(at(container, "resources", "limits", "memory")))
	soft := resource.MustParse(strings.TrimSuffix(env["GOMEMLIMIT"], "B"))
	if most := hard.Value() / 10 * 9; soft.Value() > most || soft.Value() < 1<<30 {
		t.Errorf("GOMEMLIMIT is %s; want at most nine tenths of limits.memory, %s, and a GiB", env["GOMEMLIMIT"], hard.String())
	}
}
