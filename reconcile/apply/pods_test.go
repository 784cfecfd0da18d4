package apply

import (
	"encoding/json"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestFaultOf(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, pod, want string
	}{
		{"nothing is known", `{}`, ""},
		{"it starts", `{"status":{"containerStatuses":[{"name":"c","state":{"waiting":{"reason":"ContainerCreating"}}}]}}`, ""},
		{"it runs", `{"status":{"conditions":[{"type":"PodScheduled","status":"True"}],"containerStatuses":[{"name":"c","state":{"running":{}}}]}}`, ""},
		{"a container", `{"status":{"containerStatuses":[{"name":"a","state":{"running":{}}},{"name":"c","state":{"waiting":{"reason":"CrashLoopBackOff","message":"back-off 20s"}}}]}}`, "container c: CrashLoopBackOff"},
		{"an init container", `{"status":{"initContainerStatuses":[{"name":"i","state":{"waiting":{"reason":"ErrImagePull"}}}],"containerStatuses":[{"name":"c","state":{"waiting":{"reason":"PodInitializing"}}}]}}`, "container i: ErrImagePull"},
		{"no node", `{"status":{"conditions":[{"type":"PodScheduled","status":"False","reason":"Unschedulable","message":"0/1 nodes are available"}]}}`, "no node takes it: 0/1 nodes are available"},
		{"it is going", `{"metadata":{"deletionTimestamp":"2026-01-01T00:00:00Z"},"status":{"containerStatuses":[{"name":"c","state":{"waiting":{"reason":"CrashLoopBackOff"}}}]}}`, ""},
	} {
		var pod map[string]any
		if err := json.Unmarshal([]byte(tt.pod), &pod); err != nil {
			t.Fatal(err)
		}
		if have := faultOf(pod); have != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, have, tt.want)
		}
	}
}

func TestSelectorOf(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		spec, want string
	}{
		{`{"selector":{"matchLabels":{"b":"2","a":"1"},"matchExpressions":[{"key":"c","operator":"Exists"}]}}`, "a=1,b=2,c"},
		{`{}`, ""},
		{`{"selector":{"matchExpressions":[{"key":"c","operator":"Sometimes"}]}}`, ""},
	} {
		var spec map[string]any
		if err := json.Unmarshal([]byte(tt.spec), &spec); err != nil {
			t.Fatal(err)
		}
		if have := selectorOf(&unstructured.Unstructured{Object: map[string]any{"spec": spec}}); have != tt.want {
			t.Errorf("%s selects %q, want %q", tt.spec, have, tt.want)
		}
	}
}
