package main

import (
	"encoding/json"
	"fmt"
	"strings"

	"gitopsd.dev/render/conversion"
	"gitopsd.dev/render/exact"
	"gitopsd.dev/sources"
)

// converted is a type in two versions, with our conversion rules and an object. The rival's
// conversion is in conversionrival.go.
type converted struct {
	group, kind, plural string
	v1, v2              string // the properties of the schemas
	rules               string
	object              string // in v1
}

// moved has fields that are moved and renamed, also in elements two lists deep.
var moved = converted{
	group: convertedGroup, kind: "Worker", plural: "workers",
	v1: `
      spec:
        type: object
        properties:
          replicas: {type: integer}
          owner: {type: string}
          contact: {type: string}
          logLevel: {type: string}
          metricsPort: {type: integer}
          nodeSelector: {type: object, additionalProperties: {type: string}}
          tolerations: {type: array, items: ` + tolerationSchema + `}
          containers:
            type: array
            items:
              type: object
              properties:
                name: {type: string}
                image: {type: string}
                cpu: {type: string}
                mem: {type: string}
                args: {type: array, items: {type: string}}
                env: {type: array, items: {type: object, properties: {name: {type: string}, value: {type: string}}}}
` + statusSchema,
	v2: `
      spec:
        type: object
        properties:
          replicas: {type: integer}
          team: {type: object, properties: {name: {type: string}, contact: {type: string}}}
          observability:
            type: object
            properties:
              logging: {type: object, properties: {level: {type: string}}}
              metrics: {type: object, properties: {port: {type: integer}}}
          placement:
            type: object
            properties:
              nodeSelector: {type: object, additionalProperties: {type: string}}
              tolerations: {type: array, items: ` + tolerationSchema + `}
          workers:
            type: array
            items:
              type: object
              properties:
                name: {type: string}
                image: {type: string}
                cpuLimit: {type: string}
                memoryLimit: {type: string}
                args: {type: array, items: {type: string}}
                env: {type: array, items: {type: object, properties: {key: {type: string}, value: {type: string}}}}
` + statusSchema,
	rules: `
  - from: v1
    to: v2
    rules:
    - {from: v1.spec.owner, to: spec.team.name}
    - {from: v1.spec.contact, to: spec.team.contact}
    - {from: v1.spec.logLevel, to: spec.observability.logging.level}
    - {from: v1.spec.metricsPort, to: spec.observability.metrics.port}
    - {from: v1.spec.nodeSelector, to: spec.placement.nodeSelector}
    - {from: v1.spec.tolerations, to: spec.placement.tolerations}
    - from: v1.spec.containers
      to: spec.workers
      itemRules:
      - {from: self.cpu, to: item.cpuLimit}
      - {from: self.mem, to: item.memoryLimit}
      - {from: self.env, to: item.env, itemRules: [{from: self.name, to: item.key}]}
  - from: v2
    to: v1
    rules:
    - {from: v2.spec.team.name, to: spec.owner}
    - {from: v2.spec.team.contact, to: spec.contact}
    - {from: v2.spec.observability.logging.level, to: spec.logLevel}
    - {from: v2.spec.observability.metrics.port, to: spec.metricsPort}
    - {from: v2.spec.placement.nodeSelector, to: spec.nodeSelector}
    - {from: v2.spec.placement.tolerations, to: spec.tolerations}
    - from: v2.spec.workers
      to: spec.containers
      itemRules:
      - {from: self.cpuLimit, to: item.cpu}
      - {from: self.memoryLimit, to: item.mem}
      - {from: self.env, to: item.env, itemRules: [{from: self.key, to: item.name}]}
`,
	object: `"spec":{"contact":"team-payments@example.org","containers":[` +
		`{"args":["--config=/etc/app/config.yaml","--listen=:8080"],"cpu":"500m","env":[{"name":"REGION","value":"eu-central-1"},{"name":"LOG_FORMAT","value":"json"}],"image":"registry.example.org/payments/api:v1.42.0","mem":"512Mi","name":"api"},` +
		`{"args":["--upstream=localhost:8080"],"cpu":"100m","env":[{"name":"TLS","value":"strict"}],"image":"registry.example.org/mesh/proxy:v3.1.2","mem":"64Mi","name":"proxy"}],` +
		`"logLevel":"info","metricsPort":9090,"nodeSelector":{"kubernetes.io/arch":"amd64","pool":"general"},"owner":"payments","replicas":3,` +
		`"tolerations":[{"effect":"NoSchedule","key":"dedicated","operator":"Equal","value":"payments"}]},` + convertedStatus,
}

// mixed has ten rules each way: moved fields, renamed fields of elements, and computed
// values.
var mixed = converted{
	group: convertedGroup, kind: "Service", plural: "services",
	v1: `
      spec:
        type: object
        properties:
          replicas: {type: integer}
          owner: {type: string}
          contact: {type: string}
          nodeSelector: {type: object, additionalProperties: {type: string}}
          timeout: {type: string}
          host: {type: string}
          port: {type: integer}
          mode: {type: string}
          paused: {type: boolean}
          hosts: {type: array, items: {type: string}}
          interval: {type: string}
          tolerations: {type: array, items: ` + tolerationSchema + `}
          routes:
            type: array
            items:
              type: object
              properties: {path: {type: string}, backend: {type: string}, weight: {type: integer}}
` + statusSchema,
	v2: `
      spec:
        type: object
        properties:
          replicas: {type: integer}
          team: {type: object, properties: {name: {type: string}, contact: {type: string}}}
          placement: {type: object, properties: {nodeSelector: {type: object, additionalProperties: {type: string}}}}
          timeoutSeconds: {type: integer}
          intervalSeconds: {type: integer}
          address: {type: string}
          speed: {type: string}
          state: {type: string}
          domains: {type: array, items: {type: object, properties: {name: {type: string}}}}
          summary: {type: string}
          tolerations: {type: array, items: ` + tolerationSchema + `}
          routes:
            type: array
            items:
              type: object
              properties: {match: {type: string}, target: {type: string}, weight: {type: integer}}
` + statusSchema,
	rules: `
  - from: v1
    to: v2
    rules:
    - {from: v1.spec.owner, to: spec.team.name}
    - {from: v1.spec.contact, to: spec.team.contact}
    - {from: v1.spec.nodeSelector, to: spec.placement.nodeSelector}
    - {from: v1.spec.routes, to: spec.routes, itemRules: [{from: self.path, to: item.match}, {from: self.backend, to: item.target}]}
    - {from: v1.spec.hosts, to: spec.domains, itemRules: [{from: self, to: item.name}]}
    - {field: spec.timeout, to: spec.timeoutSeconds, transformation: duration(self).getSeconds()}
    - {field: spec.interval, to: spec.intervalSeconds, transformation: duration(self).getSeconds()}
    - {from: "self.spec.host + ':' + string(self.spec.port)", to: spec.address}
    - {from: "{'Quick': 'fast', 'Careful': 'slow'}[self.spec.mode]", to: spec.speed}
    - {from: "self.spec.paused ? 'Paused' : 'Running'", to: spec.state}
  - from: v2
    to: v1
    rules:
    - {from: v2.spec.team.name, to: spec.owner}
    - {from: v2.spec.team.contact, to: spec.contact}
    - {from: v2.spec.placement.nodeSelector, to: spec.nodeSelector}
    - {from: v2.spec.routes, to: spec.routes, itemRules: [{from: self.match, to: item.path}, {from: self.target, to: item.backend}]}
    - {from: v2.spec.domains, to: spec.hosts, itemRules: [{from: self.name, to: item}]}
    - {field: spec.timeoutSeconds, to: spec.timeout, transformation: string(self) + 's'}
    - {field: spec.intervalSeconds, to: spec.interval, transformation: string(self) + 's'}
    - {from: "self.spec.address.split(':')[0]", to: spec.host}
    - {from: "int(self.spec.address.split(':')[1])", to: spec.port}
    - {from: "{'fast': 'Quick', 'slow': 'Careful'}[self.spec.speed]", to: spec.mode}
    - {from: "self.spec.state == 'Paused'", to: spec.paused}
    preserve: [spec.summary]
`,
	object: `"spec":{"contact":"team-payments@example.org","host":"payments.internal.example.org","hosts":["payments.example.org","pay.example.org"],"interval":"30s","mode":"Quick",` +
		`"nodeSelector":{"kubernetes.io/arch":"amd64","pool":"general"},"owner":"payments","paused":false,"port":8443,"replicas":3,` +
		`"routes":[{"backend":"payments-api","path":"/v1/payments","weight":90},{"backend":"payments-api-canary","path":"/v1/payments","weight":10},{"backend":"payments-web","path":"/","weight":100}],"timeout":"90s",` +
		`"tolerations":[{"effect":"NoSchedule","key":"dedicated","operator":"Equal","value":"payments"}]},` + convertedStatus,
}

const (
	tolerationSchema = `{type: object, properties: {effect: {type: string}, key: {type: string}, operator: {type: string}, value: {type: string}}}`
	statusSchema     = `
      status:
        type: object
        properties:
          observedGeneration: {type: integer}
          conditions:
            type: array
            items: {type: object, properties: {lastTransitionTime: {type: string}, message: {type: string}, reason: {type: string}, status: {type: string}, type: {type: string}}}
`
	convertedStatus = `"status":{"conditions":[{"lastTransitionTime":"2026-03-01T09:00:00Z","message":"3 of 3 replicas are available","reason":"MinimumReplicasAvailable","status":"True","type":"Available"},` +
		`{"lastTransitionTime":"2026-03-01T09:00:00Z","message":"the newest generation is rolled out","reason":"RolledOut","status":"True","type":"Progressed"}],"observedGeneration":4}`
	// convertedMetadata is metadata as servers send it, with the fields of one manager.
	convertedMetadata = `"metadata":{"annotations":{"example.org/change":"CHG-20931"},"creationTimestamp":"2026-02-11T08:30:12Z","generation":4,"labels":{"app.kubernetes.io/name":"payments","team":"payments"},` +
		`"managedFields":[{"apiVersion":"conversion.bench.example/v1","fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{"f:annotations":{"f:example.org/change":{}},"f:labels":{"f:app.kubernetes.io/name":{},"f:team":{}}},"f:spec":{"f:contact":{},"f:owner":{},"f:replicas":{}}},"manager":"gitopsd","operation":"Apply","time":"2026-02-11T08:30:12Z"}],` +
		`"name":"payments","namespace":"payments","resourceVersion":"184467","uid":"0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"}`
	convertedGroup = "conversion.bench.example"
)

// name returns the name of the definition.
func (c *converted) name() string { return c.plural + "." + c.group }

// definition returns the CustomResourceDefinition; conversion is its spec.conversion in
// YAML's flow style.
func (c *converted) definition(conversion string) string {
	text := fmt.Sprintf(`apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %s}
spec:
  group: %s
  scope: Namespaced
  names: {kind: %s, plural: %s}
  conversion: %s
  versions:
`, c.name(), c.group, c.kind, c.plural, conversion)
	for i, properties := range []string{c.v1, c.v2} {
		text += fmt.Sprintf("  - name: v%d\n    served: true\n    storage: %t\n    schema:\n     openAPIV3Schema:\n      type: object\n      properties:%s",
			i+1, i == 0, strings.ReplaceAll(properties, "\n  ", "\n    "))
	}
	return text
}

const noConversion = "{strategy: None}"

// set compiles the rules.
func (c *converted) set() (*conversion.Set, error) {
	text := fmt.Sprintf("%s---\napiVersion: apis.kcp.dev/v1alpha1\nkind: APIConversionRules\nmetadata: {name: %s}\nspec:\n  conversions:%s",
		c.definition(noConversion), c.name(), c.rules)
	docs, err := sources.DecodeYAML(strings.NewReader(text), sources.Limits{})
	if err != nil {
		return nil, err
	}
	return conversion.Compile(docs[0].Tree, []conversion.Document{{Tree: docs[1].Tree}})
}

// stored returns the object as an API server stores it, in v1.
func (c *converted) stored() []byte {
	return fmt.Appendf(nil, `{"apiVersion":"%s/v1","kind":"%s",%s,%s}`, c.group, c.kind, convertedMetadata, c.object)
}

// review returns a ConversionReview of the object, with fields in an API server's order.
func (c *converted) review() []byte {
	return fmt.Appendf(nil, `{"kind":"ConversionReview","apiVersion":"apiextensions.k8s.io/v1","request":{"uid":"705ab4f5-6393-11e8-b7cc-42010a800002","desiredAPIVersion":"%s/v2","objects":[%s]}}`+"\n", c.group, c.stored())
}

// answered returns the object in the answer to a review, in a canonical form.
func answered(answer []byte) ([]byte, error) {
	var review struct {
		Response struct {
			ConvertedObjects []json.RawMessage
			Result           struct{ Status, Message string }
		}
	}
	if err := json.Unmarshal(answer, &review); err != nil {
		return nil, err
	}
	if r := review.Response; r.Result.Status != "Success" || len(r.ConvertedObjects) != 1 {
		return nil, fmt.Errorf("%d objects, %s: %s", len(r.ConvertedObjects), r.Result.Status, r.Result.Message)
	}
	return canonical(review.Response.ConvertedObjects[0])
}

func canonical(text []byte) ([]byte, error) {
	v, err := exact.Decode(text)
	if err != nil {
		return nil, err
	}
	return exact.Encode(v)
}
