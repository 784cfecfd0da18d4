package live

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/verify"
	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/lockfile"
)

func podTree(t *testing.T, name, env, status string) map[string]any {
	return manifesttest.Tree(t, fmt.Sprintf(`{metadata: {name: %s, namespace: ns, labels: {app: x}}, spec: {containers: [{name: c, image: 'i:v1', env: [%s]}]}, status: {%s}}`, name, env, status))
}

const (
	runs  = "phase: Running, containerStatuses: [{name: c, imageID: 'i@sha256:aa', state: {running: {}}}]"
	waits = "phase: Pending, containerStatuses: [{name: c, state: {waiting: {reason: ImagePullBackOff}}}]"
)

// Which pods count as running a controller, and what is said of the others. The containers of
// its workload decide, and not those that admission added to a pod.
func TestPods(t *testing.T) {
	const proxy = "{name: proxy, imageID: p, state: {running: {}}}"
	for _, tt := range []struct{ name, containers, status, want string }{
		{"running", "c", runs, "running c=i@sha256:aa"},
		{"not ready", "c", runs + ", conditions: [{type: Ready, status: 'False'}]", "running c=i@sha256:aa"},
		{"waiting", "c", waits, "waiting ImagePullBackOff"},
		{"not started", "c", "phase: Pending", "waiting its containers do not run"},
		{"between two starts", "c", "containerStatuses: [{name: c, imageID: a, state: {terminated: {}}}]", "waiting its containers do not run"},
		{"done", "c", "phase: Succeeded", ""},
		{"one of two", "c d", "containerStatuses: [{name: c, imageID: a, state: {running: {}}}, {name: d, imageID: b, state: {waiting: {reason: CrashLoopBackOff}}}]", "partly c=a d=b waiting container d: CrashLoopBackOff"},
		{"two of two", "c d", "containerStatuses: [{name: c, imageID: a, state: {running: {}}}, {name: d, imageID: b, state: {running: {}}}]", "running c=a d=b"},
		{"a sidecar alone", "c", "containerStatuses: [" + proxy + ", {name: c, imageID: a, state: {waiting: {reason: CrashLoopBackOff}}}]", "waiting CrashLoopBackOff"},
		{"beside a sidecar", "c", "containerStatuses: [" + proxy + ", {name: c, imageID: a, state: {running: {}}}]", "running c=a"},
		{"beside a sidecar that waits", "c", "containerStatuses: [{name: c, imageID: a, state: {running: {}}}, {name: proxy, state: {waiting: {reason: ImagePullBackOff}}}]", "running c=a"},
		{"initializing", "c", "initContainerStatuses: [{name: i, imageID: a, state: {running: {}}}], containerStatuses: [{name: c, state: {waiting: {reason: PodInitializing}}}]", "waiting PodInitializing"},
		{"beside a sidecar that is an init container", "c", "initContainerStatuses: [" + proxy + "], containerStatuses: [{name: c, state: {waiting: {reason: ImagePullBackOff}}}]", "waiting ImagePullBackOff"},
		{"a sidecar of its own", "c s", "initContainerStatuses: [{name: s, imageID: b, state: {running: {}}}], containerStatuses: [{name: c, imageID: a, state: {running: {}}}]", "running c=a s=b"},
		{"a sidecar of its own that crashes", "c s", "initContainerStatuses: [{name: s, imageID: b, state: {waiting: {reason: CrashLoopBackOff}}}], containerStatuses: [{name: c, imageID: a, state: {running: {}}}]", "partly c=a s=b waiting container s: CrashLoopBackOff"},
		{"before its own sidecar is ready", "c s", "initContainerStatuses: [{name: s, imageID: b, state: {running: {}}}], containerStatuses: [{name: c, state: {waiting: {reason: PodInitializing}}}]", "waiting PodInitializing"},
		{"an init container that is done", "c i", "initContainerStatuses: [{name: i, imageID: b, state: {terminated: {}}}], containerStatuses: [{name: c, imageID: a, state: {running: {}}}]", "running c=a i=b"},
		{"other containers", "c", "containerStatuses: [{name: other, imageID: a, state: {running: {}}}]", "running"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var containers, init []string
			for _, name := range strings.Fields(tt.containers) {
				switch name {
				case "i":
					init = append(init, "{name: i, image: i}")
				case "s":
					init = append(init, "{name: s, image: i, restartPolicy: Always}")
				default:
					containers = append(containers, "{name: "+name+", image: i}")
				}
			}
			spec := "spec: {initContainers: [" + strings.Join(init, ", ") + "], containers: [" + strings.Join(containers, ", ") + "]}"
			o := manifesttest.Object(t, "{apiVersion: apps/v1, kind: Deployment, metadata: {name: x, namespace: ns}, spec: {selector: {matchLabels: {app: x}}, template: {"+spec+"}}}")
			c, err := newController(o, &verify.Controller{Wanted: behaviour.Workload(o)})
			if err != nil {
				t.Fatal(err)
			}
			c.template = &c.rendered
			if p := newPod(manifesttest.Tree(t, "{metadata: {name: p, namespace: ns, labels: {app: x}}, "+spec+", status: {"+tt.status+"}}")); p != nil {
				c.add(p, false)
			}
			var have []string
			for _, i := range c.Instances {
				have = append(have, map[bool]string{false: "running", true: "partly"}[i.Partly])
				for _, image := range i.Images {
					have = append(have, image.Name+"="+image.Value)
				}
			}
			for _, w := range c.Waiting {
				have = append(have, "waiting "+strings.TrimPrefix(w, "pod ns/p: "))
			}
			if text := strings.Join(have, " "); text != tt.want {
				t.Errorf("have %q, want %q", text, tt.want)
			}
		})
	}
}

// Selectors may overlap: a pod of another declared workload is not the controller's, but one that
// only says so is.
func TestOthersPods(t *testing.T) {
	set := manifesttest.Set(t, `{apiVersion: apps/v1, kind: Deployment, metadata: {name: x, namespace: ns}, spec: {selector: {matchLabels: {app: x}}, template: {metadata: {labels: {app: x}}, spec: {serviceAccountName: x, containers: [{name: c, image: i}]}}}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: hooks, namespace: ns}, spec: {selector: {matchLabels: {app: x, part: hooks}}, template: {metadata: {labels: {app: x, part: hooks}}, spec: {serviceAccountName: x, containers: [{name: c, image: i}]}}}}
---
{apiVersion: batch/v1, kind: Job, metadata: {name: setup, namespace: ns}, spec: {template: {metadata: {labels: {app: x}}, spec: {containers: [{name: c, image: i}]}}}}
---
{apiVersion: batch/v1, kind: CronJob, metadata: {name: tidy, namespace: ns}, spec: {jobTemplate: {spec: {template: {metadata: {labels: {app: x}}, spec: {serviceAccountName: tidy, containers: [{name: c, image: i}]}}}}}}
`)
	in := &reading{wanted: &desired.Unit{Objects: set}}
	o := set.Get(manifest.Deployment.ID("ns", "x"))
	c, err := newController(o, &verify.Controller{Wanted: behaviour.Workload(o)})
	if err != nil {
		t.Fatal(err)
	}
	owns := in.owns()
	for _, tt := range []struct {
		name, labels, account, owner, containers string
		want                                     bool
	}{
		{"its own", "app: x, pod-template-hash: abc", "x", "apps/v1 ReplicaSet x-abc", "", true},
		{"other labels", "app: y, pod-template-hash: abc", "x", "apps/v1 ReplicaSet x-abc", "", false},
		{"another Deployment's", "app: x, part: hooks, pod-template-hash: abc", "x", "apps/v1 ReplicaSet hooks-abc", "", false},
		{"with an image of its own", "app: x, part: hooks, pod-template-hash: abc", "x", "apps/v1 ReplicaSet hooks-abc", "{name: c, image: evil}", true},
		{"without the container of the other", "app: x, part: hooks, pod-template-hash: abc", "x", "apps/v1 ReplicaSet hooks-abc", "{name: d, image: i}", true},
		{"beside a sidecar", "app: x, part: hooks, pod-template-hash: abc", "x", "apps/v1 ReplicaSet hooks-abc", "{name: proxy, image: p}, {name: c, image: i}", false},
		{"without the labels of the other", "app: x, pod-template-hash: abc", "x", "apps/v1 ReplicaSet hooks-abc", "", true},
		{"with another account than the other", "app: x, part: hooks, pod-template-hash: abc", "tidy", "apps/v1 ReplicaSet hooks-abc", "", true},
		{"a Job's", "app: x, job-name: setup", "default", "batch/v1 Job setup", "", false},
		{"a CronJob's", "app: x, job-name: tidy-29", "tidy", "batch/v1 Job tidy-29", "", false},
		{"an undeclared Deployment's", "app: x, pod-template-hash: abc", "x", "apps/v1 ReplicaSet old-abc", "", true},
		{"an undeclared Job's", "app: x, job-name: by-hand", "tidy", "batch/v1 Job by-hand", "", true},
		{"nobody's", "app: x", "x", "", "", true},
	} {
		owners := ""
		if f := strings.Fields(tt.owner); len(f) > 0 {
			owners = fmt.Sprintf("{apiVersion: %s, kind: %s, name: %s, controller: true}", f[0], f[1], f[2])
		}
		p := newPod(manifesttest.Tree(t, fmt.Sprintf("{metadata: {name: p, namespace: ns, labels: {%s}, ownerReferences: [%s]}, spec: {serviceAccountName: %s, containers: [%s]}, status: {%s}}", tt.labels, owners, tt.account, cmp.Or(tt.containers, "{name: c, image: i}"), runs)))
		if have := owns(c, p); have != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, have, tt.want)
		}
	}
}

// A workload whose change is not applied yet keeps its pods, unless somebody set their image or
// account.
func TestOthersPodsBefore(t *testing.T) {
	const hooks = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: hooks, namespace: ns%s}, spec: {selector: {matchLabels: {app: x, part: hooks}}, template: {metadata: {labels: {app: x, part: hooks}}, spec: {serviceAccountName: %s, containers: [{name: c, image: %s}]}}}}"
	set := manifesttest.Set(t, "{apiVersion: apps/v1, kind: Deployment, metadata: {name: x, namespace: ns}, spec: {selector: {matchLabels: {app: x}}, template: {metadata: {labels: {app: x}}, spec: {containers: [{name: c, image: i}]}}}}\n---\n"+fmt.Sprintf(hooks, "", "new", "'i:v2'"))
	o := set.Get(manifest.Deployment.ID("ns", "x"))
	c, err := newController(o, &verify.Controller{Wanted: behaviour.Workload(o)})
	if err != nil {
		t.Fatal(err)
	}
	const account, image = "'f:serviceAccountName': {}", `'f:containers': {'k:{"name":"c"}': {'f:image': {}}}`
	for _, tt := range []struct {
		name, fields string // that gitopsd applied
		want         bool
	}{
		{"not applied yet", account + ", " + image, false},
		{"another image", account, true},
		{"another account", image, true},
	} {
		in := &reading{wanted: &desired.Unit{Objects: set}, before: make(map[manifest.ID]*declaration)}
		fields := ", managedFields: [{manager: gitopsd, operation: Apply, apiVersion: apps/v1, fieldsType: FieldsV1, fieldsV1: {'f:spec': {'f:template': {'f:spec': {" + tt.fields + "}}}}}]"
		in.noteBefore(manifesttest.Tree(t, fmt.Sprintf(hooks, fields, "old", "'i:v1'")))
		p := newPod(manifesttest.Tree(t, "{metadata: {name: p, namespace: ns, labels: {app: x, part: hooks, pod-template-hash: abc}, ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: hooks-abc, controller: true}]}, spec: {serviceAccountName: old, containers: [{name: c, image: 'i:v1'}]}, status: {"+runs+"}}"))
		if have := in.owns()(c, p); have != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, have, tt.want)
		}
	}
}

// One pod that runs all containers is enough.
func TestPartly(t *testing.T) {
	o := manifesttest.Object(t, "{apiVersion: apps/v1, kind: Deployment, metadata: {name: x, namespace: ns}, spec: {selector: {matchLabels: {app: x}}, template: {spec: {containers: [{name: c, image: 'i:v1'}, {name: d, image: i}]}}}}")
	c, err := newController(o, &verify.Controller{Wanted: behaviour.Workload(o)})
	if err != nil {
		t.Fatal(err)
	}
	c.template = &c.rendered
	for _, state := range []string{"{waiting: {}}", "{running: {}}", "{waiting: {}}"} {
		c.add(newPod(podTree(t, "p", "", "containerStatuses: [{name: c, imageID: a, state: {running: {}}}, {name: d, imageID: b, state: "+state+"}]")), false)
	}
	if len(c.Instances) != 1 || c.Instances[0].Partly || len(c.Waiting) != 2 {
		t.Errorf("instances %v, waiting %v", c.Instances, c.Waiting)
	}
}

// Pods end if all of them are being deleted.
func TestEnding(t *testing.T) {
	o := manifesttest.Object(t, deployment)
	c, err := newController(o, &verify.Controller{Wanted: behaviour.Workload(o)})
	if err != nil {
		t.Fatal(err)
	}
	tree := podTree(t, "p", "", runs)
	c.add(newPod(manifest.With(tree, "2026-01-02T03:04:05Z", "metadata", "deletionTimestamp")), false)
	if !c.Instances[0].Ending {
		t.Error("a pod that is being deleted does not end")
	}
	c.add(newPod(tree), false)
	if c.Instances[0].Ending || c.Instances[0].Pods != 2 {
		t.Errorf("with one that stays: %+v", c.Instances)
	}
}

const deployment = `{apiVersion: apps/v1, kind: Deployment, metadata: {name: x, namespace: ns}, spec: {
  selector: {matchLabels: {app: x}, matchExpressions: [{key: tier, operator: DoesNotExist}]},
  template: {metadata: {labels: {app: x, pkg.crossplane.io/provider: w}}, spec: {containers: [{name: c, image: 'i:v1', env: [{name: A, value: a}]}]}}}}`

// An image that others set in the workload is told with who and when, if that is known; one
// that gitopsd applied from another commit is not held.
func TestHeldImages(t *testing.T) {
	o := manifesttest.Object(t, deployment)
	entry := func(manager, operation, container string) string {
		return fmt.Sprintf(`{manager: %s, operation: %s, apiVersion: apps/v1, time: '2026-01-02T03:04:05Z', fieldsType: FieldsV1, fieldsV1: {'f:spec': {'f:template': {'f:spec': {'f:containers': {'k:{"name":"%s"}': {'f:image': {}}}}}}}}`, manager, operation, container)
	}
	for _, tt := range []struct{ name, containers, entries, want string }{
		{"as rendered", "{name: c, image: 'i:v1'}", entry("kubectl-set", "Update", "c"), ""},
		{"gitopsd's", "{name: c, image: 'i:v2'}", entry("gitopsd", "Apply", "c"), ""},
		{"by hand", "{name: c, image: 'i:v2'}", entry("gitopsd", "Apply", "c") + ", " + entry("kubectl-set", "Update", "c"), "Deployment ns/x itself has the image i:v2 for container c, set by kubectl-set at 2026-01-02T03:04:05Z"},
		{"by a digest", "{name: c, image: 'i@sha256:" + strings.Repeat("0", 64) + "'}", entry("kubectl-edit", "Update", "c"), "Deployment ns/x itself has the image i@sha256:" + strings.Repeat("0", 64) + " for container c, set by kubectl-edit at 2026-01-02T03:04:05Z"},
		{"added", "{name: c, image: 'i:v1'}, {name: d, image: 'j:v1'}", entry("kubectl-patch", "Update", "d"), "Deployment ns/x itself has the image j:v1 for container d, set by kubectl-patch at 2026-01-02T03:04:05Z"},
		{"in gitopsd's name", "{name: c, image: 'i:v2'}", entry("gitopsd", "Update", "c"), "Deployment ns/x itself has the image i:v2 for container c, set by an update in gitopsd's name at 2026-01-02T03:04:05Z"},
		{"without a record", "{name: c, image: 'i:v2'}", "", "Deployment ns/x itself has the image i:v2 for container c, set by an unknown writer"},
		{"with a record of another container", "{name: c, image: 'i:v1'}, {name: d, image: 'j:v1'}", entry("gitopsd", "Apply", "c"), "Deployment ns/x itself has the image j:v1 for container d, set by an unknown writer"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			live := manifesttest.Tree(t, fmt.Sprintf("{metadata: {managedFields: [%s]}, spec: {template: {spec: {containers: [%s]}}}}", tt.entries, tt.containers))
			if have := strings.Join(heldImages(behaviour.Workload(o), live), "\n"); have != tt.want {
				t.Errorf("have %q, want %q", have, tt.want)
			}
		})
	}
}

// Pods that run the same are one instance; what admission adds to pods is not the
// controller's, and what somebody adds to the workload is.
func TestInstances(t *testing.T) {
	o := manifesttest.Object(t, deployment)
	c, err := newController(o, &verify.Controller{Wanted: behaviour.Workload(o)})
	if err != nil {
		t.Fatal(err)
	}
	if c.provider != "w" || !c.selector.Matches(newPod(podTree(t, "p", "", runs)).labels()) {
		t.Errorf("provider %q, selector %s", c.provider, c.selector)
	}
	live := behaviour.FromPodSpec(manifesttest.Tree(t, `{containers: [{name: c, image: i, env: [{name: A, value: a}, {name: B, value: b}]}]}`))
	c.template = &live
	const injected = ", {name: AWS_ROLE_ARN, value: x}"
	for _, p := range []struct{ name, env string }{
		{"p3", "{name: A, value: a}, {name: B, value: b}"},
		{"p1", "{name: A, value: a}, {name: B, value: b}" + injected},
		{"p2", "{name: A, value: a}" + injected},
		{"p4", "{name: A, value: other}"},
	} {
		c.add(newPod(podTree(t, p.name, p.env, runs)), false)
	}
	// So are a sidecar that admission added, and what a person debugs with, but not what was added to the workload.
	live.Images = append(live.Images, behaviour.Part{Name: "d", Value: "evil"})
	const more = "phase: Running, containerStatuses: [{name: c, imageID: 'i@sha256:aa', state: {running: {}}}, {name: d, imageID: 'evil@sha256:bb', state: {running: {}}}, {name: proxy, imageID: 'p@sha256:cc', state: {running: {}}}]," +
		"ephemeralContainerStatuses: [{name: debugger, imageID: 'x@sha256:dd', state: {running: {}}}, {name: ended, imageID: 'x@sha256:dd', state: {terminated: {}}}]"
	c.add(newPod(podTree(t, "p7", "{name: A, value: a}", more)), false)
	if i := c.Instances[len(c.Instances)-1]; fmt.Sprint(i.Images) != "[{c i@sha256:aa} {d evil@sha256:bb}]" || fmt.Sprint(c.Added) != "[debugger proxy]" {
		t.Errorf("images %v, added %v", i.Images, c.Added)
	}
	c.Instances = c.Instances[:len(c.Instances)-1]
	c.add(newPod(podTree(t, "p5", "", waits)), false)
	c.add(newPod(podTree(t, "p6", "", waits)), true) // somebody else's
	var have []string
	for _, i := range c.Instances {
		have = append(have, fmt.Sprintf("%s %d %v", i.Pod, i.Pods, behaviour.Differing(i.Settings, c.Wanted.Settings)))
	}
	if text, want := strings.Join(have, "; "), "ns/p1 2 [c variable B]; ns/p2 1 []; ns/p4 1 [c variable A]"; text != want {
		t.Errorf("instances %q, want %q", text, want)
	}
	if text := strings.Join(c.Waiting, "; "); text != "pod ns/p5: ImagePullBackOff" {
		t.Errorf("waiting %q", text)
	}
	for _, selector := range []string{"{}", "{matchLabels: {a b: c}}", "{matchExpressions: [{key: a, operator: Like}]}"} {
		bad, err := manifest.New(manifesttest.Tree(t, "{apiVersion: apps/v1, kind: Deployment, metadata: {name: x, namespace: ns}, spec: {selector: "+selector+"}}"), manifest.Origin{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := newController(bad, &verify.Controller{}); err == nil || !strings.Contains(err.Error(), "deployment.apps/ns/x: spec.selector: ") {
			t.Errorf("selector %s: %v", selector, err)
		}
	}
}

// A pod runs with the ConfigMap or Secret that was rendered, and not with one whose name differs
// by the suffix that kustomize generated.
func TestGeneratedNames(t *testing.T) {
	const rendered, other = "settings-hhhhhhhhh2", "settings-2222222222"
	for _, tt := range []struct{ name, rendered, spec, live, want string }{
		{"the same", rendered, "envFrom: [{configMapRef: {name: NAME}}]", rendered, ""},
		{"with a default of the API server", rendered, "env: [{name: A, valueFrom: {configMapKeyRef: {name: NAME, key: a}}}, {name: B, valueFrom: {fieldRef: {apiVersion: v1, fieldPath: metadata.name}}}]", rendered, ""},
		{"another content", rendered, "envFrom: [{configMapRef: {name: NAME}}]", other, "c envFrom"},
		{"a Secret", rendered, "env: [{name: A, valueFrom: {secretKeyRef: {name: NAME, key: a}}}, {name: B, value: b}]", other, "c variable A"},
		{"a plain name in place of a generated one", rendered, "envFrom: [{secretRef: {name: NAME}}]", "settings", "c envFrom"},
		{"a generated name in place of a plain one", "settings", "envFrom: [{secretRef: {name: NAME}}]", other, "c envFrom"},
		{"a volume", rendered, "volumeMounts: [{name: v, mountPath: /v}]}], volumes: [{name: v, projected: {sources: [{configMap: {name: NAME}}]}}, {name: none, emptyDir: {}", other, "volume v"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec := func(name string) string {
				text := "containers: [{name: c, image: 'i:v1', " + strings.ReplaceAll(tt.spec, "NAME", name) + "}]"
				return "spec: {" + text + "}"
			}
			o := manifesttest.Object(t, "{apiVersion: apps/v1, kind: Deployment, metadata: {name: x, namespace: ns}, spec: {selector: {matchLabels: {app: x}}, template: {metadata: {labels: {app: x}}, "+spec(tt.rendered)+"}}}")
			c, err := newController(o, &verify.Controller{Wanted: behaviour.Workload(o)})
			if err != nil {
				t.Fatal(err)
			}
			// The live workload names what its pods do.
			live := behaviour.FromPodSpec(manifesttest.Tree(t, "{"+spec(tt.live)+"}")["spec"].(map[string]any))
			c.template = &live
			c.add(newPod(manifesttest.Tree(t, "{metadata: {name: p, namespace: ns, labels: {app: x}}, "+spec(tt.live)+", status: {"+runs+"}}")), false)
			if have := strings.Join(behaviour.Differing(c.Wanted.Settings, c.Instances[0].Settings), ", "); have != tt.want {
				t.Errorf("differing %q, want %q", have, tt.want)
			}
		})
	}
}

// The platforms of an image are looked up once, where the lock does not have them
// and something else than the image runs.
func TestPlatforms(t *testing.T) {
	digest := func(c string) sources.Digest { return sources.Digest("sha256:" + strings.Repeat(c, 64)) }
	o := manifesttest.Object(t, strings.Replace(deployment, "i:v1", "acme/ctl:v1@"+string(digest("1")), 1))
	set, _ := manifest.NewSet([]*manifest.Object{o})
	var asked []string
	fail := errors.New("no answer")
	read := func(images []lockfile.Image, runs sources.Digest, err error) (facts verify.Facts, all []lockfile.Image) {
		r := New(Config{Images: images, Platforms: func(_ context.Context, repository string, d sources.Digest) ([]sources.Child, error) {
			asked = append(asked, repository+" "+string(d)[:8])
			return []sources.Child{{Platform: "linux/amd64", Digest: digest("2")}}, err
		}})
		instance := verify.Instance{Images: []behaviour.Part{{Name: "c", Value: "acme/ctl@" + string(runs)}}}
		facts.Controllers = map[manifest.ID]*verify.Controller{o.ID(): {Wanted: behaviour.Workload(o), Instances: []verify.Instance{instance}}}
		for range 2 { // two clusters
			in := &reading{Reader: r, wanted: &desired.Unit{Objects: set}, facts: &facts}
			in.platforms(t.Context())
		}
		return facts, r.Images()
	}
	if _, all := read(nil, digest("1"), nil); len(asked) != 0 || len(all) != 0 {
		t.Errorf("asked %v for what runs as rendered", asked)
	}
	if _, all := read([]lockfile.Image{{Digest: digest("1"), Platforms: []sources.Digest{digest("3")}}}, digest("2"), nil); len(asked) != 0 || len(all) != 1 {
		t.Errorf("asked %v for what the lock has", asked)
	}
	facts, all := read(nil, digest("2"), nil)
	if len(asked) != 1 || asked[0] != "docker.io/acme/ctl sha256:1" || len(all) != 1 || all[0].Digest != digest("1") || all[0].Platforms[0] != digest("2") || len(facts.Gaps) != 0 {
		t.Errorf("asked %v, images %v, gaps %v", asked, all, facts.Gaps)
	}
	facts, _ = read(nil, digest("2"), fail)
	if len(asked) != 2 || len(facts.Gaps) != 2 || !strings.Contains(facts.Gaps[0], "deployment.apps/ns/x: an image that runs may be a platform of the rendered one, which cannot be looked up: no answer") {
		t.Errorf("gaps %v", facts.Gaps)
	}
}

// A lookup that ended with the time of one cluster is made again for the next one.
func TestPlatformsOfLateCluster(t *testing.T) {
	asked := 0
	r := New(Config{Platforms: func(ctx context.Context, _ string, d sources.Digest) ([]sources.Child, error) {
		asked++
		return []sources.Child{{Platform: "linux/amd64", Digest: d}}, ctx.Err()
	}})
	late, cancel := context.WithCancel(t.Context())
	cancel()
	d := sources.Digest("sha256:" + strings.Repeat("1", 64))
	if err := r.lookup(late, "acme/ctl", d); !errors.Is(err, context.Canceled) {
		t.Errorf("the late cluster: %v", err)
	}
	for range 2 {
		if err := r.lookup(t.Context(), "acme/ctl", d); err != nil || asked != 2 {
			t.Errorf("asked %d times: %v", asked, err)
		}
	}
}
