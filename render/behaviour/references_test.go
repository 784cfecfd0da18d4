package behaviour

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
)

const certificate = "-----BEGIN CERTIFICATE-----\nMTIz\n-----END CERTIFICATE-----\n"

// The references of a pod, and the contents that are compared.
func TestConfig(t *testing.T) {
	objects := manifesttest.Set(t, `apiVersion: v1
kind: ConfigMap
metadata: {name: a}
data: {mode: real, level: '1', ca: '`+strings.ReplaceAll(certificate, "\n", "\n\n  ")+`'}
binaryData: {blob: AAEC}
---
apiVersion: v1
kind: Secret
metadata: {name: s}
data: {password: aHVudGVyMg==}
stringData: {user: me}
---
apiVersion: v1
kind: Secret
type: kubernetes.io/tls
metadata: {name: tls}
data: {tls.crt: YQ==, tls.key: Yg==}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: kube-root-ca.crt}
data: {ca.crt: '`+strings.ReplaceAll(certificate, "\n", "\n\n  ")+`'}
`)
	get := func(kind manifest.GroupKind, name string) map[string]any {
		for _, candidate := range []string{name, plainName(name)} {
			if o := objects.Get(kind.ID("", candidate)); o != nil {
				return o.Tree()
			}
		}
		return nil
	}
	for _, tt := range []struct{ name, pod, want string }{
		{"nothing", "containers: [{name: c}]", ""},
		{"variables", "containers: [{name: c, envFrom: [{configMapRef: {name: a}}]}]", "ConfigMap a key blob=\x00\x01\x02, ConfigMap a key ca=certificates, ConfigMap a key level=1, ConfigMap a key mode=real"},
		{"one variable", "containers: [{name: c, env: [{name: A, valueFrom: {configMapKeyRef: {name: a, key: mode}}}]}]", "ConfigMap a key mode=real"},
		{"a key that is not there", "containers: [{name: c, env: [{name: A, valueFrom: {configMapKeyRef: {name: a, key: none}}}]}]", "ConfigMap a key none=not there"},
		{"one and all", "containers: [{name: c, envFrom: [{secretRef: {name: s}}], env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: user}}}]}]", "Secret s key password=hunter2, Secret s key user=me"},
		{"an init container", "initContainers: [{name: c, env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: user}}}]}]", "Secret s key user=me"},
		{"a volume", "volumes: [{name: v, configMap: {name: a, items: [{key: mode, path: m}]}}]", "ConfigMap a key blob=\x00\x01\x02, ConfigMap a key ca=certificates, ConfigMap a key level=1, ConfigMap a key mode=real"},
		{"certificates", "volumes: [{name: v, secret: {secretName: tls}}]", "Secret tls=certificates"},
		{"projected", "volumes: [{name: v, projected: {sources: [{secret: {name: s}}, {serviceAccountToken: {path: t}}, {configMap: {name: kube-root-ca.crt}}]}}]", "ConfigMap kube-root-ca.crt key ca.crt=certificates, Secret s key password=hunter2, Secret s key user=me"},
		{"not there", "volumes: [{name: v, secret: {secretName: none, optional: true}}]", "Secret none=not there"},
		{"a generated name", "containers: [{name: c, env: [{name: A, valueFrom: {configMapKeyRef: {name: a-2bc4d5f6gh, key: mode}}}]}]", "ConfigMap a key mode=real"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			template := FromPodSpec(manifesttest.Tree(t, "{"+tt.pod+"}"))
			var have []string
			for _, p := range Config(template.References, get, func(v []byte) string { return string(v) }) {
				have = append(have, p.Name+"="+p.Value)
			}
			if text := strings.Join(have, ", "); text != tt.want {
				t.Errorf("have %q\nwant %q", text, tt.want)
			}
		})
	}
}

// The sources and mounts of files are settings; kustomize's hash in a name is not.
func TestVolumes(t *testing.T) {
	of := func(volumes, mounts string) []Part {
		return FromPodSpec(manifesttest.Tree(t, "{containers: [{name: c, volumeMounts: ["+mounts+"]}], volumes: ["+volumes+"]}")).Settings
	}
	for _, tt := range []struct{ name, volumes, mounts, want string }{
		{"the same", "{name: v, configMap: {name: a, defaultMode: 420}}", "{name: v, mountPath: /x, readOnly: true}", ""},
		{"a generated name", "{name: v, configMap: {name: a-2bc4d5f6gh}}", "{name: v, mountPath: /x}", ""},
		{"another object", "{name: v, configMap: {name: b}}", "{name: v, mountPath: /x}", "volume v"},
		{"another kind", "{name: v, secret: {secretName: a}}", "{name: v, mountPath: /x}", "volume v"},
		{"another place", "{name: v, configMap: {name: a}}", "{name: v, mountPath: /y}", "c mount v"},
		{"another file", "{name: v, configMap: {name: a, items: [{key: a, path: b}]}}", "{name: v, mountPath: /x}", "volume v"},
		{"what is no configuration", "{name: v, configMap: {name: a}}, {name: tmp, emptyDir: {}}", "{name: v, mountPath: /x}, {name: tmp, mountPath: /tmp}", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			have := Differing(of("{name: v, configMap: {name: a}}", "{name: v, mountPath: /x}"), of(tt.volumes, tt.mounts))
			if text := strings.Join(have, ", "); text != tt.want {
				t.Errorf("differing %q, want %q", text, tt.want)
			}
		})
	}
}

func TestOnlyPEM(t *testing.T) {
	for value, want := range map[string]bool{
		certificate: true, certificate + "\n" + certificate: true, "": false, "a": false,
		certificate + "mode: pretend": false, "mode: pretend\n" + certificate: false, "-----BEGIN CERTIFICATE-----\n": false,
	} {
		if onlyPEM([]byte(value)) != want {
			t.Errorf("%q: %t", value, !want)
		}
	}
}

// The parts of an identity from rendered ConfigMaps, Secrets and rights. The digest does
// not cover values of Secrets, since anybody could check guesses of a value against it.
func TestIndexWorkload(t *testing.T) {
	text := func(mode, password, verb, other string) string {
		return `apiVersion: apps/v1
kind: Deployment
metadata: {name: d, namespace: ns, labels: {gitopsd.dev/package: p}}
spec: {template: {spec: {serviceAccountName: sa, containers: [{name: c, image: i, envFrom: [{configMapRef: {name: a}}, {secretRef: {name: s}}, {secretRef: {name: made-there}}]}]}}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: a, namespace: ns}
data: {mode: ` + mode + `}
---
apiVersion: v1
kind: Secret
metadata: {name: s, namespace: ns}
stringData: {password: ` + password + `}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: r}
rules: [{apiGroups: [''], resources: [secrets], verbs: [` + verb + `]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: r, labels: {gitopsd.dev/package: p}}
roleRef: {kind: ClusterRole, name: r}
subjects: [{kind: ServiceAccount, name: sa, namespace: ns}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: family, labels: {gitopsd.dev/package: ` + other + `}}
roleRef: {kind: ClusterRole, name: unknown}
subjects: [{kind: ServiceAccount, name: sa, namespace: ns}]
`
	}
	of := func(text string) *Identity {
		set := manifesttest.Set(t, text)
		return NewIndex(set, nil).Workload(set.Get(manifest.Deployment.ID("ns", "d")))
	}
	a := of(text("real", "hunter2", "get", "other"))
	if have := fmt.Sprint(a.Rights); have != "[{secrets get}]" {
		t.Errorf("rights %s", have)
	}
	if have := a.Config[1:]; !slices.Equal(have, []Part{{"Secret made-there", Elsewhere}, {"Secret s key password", Withheld}}) {
		t.Errorf("config %v", have)
	}
	for _, tt := range []struct {
		name, text string
		same       bool
	}{
		{"nothing", text("real", "hunter2", "get", "other"), true},
		{"a ConfigMap", text("pretend", "hunter2", "get", "other"), false},
		{"a Secret's value", text("real", "swordfish", "get", "other"), true},
		{"a right", text("real", "hunter2", "list", "other"), false},
		{"a binding that is its own", text("real", "hunter2", "get", "p"), false},
	} {
		if same := of(tt.text).Digest() == a.Digest(); same != tt.same {
			t.Errorf("%s: the digests are the same: %t", tt.name, same)
		}
	}
}

// Parts that may differ in every cluster do not change the identity, and must exist.
func TestPerCluster(t *testing.T) {
	of := func(annotation, region, login string) (*Identity, error) {
		set := manifesttest.Set(t, `apiVersion: apps/v1
kind: Deployment
metadata: {name: d, namespace: ns, annotations: {gitopsd.dev/per-cluster: "`+annotation+`"}}
spec: {template: {spec: {containers: [{name: c, image: i, env: [{name: REGION, value: `+region+`}, {name: A, valueFrom: {configMapKeyRef: {name: login, key: a}}}]}]}}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: login, namespace: ns}
data: {a: `+login+`}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.acme.example, annotations: {gitopsd.dev/controller: ns/d}}
`)
		return NewIndex(set, nil).Of(set.Get(manifest.CRD.ID("", "widgets.acme.example")))
	}
	for _, tt := range []struct{ name, annotation, region, login, want string }{
		{"nothing", "", "one", "one", ""},
		{"a variable", "", "two", "one", "differ"},
		{"a variable of its own", "c variable REGION", "two", "one", ""},
		{"a content", "c variable REGION", "two", "two", "differ"},
		{"an object of its own", "c variable REGION,  ConfigMap login", "two", "two", ""},
		{"a key of its own", "ConfigMap  login key a\\nc variable REGION", "two", "two", ""},
		{"another key", "ConfigMap login key b", "two", "two", `test.yaml:1: annotation gitopsd.dev/per-cluster: "ConfigMap login key b" is no setting, ConfigMap or Secret of Deployment ns/d`},
		{"another variable", "c variable REGIO", "two", "two", `test.yaml:1: annotation gitopsd.dev/per-cluster: "c variable REGIO" is no setting`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, err := of(tt.annotation, "one", "one")
			have := ""
			if err != nil {
				have = err.Error()
			} else if b, _ := of(tt.annotation, tt.region, tt.login); a.Digest() != b.Digest() {
				have = "differ"
			}
			if !strings.HasPrefix(have, tt.want) || tt.want == "" && have != "" {
				t.Errorf("have %q, want %q", have, tt.want)
			}
		})
	}
}

// No manifest causes a panic, and no identity has a value of a Secret.
func FuzzTemplate(f *testing.F) {
	f.Add([]byte(`{"containers":[{"name":"c","envFrom":[{"secretRef":{"name":"s"}}]}],"volumes":[{"name":"v","projected":{"sources":[null,{"configMap":{"name":"a"}}]}}]}`),
		[]byte(`{"type":1,"data":{"a":"b","c":null},"subjects":[null,{"kind":"Group","name":"system:authenticated"}],"roleRef":{"kind":"Role"},"rules":[{"apiGroups":["",1],"resources":["*"],"verbs":null},3]}`))
	f.Fuzz(func(t *testing.T, pod, object []byte) {
		var spec, tree map[string]any
		if json.Unmarshal(pod, &spec) != nil || json.Unmarshal(object, &tree) != nil {
			return
		}
		template := FromPodSpec(spec)
		parts := Config(template.References, func(manifest.GroupKind, string) map[string]any { return tree }, func([]byte) string { return "" })
		if !slices.IsSortedFunc(parts, func(a, b Part) int { return strings.Compare(a.Name, b.Name) }) {
			t.Errorf("not sorted: %v", parts)
		}
		rules, _ := tree["rules"].([]any)
		Rights(Account{"ns", template.Account}, []Binding{ReadBinding(tree)}, func(manifest.ID) ([]any, bool) { return rules, true })
	})
}
