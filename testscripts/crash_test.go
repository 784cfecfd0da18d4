package testscripts

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"

	"gitopsd.dev/testscripts/devcluster"
	"gitopsd.dev/testscripts/gitserver"
	"gitopsd.dev/testscripts/registry"
)

// A pass may be interrupted at each of its writes: the push of new records, the
// commit of the lock, the inventory, each apply and each delete. The write is
// refused, or carried out but its answer lost, or carried out and the daemon
// killed before the answer. Meanwhile a newer version of a dependency is
// published. In each case the next run leaves the cluster and the lock as an
// undisturbed run does, resolves nothing again, and loses no object that should
// stay.
func TestEveryWriteMayBeInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := testContext(t)
	t.Cleanup(cancel)
	for _, how := range []interruption{refused, lost, killed} {
		t.Run(string(how), func(t *testing.T) {
			t.Parallel()
			f := newCrashFleet(ctx, t)
			// Undisturbed runs record the writes of both directions.
			f.push(forth)
			writes := map[direction][]write{forth: f.run(nil)}
			f.push(back)
			writes[back] = slices.DeleteFunc(f.run(nil), func(w write) bool {
				return w.push == 0 && w.method != http.MethodDelete // the other direction covers these
			})
			f.push(forth)
			f.run(nil)
			for i := range max(len(writes[forth]), len(writes[back])) {
				for _, d := range []direction{back, forth} {
					f.push(d)
					if i >= len(writes[d]) {
						f.run(nil)
						continue
					}
					f.interrupt(d, writes[d][i], how)
				}
			}
		})
	}
}

// direction is one of the two commits between which the fleet alternates.
type direction string

const (
	forth direction = "forth"
	back  direction = "back"
)

// interruption is a way to interrupt a write.
type interruption string

const (
	refused interruption = "refused" // not carried out
	lost    interruption = "lost"    // carried out, but the answer is lost
	killed  interruption = "killed"  // carried out, and the daemon is killed before the answer
)

// write is a request that changes something: a request to the API server, by method and
// URI, or a push to the Git server, by its number in the pass.
type write struct {
	method, uri string
	push        int
}

func (w write) String() string {
	if w.push > 0 {
		return fmt.Sprintf("push %d", w.push)
	}
	return w.method + " " + w.uri
}

// crashFleet is a fleet of one cluster, with its servers and files.
type crashFleet struct {
	t        *testing.T
	ctx      context.Context
	dir      string
	plane    *plane
	proxy    *proxy
	git      *gitserver.Server
	repo     *gitserver.Repo
	registry *registry.Registry
	env      []string

	at       direction
	versions int                             // number of published versions of the dependency
	ends     map[direction]map[string]string // the cluster's state after a pass
	uids     map[string]string               // UIDs of the objects that must stay
}

const crashDependency = "registry.example.org/acme/gizmos"

func newCrashFleet(ctx context.Context, t *testing.T) *crashFleet {
	f := &crashFleet{t: t, ctx: ctx, dir: t.TempDir(), ends: make(map[direction]map[string]string)}
	got, err := planes.lease(ctx, 1)
	f.must(err)
	f.plane = got[0]
	t.Cleanup(func() { planes.giveBack(f.plane) })
	f.proxy, err = newProxy(f.plane.config)
	f.must(err)
	t.Cleanup(f.proxy.close)
	f.git, err = gitserver.New(gitserver.Config{Root: filepath.Join(f.dir, "git")})
	f.must(err)
	t.Cleanup(func() { f.git.Close() })
	f.repo, err = f.git.Create(ctx, repoName)
	f.must(err)
	f.registry, err = registry.New(registry.Config{TLS: true})
	f.must(err)
	t.Cleanup(f.registry.Close)

	l := &leased{name: "dev", plane: f.plane, proxy: f.proxy}
	kubeconfig, err := l.kubeconfigFor(f.proxy.url, f.proxy.ca)
	f.must(err)
	f.file("kubeconfigs/dev.yaml", string(kubeconfig))
	f.file("direct.yaml", string(f.plane.kubeconfig))
	f.file("ca.pem", string(f.registry.CA()))
	f.env = append(gitserver.Env(f.dir),
		"TMPDIR="+t.TempDir(),
		"XDG_CACHE_HOME="+filepath.Join(f.dir, "cache"),
		"DOCKER_CONFIG="+filepath.Join(f.dir, "docker"),
		"SSL_CERT_FILE="+filepath.Join(f.dir, "ca.pem"),
		"SSL_CERT_DIR="+filepath.Join(f.dir, "docker"), // none there
		"KUBECONFIG="+filepath.Join(f.dir, "direct.yaml"),
		"GITOPSD_KUBECONFIG_DIR="+filepath.Join(f.dir, "kubeconfigs"),
		"GITOPSD_REGISTRY_MIRROR=registry.example.org="+f.registry.Host(),
	)
	for _, version := range []string{"v1.0.0", "v1.1.0"} {
		f.publish("widgets", version, map[string]string{
			"crossplane.yaml": "apiVersion: meta.pkg.crossplane.io/v1\nkind: Provider\nmetadata: {name: widgets}\n",
			"crd.yaml":        crashCRD("Widget", "What "+version+" says."),
		})
	}
	f.publish("gadgets", "v1.0.0", map[string]string{"crossplane.yaml": `
apiVersion: meta.pkg.crossplane.io/v1
kind: Configuration
metadata: {name: gadgets}
spec:
  dependsOn:
  - configuration: ` + crashDependency + `
    version: ">=v1.0.0"
`})
	f.publishDependency()

	f.push(back)
	f.run(nil)
	// A user's object of a type that stays, and an object unrelated to gitopsd.
	f.kubectl(`{apiVersion: acme.example/v1, kind: Widget, metadata: {name: precious, namespace: default}}`, "apply", "-f", "-")
	f.kubectl("", "create", "configmap", "bystander", "--namespace", "default", "--from-literal", "a=b")
	f.uids = f.look(func(o object) string { return string(o.meta.UID) })
	maps.DeleteFunc(f.uids, func(name, _ string) bool {
		return !slices.Contains([]string{"Widget default/precious", "ConfigMap default/bystander", "ConfigMap default/kept",
			"CustomResourceDefinition widgets.acme.example", "Deployment gitopsd-system/widgets"}, name)
	})
	if len(f.uids) != 5 {
		t.Fatalf("of the objects that must stay, only %v exist", f.uids)
	}
	return f
}

func (f *crashFleet) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// file writes a file below the fleet's directory, and returns its path.
func (f *crashFleet) file(name, content string) string {
	f.t.Helper()
	path := filepath.Join(f.dir, filepath.FromSlash(name))
	f.must(os.MkdirAll(filepath.Dir(path), 0o755))
	f.must(os.WriteFile(path, []byte(content), 0o600))
	return path
}

// program runs a program to its end.
func (f *crashFleet) program(stdin, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(f.ctx, name, args...)
	cmd.Env, cmd.Dir, cmd.Stdin = f.env, f.dir, strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (f *crashFleet) kubectl(stdin string, args ...string) {
	f.t.Helper()
	cmd, err := devcluster.Kubectl(f.ctx, args...)
	f.must(err)
	if out, err := f.program(stdin, cmd.Path, cmd.Args[1:]...); err != nil {
		f.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// publish builds a package of files, and pushes it.
func (f *crashFleet) publish(name, version string, files map[string]string) {
	f.t.Helper()
	dir := "packages/" + name + "-" + version
	for file, content := range files {
		f.file(dir+"/"+file, content)
	}
	file := filepath.Join(f.dir, "package.xpkg")
	runtime, err := onRuntime(filepath.Join(f.dir, dir), f.dir)
	f.must(err)
	for _, args := range [][]string{
		append([]string{"package", "build", filepath.Join(f.dir, dir), "-o", file}, runtime...),
		{"package", "push", file, f.registry.Host() + "/acme/" + name + ":" + version},
	} {
		if out, err := f.program("", "gitopsd", args...); err != nil {
			f.t.Fatalf("gitopsd %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// publishDependency publishes the next version of the dependency.
func (f *crashFleet) publishDependency() {
	f.t.Helper()
	f.versions++
	version := fmt.Sprintf("v1.%d.0", f.versions)
	f.publish("gizmos", version, map[string]string{"crossplane.yaml": fmt.Sprintf(
		"apiVersion: meta.pkg.crossplane.io/v1\nkind: Configuration\nmetadata: {name: gizmos, annotations: {acme.example/version: %s}}\n", version)})
}

// push commits the state at the end of a direction.
func (f *crashFleet) push(d direction) {
	f.t.Helper()
	f.at = d
	const dir = "clusters/dev/"
	files := map[string]string{
		"clusters.yaml": `
apiVersion: gitopsd.dev/v1alpha1
kind: Cluster
metadata: {name: dev}
spec:
  path: clusters/dev
  kubeconfig: {file: dev.yaml}
`,
		dir + "runtime.yaml": crashRuntime,
		dir + "widgets.yaml": crashDeclaration("Provider", "widgets", "v1.0.0"),
		dir + "kept.yaml":    crashConfigMap("kept", "default", "back"),
		dir + "going.yaml":   crashConfigMap("going", "default", "back"),
	}
	gone := []string{dir + "gadgets.yaml", dir + "coming.yaml"}
	if d == forth {
		gone = []string{dir + "going.yaml"}
		delete(files, gone[0])
		files[dir+"widgets.yaml"] = crashDeclaration("Provider", "widgets", "v1.1.0")
		files[dir+"kept.yaml"] = crashConfigMap("kept", "default", "forth")
		files[dir+"gadgets.yaml"] = crashDeclaration("Configuration", "gadgets", "v1.0.0")
		files[dir+"coming.yaml"] = crashConfigMap("coming", "default", "forth") + "---\n" + crashCRD("Doodad", "A doodad.")
	}
	_, err := f.repo.Commit(f.ctx, "main", "Go "+string(d), files)
	f.must(err)
	_, err = f.repo.Remove(f.ctx, "main", "Remove the rest", gone...)
	f.must(err)
}

// run runs gitopsd once, checks the result and returns the writes. If disturb, which may
// kill the run, is not nil, it skips the check and returns nil.
func (f *crashFleet) run(disturb func(kill func())) []write {
	f.t.Helper()
	f.proxy.takeRequests()
	f.git.Requests()
	cmd := exec.CommandContext(f.ctx, "gitopsd", "run", "--repo", f.git.URL(repoName), "--once")
	cmd.Env, cmd.Dir = f.env, f.dir
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	ended := make(chan struct{})
	if disturb != nil {
		disturb(func() {
			cmd.Process.Kill() // it may have ended
			<-ended
		})
	}
	f.must(cmd.Start())
	err := cmd.Wait()
	close(ended)
	if disturb != nil {
		return nil
	}
	if err != nil {
		f.t.Fatalf("gitopsd run: %v\n%s", err, out.Bytes())
	}
	f.check(out.String())
	writes := f.writes()
	f.rolledOut()
	return writes
}

// rolledOut waits until the controller is rolled out: what the next run writes into its
// Deployment depends on whether the previous revision was ready.
func (f *crashFleet) rolledOut() {
	f.t.Helper()
	for {
		text, err := f.plane.discovery.RESTClient().Get().AbsPath("/apis/apps/v1/namespaces/gitopsd-system/deployments/widgets").DoRaw(f.ctx)
		f.must(err)
		var d appsv1.Deployment
		f.must(json.Unmarshal(text, &d))
		s := d.Status
		complete := slices.ContainsFunc(s.Conditions, func(c appsv1.DeploymentCondition) bool {
			return c.Type == appsv1.DeploymentProgressing && c.Reason == "NewReplicaSetAvailable"
		})
		if complete && s.ObservedGeneration == d.Generation && s.Replicas == s.UpdatedReplicas && s.AvailableReplicas == *d.Spec.Replicas {
			return
		}
		select {
		case <-f.ctx.Done():
			f.t.Fatalf("the controller is not rolled out: %+v", s)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// check compares the state after a run with the wanted one.
func (f *crashFleet) check(log string) {
	f.t.Helper()
	now := f.look(func(o object) string { return o.meta.Annotations["gitopsd.dev/applied"] })
	if f.uids != nil {
		uids := f.look(func(o object) string { return string(o.meta.UID) })
		for name, uid := range f.uids {
			if uids[name] != uid {
				f.t.Errorf("%s was lost: its UID was %s and is %q", name, uid, uids[name])
			}
		}
		if f.ends[f.at] == nil {
			f.ends[f.at] = now
		}
		if diff := compare(f.ends[f.at], now); len(diff) > 0 {
			f.t.Errorf("differs from an undisturbed run:\n%slog:\n%s", strings.Join(diff, ""), log)
		}
	}
	refs, err := f.repo.Git(f.ctx, "for-each-ref", "--format=%(refname)")
	f.must(err)
	if refs != "refs/heads/main" {
		f.t.Errorf("the repository has the refs %q", refs)
	}
}

// look returns the objects created in the cluster, by name, each with the result of
// calling of.
func (f *crashFleet) look(of func(object) string) map[string]string {
	f.t.Helper()
	list, err := f.plane.list(f.ctx)
	f.must(err)
	found := make(map[string]string)
	for _, o := range list {
		found[o.String()] = of(o)
	}
	return found
}

// selected returns the version of the dependency that the lock selects, or "".
func (f *crashFleet) selected() string {
	f.t.Helper()
	lock, err := f.repo.Git(f.ctx, "show", "main:clusters.lock")
	f.must(err)
	for line := range strings.Lines(lock) {
		if fields := strings.Fields(line); len(fields) > 2 && fields[0] == "@dev" && fields[1] == crashDependency {
			return fields[2]
		}
	}
	return ""
}

// reviews matches requests that create an object only to ask the API server a question.
var reviews = regexp.MustCompile(`/apis/auth(enti|ori)[a-z]+\.k8s\.io/|[?&]dryRun=`)

// writes returns the writes since the start of the run.
func (f *crashFleet) writes() (all []write) {
	for _, r := range f.git.Requests() {
		if strings.HasPrefix(r, "POST ") && strings.Contains(r, "git-receive-pack") {
			all = append(all, write{push: len(all) + 1})
		}
	}
	for _, r := range slices.Sorted(maps.Keys(f.proxy.takeRequests())) {
		method, uri, _ := strings.Cut(r, " ")
		if method != http.MethodGet && !reviews.MatchString(uri) {
			all = append(all, write{method: method, uri: uri})
		}
	}
	return all
}

// interrupt interrupts a write in one run, and then runs undisturbed.
func (f *crashFleet) interrupt(d direction, w write, how interruption) {
	f.t.Helper()
	newest := f.selectedNext(d)
	var met atomic.Bool
	f.run(func(kill func()) {
		then := func() {
			met.Store(true)
			if how == killed {
				kill()
			}
		}
		if w.push == 0 {
			fault := &apiFault{method: w.method, path: regexp.MustCompile("^" + regexp.QuoteMeta(w.uri) + "$"), always: true, then: then}
			if how == refused {
				fault.status = http.StatusInternalServerError
			} else {
				fault.lose = true
			}
			f.proxy.fail(fault)
			return
		}
		if w.push > 1 {
			f.git.Fail(gitserver.Fault{Service: "git-receive-pack", Times: w.push - 1})
		}
		fault := gitserver.Fault{Service: "git-receive-pack", LoseAnswer: true, After: then}
		if how == refused {
			fault = gitserver.Fault{Service: "git-receive-pack", Before: func() error { then(); return errors.New("refused") }}
		}
		f.git.Fail(fault)
	})
	f.git.Heal()
	f.proxy.heal()
	if !met.Load() {
		f.t.Fatalf("%s: the run did not reach %s", d, w)
	}
	if d == forth && (w.push != 1 || how != refused) {
		f.publishDependency() // the records of the previous version are durable
	}
	before := f.t.Failed()
	f.run(nil)
	if got := f.selected(); got != newest {
		f.t.Errorf("the lock selects %q of the dependency, want %q", got, newest)
	}
	if f.t.Failed() && !before {
		f.t.Fatalf("the errors follow an interruption (%s) of %s on the way %s", how, w, d)
	}
}

// selectedNext returns the version of the dependency that an undisturbed run selects at
// the end of a direction.
func (f *crashFleet) selectedNext(d direction) string {
	if d == back {
		return ""
	}
	return fmt.Sprintf("v1.%d.0", f.versions)
}

// crashRuntime makes the controller ready at once, since every run waits for it.
const crashRuntime = `
apiVersion: pkg.crossplane.io/v1beta1
kind: DeploymentRuntimeConfig
metadata: {name: default}
spec: {deploymentTemplate: {spec: {minReadySeconds: 0}}}
`

func crashDeclaration(kind, name, version string) string {
	return fmt.Sprintf("apiVersion: pkg.crossplane.io/v1\nkind: %s\nmetadata: {name: %s}\nspec: {package: registry.example.org/acme/%s:%s}\n", kind, name, name, version)
}

func crashConfigMap(name, namespace, value string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: %s}\ndata: {value: %s}\n", name, namespace, value)
}

func crashCRD(kind, description string) string {
	singular := strings.ToLower(kind)
	return fmt.Sprintf(`apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[2]ss.acme.example}
spec:
  group: acme.example
  scope: Namespaced
  names: {kind: %[1]s, plural: %[2]ss, singular: %[2]s}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema: {type: object, description: %[3]q}
`, kind, singular, description)
}
