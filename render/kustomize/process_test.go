package kustomize

import (
	"bytes"
	"log"
	"strings"
	"testing"

	"gitopsd.dev/render/remote"
)

// Kustomize would end the process here: it cannot print an object for an error message.
func TestKustomizeDoesNotExit(t *testing.T) {
	t.Parallel()
	_, _, err := new(Builder).Build(t.Context(), txtarFS(t, `
-- a/kustomization.yaml --
resources: [all.yaml]
namePrefix: p-
replacements:
- source: {kind: ValidatingWebhookConfiguration, fieldPath: metadata.annotations.v}
  targets: [{select: {kind: ValidatingWebhookConfiguration}, fieldPaths: [webhooks.0.timeoutSeconds]}]
-- a/all.yaml --
apiVersion: v1
kind: Service
metadata: {name: svc, namespace: n1}
---
apiVersion: v1
kind: Service
metadata: {name: svc, namespace: n2}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: w, annotations: {v: abc}}
webhooks: [{name: a, timeoutSeconds: 1, clientConfig: {service: {name: svc}}}]
`), "a", remote.Bases{})
	if err == nil || err.Error() != "a: yaml: cannot decode !!str `abc` as a !!int" {
		t.Error(err)
	}
}

// Log lines of other code go to the usual output while kustomize runs. Not parallel, since
// the log is global.
func TestOthersLog(t *testing.T) {
	var buf bytes.Buffer
	before := log.Writer()
	log.SetOutput(&buf)
	defer log.SetOutput(before)
	if err := guarded(func() error { log.Println("one"); return nil }); err != nil {
		t.Fatal(err)
	}
	log.Println("two")
	if log.Writer() != &buf {
		t.Error("the log's writer is not put back")
	}
	for _, line := range []string{"one", "two"} {
		if strings.Count(buf.String(), line) != 1 {
			t.Errorf("%q is not once in %q", line, buf.String())
		}
	}
	var other bytes.Buffer
	if err := guarded(func() error { log.SetOutput(&other); return nil }); err != nil {
		t.Fatal(err)
	}
	if log.Writer() != &other {
		t.Error("the writer that somebody set meanwhile is gone")
	}
}

// A repository cannot write lines of its own into the log of the process.
func TestLogOfOneLine(t *testing.T) {
	t.Parallel()
	var before strings.Builder
	line := "2026/01/01 12:00:00 vars that were never replaced: X\n{\"level\":\"INFO\"}\r\n"
	if n, err := (lastWords{&before}).Write([]byte(line)); n != len(line) || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if have, want := before.String(), `2026/01/01 12:00:00 vars that were never replaced: X\n{"level":"INFO"}\r`+"\n"; have != want {
		t.Errorf("have %q, want %q", have, want)
	}
}
