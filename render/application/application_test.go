package application

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/sources"
)

// read reads an application with a spec in flow style.
func read(t *testing.T, spec string) (*Application, error) {
	t.Helper()
	return Read(manifesttest.Tree(t, "{apiVersion: workload.crossplane.io/v1alpha2, kind: KubernetesApplication, metadata: {namespace: team, name: web}, spec: "+spec+"}"))
}

const settings = "{metadata: {name: settings}, spec: {template: {apiVersion: v1, kind: ConfigMap, metadata: {namespace: web, name: settings}}}}"

func TestReadErrors(t *testing.T) {
	var tenErrors string
	for i := range 10 {
		tenErrors += fmt.Sprintf("spec.resourceTemplates[%d].metadata.name: \"A\" is not a name: lower-case letters, digits, '-' and '.'\n", i)
	}
	for _, tt := range []struct{ name, spec, want string }{
		{"nothing", "{}", "spec.resourceTemplates has no resource; to remove everything that the application has, delete the application"},
		{"no name", "{resourceTemplates: [{spec: {template: {}}}]}", `spec.resourceTemplates[0].metadata.name: "" is not a name: lower-case letters, digits, '-' and '.'`},
		{"no object", "{resourceTemplates: [{metadata: {name: a}}]}", "spec.resourceTemplates[0].spec.template: resource a has no object"},
		{"twice", "{resourceTemplates: [" + settings + "," + settings + "]}", `spec.resourceTemplates[1].metadata.name: there is another resource "settings"`},
		{"no Secret", "{resourceTemplates: [{metadata: {name: a}, spec: {secrets: [{}], template: {kind: X}}}]}", `spec.resourceTemplates[0].spec.secrets[0].name: "" is not the name of a Secret`},
		{"more errors than anybody reads", "{resourceTemplates: [" + strings.Repeat("{metadata: {name: A}}, ", 20000) + "]}", tenErrors + "spec.resourceTemplates: 19990 more have errors"},
		{"two selectors", "{targetSelector: {}, clusterSelector: {}, resourceTemplates: [" + settings + "]}", "spec.clusterSelector is the older name of spec.targetSelector; write one of them"},
		{"two references", "{targetRef: {name: a}, clusterRef: {name: a}, resourceTemplates: [" + settings + "]}", "spec.clusterRef is the older name of spec.targetRef; write one of them"},
		{"a selector of something else", "{targetSelector: {matchLabels: [a]}, resourceTemplates: [" + settings + "]}", "spec.targetSelector: want matchLabels (a mapping of strings) and matchExpressions (key, operator, values)"},
		{"a wrong operator", "{targetSelector: {matchExpressions: [{key: env, operator: Is, values: [dev]}]}, resourceTemplates: [" + settings + "]}", `spec.targetSelector: "Is" is not a valid label selector operator`},
		{"a target of another namespace", "{targetRef: {name: other/dev}, resourceTemplates: [" + settings + "]}", `spec.targetRef.name: "other/dev" is not the name of a KubernetesTarget`},
		{"a target without a name", "{targetRef: {}, resourceTemplates: [" + settings + "]}", "spec.targetRef.name: name a KubernetesTarget of the application's namespace"},
		{"an account without namespace", "{serviceAccount: web, resourceTemplates: [" + settings + "]}", `spec.serviceAccount: "web" is not a ServiceAccount of the target's cluster, as namespace/name`},
		{"an account that a script did not find", "{serviceAccount: '', resourceTemplates: [" + settings + "]}", `spec.serviceAccount: "" is not a ServiceAccount of the target's cluster, as namespace/name`},
		{"an account without a name", "{serviceAccount: web/, resourceTemplates: [" + settings + "]}", `spec.serviceAccount: "web/" is not a ServiceAccount of the target's cluster, as namespace/name`},
		{"an account that is nothing", "{serviceAccount: null, resourceTemplates: [" + settings + "]}", `spec.serviceAccount: "" is not a ServiceAccount of the target's cluster, as namespace/name`},
		{"an account with a path", "{serviceAccount: web/a/b, resourceTemplates: [" + settings + "]}", `spec.serviceAccount: "web/a/b" is not a ServiceAccount of the target's cluster, as namespace/name`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := read(t, tt.spec); err == nil || err.Error() != tt.want {
				t.Errorf("error %v\nwant  %s", err, tt.want)
			}
		})
	}
}

// Both versions have the same selectors.
func TestReadSelector(t *testing.T) {
	for _, field := range []string{"targetSelector", "clusterSelector"} {
		a, err := read(t, "{"+field+": {matchLabels: {env: dev}, matchExpressions: [{key: tier, operator: NotIn, values: [gold]}]}, resourceTemplates: ["+settings+"]}")
		if err != nil {
			t.Fatal(err)
		}
		if !a.Selector.Matches(labels.Set{"env": "dev", "tier": "iron"}) || a.Selector.Matches(labels.Set{"env": "dev", "tier": "gold"}) || a.Selector.Matches(labels.Set{"tier": "iron"}) {
			t.Errorf("%s: %s", field, a.Selector)
		}
	}
	a, err := read(t, "{targetSelector: {matchLabels: null}, resourceTemplates: ["+settings+"]}")
	if err != nil || !a.Selector.Matches(labels.Set{}) {
		t.Errorf("an empty selector does not select everything: %v %v", a.Selector, err)
	}
	if a, err = read(t, "{resourceTemplates: ["+settings+"]}"); err != nil || a.Selector != nil {
		t.Errorf("no selector: %v %v", a.Selector, err)
	}
}

// The sample of the old project is rendered unchanged. Its Deployment finds the Secret
// under its name.
func TestRenderWordPress(t *testing.T) {
	text, err := os.ReadFile("testdata/wordpress.yaml")
	if err != nil {
		t.Fatal(err)
	}
	a, err := Read(manifesttest.Tree(t, string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if !a.Selector.Matches(labels.Set{"app": "wordpress-demo"}) {
		t.Errorf("it selects %s", a.Selector)
	}
	r := a.Render(func(name string) (map[string]any, error) {
		return map[string]any{"type": "Opaque", "data": map[string]any{"password": "aHVudGVy"}, "metadata": map[string]any{"name": name, "labels": map[string]any{"secret": "label"}}}, nil
	})
	if len(r.Faults) > 0 {
		t.Fatal(r.Faults)
	}
	var have []string
	for _, o := range r.Objects.All() {
		have = append(have, o.ID().String())
		if o.Annotation(manifest.ApplicationAnnotation) != "complex/wordpress-demo" {
			t.Errorf("%s does not name its application", o.ID())
		}
	}
	want := []string{"namespace/wordpress", "secret/wordpress/wordpress-demo-deployment-sql", "service/wordpress/wordpress", "deployment.apps/wordpress/wordpress"}
	if !slices.Equal(have, want) {
		t.Errorf("have %q\nwant %q", have, want)
	}
	secret := r.Objects.Get(manifest.Secret.ID("wordpress", "wordpress-demo-deployment-sql"))
	if manifest.Text(secret.Tree(), "data", "password") != "aHVudGVy" || secret.Label("secret") != "" {
		t.Errorf("the Secret is %v", secret.Tree())
	}
}

// A refused object takes its resource's Secrets with it, and nothing else.
func TestRefuse(t *testing.T) {
	a, err := read(t, `{resourceTemplates: [
  {metadata: {name: bad}, spec: {template: {apiVersion: v1, kind: ConfigMap, metadata: {namespace: web, name: bad}}, secrets: [{name: sql}]}},
  {metadata: {name: good}, spec: {template: {apiVersion: v1, kind: ConfigMap, metadata: {namespace: web, name: good}}, secrets: [{name: sql}]}}]}`)
	if err != nil {
		t.Fatal(err)
	}
	r := a.Render(func(string) (map[string]any, error) { return map[string]any{"type": "Opaque"}, nil })
	why := errors.New("not here")
	r.Refuse(manifest.ConfigMap.ID("web", "bad"), why)
	var have []string
	for _, o := range r.Objects.All() {
		have = append(have, o.ID().String())
	}
	slices.Sort(have)
	if want := []string{"configmap/web/good", "secret/web/good-sql"}; !slices.Equal(have, want) {
		t.Errorf("have %q", have)
	}
	if len(r.Faults) != 1 || r.Faults["bad"] != why || len(r.Of) != 1 || len(r.Of["good"]) != 2 {
		t.Errorf("faults %v, objects of %v", r.Faults, r.Of)
	}
}

// An error in one resource does not affect the others.
func TestRenderFaults(t *testing.T) {
	resource := func(name, template, secrets string) string {
		return "{metadata: {name: " + name + "}, spec: {template: " + template + ", secrets: [" + secrets + "]}}"
	}
	object := func(name string) string {
		return "{apiVersion: v1, kind: ConfigMap, metadata: {namespace: web, name: " + name + "}}"
	}
	a, err := read(t, "{resourceTemplates: ["+strings.Join([]string{
		resource("good", object("good"), ""),
		resource("one", object("same"), ""), resource("two", object("same"), ""),
		resource("server", object("server"), "{name: sql}"), resource("own", "{apiVersion: v1, kind: Secret, metadata: {namespace: web, name: server-sql}}", ""),
		resource("nameless", "{apiVersion: v1, kind: ConfigMap, metadata: {namespace: web}}", ""),
		resource("owned", "{apiVersion: v1, kind: ConfigMap, metadata: {namespace: web, name: owned, ownerReferences: [{apiVersion: v1, kind: Pod, name: gone, uid: x}]}}", ""),
		resource("trusting", "{apiVersion: v1, kind: ConfigMap, metadata: {namespace: web, name: ca, annotations: {gitopsd.dev/inject-ca: Service/web/a}}}", ""),
		resource("secretless", object("secretless"), "{name: missing}"),
		resource("clusterwide", "{apiVersion: v1, kind: Namespace, metadata: {name: web}}", "{name: there}"),
	}, ", ")+"]}")
	if err != nil {
		t.Fatal(err)
	}
	r := a.Render(func(name string) (map[string]any, error) {
		if name == "missing" {
			return nil, errors.New("Secret team/missing does not exist")
		}
		return map[string]any{}, nil
	})
	want := map[string]string{
		"one":         "configmap/web/same is defined 2 times: by KubernetesApplication team/web, resource one and by KubernetesApplication team/web, resource two; keep one definition",
		"two":         "configmap/web/same is defined 2 times: by KubernetesApplication team/web, resource one and by KubernetesApplication team/web, resource two; keep one definition",
		"server":      "secret/web/server-sql is defined 2 times: by KubernetesApplication team/web, resource own and by KubernetesApplication team/web, resource server; keep one definition",
		"own":         "secret/web/server-sql is defined 2 times: by KubernetesApplication team/web, resource own and by KubernetesApplication team/web, resource server; keep one definition",
		"nameless":    "KubernetesApplication team/web, resource nameless: metadata.name: is missing",
		"owned":       "KubernetesApplication team/web, resource owned: metadata.ownerReferences: Kubernetes deletes an object if these are not in the cluster; remove the field",
		"trusting":    "KubernetesApplication team/web, resource trusting: metadata.annotations: gitopsd.dev/inject-ca works in a cluster's own manifests alone; set caBundle in the template, or declare the object there",
		"secretless":  "Secret team/missing does not exist",
		"clusterwide": "KubernetesApplication team/web, resource clusterwide: spec.secrets: the object has no namespace that Secret there could go to",
	}
	for name, text := range want {
		if err := r.Faults[name]; err == nil || err.Error() != text {
			t.Errorf("%s: error %v\nwant %s", name, err, text)
		}
	}
	if len(r.Faults) != len(want) || r.Objects.Len() != 1 || len(r.Of) != 1 || r.Objects.Get(r.Of["good"][0]) == nil {
		t.Errorf("faults %v, objects %v, of %v", r.Faults, r.Objects.All(), r.Of)
	}
}

// A token of a ServiceAccount is not copied as one, since the account does not exist in the
// target's cluster.
func TestRenderToken(t *testing.T) {
	a, err := read(t, "{resourceTemplates: [{metadata: {name: a}, spec: {secrets: [{name: token}], template: {apiVersion: v1, kind: ConfigMap, metadata: {namespace: web, name: a}}}}]}")
	if err != nil {
		t.Fatal(err)
	}
	r := a.Render(func(string) (map[string]any, error) {
		return map[string]any{"type": "kubernetes.io/service-account-token", "data": map[string]any{"token": "eA=="}}, nil
	})
	if o := r.Objects.Get(manifest.Secret.ID("web", "a-token")); manifest.Text(o.Tree(), "type") != "" {
		t.Errorf("it has the type %v", o.Tree()["type"])
	}
}

// No application is read in the namespace of the daemon's credentials.
func TestReadOurNamespace(t *testing.T) {
	_, err := Read(manifesttest.Tree(t, "{apiVersion: workload.crossplane.io/v1alpha2, kind: KubernetesApplication, metadata: {namespace: gitopsd-system, name: web}, spec: {resourceTemplates: ["+settings+"]}}"))
	if want := "metadata.namespace: gitopsd keeps its own credentials in namespace gitopsd-system, and runs no applications of it; choose another"; err == nil || err.Error() != want {
		t.Errorf("error %v\nwant  %s", err, want)
	}
}

// No object goes to gitopsd's own namespace, where it could overwrite an inventory.
func TestRenderOurNamespace(t *testing.T) {
	for _, template := range []string{
		"{apiVersion: v1, kind: ConfigMap, metadata: {namespace: gitopsd-system, name: inventory-a}}",
		"{apiVersion: v1, kind: Namespace, metadata: {name: gitopsd-system}}",
	} {
		a, err := read(t, "{resourceTemplates: [{metadata: {name: a}, spec: {template: "+template+"}}]}")
		if err != nil {
			t.Fatal(err)
		}
		r := a.Render(nil)
		if err := r.Faults["a"]; err == nil || !strings.HasSuffix(err.Error(), "gitopsd keeps its own objects in namespace gitopsd-system; choose another") || r.Objects.Len() > 0 {
			t.Errorf("error %v, objects %v", err, r.Objects.All())
		}
	}
}

// A Secret is read once, and the number of its copies is limited.
func TestRenderManyCopies(t *testing.T) {
	var resources []string
	for i := range 100 {
		resources = append(resources, fmt.Sprintf("{metadata: {name: r%d}, spec: {secrets: [{name: big}], template: {apiVersion: v1, kind: ConfigMap, metadata: {namespace: web, name: r%d}}}}", i, i))
	}
	a, err := read(t, "{resourceTemplates: ["+strings.Join(resources, ",")+"]}")
	if err != nil {
		t.Fatal(err)
	}
	reads := 0
	r := a.Render(func(string) (map[string]any, error) {
		reads++
		return map[string]any{"data": map[string]any{"a": strings.Repeat("eHh4", 1<<18)}}, nil
	})
	if reads != 1 || len(r.Of) != 7 || len(r.Faults) != 93 || !strings.Contains(r.Faults["r99"].Error(), "larger than 8 MiB together") {
		t.Errorf("%d reads, %d rendered, %d faults", reads, len(r.Of), len(r.Faults))
	}
}

// Reading and rendering any object of the kind does not panic.
func FuzzRead(f *testing.F) {
	text, err := os.ReadFile("testdata/wordpress.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(text))
	f.Add("{metadata: {name: 1}, spec: {targetRef: [], resourceTemplates: {}}, status: {leftTargetRefs: [1]}}")
	f.Fuzz(func(t *testing.T, text string) {
		docs, err := sources.DecodeYAML(strings.NewReader(text), sources.Limits{Bytes: 1 << 20})
		if err != nil {
			return
		}
		for _, doc := range docs {
			a, _ := Read(doc.Tree)
			a.Placement()
			r := a.Render(func(string) (map[string]any, error) { return nil, errors.New("none") })
			if r.Objects == nil {
				t.Error("no set of objects")
			}
		}
	})
}
