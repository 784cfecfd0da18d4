package runtime_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/render/runtime"
	"gitopsd.dev/sources"
)

var update = flag.Bool("update", false, "write the golden files")

func provider(t *testing.T, name, meta string) sources.Selected {
	t.Helper()
	ref, err := sources.ParseRef("example.org/acme/" + name + ":v1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	tree := manifesttest.Tree(t, meta)
	pkg := &sources.Package{Meta: sources.PackageMeta{Kind: sources.Provider, Name: name, Document: sources.Document{Tree: tree}}}
	return sources.Selected{
		Declaration: sources.Declaration{Kind: sources.Provider, Name: name, Ref: ref},
		Pin:         sources.Pin{Ref: ref, Digest: sources.DigestOf([]byte(name))},
		Package:     pkg,
		Runtime:     ref.Repository + "@" + string(sources.DigestOf([]byte(name))),
	}
}

func crd(t *testing.T, name, group, plural string) *manifest.Object {
	t.Helper()
	o, err := manifest.New(map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"group": group, "names": map[string]any{"plural": plural}},
	}, manifest.Origin{})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestObjects(t *testing.T) {
	t.Parallel()
	plain := provider(t, "provider-plain", "{metadata: {name: provider-plain}}")
	full := provider(t, "provider-full", "{metadata: {labels: {pkg.crossplane.io/provider-family: family}}, spec: {capabilities: [Safe_Start]}}")
	full.Package.Meta.Name = strings.Repeat("long.name-", 8)
	full.Runtime = "example.org/controller@sha256:0123456789ab"
	full.Declaration.PullPolicy = sources.PullAlways
	full.PullSecrets = []string{"one", "two"}
	full.Declaration.CommonLabels = map[string]string{"team": "a"}
	alone := provider(t, "provider-alone", "{metadata: {labels: {pkg.crossplane.io/provider-family: family}}}")
	alone.Runtime = ""
	types := []*manifest.Object{crd(t, "buckets.s3.example.org", "s3.example.org", "buckets")}
	configured := provider(t, "provider-configured", "{metadata: {name: provider-configured}}")
	configured.PullSecrets = []string{"one", "two"}
	for name, c := range map[string]runtime.Controller{
		"plain":            {Selected: plain},
		"alone":            {Selected: alone, Types: types, Webhooks: true},
		"alone-with-image": {Selected: alone, Types: types, Config: &runtime.Config{Spec: manifesttest.Tree(t, "{template: {spec: {containers: [{name: package-runtime, image: 'example.org/c@sha256:01'}]}}}")}},
		"configured": {Selected: configured, Webhooks: true, Config: &runtime.Config{
			Deployment:     runtime.Template{Name: "its-name", Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"}},
			Service:        runtime.Template{Name: "its-service"},
			ServiceAccount: runtime.Template{Name: "its-account", Annotations: map[string]string{"role": "arn"}},
			Spec: manifesttest.Tree(t, `
replicas: 2
strategy: {type: RollingUpdate}
selector: {matchLabels: {mine: x}}
template:
  metadata: {labels: {mine: x, pkg.crossplane.io/provider: other}, annotations: {scrape: "true"}}
  spec:
    nodeSelector: {arch: arm64}
    volumes: [{name: data, emptyDir: {}}]
    imagePullSecrets: [{name: two}, {name: zero}]
    securityContext: {fsGroup: 1}
    containers:
    - {name: sidecar, image: example.org/sidecar}
    - name: package-runtime
      args: [--debug]
      volumeMounts: [{name: data, mountPath: /data}, {name: data, mountPath: /tmp, subPath: tmp}, {name: theirs, mountPath: /tls/server}]
      imagePullPolicy: Never
      env: [{name: MINE, value: x}, {name: POD_NAMESPACE, value: elsewhere}]
      ports: [{name: metrics, containerPort: 9000}]
      resources: {limits: {memory: 1Gi}}
`),
		}},
		"their-account": {Selected: plain, Config: &runtime.Config{Spec: manifesttest.Tree(t, "{selector: {}, template: {spec: {serviceAccountName: theirs}}}")}},
		"full": {Selected: full, Webhooks: true, Types: []*manifest.Object{
			crd(t, "buckets.s3.example.org", "s3.example.org", "buckets"), crd(t, "instances.ec2.example.org", "ec2.example.org", "instances"),
			crd(t, "acls.s3.example.org", "s3.example.org", "acls"),
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			objects, err := runtime.Objects(c)
			if err != nil {
				t.Fatal(err)
			}
			stranger := provider(t, "stranger", "{metadata: {labels: {pkg.crossplane.io/provider-family: family}}}")
			stranger.Pin.Ref.Repository = "example.org/evil/stranger"
			cluster := []runtime.Controller{c, {Selected: provider(t, "sister", "{metadata: {labels: {pkg.crossplane.io/provider-family: family}}}")}, {Selected: provider(t, "other", "{metadata: {}}")}, {Selected: stranger}}
			rights, err := runtime.Rights(c, cluster)
			if err != nil {
				t.Fatal(err)
			}
			var strangers []string
			if name == "full" || strings.HasPrefix(name, "alone") {
				strangers = []string{"stranger"}
			}
			if have := runtime.Strangers(c, cluster); !slices.Equal(have, strangers) {
				t.Errorf("strangers: have %q, want %q", have, strangers)
			}
			set, duplicates := manifest.NewSet(append(objects, rights...))
			if len(duplicates) > 0 {
				t.Fatal(duplicates)
			}
			var have bytes.Buffer
			if err := set.WriteYAML(&have, nil); err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join("testdata", name+".yaml")
			if *update {
				if err := os.WriteFile(golden, have.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(have.Bytes(), want) {
				t.Errorf("%s (written by go test -update) differs: have\n%s", golden, have.Bytes())
			}
		})
	}
}

// Without a family, nobody is bound to the rights of a package without a controller.
func TestRightsOfNobody(t *testing.T) {
	alone := provider(t, "alone", "{metadata: {}}")
	alone.Runtime = ""
	c := runtime.Controller{Selected: alone, Types: []*manifest.Object{crd(t, "as.example.org", "example.org", "as")}}
	if rights, err := runtime.Rights(c, []runtime.Controller{c, {Selected: provider(t, "other", "{metadata: {}}")}}); err != nil || rights != nil {
		t.Errorf("have %v, %v", rights, err)
	}
	objects, err := runtime.Objects(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if id := o.ID(); id.Kind != "ClusterRole" || !strings.Contains(id.Name, ":aggregate-to-") {
			t.Errorf("has %s", id)
		}
	}
}

// A package's types are part of its controller's rights, where some names would grant more
// than a type.
func TestTypesThatAreRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, group, plural, want string }{
		{"x.all", "*", "x", `spec.group: "*" is not a group that a package may define`},
		{"deployments.apps", "apps", "deployments", `spec.group: "apps" is not a group that a package may define`},
		{"clusterroles.rbac.authorization.k8s.io", "rbac.authorization.k8s.io", "clusterroles", `spec.group: "rbac.authorization.k8s.io" is not a package's to define types in`},
		{"all.example.org", "example.org", "*", `spec.names.plural: "*" is not the name of a resource`},
		{"a.example.org", "example.org", "b", "metadata.name: want b.example.org, the plural and the group"},
	} {
		types := []*manifest.Object{crd(t, tt.name, tt.group, tt.plural)}
		_, err := runtime.Objects(runtime.Controller{Selected: provider(t, "p", "{}"), Types: types})
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: have %v, want %q", tt.name, err, tt.want)
		}
	}
}

// Two versions run at once only if they elect a leader.
func TestStrategy(t *testing.T) {
	t.Parallel()
	const annotated = `{metadata: {annotations: {meta.gitopsd.dev/leader-election: "true"}}}`
	for _, tt := range []struct{ meta, container, strategy, want string }{
		{"{}", "{}", "", "Recreate"},
		{annotated, "{}", "", "RollingUpdate"},
		{`{metadata: {annotations: {meta.gitopsd.dev/leader-election: "yes"}}}`, "{}", "", "Recreate"},
		{annotated, "{args: [--leader-election=false]}", "", "Recreate"},
		{annotated, "{}", "Recreate", "Recreate"},
		{"{}", "{}", "RollingUpdate", "RollingUpdate"},
		{"{}", "{args: [--debug, --leader-election]}", "", "RollingUpdate"},
		{"{}", "{args: [--leader-elect=true]}", "", "RollingUpdate"},
		{"{}", "{args: [--leader-elect=perhaps]}", "", "Recreate"},
		{"{}", "{args: [--leader-election, --leader-election=0]}", "", "Recreate"},
		{"{}", "{args: [--leader-election-namespace=x]}", "", "Recreate"},
		{"{}", "{command: [/manager, -enable-leader-election]}", "", "RollingUpdate"},
		{"{}", `{env: [{name: LEADER_ELECTION, value: "true"}]}`, "", "RollingUpdate"},
		{"{}", `{env: [{name: LEADER_ELECTION, value: "true"}], args: [--leader-election=false]}`, "", "Recreate"},
		{"{}", `{env: [{name: LEADER_ELECTION, value: "true"}], args: [--no-leader-election]}`, "", "Recreate"},
		{annotated, "{args: [--no-leader-election]}", "", "Recreate"},
		{"{}", "{args: [--no-leader-election, --leader-election]}", "", "RollingUpdate"},
		{"{}", "{args: [--no-leader-elections]}", "", "Recreate"},
		{"{}", "{env: [{name: LEADER_ELECTION, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]}", "", "Recreate"},
	} {
		container := manifesttest.Tree(t, tt.container)
		container["name"] = "package-runtime"
		spec := map[string]any{"template": map[string]any{"spec": map[string]any{"containers": []any{container}}}}
		if tt.strategy != "" {
			spec["strategy"] = map[string]any{"type": tt.strategy}
		}
		objects, err := runtime.Objects(runtime.Controller{Selected: provider(t, "p", tt.meta), Config: &runtime.Config{Spec: spec}})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects {
			if have := manifest.Text(o.Tree(), "spec", "strategy", "type"); o.ID().Is(manifest.Deployment) && have != tt.want {
				t.Errorf("%+v: have %s", tt, have)
			}
		}
	}
}

// The pod's label has the name that the package gives itself, if it is the value of a label.
func TestProviderLabel(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"provider-a":                       "provider-a",
		strings.Repeat("long.name-", 8):    "long.name-long.name-long.name-long.name-long.name-long.name-lon",
		strings.Repeat("a", 62) + "-b":     strings.Repeat("a", 62),
		"acme/widgets":                     "p",
		"-x":                               "p",
		"Widgets Inc.":                     "p",
		"café":                             "p",
		strings.Repeat("a", 62) + "é":      "p",
		strings.Repeat("-", 70):            "p",
		strings.Repeat("a", 63) + "/other": strings.Repeat("a", 63),
	} {
		s := provider(t, "p", "{}")
		s.Package.Meta.Name = name
		objects, err := runtime.Objects(runtime.Controller{Selected: s})
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(objects, func(o *manifest.Object) bool { return o.ID().Is(manifest.Deployment) })
		labels := manifest.Mapping(objects[i].Tree(), "spec", "template", "metadata", "labels")
		if have := labels["pkg.crossplane.io/provider"]; have != want {
			t.Errorf("%q: have %q, want %q", name, have, want)
		}
	}
}

// A mount path of the configuration is mounted once, in any spelling.
func TestMounts(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ path, want string }{
		{"/data", "/tls/server tls-server-certs, /data theirs, /tmp package-runtime-tmp"},
		{"/tmp", "/tls/server tls-server-certs, /tmp theirs"},
		{"/tmp/", "/tls/server tls-server-certs, /tmp/ theirs"},
		{"//tmp", "/tls/server tls-server-certs, //tmp theirs"},
		{"/tmp/cache", "/tls/server tls-server-certs, /tmp/cache theirs, /tmp package-runtime-tmp"},
		{"/tls/server", "/tls/server tls-server-certs, /tmp package-runtime-tmp"},
		{"/tls/server/", "/tls/server tls-server-certs, /tmp package-runtime-tmp"},
	} {
		spec := manifesttest.Tree(t, "{template: {spec: {containers: [{name: package-runtime, volumeMounts: [{name: theirs, mountPath: "+tt.path+"}]}]}}}")
		objects, err := runtime.Objects(runtime.Controller{Selected: provider(t, "p", "{}"), Webhooks: true, Config: &runtime.Config{Spec: spec}})
		if err != nil {
			t.Fatal(err)
		}
		var have []string
		for _, o := range objects {
			if !o.ID().Is(manifest.Deployment) {
				continue
			}
			pod := manifest.Mapping(manifest.Mapping(manifest.Mapping(o.Tree(), "spec"), "template"), "spec")
			container, _ := manifest.List(pod, "containers")[0].(map[string]any)
			for _, m := range manifest.List(container, "volumeMounts") {
				m, _ := m.(map[string]any)
				have = append(have, manifest.Text(m, "mountPath")+" "+manifest.Text(m, "name"))
			}
		}
		if strings.Join(have, ", ") != tt.want {
			t.Errorf("%s: %q, want %q", tt.path, have, tt.want)
		}
	}
}

func TestServiceName(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a.b", "1a", strings.Repeat("a", 64)} {
		if _, err := runtime.Objects(runtime.Controller{Selected: provider(t, name, "{}"), Webhooks: true}); err == nil {
			t.Errorf("%s is no name of a Service", name)
		}
		if _, err := runtime.Objects(runtime.Controller{Selected: provider(t, name, "{}")}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSystem(t *testing.T) {
	t.Parallel()
	o, err := runtime.System()
	if err != nil || o.ID() != (manifest.ID{Kind: "Namespace", Name: runtime.Namespace}) || o.Annotation(manifest.AdoptAnnotation) != "true" || o.Annotation(manifest.KeepEditsAnnotation) != "true" {
		t.Errorf("have %v, %v", o, err)
	}
}
