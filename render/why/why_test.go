package why

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"gitopsd.dev/render"
	"gitopsd.dev/render/field"
	"gitopsd.dev/render/kustomize"
	"gitopsd.dev/render/manifest"
)

func files(text map[string]string) fstest.MapFS {
	fsys := make(fstest.MapFS)
	for name, content := range text {
		fsys[name] = &fstest.MapFile{Data: []byte(content)}
	}
	return fsys
}

const (
	settings = "# The settings.\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings, namespace: web}\ndata:\n  mood: blue\n  size: \"1\"\n"
	list     = "apiVersion: v1\nkind: ConfigMapList\nitems:\n- apiVersion: v1\n  kind: ConfigMap\n  metadata: {name: other, namespace: web}\n- apiVersion: v1\n  kind: ConfigMap\n  metadata: {name: settings, namespace: web}\n  data: {mood: blue}\n"
)

// line returns a step in the form of the tests.
func line(s Step) string {
	text := fmt.Sprintf("%s %s:%d %s", s.Effect, s.File, s.Line, s.What)
	if s.Without.Set {
		v, _ := json.Marshal(s.Without.Value)
		text += " was " + string(v)
	}
	if len(s.Paths) > 0 {
		text += " " + strings.Join(s.Paths, ",")
	}
	return text
}

func TestExplain(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		files   map[string]string
		patches []kustomize.Patch
		ask     string // default configmap/web/settings:data.mood
		written string
		value   string // default "blue"
		steps   []string
	}{
		{
			name:    "nothing touches it",
			files:   map[string]string{"c/kustomization.yaml": "resources: [a.yaml]\nlabels: [{pairs: {a: b}}]\n", "c/a.yaml": settings},
			written: "c/a.yaml:6",
		},
		{
			name:    "a directory without a kustomization",
			files:   map[string]string{"c/sub/a.yaml": settings},
			written: "c/sub/a.yaml:6",
		},
		{
			name: "kustomizations below a directory without one",
			files: map[string]string{
				"c/b.yaml":                     strings.ReplaceAll(settings, "settings", "others"),
				"c/sub/app/kustomization.yaml": "resources: [../a/a.yaml]\npatches:\n- target: {name: settings}\n  patch: '- {op: replace, path: /data/mood, value: red}'\n",
				"c/sub/a/a.yaml":               settings,
				"c/sub/a/kustomization.yaml":   "resources: []\ngeneratorOptions: {}\n",
			},
			value:   `"red"`,
			written: "c/sub/a/a.yaml:6",
			steps:   []string{"changes c/sub/app/kustomization.yaml:3 patches[0] was \"blue\""},
		},
		{
			name: "the second of two overlays of one base",
			files: map[string]string{
				"c/kustomization.yaml":    "resources: [../x, ../y]\n",
				"x/kustomization.yaml":    "resources: [../base]\nnamePrefix: my-\n",
				"y/kustomization.yaml":    "resources: [../base]\npatches:\n- target: {name: settings}\n  patch: '- {op: replace, path: /data/mood, value: red}'\n",
				"base/kustomization.yaml": "resources: [a.yaml]\n",
				"base/a.yaml":             settings,
			},
			value:   `"red"`,
			written: "base/a.yaml:6",
			steps:   []string{"changes y/kustomization.yaml:3 patches[0] was \"blue\""},
		},
		{
			name: "an entry with an anchor that another uses",
			files: map[string]string{
				"c/kustomization.yaml": "resources: [a.yaml]\npatches:\n- target: {kind: Secret, name: settings}\n  patch: &red |\n    - {op: replace, path: /data/mood, value: red}\n- target: {kind: ConfigMap}\n  patch: *red\n",
				"c/a.yaml":             settings,
			},
			value:   `"red"`,
			written: "c/a.yaml:6",
			steps:   []string{"changes c/kustomization.yaml:6 patches[1] was \"blue\""},
		},
		{
			name:    "an item of a list",
			files:   map[string]string{"c/kustomization.yaml": "resources: [a.yaml]\n", "c/a.yaml": list},
			written: "c/a.yaml:10",
		},
		{
			name: "patches of three layers, of which the last two matter",
			files: map[string]string{
				"c/kustomization.yaml":         "resources: [../base]\npatches:\n- path: p.yaml\n  target: {kind: ConfigMap}\n",
				"c/p.yaml":                     "- {op: replace, path: /data/mood, value: red}\n",
				"base/kustomization.yaml":      "resources: [a.yaml, ../elsewhere]\npatches:\n- target: {name: settings}\n  patch: '[{\"op\": \"replace\", \"path\": \"/data/size\", \"value\": \"2\"}]'\n",
				"base/a.yaml":                  settings,
				"elsewhere/kustomization.yaml": "resources: [b.yaml]\nnamePrefix: x-\n",
				"elsewhere/b.yaml":             strings.ReplaceAll(settings, "settings", "others"),
			},
			patches: []kustomize.Patch{
				{Target: &kustomize.Selector{Kind: "ConfigMap"}, Patch: `[{"op": "add", "path": "/data/other", "value": "x"}]`},
				{Target: &kustomize.Selector{Name: "settings"}, Patch: `[{"op": "replace", "path": "/data/mood", "value": "green"}]`},
			},
			value:   `"green"`,
			written: "base/a.yaml:6",
			steps: []string{
				"changes c/p.yaml:0 patches[0] of c/kustomization.yaml:3 was \"blue\"",
				"changes clusters.yaml:0 cluster prod, spec.patches[1] was \"red\"",
			},
		},
		{
			name: "a component, for the whole object",
			files: map[string]string{
				"c/kustomization.yaml":      "resources: [a.yaml]\ncomponents: [loud]\n",
				"c/a.yaml":                  settings,
				"c/loud/kustomization.yaml": "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\ncommonAnnotations: {volume: high}\n",
			},
			ask:     "configmap/settings",
			written: "c/a.yaml:2",
			steps:   []string{"changes c/loud/kustomization.yaml:3 commonAnnotations metadata.annotations"},
		},
		{
			name: "a name that is put together",
			files: map[string]string{
				"c/kustomization.yaml": "namePrefix: my-\nnamespace: shop\nresources: [a.yaml]\n", "c/a.yaml": settings,
			},
			ask:     "configmap/shop/my-settings",
			written: "c/a.yaml:2",
			steps:   []string{"names c/kustomization.yaml:1 namePrefix", "names c/kustomization.yaml:2 namespace"},
		},
		{
			name: "a generated object",
			files: map[string]string{
				"c/kustomization.yaml": "namespace: web\nconfigMapGenerator:\n- name: other\n  literals: [a=b]\n- name: settings\n  options: {disableNameSuffixHash: true}\n  envs: [a.env]\n",
				"c/a.env":              "mood=blue\n",
			},
			written: "c/kustomization.yaml:5",
			steps:   []string{"makes c/kustomization.yaml:5 configMapGenerator[1]"},
		},
		{
			name: "a field that a patch took away",
			files: map[string]string{
				"c/kustomization.yaml": "resources: [a.yaml]\npatches:\n- target: {kind: ConfigMap}\n  patch: |\n    - {op: remove, path: /data/mood}\n", "c/a.yaml": settings,
			},
			value:   "null",
			written: "c/a.yaml:6",
			steps:   []string{"changes c/kustomization.yaml:3 patches[0] was \"blue\""},
		},
		{
			name: "a patch without which another cannot be applied",
			files: map[string]string{
				"c/kustomization.yaml": "resources: [a.yaml]\npatches:\n- patch: |\n    {apiVersion: v1, kind: ConfigMap, metadata: {name: settings, namespace: web}, data: {mood: blue, new: x}}\n- target: {name: settings}\n  patch: |\n    - {op: test, path: /data/new, value: x}\n    - {op: replace, path: /data/mood, value: red}\n",
				"c/a.yaml":             settings,
			},
			value:   `"red"`,
			written: "c/a.yaml:6",
			steps:   []string{"unknown c/kustomization.yaml:3 patches[0]", "changes c/kustomization.yaml:5 patches[1] was \"blue\""},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := Input{Input: render.Input{Cluster: "prod", Files: files(tt.files), Path: "c", Patches: tt.patches}}
			ask, want := tt.ask, tt.value
			if ask == "" {
				ask = "configmap/web/settings:data.mood"
			}
			if want == "" {
				want = `"blue"`
			}
			id, field, err := Find(rendered(t, in), ask)
			if err != nil {
				t.Fatal(err)
			}
			a, err := Explain(t.Context(), in, id, field)
			if err != nil {
				t.Fatal(err)
			}
			if value, _ := json.Marshal(a.Field.Value); len(field) > 0 && string(value) != want {
				t.Errorf("the value is %s, want %s", value, want)
			}
			if a.Written.String() != tt.written {
				t.Errorf("written at %s, want %s", a.Written, tt.written)
			}
			var steps []string
			for _, s := range a.Steps {
				steps = append(steps, line(s))
			}
			if have, want := strings.Join(steps, "\n"), strings.Join(tt.steps, "\n"); have != want {
				t.Errorf("the steps are\n%s\nwant\n%s", have, want)
			}
		})
	}
}

func rendered(t *testing.T, in Input) *manifest.Set {
	t.Helper()
	e := &explainer{in: in}
	r, err := e.expand(t.Context(), len(in.Patches), true)
	if err != nil {
		t.Fatal(err)
	}
	return r.Objects
}

// A CA bundle is not rendered, but its source is known.
func TestExplainFilled(t *testing.T) {
	t.Parallel()
	const hooks = "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingWebhookConfiguration\nmetadata: {name: h, annotations: {gitopsd.dev/inject-ca: web/s}}\nwebhooks:\n- {name: a.example.org, clientConfig: {caBundle: Cg==, service: {namespace: web, name: s}}}\n- {name: b.example.org, clientConfig: {url: 'https://x', caBundle: eA==}}\n"
	id := manifest.ValidatingWebhooks.ID("", "h")
	in := Input{Input: render.Input{Cluster: "c", Files: files(map[string]string{"c/a.yaml": hooks}), Path: "c"}}
	for path, want := range map[string]string{
		"webhooks[name=a.example.org].clientConfig.caBundle": "the CA of service/web/s",
		"webhooks[0].clientConfig.caBundle":                  "the CA of service/web/s",
		"webhooks[0].clientConfig.service.name":              "",
		"webhooks[name=b.example.org].clientConfig.caBundle": "",
		"metadata.name": "",
	} {
		asked, err := field.Parse(path)
		if err != nil {
			t.Fatal(err)
		}
		a, err := Explain(t.Context(), in, id, asked)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if a.Filled != want || a.Written.File != "c/a.yaml" {
			t.Errorf("%s: have %q, written at %s", path, a.Filled, a.Written)
		}
	}
	if _, err := Explain(t.Context(), in, id, field.Path{field.Key("webhooks"), field.Index(7), field.Key("clientConfig"), field.Key("caBundle")}); err == nil {
		t.Error("a webhook that is not there has a bundle")
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	in := Input{Input: render.Input{Cluster: "prod", Path: "c", Files: files(map[string]string{
		"c/role.yaml":  "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: 'team:web:view'}\nrules: []\n",
		"c/crd.yaml":   "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: widgets.acme.example}\nspec: {group: acme.example, scope: Namespaced, names: {kind: Widget, plural: widgets, singular: widget, shortNames: [wd]}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]}\n",
		"c/w.yaml":     "apiVersion: acme.example/v1\nkind: Widget\nmetadata: {name: w, namespace: web}\n",
		"c/one.yaml":   settings,
		"c/two.yaml":   strings.ReplaceAll(settings, "namespace: web", "namespace: shop"),
		"c/three.yaml": strings.ReplaceAll(settings, "settings", "alone"),
		"c/login.yaml": "apiVersion: v1\nkind: Secret\nmetadata: {name: login, namespace: web}\nstringData: {user: x}\ndata: {user: eA==, token: eA==}\n",
	})}}
	set := rendered(t, in)
	for _, tt := range []struct {
		ask, id, field, err string
	}{
		{ask: "configmap/web/settings", id: "configmap/web/settings"},
		{ask: "ConfigMap/alone", id: "configmap/web/alone"},
		{ask: "ConfigMap/alone:data.mood", id: "configmap/web/alone", field: "data.mood"},
		{ask: "clusterrole/team:web:view", id: "clusterrole.rbac.authorization.k8s.io/team:web:view"},
		{ask: "clusterrole/team:web:view:rules[0].verbs", id: "clusterrole.rbac.authorization.k8s.io/team:web:view", field: "rules[0].verbs"},
		{ask: `configmap/alone:data["a:b"]`, id: "configmap/web/alone", field: `data["a:b"]`},
		{ask: "configmap/settings", err: "there are configmap/shop/settings and configmap/web/settings; write it in full"},
		{ask: "configmap/web/nothing", err: "of this kind it has configmap/shop/settings, configmap/web/alone, configmap/web/settings"},
		{ask: "cm/alone:data.mood", id: "configmap/web/alone", field: "data.mood"},
		{ask: "configmaps/web/settings", id: "configmap/web/settings"},
		{ask: "wd/web/w", id: "widget.acme.example/web/w"},
		{ask: "Widgets.acme.example/w", id: "widget.acme.example/web/w"},
		{ask: "crd/widgets.acme.example", id: "customresourcedefinition.apiextensions.k8s.io/widgets.acme.example"},
		{ask: "cm/web/nothing", err: "of this kind it has configmap/shop/settings, configmap/web/alone, configmap/web/settings"},
		{ask: "confgimap/web/alone", err: "is not among the cluster's objects; did you mean ConfigMap?"},
		{ask: "/w", err: "is not among"},
		{ask: "configmap/alone:", err: "names no field"},
		{ask: "secret/login:data.user", id: "secret/web/login", field: "stringData.user"},
		{ask: "secret/login:data.token", id: "secret/web/login", field: "data.token"},
		{ask: "secret/x", err: "is not among"},
		{ask: "alone", err: "want kind[.group]/[namespace/]name"},
		{ask: "", err: "want kind[.group]/[namespace/]name"},
	} {
		id, field, err := Find(set, tt.ask)
		switch {
		case tt.err != "":
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%q: the error is %v, want one with %q", tt.ask, err, tt.err)
			}
		case err != nil:
			t.Errorf("%q: %v", tt.ask, err)
		case id.String() != tt.id || field.String() != tt.field:
			t.Errorf("%q is %s and %q, want %s and %q", tt.ask, id, field, tt.id, tt.field)
		}
	}
	if _, err := Explain(t.Context(), in, manifest.ID{Kind: "ConfigMap", Name: "gone"}, nil); !errors.Is(err, ErrNotFound) {
		t.Errorf("the error for an object that is not there is %v", err)
	}
}

// TestSecretsAreHidden looks for the values in all parts of an answer.
func TestSecretsAreHidden(t *testing.T) {
	t.Parallel()
	in := Input{Input: render.Input{Cluster: "prod", Path: "c", Files: files(map[string]string{
		"c/kustomization.yaml": "resources: [s.yaml, a.yaml]\npatches:\n- target: {kind: Secret}\n  patch: |\n    - {op: replace, path: /stringData/token, value: hunter2}\n" +
			"- target: {kind: KubernetesApplication}\n  patch: |\n    - {op: replace, path: /spec/resourceTemplates/0/spec/template/stringData/token, value: hunter2}\n",
		"c/s.yaml": "apiVersion: v1\nkind: Secret\nmetadata:\n  name: s\n  namespace: web\n  annotations: {" + field.LastApplied + ": hunter1, note: swordfish}\nstringData: {token: hunter1}\n",
		"c/a.yaml": "apiVersion: workload.crossplane.io/v1alpha1\nkind: KubernetesApplication\nmetadata: {name: a, namespace: web}\n" +
			"spec: {resourceTemplates: [{metadata: {name: t}, spec: {template: {apiVersion: v1, kind: Secret, metadata: {name: i}, stringData: {token: hunter1}}}}]}\n",
	})}}
	for _, tt := range []struct {
		ask   string
		steps int // the patches that change it
	}{
		{"secret/s", 1}, {"secret/s:stringData", 1}, {"secret/s:stringData.token", 1},
		{"secret/s:metadata", 0}, {"secret/s:metadata.annotations", 0}, {`secret/s:metadata.annotations["` + field.LastApplied + `"]`, 0},
		{"kubernetesapplication/a", 1}, {"kubernetesapplication/a:spec", 1}, {"kubernetesapplication/a:spec.resourceTemplates[0].spec.template", 1},
		{"kubernetesapplication/a:spec.resourceTemplates[0].spec.template.stringData.token", 1},
	} {
		ask := tt.ask
		id, asked, err := Find(rendered(t, in), ask)
		if err != nil {
			t.Fatal(err)
		}
		a, err := Explain(t.Context(), in, id, asked)
		if err != nil {
			t.Fatal(err)
		}
		if len(a.Steps) != tt.steps {
			t.Errorf("%s: the steps are %v, want %d", ask, a.Steps, tt.steps)
		}
		if strings.Contains(ask, "metadata.annotations") && strings.HasSuffix(ask, "annotations") && !strings.Contains(fmt.Sprint(a.Field, a.Original), "swordfish") {
			t.Errorf("%s: other annotations are hidden too", ask)
		}
		a.Object = nil
		text, err := json.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		if all := string(text) + fmt.Sprintf("%v %+v %#v", a.Field, a.Original, a.Steps); strings.Contains(all, "hunter") {
			t.Errorf("%s: a Secret's value is in %s", ask, all)
		}
	}
}
