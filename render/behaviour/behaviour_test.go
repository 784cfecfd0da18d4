package behaviour

import (
	"strings"
	"testing"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/sources"
)

func container(t *testing.T, fields string) Template {
	t.Helper()
	o := manifesttest.Set(t, "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x, namespace: ns}\nspec: {template: {spec: {containers: [{name: c, image: i, "+fields+"}]}}}\n")
	return FromWorkload(o.All()[0].Tree())
}

// The names of differing parts are shown, but never their contents.
func TestDiffering(t *testing.T) {
	for _, tt := range []struct{ name, a, b, want string }{
		{"nothing", "args: [--a=1, --b]", "args: [--b, --a=1]", ""},
		{"a flag's value", "args: [--token=hunter2]", "args: [--token=swordfish]", "c argument --token"},
		{"the word after a flag", "args: [--token, hunter2]", "args: [--token, swordfish]", "c argument --token"},
		{"a short flag", "args: [-v, '2']", "args: [-v, '3']", "c argument -v"},
		{"a short flag and its value in one", "args: [-phunter2]", "args: [-pswordfish]", "c argument 1"},
		{"a flag more", "args: [--a]", "args: [--a, --b]", "c argument --b"},
		{"a flag twice, in another order", "args: [--a=1, --a=2]", "args: [--a=2, --a=1]", "c argument --a"},
		{"a word", "args: [run, hunter2]", "args: [run, swordfish]", "c argument 2"},
		{"after the flags", "args: [--, hunter2]", "args: [--, swordfish]", "c argument 2"},
		{"a flag that is none", "args: ['--hunter 2=x']", "args: ['--sword fish=x']", "c argument 1"},
		{"the command", "command: [hunter2]", "command: [swordfish]", "c command"},
		{"a variable", "env: [{name: PASSWORD, value: hunter2}]", "env: [{name: PASSWORD, value: swordfish}]", "c variable PASSWORD"},
		{"a variable that is empty", "env: [{name: A, value: ''}]", "env: [{name: A}]", ""},
		{"a variable more", "env: []", "env: [{name: A}]", "c variable A"},
		{"a secret's key", "env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: a}}}]", "env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: b}}}]", "c variable A"},
		{
			"what the API server fills in",
			"env: [{name: A, valueFrom: {fieldRef: {fieldPath: metadata.name}}}, {name: B, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}]",
			"env: [{name: A, valueFrom: {fieldRef: {apiVersion: v1, fieldPath: metadata.name}}}, {name: B, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: '0'}}}]", "",
		},
		{"where variables come from", "envFrom: [{configMapRef: {name: a}}]", "envFrom: [{configMapRef: {name: b}}]", "c envFrom"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a, b := container(t, tt.a).Settings, container(t, tt.b).Settings
			if have := strings.Join(Differing(a, b), ", "); have != tt.want {
				t.Errorf("differing %q, want %q", have, tt.want)
			}
			if same := SettingsDigest(a) == SettingsDigest(b); same != (tt.want == "") {
				t.Errorf("the digests are the same: %v", same)
			}
			for _, p := range append(a, b...) {
				if strings.Contains(p.Name+p.Value, "hunter") || strings.Contains(p.Name+p.Value, "sword") {
					t.Errorf("a value is in %+v", p)
				}
			}
		})
	}
}

func TestOnly(t *testing.T) {
	parts := []Part{{"a", "1"}, {"b", "2"}, {"c", "3"}}
	have := Only(parts, []Part{{"a", "9"}}, []Part{{"c", "9"}, {"d", "9"}})
	if len(have) != 2 || have[0] != parts[0] || have[1] != parts[2] {
		t.Errorf("have %v", have)
	}
}

func TestImageDigest(t *testing.T) {
	d := "sha256:" + strings.Repeat("a", 64)
	for in, want := range map[string]string{
		"reg.io/x@" + d: d, d: d, "docker-pullable://x@" + d: d, "reg.io/x:v1": "", "": "", "x@sha256:abc": "", d + " at once": "",
	} {
		have, ok := ImageDigest(in)
		if ok != (want != "") || ok && string(have) != want {
			t.Errorf("%q: %q, %v", in, have, ok)
		}
	}
}

const crd = `---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: widgets.acme.example
  LABEL
  annotations: {ANNOTATION}
spec: {group: acme.example, names: {kind: Widget}}
`

func workload(kind, namespace, name, image string) string {
	return "---\napiVersion: apps/v1\nkind: " + kind + "\nmetadata: {name: " + name + ", namespace: " + namespace + ", labels: {gitopsd.dev/package: " + name + "}}\n" +
		"spec: {template: {spec: {containers: [{name: c, image: '" + image + "'}], initContainers: [{name: b, image: 'reg.io/b:v1'}]}}}\n"
}

const xrd = `---
apiVersion: apiextensions.crossplane.io/v2
kind: CompositeResourceDefinition
metadata: {name: widgets.acme.example}
spec: {group: acme.example, names: {kind: Widget}}
---
apiVersion: apiextensions.crossplane.io/v1
kind: Composition
metadata: {name: small}
spec: {compositeTypeRef: {apiVersion: acme.example/v1, kind: Widget}, mode: Pipeline, pipeline: [{step: a, functionRef: {name: patch}}, {step: b, functionRef: {name: ready}}]}
---
apiVersion: apiextensions.crossplane.io/v1
kind: Composition
metadata: {name: other}
spec: {compositeTypeRef: {apiVersion: acme.example/v1, kind: Gadget}, mode: Pipeline, pipeline: [{step: a, functionRef: {name: gadget}}]}
`

func TestOf(t *testing.T) {
	digest := "sha256:" + strings.Repeat("a", 64)
	labelled := func(label, annotation string) string {
		return strings.NewReplacer("LABEL", "labels: {"+label+"}", "ANNOTATION", annotation).Replace(crd)
	}
	for _, tt := range []struct{ name, in, want string }{
		{"nothing is known", labelled("", ""), ""},
		{"a package's", labelled("gitopsd.dev/package: p", "") + workload("Deployment", "gitopsd-system", "p", "reg.io/p@"+digest), "Deployment gitopsd-system/p b=reg.io/b:v1 c=" + digest},
		{"another namespace", labelled("gitopsd.dev/package: p", "") + workload("Deployment", "elsewhere", "p", "reg.io/p@"+digest), ""},
		{"by annotation", labelled("", "gitopsd.dev/controller: team/ctl") + workload("StatefulSet", "team", "ctl", "reg.io/p:v1"), "StatefulSet team/ctl b=reg.io/b:v1 c=reg.io/p:v1"},
		{"by annotation, not there", labelled("", "gitopsd.dev/controller: team/ctl"), "test.yaml:1: annotation gitopsd.dev/controller: there is no Deployment, StatefulSet or DaemonSet team/ctl among the objects rendered for the cluster"},
		{"by annotation, malformed", labelled("", "gitopsd.dev/controller: ctl"), `test.yaml:1: annotation gitopsd.dev/controller: "ctl": want <namespace>/<name> of a Deployment, StatefulSet or DaemonSet`},
		{
			"by annotation, two",
			labelled("", "gitopsd.dev/controller: team/ctl") + workload("DaemonSet", "team", "ctl", "x") + workload("Deployment", "team", "ctl", "x"),
			"test.yaml:1: annotation gitopsd.dev/controller: team/ctl is both a DaemonSet and a Deployment; give them different names",
		},
		{"compositions", xrd, "composition small; function patch, ready patch=" + digest + " ready="},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			set := manifesttest.Set(t, strings.TrimPrefix(tt.in, "---\n"))
			index := NewIndex(set, []sources.Selected{
				{Declaration: sources.Declaration{Kind: sources.Function, Name: "patch"}, Pin: sources.Pin{Digest: sources.Digest(digest)}},
				{Declaration: sources.Declaration{Kind: sources.Provider, Name: "ready"}, Pin: sources.Pin{Digest: sources.Digest(digest)}},
			})
			for _, o := range set.All() {
				if !o.ID().Is(manifest.Definitions...) {
					continue
				}
				i, err := index.Of(o)
				have := ""
				switch {
				case err != nil:
					have = err.Error()
				case i != nil:
					have = i.String()
					for _, p := range append(i.Images, i.Functions...) {
						have += " " + p.Name + "=" + p.Value
					}
				}
				if have != tt.want {
					t.Errorf("have %q, want %q", have, tt.want)
				}
			}
		})
	}
}

// Identities do not depend on the names of workloads.
func TestDigest(t *testing.T) {
	digest := "@sha256:" + strings.Repeat("a", 64)
	identity := func(text string) *Identity {
		return Workload(manifesttest.Set(t, strings.TrimPrefix(text, "---\n")).All()[0])
	}
	a := identity(workload("Deployment", "a", "b", "reg.io/p"+digest))
	if b := identity(workload("StatefulSet", "c", "d", "mirror.io/q"+digest)); a.Digest() != b.Digest() {
		t.Error("the name of the workload or the repository is in the digest")
	}
	if b := identity(workload("Deployment", "a", "b", "reg.io/p@sha256:"+strings.Repeat("b", 64))); a.Digest() == b.Digest() {
		t.Error("the image is not in the digest")
	}
	if want := "h1:"; !strings.HasPrefix(a.Digest(), want) || len(a.Digest()) != 47 {
		t.Errorf("digest %s", a.Digest())
	}
	swapped := *a
	swapped.Images, swapped.Settings = a.Settings, a.Images
	if swapped.Digest() == a.Digest() {
		t.Error("what a part is is not in the digest")
	}
}

// Defaults of Crossplane's API do not change a Composition.
func TestComposedDefaults(t *testing.T) {
	of := func(spec string) string {
		tree := manifesttest.Set(t, "apiVersion: apiextensions.crossplane.io/v1\nkind: Composition\nmetadata: {name: x}\nspec: {"+spec+"}\n").All()[0].Tree()
		return Composed([]map[string]any{tree}, func(string) string { return "" }).Digest()
	}
	const pipeline = "pipeline: [{step: a, functionRef: {name: f}}]"
	for _, same := range []string{pipeline + ", mode: Pipeline", pipeline + ", publishConnectionDetailsWithStoreConfigRef: {name: default}, mode: Pipeline"} {
		if of(same) != of(pipeline) {
			t.Errorf("%s is another Composition than %s", same, pipeline)
		}
	}
	for _, other := range []string{pipeline + ", mode: Resources", strings.Replace(pipeline, "step: a", "step: b", 1), pipeline + ", publishConnectionDetailsWithStoreConfigRef: {name: mine}"} {
		if of(other) == of(pipeline) {
			t.Errorf("%s is the same Composition as %s", other, pipeline)
		}
	}
}
