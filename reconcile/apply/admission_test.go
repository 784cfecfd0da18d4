package apply_test

import (
	"strings"
	"testing"
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

// A webhook configuration is applied only when what serves it is ready.
func TestWebhookWaits(t *testing.T) {
	b := newBed(t)
	parts := strings.Split(everything, "---")
	service := parts[0] + "---" + parts[3]
	set := b.set(service + "---" + webhook)
	steps, results := b.apply(set)
	b.want("steps", steps, "create namespace/$NAME", "create service/$NAME/web", "create validatingwebhookconfiguration.admissionregistration.k8s.io/$NAME")
	b.want("results", results, "pending validatingwebhookconfiguration.admissionregistration.k8s.io/$NAME: waits for a ready endpoint of Service $NAME/web, which is to serve it")
	if b.get(webhook) != nil {
		t.Fatal("it was applied before it could be served")
	}
	set = b.set(service + "---" + parts[4] + "---" + webhook)
	_, results = b.apply(set)
	b.wantNothing("results", results)
	b.settled(set)
}

// A package's webhooks without a certificate would only block writes.
func TestWebhookHeld(t *testing.T) {
	b := newBed(t)
	set := b.set(strings.Replace(webhook, "labels: {}", "labels: {gitopsd.dev/package: p}", 1))
	steps, _ := b.apply(set)
	b.want("steps", steps, "held validatingwebhookconfiguration.admissionregistration.k8s.io/$NAME webhook a.example.org has no caBundle yet, and would block requests until it gets one")
	byURL := b.set(strings.Replace(webhook, "service: {namespace: $NAME, name: web}", `url: "https://127.0.0.1:1/"`, 1))
	_, results := b.apply(byURL)
	b.wantNothing("results", results)
	b.settled(byURL)
}
