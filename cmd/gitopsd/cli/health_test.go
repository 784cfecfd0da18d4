package cli

import (
	"bytes"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/kube"
)

const healthFiles = `
-- rollout.yaml --
apiVersion: argoproj.io/v1alpha1
kind: Rollout
metadata: {name: web, namespace: shop}
status: {observedGeneration: "1", phase: Healthy}
-- paused.yaml --
apiVersion: v1
kind: List
items:
- apiVersion: argoproj.io/v1alpha1
  kind: Rollout
  metadata: {name: web, namespace: shop}
  status: {phase: Healthy}
- apiVersion: argoproj.io/v1alpha1
  kind: Rollout
  metadata: {name: api, namespace: shop}
  status: {phase: Paused, message: CanaryPauseStep}
-- gadget.yaml --
apiVersion: example.org/v1
kind: Gadget
metadata: {name: a}
status: {phase: Broken, message: no space left}
-- crds/gadget.yaml --
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: gadgets.example.org
  annotations:
    gitopsd.dev/health: |
      current: status.phase == 'Ready'
      failed: status.phase == 'Broken'
      message: "'phase ' + status.phase + ': ' + status.message"
spec:
  group: example.org
  scope: Cluster
  names: {kind: Gadget, plural: gadgets}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {status: {type: object, properties: {phase: {type: string}, message: {type: string}}}}}}
-- typo/gadget.yaml --
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.example.org, annotations: {gitopsd.dev/health: "current: status.phse == 'Ready'"}}
spec:
  group: example.org
  names: {kind: Gadget, plural: gadgets}
  versions: [{name: v1, served: true, schema: {openAPIV3Schema: {type: object, properties: {status: {type: object, properties: {phase: {type: string}}}}}}}]
-- fleet/clusters.yaml --
apiVersion: gitopsd.dev/v1alpha1
kind: Cluster
metadata: {name: prod}
spec:
  path: prod
  kubeconfig: {file: prod.yaml}
  health:
  - group: example.org
    kind: Gadget
    current: status.phase in ['Ready', 'Broken']
-- fleet/prod/kustomization.yaml --
resources: []
`

// Objects in files are judged without a cluster.
func TestHealthOfFiles(t *testing.T) {
	dir := t.TempDir()
	for _, f := range strings.Split(healthFiles, "\n-- ")[1:] {
		head, text, _ := strings.Cut(f, " --\n")
		writeFile(t, dir, head, text+"\n")
	}
	for _, tt := range []struct {
		args   string
		stdin  string
		code   int
		stdout string
		stderr string // a part
	}{
		{args: "rollout.yaml", stdout: "rollout.argoproj.io/shop/web: healthy: phase is Healthy (rule: shipped for Rollout.argoproj.io)\n"},
		{args: "paused.yaml", code: 2, stdout: "rollout.argoproj.io/shop/web: healthy: phase is Healthy (rule: shipped for Rollout.argoproj.io)\n" +
			"rollout.argoproj.io/shop/api: in progress: phase is Paused: CanaryPauseStep (rule: shipped for Rollout.argoproj.io)\n"},
		{args: "gadget.yaml --crds crds", code: 2, stdout: "gadget.example.org/a: failed: phase Broken: no space left (rule: annotation gitopsd.dev/health)\n"},
		{args: "gadget.yaml crds", code: 2, stdout: "gadget.example.org/a: failed: phase Broken: no space left (rule: annotation gitopsd.dev/health)\n"},
		{args: "gadget.yaml --repo fleet --cluster prod", stdout: "gadget.example.org/a: healthy: current holds: status.phase in ['Ready', 'Broken'] (rule: spec.health (clusters.yaml:8))\n"},
		{args: "gadget.yaml --crds typo", code: 1, stdout: "gadget.example.org/a: unknown: its health rule has an error: current:1:7: undefined field 'phse' status.phse == 'Ready' (rule: annotation gitopsd.dev/health)\n",
			stderr: "typo/gadget.yaml:1: customresourcedefinition.apiextensions.k8s.io/gadgets.example.org: gitopsd.dev/health: current:1:7: undefined field 'phse'"},
		{args: "- -o json", stdin: `{"apiVersion": "argoproj.io/v1alpha1", "kind": "AnalysisRun", "metadata": {"name": "a", "namespace": "b"}, "status": {"phase": "Error"}}`, code: 2,
			stdout: "[\n  {\n    \"file\": \"-\",\n    \"object\": \"analysisrun.argoproj.io/b/a\",\n    \"status\": \"Failed\",\n    \"reason\": \"phase is Error\",\n    \"rule\": \"shipped for AnalysisRun.argoproj.io\"\n  }\n]\n"},
		{args: "-", stdin: `{"apiVersion": "acme.example/v1", "kind": "A", "metadata": {"name": "a"}, "status": {"conditions": [{"type": "Ready", "status": "False", "reason": "Red", "message": "\u001b[31mred\nline"}]}}`, code: 2,
			stdout: "a.acme.example/a: failed: condition Ready is False: Red: [31mred line (rule: conditions)\n"},
		{args: "-", stdin: "{apiVersion: acme.example/v1, kind: A, metadata: {name: a}}", code: 1,
			stdout: "a.acme.example/a: unknown: it has no status, and nothing is known of its type (rule: none)\n", stderr: "gitopsd: 1 of 1 objects cannot be judged: give their kind a rule"},
		{args: "-", stdin: "a: [", code: 1, stderr: "gitopsd: -: "},
		{args: "-", stdin: "a: 1", code: 1, stderr: "gitopsd: -:1: "},
		{args: "crds", code: 1, stderr: "crds: there is no object to judge"},
		{args: "gadget.yaml --crds paused.yaml", code: 1, stderr: "--crds: paused.yaml has no definition"},
		{args: "missing.yaml", code: 1, stderr: `"missing.yaml" is neither a file, nor an object: want kind[.group]/[namespace/]name`},
		{args: "rollouts/missing.yaml", code: 1, stderr: `"rollouts/missing.yaml" is neither a file, nor an object`},
		{args: "gadget.yaml --repo fleet --cluster staging", code: 1, stderr: "--cluster staging: no such cluster is registered in clusters.yaml"},
		{args: "gadget.example.org/a --repo fleet --crds crds", code: 1, stderr: "--crds: the definitions of objects in clusters are read there"},
	} {
		t.Run(tt.args, func(t *testing.T) {
			t.Chdir(dir)
			var out, err bytes.Buffer
			code := Run(t.Context(), Env{Args: append([]string{"health"}, strings.Fields(tt.args)...), Stdin: strings.NewReader(tt.stdin), Stdout: &out, Stderr: &err,
				LookupEnv: noVariables})
			if code != tt.code || out.String() != tt.stdout || !strings.Contains(err.String(), tt.stderr) || tt.stderr == "" && err.Len() > 0 {
				t.Errorf("exit status %d, want %d\n%s\nwant\n%s\n%s\nwant %s", code, tt.code, out.String(), tt.stdout, err.String(), tt.stderr)
			}
		})
	}
}

func TestParseObject(t *testing.T) {
	served := &kube.Everything{Types: []kube.Type{
		{Group: "apps", Version: "v1", Kind: "Deployment", Resource: "deployments", Namespaced: true},
		{Version: "v1", Kind: "Event", Resource: "events", Namespaced: true},
		{Group: "events.k8s.io", Version: "v1", Kind: "Event", Resource: "events", Namespaced: true},
		{Group: "a.example.org", Version: "v1", Kind: "Gadget", Resource: "gadgets"},
		{Group: "b.example.org", Version: "v1", Kind: "Gadget", Resource: "gadgets"},
	}}
	for _, tt := range []struct{ text, want string }{
		{"deployment.apps/shop/web", "deployment.apps/shop/web"},
		{"Deployments/shop/web", "deployment.apps/shop/web"},
		{"event/shop/e", "event/shop/e"}, // the core group's, as for kubectl
		{"event.events.k8s.io/shop/e", "event.events.k8s.io/shop/e"},
		{"gadget.b.example.org/g", "gadget.b.example.org/g"},
		{"gadget/g", "gadget/g: the cluster serves several such kinds: write gadget.a.example.org or gadget.b.example.org"},
		{"deploy/shop/web", "deployment.apps/shop/web"},
		{"deploy.example.org/shop/web", "deploy.example.org/shop/web: the cluster serves no such kind"},
		{"gizmo/g", "gizmo/g: the cluster serves no such kind"},
		{"depoyment/shop/web", "depoyment/shop/web: the cluster serves no such kind; did you mean deployment?"},
		{"deployment/web", "deployment/web: a Deployment has a namespace: write deployment/NAMESPACE/web"},
		{"gadget.a.example.org/shop/g", "gadget.a.example.org/shop/g: a Gadget has no namespace: write gadget.a.example.org/g"},
	} {
		_, id, err := parseObject(served, tt.text)
		have := id.String()
		if err != nil {
			have = err.Error()
		}
		if have != tt.want {
			t.Errorf("%s is %s\nwant %s", tt.text, have, tt.want)
		}
	}
}
