package apply_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// faulty answers some requests otherwise than the API server would.
type faulty struct {
	next  http.RoundTripper
	fault atomic.Pointer[func(*http.Request) (*http.Response, error)]
}

func (f *faulty) RoundTrip(req *http.Request) (*http.Response, error) {
	if fault := f.fault.Load(); fault != nil {
		if resp, err := (*fault)(req); resp != nil || err != nil {
			return resp, err
		}
	}
	return f.next.RoundTrip(req)
}

// breaks has requests meet a fault, those that match.
func (f *faulty) breaks(matches func(*http.Request) bool, fault func(*http.Request) (*http.Response, error)) {
	do := func(req *http.Request) (*http.Response, error) {
		if matches(req) {
			return fault(req)
		}
		return nil, nil
	}
	f.fault.Store(&do)
}

func (f *faulty) heals() { f.fault.Store(nil) }

// newFaulty puts a faulty connection between a bed and its cluster.
func newFaulty(b *bed, timeout time.Duration) *faulty {
	f := &faulty{}
	b.cluster = b.connectWith(kube.Config{Name: b.name, Timeout: timeout, WrapTransport: func(next http.RoundTripper) http.RoundTripper {
		f.next = next
		return b.requests.wrap(f)
	}})
	b.restart()
	return f
}

func hangs(req *http.Request) (*http.Response, error) {
	<-req.Context().Done()
	return nil, req.Context().Err()
}

func breaksOff(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF }

func answers(code int, header http.Header, body string) func(*http.Request) (*http.Response, error) {
	return func(req *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: code, Header: header, Request: req, Body: io.NopCloser(strings.NewReader(body))}, nil
	}
}

// endpoint matches the requests for one object or kind, watches apart.
func endpoint(method, path string) func(*http.Request) bool {
	return func(req *http.Request) bool {
		return req.Method == method && req.URL.Path == path && req.URL.Query().Get("watch") == ""
	}
}

func watchOf(path string) func(*http.Request) bool {
	return func(req *http.Request) bool { return req.URL.Path == path && req.URL.Query().Get("watch") != "" }
}

// If the API server is slow or fails for an object or a kind, only that one suffers. The
// rest of the cluster is applied.
func TestOneBadThing(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault func(*http.Request) (*http.Response, error)
		want  string
	}{
		{"slow", hangs, "though the API server answers others"},
		{"broken off", breaksOff, "the connection broke, though the API server answers others"},
		{"throttled", answers(429, http.Header{"Retry-After": {"3600"}}, ""), "Too Many Requests"},
		{"unavailable", answers(503, nil, ""), "Service Unavailable"},
		{"failing", answers(500, nil, ""), "Internal Server Error"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t)
			f := newFaulty(b, 5*time.Second)
			set := b.set(two)

			f.breaks(endpoint(http.MethodPatch, "/api/v1/namespaces/"+b.name+"/configmaps/a"), tt.fault)
			_, results := b.apply(set)
			if len(results) != 1 || !strings.HasPrefix(results[0], "failed configmap/$NAME/a: ") || !strings.Contains(results[0], tt.want) {
				t.Errorf("one object: %q", results)
			}
			if b.get(cm("b")) == nil {
				t.Error("the other object is not there")
			}

			// One kind.
			f.breaks(endpoint(http.MethodGet, "/api/v1/configmaps"), tt.fault)
			b.restart()
			more := b.set(two + "\n---\n{apiVersion: v1, kind: ServiceAccount, metadata: {name: more, namespace: $NAME}}")
			steps, results := b.apply(more)
			b.wantNothing("results", results)
			refused := func(name string) bool {
				return slices.ContainsFunc(steps, func(s string) bool {
					return strings.HasPrefix(s, "refused configmap/$NAME/"+name+" cannot tell what is there: ") && strings.Contains(s, tt.want)
				})
			}
			if len(steps) != 3 || !slices.Contains(steps, "create serviceaccount/$NAME/more") || !refused("a") || !refused("b") {
				t.Errorf("one kind: %q", steps)
			}
			f.heals()
			b.restart()
			b.want("healed", first(b.apply(more)), "create configmap/$NAME/a")
		})
	}
}

func first(steps, _ []string) []string { return steps }

// A server of an aggregated API may create objects by another API, which takes no
// resourceVersion, or have other reasons for a conflict.
func TestOddServers(t *testing.T) {
	refuses := func(code int, reason, message string) func(*http.Request) (*http.Response, error) {
		return answers(code, nil, `{"kind":"Status","status":"Failure","reason":"`+reason+`","message":"`+message+`"}`)
	}
	conflict := refuses(409, "Conflict", "it is in use")
	for _, tt := range []struct {
		name  string
		fault func(*http.Request) (*http.Response, error)
		// always: also without a resourceVersion.
		always bool
		want   []string
	}{
		{"takes no resourceVersion", refuses(500, "InternalError", "resourceVersion should not be set on objects to be created"), false, nil},
		{"finds it invalid", refuses(422, "Invalid", "error with field ResourceVersion = '1' (field must not be set for a Create request)"), false, nil},
		{"has a conflict", conflict, false, nil},
		{"always has a conflict", conflict, true, []string{"pending configmap/$NAME/a: it changed after the plan was made; the next pass looks at it again: it is in use"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t)
			f := newFaulty(b, 0)
			f.breaks(endpoint(http.MethodPatch, "/api/v1/namespaces/"+b.name+"/configmaps/a"), func(req *http.Request) (*http.Response, error) {
				body, err := io.ReadAll(req.Body)
				if err != nil || tt.always || strings.Contains(string(body), "resourceVersion") {
					return tt.fault(req)
				}
				req.Body = io.NopCloser(bytes.NewReader(body))
				return nil, nil
			})
			set := b.set(two)
			_, results := b.apply(set)
			b.want("results", results, tt.want...)
			if exists := b.get(cm("a")) != nil; exists == tt.always {
				t.Errorf("it exists: %t", exists)
			}
			f.heals()
			b.apply(set)
			b.settled(set)
		})
	}

	t.Run("delete", func(t *testing.T) {
		b := newBed(t)
		f := newFaulty(b, 0)
		b.apply(b.set(two))
		parts := strings.Split(two, "---")
		space := b.set(parts[0] + "---" + parts[2])
		f.breaks(endpoint(http.MethodDelete, "/api/v1/namespaces/"+b.name+"/configmaps/a"), conflict)
		for range 2 {
			steps, results := b.apply(space)
			b.want("steps", steps, "prune configmap/$NAME/a")
			if len(results) != 1 || !strings.HasPrefix(results[0], "failed configmap/$NAME/a: ") || !strings.Contains(results[0], "it is in use") {
				t.Errorf("results %q", results)
			}
		}
		f.heals()
		b.want("healed", first(b.apply(space)), "prune configmap/$NAME/a")
		b.settled(space)
	})
}

// A cluster that answers no request is unreachable.
func TestNoAnswerAtAll(t *testing.T) {
	b := newBed(t)
	f := newFaulty(b, 500*time.Millisecond)
	f.breaks(func(*http.Request) bool { return true }, hangs)
	if _, err := b.applier.Plan(t.Context(), b.set(two), apply.PlanOptions{}); kube.ClassOf(err) != kube.Unreachable {
		t.Errorf("a cluster that hangs: %v", err)
	}
}

// A kind that may not be watched is listed now and then, and not in every pass.
func TestFollowRefused(t *testing.T) {
	b := newBed(t)
	f := newFaulty(b, 0)
	b.poll = time.Hour
	b.restart()
	f.breaks(watchOf("/api/v1/configmaps"), answers(403, nil, `{"kind":"Status","status":"Failure","message":"configmaps is forbidden: User \"u\" cannot watch resource \"configmaps\"","code":403}`))
	set := b.set(two)
	b.followed(set)
	eventually(t, "it is known why", func(context.Context) bool { return len(b.applier.Polled()) > 0 })
	b.want("notes", b.applier.Polled(), `configmaps cannot be watched, and is listed every 1h0m0s instead: configmaps is forbidden: User "u" cannot watch resource "configmaps"`)
	b.requests.take()
	for range 100 {
		b.pass(t.Context(), set)
	}
	b.wantNothing("a hundred passes", b.withoutWatches())
}

const goneEvent = `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","message":"too old resource version: 1 (2)","reason":"Expired","code":410}}` + "\n"

// A watch that fails a few times in a row works all the same: while a definition changes, or
// the API server starts again.
func TestFollowInterrupted(t *testing.T) {
	ends, expires := answers(200, nil, ""), answers(200, nil, goneEvent)
	refuses := func(*http.Request) (*http.Response, error) { return nil, syscall.ECONNREFUSED }
	for _, tt := range []struct {
		name   string
		faults []func(*http.Request) (*http.Response, error)
	}{
		{"expires", []func(*http.Request) (*http.Response, error){expires, expires}},
		{"ends", []func(*http.Request) (*http.Response, error){ends, ends, ends}},
		{"ends and expires", []func(*http.Request) (*http.Response, error){ends, expires, ends}},
		{"is refused", []func(*http.Request) (*http.Response, error){ends, refuses, refuses}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t)
			f := newFaulty(b, 0)
			b.poll = time.Hour
			b.restart()
			var watches atomic.Int64
			f.breaks(watchOf("/api/v1/configmaps"), func(req *http.Request) (*http.Response, error) {
				if n := int(watches.Add(1)); n <= len(tt.faults) {
					return tt.faults[n-1](req)
				}
				return nil, nil
			})
			set := b.set(two)
			notified := b.follow()
			b.pass(t.Context(), set)
			b.pass(t.Context(), set) // the namespace was not there at first
			eventually(t, "the kind is watched", func(context.Context) bool { return int(watches.Load()) > len(tt.faults) })
			if polled := b.applier.Polled(); len(polled) > 0 {
				t.Errorf("it is said that %v", polled)
			}
			b.edit("kubectl-edit", cm("a"), `{"data":{"color":"red"}}`)
			b.want("steps", b.stepsAfter(notified, set), "configure configmap/$NAME/a drift: data.color changed by kubectl-edit")
		})
	}
}

// A watch that lasts works, even if nothing happens.
func TestFollowQuietAgain(t *testing.T) {
	b := newBed(t)
	f := newFaulty(b, 0)
	b.poll = 100 * time.Millisecond
	b.restart()
	f.breaks(watchOf("/api/v1/configmaps"), answers(403, nil, ""))
	set := b.set(two)
	notified := b.followed(set)
	eventually(t, "it cannot be watched", func(context.Context) bool { return len(b.applier.Polled()) > 0 })
	// From here on, no event and no bookmark arrives.
	f.breaks(watchOf("/api/v1/configmaps"), func(req *http.Request) (*http.Response, error) {
		r, w := io.Pipe()
		context.AfterFunc(req.Context(), func() { w.CloseWithError(req.Context().Err()) })
		return &http.Response{StatusCode: http.StatusOK, Request: req, Body: r}, nil
	})
	for len(notified) > 0 {
		<-notified
	}
	eventually(t, "it is watched", func(context.Context) bool { return len(b.applier.Polled()) == 0 })
	wait(t, notified)
}

// Changes of kinds with a broken watch are still noticed, and by the watch again once it
// works.
func TestFollowPolled(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault func(*http.Request) (*http.Response, error)
		why   string
	}{
		{"refused", answers(403, nil, ""), "the server answered 403 Forbidden"},
		{"without the verb", answers(405, nil, ""), "the server answered 405 Method Not Allowed"},
		{"ends at once", answers(200, nil, ""), "a watch ends as soon as it begins"},
		{"expired for ever", answers(200, nil, goneEvent), "too old resource version: 1 (2)"},
		{"throttled", answers(429, http.Header{"Retry-After": {"1"}}, ""), "the server answered 429 Too Many Requests"},
		{"a list", answers(200, nil, `{"kind":"ConfigMapList","apiVersion":"v1","items":[]}`), "the answer is not what an API server sends: unexpected end of JSON input"},
		{"not found", answers(404, nil, ""), "the cluster serves no kind ConfigMap in the core group; is its CRD or package missing?"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t)
			f := newFaulty(b, 0)
			b.poll = 100 * time.Millisecond
			b.restart()
			f.breaks(watchOf("/api/v1/configmaps"), tt.fault)
			set := b.set(two)
			notified := b.follow()
			b.pass(t.Context(), set)
			b.pass(t.Context(), set) // the namespace was not there at first
			eventually(t, "it is known why", func(context.Context) bool { return len(b.applier.Polled()) > 0 })
			b.want("notes", b.applier.Polled(), "configmaps cannot be watched, and is listed every 100ms instead: "+tt.why)

			for len(notified) > 0 {
				<-notified
			}
			b.edit("kubectl-edit", cm("a"), `{"data":{"color":"red"}}`)
			b.want("steps", b.stepsAfter(notified, set), "configure configmap/$NAME/a drift: data.color changed by kubectl-edit")
			b.delete(cm("b"))
			eventually(t, "the object that is gone is created", func(context.Context) bool {
				b.apply(set)
				return b.get(cm("b")) != nil
			})

			f.heals()
			eventually(t, "the kind is watched", func(context.Context) bool {
				b.edit("somebody", cm("a"), `{"metadata":{"annotations":{"at":"`+time.Now().String()+`"}}}`)
				return len(b.applier.Polled()) == 0
			})
		})
	}
}

const gizmos = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gizmos.$NAME.example.org}
spec:
  group: $NAME.example.org
  names: {plural: gizmos, singular: gizmo, kind: Gizmo}
  scope: Cluster
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, x-kubernetes-preserve-unknown-fields: true}, status: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}
`

func gizmo(name string) string {
	return "{apiVersion: $NAME.example.org/v1, kind: Gizmo, metadata: {name: " + name + "}, spec: {a: b}}"
}

// While one object is not ready, the chatter of others of its kind costs no list
// of them all.
func TestFollowChatter(t *testing.T) {
	b := newBed(t)
	set := b.set(gizmos + "\n---\n" + gizmo("quiet") + "\n---\n" + gizmo("chatty") + "\n---\n" + gizmo("stuck"))
	notified := b.follow()
	status := func(name, ready, message string) {
		b.rawAt(http.MethodPatch, b.set(gizmo(name)).All()[0], "/status", "fieldManager=somebody", "application/merge-patch+json",
			[]byte(`{"status":{"conditions":[{"type":"Ready","status":"`+ready+`","reason":"x","message":"`+message+`"}]}}`))
	}
	b.pass(t.Context(), set)
	status("quiet", "True", "it rests")
	status("chatty", "True", "it talks")
	status("stuck", "False", "it hangs")
	eventually(t, "one of them is not ready", func(ctx context.Context) bool {
		b.requests.take()
		return b.pass(ctx, set) == 1 && len(b.withoutWatches()) == 0
	})
	for len(notified) > 0 {
		<-notified
	}

	const object = "GET /apis/$NAME.example.org/v1/gizmos/"
	for range 3 {
		status("chatty", "True", time.Now().String())
		eventually(t, "it is looked at", func(ctx context.Context) bool {
			return b.pass(ctx, set) == 1 && b.sent(strings.ReplaceAll(object, "$NAME", b.name)+"chatty")
		})
		for _, r := range b.withoutWatches() {
			if b.short(r) != object+"chatty" {
				t.Errorf("%s was sent", r)
			}
		}
	}
	status("stuck", "True", "done")
	wait(t, notified)
	b.quiet(set)
}

// The new version of a controller waits until it is known whether the old one was ready: it
// could be rolled back to itself otherwise.
func TestUnreadController(t *testing.T) {
	b := newBedSerial(t)
	f := newFaulty(b, 5*time.Second)
	b.as("somebody", "{apiVersion: v1, kind: Namespace, metadata: {name: gitopsd-system}}")
	deployment := func(version string) string {
		return `{apiVersion: apps/v1, kind: Deployment, metadata: {name: $NAME, namespace: gitopsd-system, labels: {gitopsd.dev/package: $NAME}},
  spec: {selector: {matchLabels: {a: $NAME}}, template: {metadata: {labels: {a: $NAME}}, spec: {containers: [{name: c, image: 'example.org/c:` + version + `'}]}}}}`
	}
	b.applied(b.set(deployment("v1")))
	next := b.set(deployment("v2"))
	f.breaks(endpoint(http.MethodGet, "/apis/apps/v1/namespaces/gitopsd-system/deployments/"+b.name), answers(http.StatusServiceUnavailable, nil, ""))
	_, results := b.apply(next)
	b.want("results", results, "pending deployment.apps/gitopsd-system/$NAME: not known yet: spec.template")
	f.heals()
	live := manifest.List(b.get(deployment("")), "spec", "template", "spec", "containers")[0].(map[string]any)
	if image := live["image"]; image != "example.org/c:v1" {
		t.Errorf("%v runs", image)
	}
	b.applied(next)
	b.apply(b.set(""))
}

// While it is not known whether Crossplane installs a package, no second controller starts.
func TestUnreadInstaller(t *testing.T) {
	b := newBedSerial(t)
	f := newFaulty(b, 5*time.Second)
	b.as("somebody", `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: providers.pkg.crossplane.io},
  spec: {group: pkg.crossplane.io, names: {kind: Provider, plural: providers}, scope: Cluster, versions: [{name: v1, served: true, storage: true,
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]}}`)
	b.serves("pkg.crossplane.io", "Provider")
	b.as("somebody", "{apiVersion: pkg.crossplane.io/v1, kind: Provider, metadata: {name: $NAME}, spec: {package: 'registry.example.org/acme/$NAME:v1'}}")
	ref, err := sources.ParseRef("registry.example.org/acme/" + b.name + ":v1.0.0")
	if err != nil {
		t.Fatal(err)
	}
	o, err := manifest.New(b.set("{apiVersion: v1, kind: ConfigMap, metadata: {name: $NAME, namespace: default, labels: {gitopsd.dev/package: p}}}").All()[0].Tree(),
		manifest.Origin{Package: sources.Pin{Ref: ref}})
	if err != nil {
		t.Fatal(err)
	}
	set, _ := manifest.NewSet([]*manifest.Object{o})
	f.breaks(endpoint(http.MethodGet, "/apis/pkg.crossplane.io/v1/providers"), answers(http.StatusServiceUnavailable, nil, ""))
	steps, _ := b.apply(set)
	b.want("steps", steps, "refused configmap/default/$NAME whether Crossplane installs the same package is not known: cluster $NAME: list provider.pkg.crossplane.io: the server answered 503 Service Unavailable")
	f.heals()
	steps, _ = b.apply(set)
	if len(steps) != 1 || !strings.HasPrefix(steps[0], "conflict configmap/default/$NAME Crossplane's provider.pkg.crossplane.io/$NAME installs the same package") {
		t.Errorf("steps: %q", steps)
	}
}

// If one object cannot be read, nothing is said about others of its kind.
func TestHealthOfUnread(t *testing.T) {
	b := newBedSerial(t)
	f := newFaulty(b, 5*time.Second)
	text := gizmos
	for _, name := range []string{"one", "two", "three"} {
		text += "\n---\n" + gizmo(name)
	}
	set := b.set(text)
	b.follow()
	status := func(message string) {
		for _, name := range []string{"one", "two", "three"} {
			b.rawAt(http.MethodPatch, b.set(gizmo(name)).All()[0], "/status", "fieldManager=somebody", "application/merge-patch+json",
				[]byte(`{"status":{"conditions":[{"type":"Ready","status":"True","reason":"x","message":"`+message+`"}]}}`))
		}
	}
	b.pass(t.Context(), set)
	status("first")
	eventually(t, "all are healthy", func(ctx context.Context) bool { return b.pass(ctx, set) == 0 })
	status("second")
	f.breaks(endpoint(http.MethodGet, "/apis/"+b.name+".example.org/v1/gizmos/two"), answers(http.StatusInternalServerError, nil, ""))
	eventually(t, "two is unknown", func(ctx context.Context) bool {
		list, err := b.applier.Health(ctx, b.plan(set, apply.PlanOptions{}))
		if len(list) > 1 {
			t.Fatalf("%+v", list)
		}
		return err == nil && len(list) == 1 && list[0].ID.Name == "two" && list[0].State == apply.UnknownState
	})
}
