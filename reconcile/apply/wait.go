package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/webhook"
)

// How long a pass waits for the needs of a later stage. After that it reports the stage's
// objects as pending, and the next pass continues.
const (
	servedWait  = 30 * time.Second // for the next of the new types to be served; a second is usual
	backendWait = 15 * time.Second // until all servers of webhooks and all successors are ready
	pollFirst   = 50 * time.Millisecond
	pollLongest = time.Second

	// An API server takes some milliseconds to establish a CRD, and answers every
	// discovery request with all types of the group.
	pollEachType = 2 * time.Millisecond
	// That answer is built again whenever a CRD is added. So the next request for
	// hundreds of CRDs waits as long as their pace suggests: at most this long for
	// each of them, and for all.
	pollEachPaced = 100 * time.Millisecond
	pollPaced     = 20 * time.Second
	// If nothing new was served for this long, the conditions of a few CRDs are
	// read.
	servedStall = 2 * time.Second
)

// awaitServed waits until the types of the CRDs that were applied since begun are
// established and served. A CRD that is rejected fails with the reason in its conditions.
func (x *execution) awaitServed(ctx context.Context, applied []*Result, begun time.Time) error {
	waiting := make(map[schema.GroupVersionResource]*Result)
	groups := make(map[string]bool)
	for _, r := range applied {
		if r.Outcome == Done && r.Step.ID.Is(manifest.CRD) {
			// A CRD's name is <plural>.<group>.
			resource, group, _ := strings.Cut(r.Step.ID.Name, ".")
			groups[group] = true
			for _, gvk := range plan.Defines(r.Step.Object) {
				waiting[schema.GroupVersionResource{Group: group, Version: gvk.Version, Resource: resource}] = r
			}
		}
	}
	ctx = kube.Waiting(ctx)
	etag := ""
	progress := time.Now()
	all := len(waiting)
	first := min(max(pollFirst, time.Duration(all)*pollEachType), 2*pollLongest)
	for wait := first; len(waiting) > 0 && time.Since(progress) < servedWait; {
		if err := kube.Sleep(ctx, wait); err != nil {
			return err
		}
		served, tag, err := x.cluster.Served(ctx, groups, etag)
		if kube.IsClusterWide(err) {
			return err
		}
		if err != nil {
			x.log.Debug("what is served cannot be read", "error", err)
		}
		etag = tag
		before := len(waiting)
		for gvr := range served {
			delete(waiting, gvr)
		}
		if len(waiting) < before {
			progress = time.Now()
			each := min(progress.Sub(begun)/time.Duration(all-len(waiting)), pollEachPaced)
			wait = min(max(first, time.Duration(len(waiting))*each), pollPaced)
			continue
		}
		wait = min(2*wait, 2*pollLongest)
		if time.Since(progress) > servedStall {
			if err := x.rejected(ctx, waiting); err != nil {
				return err
			}
		}
	}
	for gvr, r := range waiting {
		r.Outcome, r.Reason = Pending, fmt.Sprintf("version %s is not served after %s", gvr.Version, servedWait)
	}
	return nil
}

// rejected reads some of the CRDs that are not served. Those that the API server
// will not establish fail, and are not waited for any more.
func (x *execution) rejected(ctx context.Context, waiting map[schema.GroupVersionResource]*Result) error {
	const most = 10
	asked := make(map[*Result]bool)
	for gvr, r := range waiting {
		if r.Outcome == Failed {
			delete(waiting, gvr)
			continue
		}
		if asked[r] || len(asked) == most {
			continue
		}
		asked[r] = true
		switch tree, _, err := x.getLive(ctx, r.Step.Object); {
		case kube.IsClusterWide(err):
			return err
		case err != nil:
			r.Outcome, r.Err = Failed, err
		default:
			if why := refusal(tree); why != "" {
				r.Outcome, r.Err = Failed, errors.New(why)
			}
		}
		if r.Outcome == Failed {
			delete(waiting, gvr)
		}
	}
	return nil
}

// refusal reads from a CRD's conditions why it is not established; "" if it only
// needs time. The conditions are defined in
// k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1.
func refusal(crd map[string]any) string {
	var reasons []string
	for _, c := range manifest.List(crd, "status", "conditions") {
		condition, _ := c.(map[string]any)
		kind, state := condition["type"], condition["status"]
		if kind == "NamesAccepted" && state == "False" || kind == "NonStructuralSchema" && state == "True" ||
			kind == "KubernetesAPIApprovalPolicyConformant" && state == "False" {
			reasons = append(reasons, fmt.Sprintf("%v is %v: %v", kind, state, condition["message"]))
		}
	}
	return strings.Join(reasons, "; ")
}

// endpointSlices list the ready endpoints of Services; API servers have them in v1
// since Kubernetes 1.21.
var endpointSlices = kube.Type{
	Group: manifest.GroupDiscovery, Version: "v1", Kind: "EndpointSlice", Resource: "endpointslices", Namespaced: true,
}

// awaitBackends waits until the backend of an admission object is ready: the plan's
// workloads behind every Service that it names, and an endpoint of each. After a while it
// returns why it still waits. Webhooks with a URL, policies that the API server runs
// itself, and objects that cause no further requests need no wait.
func (x *execution) awaitBackends(ctx context.Context, s *plan.Step) (string, error) {
	if len(webhook.Services(s.Object.Tree())) == 0 {
		return "", nil
	}
	if registers, err := x.registers(kube.Waiting(ctx), s); err != nil || !registers {
		return "", err
	}
	why, err := x.awaitServices(ctx, s)
	if why != "" {
		why = "waits for " + why
	}
	return why, err
}

// awaitServices waits until the Services that a step's object names are served. After a while
// it returns the part that it still waits for, and why.
func (x *execution) awaitServices(ctx context.Context, s *plan.Step) (string, error) {
	ctx = kube.Waiting(ctx)
	for _, service := range webhook.Services(s.Object.Tree()) {
		for wait := pollFirst; ; wait = min(2*wait, pollLongest) {
			what, why, err := x.unserved(ctx, service)
			if err != nil {
				return "", err
			}
			if what == "" {
				break
			}
			if x.backends.over(time.Now(), backendWait) {
				return fmt.Sprintf("%s, which is to serve it%s", what, why), nil
			}
			if err := kube.Sleep(ctx, wait); err != nil {
				return "", err
			}
		}
	}
	return "", nil
}

// unguarded returns why a new object waits for a new webhook configuration that matches
// it; "" if it does not. For a configuration that was registered in this run, it waits
// until API servers know of it. A configuration that nothing would serve is not waited for.
func (x *execution) unguarded(ctx context.Context, s *plan.Step) (string, error) {
	for i := range x.results {
		// Only those of an earlier stage, which no other goroutine writes any more.
		r := &x.results[i]
		if !r.Step.ID.Is(manifest.Webhooks...) || r.Step.Object == nil || r.Step.UID != "" {
			continue
		}
		waits := r.Outcome != Done && (r.Step.Action.Writes() || r.Step.Action == plan.Conflict || r.Step.Action == plan.Refused) || x.awaited(r.Step)
		if !waits && r.Outcome != Done {
			continue
		}
		t, err := x.cluster.Type(ctx, s.Object.APIVersion(), s.ID.Kind)
		if err != nil || !plan.Guards(r.Step.Object.Tree(), schema.GroupResource{Group: t.Group, Resource: t.Resource}) {
			continue
		}
		if waits {
			return fmt.Sprintf("waits for %s, which is to see it: %s", r.Step.ID, x.because(r)), nil
		}
		for !x.hooks.over(time.Now(), registerWait) {
			if err := kube.Sleep(ctx, pollFirst); err != nil {
				return "", err
			}
		}
	}
	return "", nil
}

// registerWait is how long API servers, which watch the configurations, may take to call
// a new webhook.
const registerWait = 2 * time.Second

// cutoff ends the wait of several goroutines some time after the first of them begins to
// wait.
type cutoff struct {
	once sync.Once
	at   time.Time
}

// over reports whether the wait has ended.
func (c *cutoff) over(now time.Time, after time.Duration) bool {
	c.once.Do(func() { c.at = now.Add(after) })
	return now.After(c.at)
}

// registers reports whether a step makes the API server send further requests.
func (x *execution) registers(ctx context.Context, s *plan.Step) (bool, error) {
	if s.UID == "" {
		return true, nil
	}
	live, _, err := x.getLive(ctx, s.Object)
	if kube.ClassOf(err) == kube.NotFound {
		return true, nil
	}
	return err == nil && plan.Registers(live, s.Object.Tree()), err
}

// unserved returns the part of a Service's backend that is not ready, and why; "" if all
// is ready.
func (x *execution) unserved(ctx context.Context, service manifest.ID) (what, why string, err error) {
	servers, _ := webhook.Servers(x.desired, service)
	for _, o := range servers {
		if why, err := x.unavailable(ctx, o); err != nil || why != "" {
			return o.ID().String(), ": " + why, err
		}
	}
	ready, err := x.ready(ctx, service)
	if err != nil || ready {
		return "", "", err
	}
	return fmt.Sprintf("a ready endpoint of Service %s/%s", service.Namespace, service.Name), "", nil
}

// unavailable returns why a workload is not ready in its newest generation; "" if it is.
// While it is being replaced, endpoints of the old pods may still be listed.
func (x *execution) unavailable(ctx context.Context, o *manifest.Object) (string, error) {
	id := o.ID()
	for i := range x.results {
		// Only those of workloads, which no other goroutine writes any more.
		r := &x.results[i]
		switch {
		case r.Step.ID != id:
		case r.Step.Action.Writes() && r.Outcome != Done, r.Step.Action == plan.Conflict, r.Step.Action == plan.Refused,
			r.Step.Action == plan.Wait, r.Step.Action == plan.Held && !r.Step.Drift: // what runs is not what is desired
			return x.because(r), nil
		case r.Step.Rollback.Done: // what runs may not have the new webhooks
			return "it is rolled back: " + r.Step.Rollback.Why, nil
		}
	}
	tree, _, err := x.getLive(ctx, o)
	switch {
	case kube.IsMissing(err):
		return "it is not there", nil
	case err != nil:
		return "", err
	}
	h := Health{ID: id}
	assess(&h, &unstructured.Unstructured{Object: tree}, nil, nil, &x.plan.Gating, time.Now())
	if h.State == ReadyState {
		return "", nil
	}
	return h.Reason, nil
}

func (x *execution) ready(ctx context.Context, service manifest.ID) (bool, error) {
	ready := false
	opts := kube.ListOptions{Namespace: service.Namespace, Selector: "kubernetes.io/service-name=" + service.Name}
	err := x.cluster.ListFull(ctx, endpointSlices, opts, func(slice map[string]any) bool {
		ready = slices.ContainsFunc(manifest.List(slice, "endpoints"), func(e any) bool {
			endpoint, _ := e.(map[string]any)
			// Unknown counts as ready (discovery/v1, EndpointConditions).
			return manifest.Mapping(endpoint, "conditions")["ready"] != false
		})
		return !ready
	})
	return ready, err
}
