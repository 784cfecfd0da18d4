package apply_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/manifest"
)

// follow has the bed's applier follow the cluster, and returns a channel that is
// signalled when there is something to do.
func (b *bed) follow() <-chan struct{} {
	notified := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(b.t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		b.applier.Follow(ctx, func() {
			select {
			case notified <- struct{}{}:
			default:
			}
		})
	})
	b.t.Cleanup(func() { cancel(); wg.Wait() })
	return notified
}

// followed applies a set, and follows the cluster from when it is at rest.
func (b *bed) followed(set *manifest.Set) <-chan struct{} {
	b.t.Helper()
	notified := b.follow()
	b.pass(b.t.Context(), set)
	b.quiet(set)
	for len(notified) > 0 {
		<-notified
	}
	return notified
}

// quiet passes until a pass sends nothing.
func (b *bed) quiet(set *manifest.Set) {
	b.t.Helper()
	eventually(b.t, "a pass that sends nothing", func(ctx context.Context) bool {
		b.requests.take()
		return b.pass(ctx, set) == 0 && len(b.withoutWatches()) == 0
	})
}

// pass makes a pass as the daemon does, and returns how much there was to do.
func (b *bed) pass(ctx context.Context, set *manifest.Set) int {
	p, err := b.applier.Plan(ctx, set, apply.PlanOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	report, err := b.applier.Apply(ctx, p)
	if err != nil {
		b.t.Fatal(err)
	}
	health, err := b.applier.Health(ctx, p)
	if err != nil {
		b.t.Fatal(err)
	}
	return len(b.steps(p)) + len(b.results(report)) + len(health)
}

func (b *bed) withoutWatches() []string {
	var list []string
	for _, r := range b.requests.take() {
		if !strings.HasPrefix(r, "WATCH ") {
			list = append(list, r)
		}
	}
	return list
}

// stepsAfter waits for a notice, and makes passes until there is something to do: a
// notice may be about a known state.
func (b *bed) stepsAfter(notified <-chan struct{}, set *manifest.Set) (steps []string) {
	b.t.Helper()
	wait(b.t, notified)
	eventually(b.t, "something to do", func(context.Context) bool {
		b.requests.take()
		steps, _ = b.apply(set)
		return len(steps) > 0
	})
	return steps
}

func wait(t *testing.T, notified <-chan struct{}) {
	t.Helper()
	select {
	case <-notified:
	case <-time.After(time.Minute):
		t.Fatal("nobody was told")
	}
}

// While the cluster is followed, a pass over an undisturbed cluster asks
// nothing, and one that was disturbed costs a dry run and a write.
func TestFollow(t *testing.T) {
	b := newBed(t)
	set := b.set(drifting)
	notified := b.followed(set)

	b.edit("kubectl-edit", cm("a"), `{"data":{"color":"red"}}`)
	b.want("steps", b.stepsAfter(notified, set), "configure configmap/$NAME/a drift: data.color changed by kubectl-edit")
	b.want("requests", b.withoutWatches(),
		"PATCH /api/v1/namespaces/"+b.name+"/configmaps/a (dry run)", "PATCH /api/v1/namespaces/"+b.name+"/configmaps/a")
	b.quiet(set)

	b.delete(cm("a"))
	b.want("steps", b.stepsAfter(notified, set), "create configmap/$NAME/a drift: somebody deleted it")
	b.quiet(set)

	// What changes in the repository costs what changed, and a look whether the
	// inventory is still as it was left.
	b.requests.take()
	changed := b.set(strings.Replace(drifting, "green", "blue", 1))
	b.pass(t.Context(), changed)
	b.want("requests", b.withoutWatches(),
		"GET /api/v1/namespaces/gitopsd-system/configmaps/inventory-"+b.name, "PATCH /api/v1/namespaces/"+b.name+"/configmaps/a")
	b.quiet(changed)
}

// A write to status causes a notice only if the object was not ready.
func TestFollowStatus(t *testing.T) {
	b := newBed(t)
	set := b.set(drifting)
	notified := b.followed(set)
	status := func(patch string) {
		b.rawAt(http.MethodPatch, b.set(deploymentWeb).All()[0], "/status", "fieldManager=somebody", "application/merge-patch+json", []byte(patch))
	}
	status(`{"status":{"conditions":[{"type":"Strange","status":"True"}]}}`)
	b.edit("kubectl-label", cm("a"), `{"metadata":{"labels":{"x":"y"}}}`) // comes after it
	wait(t, notified)
	b.quiet(set)

	// A deployment that makes no progress wakes the loop when that changes.
	stuck := b.set(strings.Replace(drifting, "metadata: {labels: {app: web}}", "metadata: {labels: {app: web}, annotations: {devcluster.gitopsd.dev/fail: image}}", 1))
	b.pass(t.Context(), stuck)
	p := b.plan(stuck, apply.PlanOptions{})
	eventually(t, "the deployment is not ready", func(ctx context.Context) bool {
		health, err := b.applier.Health(ctx, p)
		return err == nil && len(health) == 1 && health[0].State == apply.InProgress
	})
	b.pass(t.Context(), set)
	wait(t, notified)
	b.quiet(set)
}

// flaky breaks connections of watches, or answers them with an error.
type flaky struct {
	next    http.RoundTripper
	expired atomic.Bool

	mu   sync.Mutex
	open map[context.Context]context.CancelFunc
}

func (f *flaky) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Query().Get("watch") == "" {
		return f.next.RoundTrip(req)
	}
	if f.expired.Load() {
		// What an API server answers that does not remember the version.
		const gone = `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too old resource version: 1 (2)","reason":"Expired","code":410}}` + "\n"
		return &http.Response{StatusCode: http.StatusOK, Request: req, Body: io.NopCloser(strings.NewReader(gone))}, nil
	}
	ctx, cancel := context.WithCancel(req.Context())
	f.mu.Lock()
	f.open[ctx] = cancel
	f.mu.Unlock()
	return f.next.RoundTrip(req.WithContext(ctx))
}

func (f *flaky) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for ctx, cancel := range f.open {
		cancel()
		delete(f.open, ctx)
	}
}

// A watch that breaks goes on where it was; one that cannot costs one list.
func TestFollowBreaks(t *testing.T) {
	b := newBed(t)
	f := &flaky{open: make(map[context.Context]context.CancelFunc)}
	b.cluster = b.connect(b.name, func(next http.RoundTripper) http.RoundTripper {
		f.next = b.requests.wrap(next)
		return f
	})
	b.restart()
	set := b.set(two)
	notified := b.followed(set)

	f.cut()
	b.edit("kubectl-edit", cm("a"), `{"data":{"color":"red"}}`)
	b.want("steps", b.stepsAfter(notified, set), "configure configmap/$NAME/a drift: data.color changed by kubectl-edit")
	b.quiet(set)

	f.expired.Store(true)
	f.cut()
	b.requests.take()
	eventually(t, "both kinds are listed again", func(ctx context.Context) bool {
		return b.pass(ctx, set) == 0 && b.sent("GET /api/v1/configmaps") && b.sent("GET /api/v1/namespaces")
	})
	f.expired.Store(false)
	for _, r := range b.withoutWatches() {
		if !strings.HasPrefix(r, "GET ") {
			t.Errorf("%s was sent", r)
		}
	}
	b.quiet(set)
}

// A type that goes away and comes back is followed all the same.
func TestFollowVanishedType(t *testing.T) {
	b := newBed(t)
	set := b.set(everything)
	notified := b.followed(set)
	b.delete(strings.Split(everything, "---")[6])
	wait(t, notified)
	b.quiet(set)
	if b.get("{apiVersion: $NAME.example.org/v1, kind: Widget, metadata: {name: one}}") == nil {
		t.Error("the object did not come back")
	}
	less := b.set(strings.Join(strings.Split(everything, "---")[:6], "---"))
	b.pass(t.Context(), less)
	b.quiet(less)
	eventually(t, "the type is gone", func(ctx context.Context) bool {
		b.cluster.Forget(b.name + ".example.org")
		_, err := b.cluster.Type(ctx, b.name+".example.org/v1", "Widget")
		return kube.ClassOf(err) == kube.NoSuchType
	})
}
