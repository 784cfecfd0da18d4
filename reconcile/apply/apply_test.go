package apply_test

import (
	"context"
	"testing"

	"gitopsd.dev/reconcile/apply"
)

const everything = `
apiVersion: v1
kind: Namespace
metadata: {name: $NAME}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: $NAME}
data: {color: green}
---
apiVersion: v1
kind: Secret
metadata: {name: password, namespace: $NAME}
stringData: {password: hunter2}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: $NAME}
spec:
  selector: {app: web}
  ports: [{port: 80, name: http}, {port: 53, name: dns}, {port: 53, protocol: UDP, name: dns-udp}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: $NAME}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: web
        image: example.org/web:1
        args: []
        env: [{name: A, value: "1"}, {name: B, value: ""}]
        ports: [{containerPort: 80}]
        resources: {limits: {cpu: "0.5", memory: 1024Mi}}
        volumeMounts: [{name: tmp, mountPath: /tmp}]
      volumes: [{name: tmp, emptyDir: {}}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "$NAME:reader"}
rules: [{apiGroups: [""], resources: [pods], verbs: [get, list]}]
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.$NAME.example.org}
spec:
  group: $NAME.example.org
  scope: Cluster
  names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {size: {type: integer}, color: {type: string, default: red}}}
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
---
apiVersion: $NAME.example.org/v1
kind: Widget
metadata: {name: one, namespace: dropped-by-scope}
spec: {size: 1}
`

// Everything is applied in one pass, types before their objects, and a second
// pass changes nothing.
func TestEverything(t *testing.T) {
	b := newBed(t)
	set := b.set(everything)
	steps, results := b.apply(set)
	b.wantNothing("results", results)
	b.want("steps", steps,
		"create namespace/$NAME",
		"create customresourcedefinition.apiextensions.k8s.io/widgets.$NAME.example.org",
		"create configmap/$NAME/settings",
		"create secret/$NAME/password",
		"create service/$NAME/web",
		"create clusterrole.rbac.authorization.k8s.io/$NAME:reader",
		"create deployment.apps/$NAME/web",
		"create widget.$NAME.example.org/one",
	)
	b.settled(set)
	p := b.plan(set, apply.PlanOptions{})
	eventually(t, "the deployment is ready", func(ctx context.Context) bool {
		health, err := b.applier.Health(ctx, p)
		return err == nil && len(health) == 0
	})
	b.settled(set)
}
