package testscripts

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gitopsd.dev/testscripts/devcluster"
)

// A control plane is empty when it is lent again, whatever was left in it: types with
// objects that have finalizers, namespaces, webhooks and APIs that do not answer,
// policies, processes that do not end, and images that stand for commands.
func TestControlPlanesComeBackEmpty(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	got, err := planes.lease(ctx, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer planes.giveBack(got...)
	plane := got[0]
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, plane.kubeconfig, 0o600); err != nil {
		t.Fatal(err)
	}
	kubectl := func(stdin string, args ...string) {
		t.Helper()
		cmd, err := devcluster.Kubectl(ctx, append([]string{"--kubeconfig", kubeconfig}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stdin = strings.NewReader(stdin)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	kubectl(leftovers, "apply", "-f", "-")
	kubectl("", "wait", "--for", "condition=Established", "crd/widgets.acme.example")
	kubectl(`{apiVersion: acme.example/v1, kind: Widget, metadata: {name: stuck, namespace: left, finalizers: [acme.example/never]}}`, "apply", "-f", "-")
	before, err := plane.list(ctx)
	if err != nil || len(before) != 7 {
		t.Errorf("created 7 objects, list returns %v, %v", before, err)
	}
	if err := planes.devs.SetImage(ctx, plane.name, "example.org/stubborn", "sh", "-c", `trap "" TERM; while :; do sleep 0.1; done`); err != nil {
		t.Fatal(err)
	}
	plane.images = true
	kubectl(stubborn, "apply", "-f", "-")
	kubectl("", "wait", "--for", "condition=Ready", "pod/stubborn")
	kubectl("", "delete", "--wait=false", "pod/stubborn")
	kubectl(translated, "apply", "-f", "-")
	kubectl("", "wait", "--for", "condition=Established", "crd/gadgets.acme.example")
	kubectl(`{apiVersion: acme.example/v1, kind: Gadget, metadata: {name: old}}`, "apply", "-f", "-")
	// denied waits until the API server denies a request.
	denied := func(by string, args ...string) {
		t.Helper()
		for {
			cmd, err := devcluster.Kubectl(ctx, append([]string{"--kubeconfig", kubeconfig}, args...)...)
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.CombinedOutput()
			if err != nil && strings.Contains(string(out), by) {
				return
			}
			select {
			case <-ctx.Done():
				t.Fatalf("%s does not deny kubectl %s: %v\n%s", by, strings.Join(args, " "), err, out)
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	kubectl(prohibition, "apply", "-f", "-")
	denied("nothing-goes", "label", "--dry-run=server", "clusterrole", "left", "a=b")
	kubectl(closedDoor, "apply", "-f", "-")
	denied("closed.acme.example", "create", "--dry-run=server", "namespace", "new")
	if err := planes.reset(plane); err != nil {
		t.Fatal(err)
	}
	// Removing an image that is not mapped fails.
	if err := planes.devs.RemoveImages(ctx, plane.name, "example.org/stubborn"); err == nil {
		t.Error("an image still stands for a command")
	}
	left, err := plane.list(ctx)
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

const leftovers = `
apiVersion: v1
kind: Namespace
metadata: {name: left}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: left, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: left}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: left, namespace: default}
spec:
  selector: {matchLabels: {app: left}}
  template:
    metadata: {labels: {app: left}}
    spec: {containers: [{name: a, image: example.org/a}]}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.acme.example}
spec:
  group: acme.example
  scope: Namespaced
  names: {kind: Widget, plural: widgets}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.echo.example}
spec:
  group: echo.example
  version: v1
  groupPriorityMinimum: 1000
  versionPriority: 1
  insecureSkipTLSVerify: true
  service: {namespace: left, name: nobody}
`

// stubborn is a pod that may take an hour to end.
const stubborn = `
apiVersion: v1
kind: Pod
metadata: {name: stubborn, namespace: default}
spec:
  terminationGracePeriodSeconds: 3600
  containers: [{name: a, image: example.org/stubborn}]
`

// translated is a type with a conversion webhook that nobody serves.
const translated = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.acme.example}
spec:
  group: acme.example
  scope: Cluster
  names: {kind: Gadget, plural: gadgets}
  conversion:
    strategy: Webhook
    webhook:
      conversionReviewVersions: [v1]
      clientConfig: {service: {namespace: left, name: nobody}}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
  - name: v2
    served: true
    storage: false
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

// prohibition is a policy that denies every update and delete.
const prohibition = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: nothing-goes}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: ["*"], apiVersions: ["*"], operations: [UPDATE, DELETE], resources: ["*"]}
  validations: [{expression: "false"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: nothing-goes}
spec: {policyName: nothing-goes, validationActions: [Deny]}
`

// closedDoor is a webhook that nobody serves, so every write is refused.
const closedDoor = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: closed}
webhooks:
- name: closed.acme.example
  clientConfig: {url: "https://127.0.0.1:1/"}
  admissionReviewVersions: [v1]
  sideEffects: None
  rules:
  - {apiGroups: ["*"], apiVersions: ["*"], operations: ["*"], resources: ["*"]}
`
