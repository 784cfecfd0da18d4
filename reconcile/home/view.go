package home

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/runtime"
	"gitopsd.dev/sources/clusters"
)

// Fleet is the controllers' view of the fleet.
type Fleet struct {
	// Registry is clusters.yaml at the commit of the home's own unit. While Registry.Faulty
	// is set, a missing cluster or entry may still be wanted: see
	// [clusters.Registry.Removed].
	Registry *clusters.Registry
	// Before has clusters by name as they were registered last, while Registry.Faulty is set. One
	// that Registry lacks may have an error in its document.
	Before map[string]clusters.Cluster
	// Unknown reports whether the home does not get the commit that Registry is from, or that
	// it is from an earlier process. Then a controller may go on with what it finds, and
	// neither grants nor withdraws anything; Objects are nil.
	Unknown bool
	// Objects are the desired objects of the home's own unit; nil if they are not known.
	// Keeps reports whether another object may still be wanted; may be nil.
	Objects *manifest.Set
	Keeps   func(id manifest.ID, pkg string) bool
	// State returns the state of a registered cluster, by name, and why it is not Ready.
	State func(cluster string) (phase status.Phase, message string)
}

// View is the input of one call of a controller. It is valid until the call returns.
type View struct {
	// Cluster is the registered name of the home.
	Cluster string
	// Client talks to the home.
	Client *kube.Client
	// Fleet is the fleet as last [Home.Set].
	Fleet Fleet
	// Log gets what was done.
	Log *slog.Logger

	home     *Home
	problems []problem.Problem
}

// Reserves reports whether a namespace holds credentials of gitopsd's own: controllers
// ignore targets and applications in it, and copy no Secret from it.
func (v *View) Reserves(namespace string) bool {
	return namespace == runtime.Namespace || v.home != nil && namespace != "" && namespace == v.home.cfg.Reserved
}

// mostProblems bounds the problems that one call reports. The namespaces share it.
const mostProblems = 50

// view returns the current View of a controller.
func (h *Home) view(l *loop) *View {
	h.mu.Lock()
	defer h.mu.Unlock()
	return &View{Cluster: h.cfg.Client.Name(), Client: h.cfg.Client, Fleet: h.fleet, Log: h.cfg.Log.With("controller", l.Name()), home: h}
}

// Report reports a problem to people until the next call. It adds the cluster's name if the
// problem has none.
func (v *View) Report(p problem.Problem) {
	p.Cluster = cmp.Or(p.Cluster, v.Cluster)
	v.problems = append(v.problems, p)
}

// ReportOn reports a problem of an object, as Report does. If the repository does not have the
// object, the problem is its owner's, and not one of the cluster.
func (v *View) ReportOn(id manifest.ID, p problem.Problem) {
	p.Object = id.String()
	f := &v.Fleet
	if p.Outside = f.Objects != nil && f.Objects.Get(id) == nil && (f.Keeps == nil || !f.Keeps(id, "")); p.Outside {
		p.Origin = "not in the repository"
	}
	v.Report(p)
}

// bounded returns problems sorted, and at most an equal share of mostProblems for each namespace,
// those of the repository first: no team may hide the problems of another.
func bounded(cluster string, all []problem.Problem) []problem.Problem {
	byNamespace := make(map[string][]problem.Problem)
	for _, p := range all {
		byNamespace[namespaceOf(p)] = append(byNamespace[namespaceOf(p)], p)
	}
	share := max(mostProblems/max(len(byNamespace), 1), 1)
	var told []problem.Problem
	left, outside := 0, true // those that are left
	for i, namespace := range slices.Sorted(maps.Keys(byNamespace)) {
		list := byNamespace[namespace]
		if i >= mostProblems {
			left += len(list)
			outside = outside && !slices.ContainsFunc(list, func(p problem.Problem) bool { return !p.Outside })
			continue
		}
		slices.SortFunc(list, func(a, b problem.Problem) int {
			switch {
			case a.Outside == b.Outside:
				return cmp.Or(strings.Compare(a.Object, b.Object), strings.Compare(a.Reason, b.Reason))
			case b.Outside:
				return -1
			}
			return 1
		})
		told = append(told, list[:min(len(list), share)]...)
		if more := len(list) - share; more > 0 {
			p := problem.Problem{Cluster: cluster, Reason: fmt.Sprintf("… and %d more", more), Outside: list[share].Outside}
			if namespace != "" {
				p.Reason += " in namespace " + namespace
			}
			told = append(told, p)
		}
	}
	if left > 0 {
		told = append(told, problem.Problem{Cluster: cluster, Reason: fmt.Sprintf("… and %d more in %d other namespaces", left, len(byNamespace)-mostProblems), Outside: outside})
	}
	return told
}

// namespaceOf returns the namespace of a problem's object; empty if it has none.
func namespaceOf(p problem.Problem) string {
	if parts := strings.Split(p.Object, "/"); len(parts) == 3 { // see [manifest.ID]
		return parts[1]
	}
	return ""
}

// errNotListed is for a kind that no controller follows.
var errNotListed = errors.New("the kind is not followed")

// Objects returns the metadata of the objects of a kind, sorted by namespace and name;
// read-only. The controller follows the kind. If the cluster does not serve the kind, and
// nothing there defines it, the error is of class [kube.NoSuchType]. After any other error nothing
// is known: an object that is missing may exist.
func (v *View) Objects(kind Kind) ([]*metav1.PartialObjectMetadata, error) {
	v.home.mu.Lock()
	defer v.home.mu.Unlock()
	l := v.home.listings[kind]
	if l == nil {
		return nil, errNotListed
	}
	if l.err != nil {
		return nil, l.err
	}
	return slices.SortedFunc(maps.Values(l.objects), func(a, b *metav1.PartialObjectMetadata) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	}), nil
}

// Object returns the metadata of one object, nil if there is none; read-only. Errors are
// those of [View.Objects].
func (v *View) Object(kind Kind, namespace, name string) (*metav1.PartialObjectMetadata, error) {
	v.home.mu.Lock()
	defer v.home.mu.Unlock()
	l := v.home.listings[kind]
	switch {
	case l == nil:
		return nil, errNotListed
	case l.err != nil:
		return nil, l.err
	}
	return l.objects[kind.ID(namespace, name)], nil
}

// listing is what is known of a kind; guarded by the Home's mutex.
type listing struct {
	// tried: the kind was listed, or could not be.
	tried   bool
	err     error
	objects map[manifest.ID]*metav1.PartialObjectMetadata
}
