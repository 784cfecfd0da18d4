package apply_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"strings"
	"testing"
	"time"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/manifest"
)

const webhook = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: $NAME, labels: {}}
webhooks:
- name: a.example.org
  admissionReviewVersions: [v1]
  sideEffects: None
  failurePolicy: Ignore
  clientConfig: {service: {namespace: $NAME, name: web}}
  rules: [{apiGroups: ["$NAME.example.org"], apiVersions: ["*"], operations: ["*"], resources: ["*"]}]
`

// closed is a webhook that fails closed. The condition is there since nothing answers.
var closed = strings.Replace(webhook, "failurePolicy: Ignore", `failurePolicy: Fail
  matchConditions: [{name: never, expression: "false"}]`, 1)

// A webhook configuration is applied only when its server is ready.
func TestWebhookWaits(t *testing.T) {
	b := newBed(t)
	parts := strings.Split(everything, "---")
	service := parts[0] + "---" + parts[3]
	set := b.set(service + "---" + webhook)
	steps, results := b.apply(set)
	b.want("steps", steps, "create namespace/$NAME", "create service/$NAME/web", "create validatingwebhookconfiguration.admissionregistration.k8s.io/$NAME registered once service/$NAME/web has a ready endpoint")
	b.want("results", results, "pending validatingwebhookconfiguration.admissionregistration.k8s.io/$NAME: waits for a ready endpoint of Service $NAME/web, which is to serve it")
	if b.get(webhook) != nil {
		t.Fatal("it was applied before it could be served")
	}
	set = b.set(service + "---" + parts[4] + "---" + webhook)
	b.applied(set)
}

// An object that a new webhook is for comes after it, though the object's type is there.
func TestObjectWaitsForWebhook(t *testing.T) {
	b := newBed(t)
	parts := strings.Split(everything, "---")
	const widgets = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.$NAME.example.org}
spec:
  group: $NAME.example.org
  scope: Cluster
  names: {plural: widgets, kind: Widget}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
---
apiVersion: $NAME.example.org/v1
kind: Widget
metadata: {name: w}
`
	set := b.set(parts[0] + "---" + parts[3] + "---" + widgets + "---" + closed)
	_, results := b.apply(set)
	const waits = "waits for a ready endpoint of Service $NAME/web, which is to serve it"
	b.want("results", results, "pending validatingwebhookconfiguration.admissionregistration.k8s.io/$NAME: "+waits,
		"pending widget.$NAME.example.org/w: waits for validatingwebhookconfiguration.admissionregistration.k8s.io/$NAME, which is to see it: "+waits)
	set = b.set(parts[0] + "---" + parts[3] + "---" + parts[4] + "---" + widgets + "---" + closed)
	b.applied(set)
}

// An object is not stored unchecked because its webhook could not be registered.
func TestObjectWaitsForFailedWebhook(t *testing.T) {
	b := newBedSerial(t)
	f := newFaulty(b, 5*time.Second)
	const gadgets = `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: gadgets.$NAME.example.org},
  spec: {group: $NAME.example.org, scope: Cluster, names: {kind: Gadget, plural: gadgets}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]}}
`
	const gadget = "{apiVersion: $NAME.example.org/v1, kind: Gadget, metadata: {name: g}}"
	b.applied(b.set(gadgets))
	f.breaks(func(r *http.Request) bool {
		return r.Method != http.MethodGet && strings.Contains(r.URL.Path, "/validatingwebhookconfigurations/")
	}, answers(http.StatusInternalServerError, nil, "not now"))
	byURL := strings.Replace(closed, "service: {namespace: $NAME, name: web}", `url: "https://127.0.0.1:1/"`, 1)
	set := b.set(gadgets + "---" + byURL + "---\n" + gadget)
	_, results := b.apply(set)
	const why = "the server answered 500 Internal Server Error"
	b.wantPrefixes("results", results, "failed validatingwebhookconfiguration.admissionregistration.k8s.io/$NAME: ",
		"pending gadget.$NAME.example.org/g: waits for validatingwebhookconfiguration.admissionregistration.k8s.io/$NAME, which is to see it: "+why)
	if b.get(gadget) != nil {
		t.Error("the object is stored")
	}
	f.heals()
	b.applied(set)
}

// A package's webhooks without a certificate would only block writes.
func TestWebhookHeld(t *testing.T) {
	b := newBed(t)
	set := b.set(strings.Replace(webhook, "labels: {}", "annotations: {gitopsd.dev/inject-ca: Secret/$NAME/ca}", 1))
	steps, _ := b.apply(set)
	b.want("steps", steps, "held validatingwebhookconfiguration.admissionregistration.k8s.io/$NAME webhooks[name=a.example.org].clientConfig.caBundle is not known yet; without it, requests would be blocked")
	byURL := b.set(strings.Replace(webhook, "service: {namespace: $NAME, name: web}", `url: "https://127.0.0.1:1/"`, 1))
	b.applied(byURL)
}

// packaged is a package with a controller that serves a webhook; its CA is CA.
const packaged = `
apiVersion: v1
kind: Namespace
metadata: {name: $NAME}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: $NAME, labels: {gitopsd.dev/package: p}}
spec: {selector: {app: web}, ports: [{port: 9443}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: $NAME, labels: {gitopsd.dev/package: p}}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  strategy: {type: Recreate}
  template:
    metadata: {labels: {app: web}, annotations: {}}
    spec: {containers: [{name: web, image: "example.org/web:1"}]}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: $NAME, labels: {gitopsd.dev/package: p}}
webhooks:
- name: a.example.org
  admissionReviewVersions: [v1]
  sideEffects: None
  failurePolicy: Fail
  clientConfig: {service: {namespace: $NAME, name: web, port: 9443}, caBundle: CA}
  rules: [{apiGroups: ["$NAME.example.org"], apiVersions: ["*"], operations: [CREATE], resources: ["*"]}]
`

// withCA fills in a CA.
func withCA(text string) string { return strings.ReplaceAll(text, "caBundle: CA", "caBundle: "+ca) }

// New webhooks are not registered while the controller that has them is refused, although the
// old one runs.
func TestWebhookOfRefused(t *testing.T) {
	b := newBed(t)
	const account = "{apiVersion: v1, kind: ServiceAccount, metadata: {name: web, namespace: $NAME, labels: {gitopsd.dev/package: p}}}"
	all := strings.Replace(withCA(packaged), "spec: {containers", "spec: {serviceAccountName: web, containers", 1) + "---\n" + account
	before, _, _ := strings.Cut(all, "---\napiVersion: admissionregistration")
	b.applied(b.set(before + "---\n" + account))
	b.edit("other", account, `{"metadata":{"labels":{"applyset.kubernetes.io/part-of":"applyset-other"}}}`)
	_, results := b.apply(b.set(strings.Replace(all, "web:1", "web:2", 1)))
	b.want("results", results, "pending validatingwebhookconfiguration.admissionregistration.k8s.io/$NAME: waits for deployment.apps/$NAME/web, which is to serve it: it would run as serviceaccount/$NAME/web, which is in conflict")
	if b.get(webhook) != nil {
		t.Error("it is registered")
	}
}

// A package's webhooks are registered when its controller is ready, and pruned before it.
// While the controller is replaced they stay, and take only changes that restrict nothing
// further.
func TestWebhookFollowsController(t *testing.T) {
	b := newBed(t)
	set := b.set(withCA(packaged))
	b.applied(set)

	broken := strings.Replace(withCA(packaged), "annotations: {}", "annotations: {devcluster.gitopsd.dev/fail: CrashLoopBackOff}", 1)
	steps, results := b.apply(b.set(strings.Replace(broken, "failurePolicy: Fail", "failurePolicy: Ignore", 1)))
	b.wantNothing("results of what repairs", results)
	b.want("steps", steps, "configure deployment.apps/$NAME/web changed in the repository", "configure validatingwebhookconfiguration.admissionregistration.k8s.io/$NAME changed in the repository")

	_, results = b.apply(b.set(strings.Replace(broken, "[CREATE]", "[CREATE, UPDATE]", 1)))
	if len(results) != 1 || !strings.HasPrefix(results[0], "pending validatingwebhookconfiguration.admissionregistration.k8s.io/$NAME: waits for deployment.apps/$NAME/web, which is to serve it: ") {
		t.Fatalf("what restricts further: have %q", results)
	}

	b.requests.take()
	none := strings.Replace(broken, "replicas: 1", "replicas: 0", 1)
	steps, results = b.apply(b.set(none))
	b.wantNothing("results", results)
	b.want("steps", steps, "configure deployment.apps/$NAME/web changed in the repository",
		"prune validatingwebhookconfiguration.admissionregistration.k8s.io/$NAME nothing is going to serve it: deployment.apps/$NAME/web has no replicas")
	var order []string
	for _, r := range b.requests.take() {
		if strings.HasPrefix(r, "PATCH ") && strings.Contains(r, "/deployments/") || strings.HasPrefix(r, "DELETE ") {
			order = append(order, r[:5])
		}
	}
	b.want("order", order, "DELET", "PATCH")
	steps, _ = b.apply(b.set(none))
	b.want("steps", steps, "held validatingwebhookconfiguration.admissionregistration.k8s.io/$NAME nothing would serve it: deployment.apps/$NAME/web has no replicas")
}

// A configuration gets another name: the old one goes once the new one is there.
func TestWebhookRenamed(t *testing.T) {
	b := newBed(t)
	b.apply(b.set(withCA(packaged)))
	renamed := strings.Replace(withCA(packaged), "metadata: {name: $NAME, labels: {gitopsd.dev/package: p}}\nwebhooks", "metadata: {name: p.$NAME, labels: {gitopsd.dev/package: p}}\nwebhooks", 1)
	unknown := strings.Replace(renamed, ", caBundle: "+ca, "", 1)
	_, results := b.apply(b.set(unknown))
	b.want("results without a CA", results, "skipped validatingwebhookconfiguration.admissionregistration.k8s.io/$NAME: kept until the rest is applied: validatingwebhookconfiguration.admissionregistration.k8s.io/p.$NAME: webhooks[name=a.example.org].clientConfig.caBundle is not known yet; without it, requests would be blocked")
	b.requests.take()
	_, results = b.apply(b.set(renamed))
	b.wantNothing("results", results)
	var order []string
	for _, r := range b.requests.take() {
		if method, path, _ := strings.Cut(r, " "); method != "GET" && strings.Contains(path, "/validatingwebhookconfigurations/") {
			order = append(order, method+" "+b.short(path[strings.LastIndex(path, "/")+1:]))
		}
	}
	b.want("order", order, "PATCH p.$NAME", "DELETE $NAME")
	b.settled(b.set(renamed))
}

// Fields that the API server fills in, and bundles that other controllers inject, are
// no drift, however often these write.
func TestWebhookFieldsOfOthers(t *testing.T) {
	const others = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: $NAME}
webhooks:
- name: a.example.org
  admissionReviewVersions: [v1]
  sideEffects: None
  clientConfig: {service: {namespace: $NAME, name: web}}
  rules: [{apiGroups: ["$NAME.example.org"], apiVersions: ["*"], operations: [CREATE], resources: ["*"]}]
- name: b.example.org
  admissionReviewVersions: [v1]
  sideEffects: None
  clientConfig: {url: "https://127.0.0.1:1/"}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: $NAME}
webhooks:
- name: a.example.org
  admissionReviewVersions: [v1]
  sideEffects: None
  clientConfig: {service: {namespace: $NAME, name: web}}
  rules: [{apiGroups: ["$NAME.example.org"], apiVersions: ["*"], operations: [CREATE], resources: ["*"]}]
  matchConditions: [{name: c, expression: "true"}]
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.$NAME.example.org}
spec:
  group: $NAME.example.org
  scope: Cluster
  names: {plural: widgets, kind: Widget}
  conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1], clientConfig: {service: {namespace: $NAME, name: web}}}}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
  - {name: v2, served: true, storage: false, schema: {openAPIV3Schema: {type: object}}}
`
	b := newBed(t)
	parts := strings.Split(packaged, "---")
	set := b.set(strings.Join(parts[:3], "---") + "---" + others)
	b.applied(set)
	for _, bundle := range []string{ca, otherCA, ca, otherCA} {
		b.inject(others, bundle)
		b.settled(set)
		if have := b.get(others)["webhooks"].([]any)[0].(map[string]any)["clientConfig"].(map[string]any)["caBundle"]; have != bundle {
			t.Fatalf("caBundle is %v", have)
		}
	}
	// What is changed in the repository leaves them.
	changed := b.set(strings.Join(parts[:3], "---") + "---" + strings.ReplaceAll(others, "sideEffects: None", "sideEffects: None\n  timeoutSeconds: 3"))
	_, results := b.apply(changed)
	b.wantNothing("results", results)
	hook := b.get(others)["webhooks"].([]any)[0].(map[string]any)
	if hook["clientConfig"].(map[string]any)["caBundle"] != otherCA || fmt.Sprint(hook["timeoutSeconds"]) != "3" {
		t.Errorf("it is %v", hook)
	}
	b.settled(changed)
}

// The same goes for an APIService. It is removed before other tests begin, since an API
// that does not answer holds up the deletion of namespaces.
func TestAPIServiceFieldsOfOthers(t *testing.T) {
	const service = `
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.$NAME.example.org}
spec: {group: $NAME.example.org, version: v1, groupPriorityMinimum: 100, versionPriority: 100, service: {namespace: $NAME, name: web}}
`
	b := newBedSerial(t)
	set := b.set(strings.Join(strings.Split(packaged, "---")[:3], "---") + "---" + service)
	defer b.delete(service)
	b.applied(set)
	for _, bundle := range []string{ca, otherCA, ca} {
		b.inject(service, bundle)
		b.settled(set)
		if have := b.get(service)["spec"].(map[string]any)["caBundle"]; have != bundle {
			t.Fatalf("caBundle is %v", have)
		}
	}
}

// inject sets the CA bundles of objects as cert-manager's cainjector does: it reads an
// object and writes all of it.
func (b *bed) inject(objects, bundle string) {
	b.t.Helper()
	for _, o := range b.set(objects).All() {
		tree := b.raw(http.MethodGet, o, "", "", nil)
		switch spec, _ := tree["spec"].(map[string]any); {
		case o.ID().Is(manifest.APIService):
			spec["caBundle"] = bundle
		case o.ID().Is(manifest.CRD):
			manifest.Mapping(spec, "conversion", "webhook", "clientConfig")["caBundle"] = bundle
		default:
			for _, h := range manifest.List(tree, "webhooks") {
				h.(map[string]any)["clientConfig"].(map[string]any)["caBundle"] = bundle
			}
		}
		body, err := json.Marshal(tree)
		if err != nil {
			b.t.Fatal(err)
		}
		b.raw(http.MethodPut, o, "fieldManager=cainjector", "application/json", body)
	}
}

var ca, otherCA = newCA(), newCA()

// newCA returns a CA bundle.
func newCA() string {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		panic(err)
	}
	return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// A webhook that nothing serves and that refuses even the inventory is withdrawn or
// mended first, if the repository has it so.
func TestWebhookThatBlocksInventory(t *testing.T) {
	const blocking = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: $NAME}
webhooks:
- name: a.example.org
  admissionReviewVersions: [v1]
  sideEffects: None
  failurePolicy: Fail
  clientConfig: {url: "https://127.0.0.1:1/"}
  rules: [{apiGroups: [""], apiVersions: ["*"], operations: [CREATE, UPDATE], resources: ["*"]}]
  matchConditions: [{name: inventory, expression: "request.name == 'inventory-$NAME'"}]
`
	parts := strings.Split(packaged, "---")
	for _, tt := range []struct{ name, mended string }{
		{"withdrawn", parts[0]},
		{"mended", parts[0] + "---" + strings.Replace(blocking, "failurePolicy: Fail", "failurePolicy: Ignore", 1)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t)
			_, results := b.apply(b.set(parts[0] + "---" + blocking))
			b.wantNothing("results", results)
			_, err := b.applier.Apply(t.Context(), b.plan(b.set(parts[0]+"---"+blocking+"---"+parts[1]), apply.PlanOptions{}))
			if kube.ClassOf(err) != kube.WebhookFailed {
				t.Fatalf("the inventory is not blocked: %v", err)
			}
			set := b.set(tt.mended + "---" + parts[1])
			b.applied(set)
		})
	}
}
