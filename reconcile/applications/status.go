package applications

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"time"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/application"
	"gitopsd.dev/render/manifest"
)

// The states of an application, and of its resources, as in Crossplane.
const (
	// pending: it has no target yet.
	pending = "Pending"
	// scheduled: it has a target, and nothing is submitted.
	scheduled = "Scheduled"
	// partiallySubmitted and submitted: some or all resources are in the target's cluster
	// as they are declared.
	partiallySubmitted = "PartiallySubmitted"
	submitted          = "Submitted"
	// failed: it cannot be read, its target is gone, or no resource is submitted and one is
	// refused.
	failed = "Failed"
	// deleting: its objects are being deleted.
	deleting = "Deleting"
)

// The types of conditions.
const (
	placedCondition = "Placed"
	syncedCondition = "Synced"
	readyCondition  = "Ready"
	// leftCondition exists only while objects may be left in a cluster that no target of the
	// application leads to any more.
	leftCondition = "LeftBehind"
	// missingCondition exists only while the target does not exist, and has the time since
	// when the status says that its objects stay. Synced may be False for longer.
	missingCondition = targetMissing
)

// Bounds of messages: of a condition, of a resource, and of all resources together. A status
// that is too large could not be written.
const (
	mostMessage  = 4 << 10
	mostReason   = 1 << 10
	mostMessages = 64 << 10
)

// state is an application's status.
type state struct {
	// observed is the generation of the application that the rest is about.
	observed int64

	state string
	// site is where the application runs, and left are former places that still have
	// objects of it.
	site
	left []site
	// lost are the UIDs of clusters that still have objects of it and are not connected any
	// more: the connection was replaced by another cluster's, or the target is gone.
	lost        []string
	rescheduled string
	// desired and submitted count resources.
	desired, submitted int
	conditions         []condition
	resources          []resource
}

// site is a target, and the cluster that it led to.
type site struct {
	target  string
	cluster identity
}

type condition struct {
	kind, reason, message, since string
	true                         bool
}

// resource is the state of one resource of an application.
type resource struct {
	name string
	// id and apiVersion are those of its object in the target's cluster.
	id         manifest.ID
	apiVersion string
	state      string
	message    string
	// remote is the object's status there; nil if it has none.
	remote map[string]any
}

// readState reads a status as tree wrote it. Anything else is left out.
func readState(tree map[string]any) *state {
	s := &state{state: manifest.Text(tree, "state"), rescheduled: manifest.Text(tree, "rescheduled")}
	s.site = site{manifest.Text(tree, "targetRef", "name"), readIdentity(tree)}
	for _, item := range manifest.List(tree, "leftClusters") {
		if id, _ := item.(string); id != "" {
			s.lost = append(s.lost, id)
		}
	}
	s.observed, _ = tree["observedGeneration"].(int64)
	count := func(field string) int {
		n, _ := tree[field].(int64)
		return int(n)
	}
	s.desired, s.submitted = count("desiredResources"), count("submittedResources")
	for _, item := range manifest.List(tree, "leftTargetRefs") {
		if m, _ := item.(map[string]any); manifest.Text(m, "name") != "" {
			s.left = append(s.left, site{manifest.Text(m, "name"), readIdentity(m)})
		}
	}
	for _, item := range manifest.List(tree, "conditions") {
		m, _ := item.(map[string]any)
		s.conditions = append(s.conditions, condition{
			kind: manifest.Text(m, "type"), reason: manifest.Text(m, "reason"), message: manifest.Text(m, "message"),
			since: manifest.Text(m, "lastTransitionTime"), true: manifest.Text(m, "status") == "True",
		})
	}
	for _, item := range manifest.List(tree, "resources") {
		m, _ := item.(map[string]any)
		group, _ := manifest.GroupVersion(manifest.Text(m, "apiVersion"))
		s.resources = append(s.resources, resource{
			name: manifest.Text(m, "name"), state: manifest.Text(m, "state"), message: manifest.Text(m, "message"), apiVersion: manifest.Text(m, "apiVersion"),
			id:     manifest.ID{Group: group, Kind: manifest.Text(m, "kind"), Namespace: manifest.Text(m, "remoteNamespace"), Name: manifest.Text(m, "remoteName")},
			remote: manifest.Mapping(m, "remote"),
		})
	}
	return s
}

// next returns a copy of the state for an attempt at an application.
func (s *state) next(app *application.Application) *state {
	n := *s
	n.left, n.lost, n.conditions = slices.Clone(s.left), slices.Clone(s.lost), slices.Clone(s.conditions)
	n.desired = len(app.Resources)
	return &n
}

// places returns the places that may have objects of the application, by different targets.
func (s *state) places() []site {
	places := slices.Clone(s.left)
	if s.target != "" && s.leaving(s.target) < 0 {
		places = append(places, s.site)
	}
	return places
}

// targets returns the targets of its places.
func (s *state) targets() []string {
	var names []string
	for _, p := range s.places() {
		names = append(names, p.target)
	}
	return names
}

// add adds a target whose cluster may have objects of the application, and reports whether it
// was missing.
func (s *state) add(target string) bool {
	switch {
	case target == "" || slices.Contains(s.targets(), target):
		return false
	case s.target == "":
		s.target = target
	default:
		s.left = append(s.left, site{target: target})
	}
	return true
}

// leaving returns the index of a target among those that are left; negative if it is not.
func (s *state) leaving(target string) int {
	return slices.IndexFunc(s.left, func(p site) bool { return p.target == target })
}

// clip shortens a text for people.
func clip(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + " …"
}

// set sets a condition. Its time stays while its status does.
func (s *state) set(kind string, holds bool, reason, message string) {
	c := condition{kind: kind, reason: reason, message: clip(message, mostMessage), true: holds, since: time.Now().UTC().Format(time.RFC3339)}
	i := s.index(kind)
	if i < 0 {
		s.conditions = append(s.conditions, c)
		return
	}
	if before := s.conditions[i]; before.true == holds && before.since != "" {
		c.since = before.since
	}
	s.conditions[i] = c
}

// unset removes a condition.
func (s *state) unset(kind string) {
	s.conditions = slices.DeleteFunc(s.conditions, func(c condition) bool { return c.kind == kind })
}

func (s *state) index(kind string) int {
	return slices.IndexFunc(s.conditions, func(c condition) bool { return c.kind == kind })
}

// condition returns a condition; zero if there is none.
func (s *state) condition(kind string) condition {
	if i := s.index(kind); i >= 0 {
		return s.conditions[i]
	}
	return condition{}
}

// resource returns the state of a resource.
func (s *state) resource(name string) resource {
	i := slices.IndexFunc(s.resources, func(r resource) bool { return r.name == name })
	if i < 0 {
		return resource{name: name, state: scheduled}
	}
	return s.resources[i]
}

// count sets the state and the counts from those of the resources.
func (s *state) count() {
	s.submitted = 0
	refused := false
	for _, r := range s.resources {
		switch r.state {
		case submitted:
			s.submitted++
		case failed:
			refused = true
		}
	}
	switch {
	case s.submitted == s.desired:
		s.state = submitted
	case s.submitted > 0:
		s.state = partiallySubmitted
	case refused:
		s.state = failed
	default:
		s.state = scheduled
	}
}

// miss sets the state without a target: the objects stay where they are, and no longer count as
// submitted.
func (s *state) miss() {
	s.resources = slices.Clone(s.resources) // the earlier state has them, too
	for i := range s.resources {
		r := &s.resources[i]
		r.state, r.message, r.remote = failed, "its target does not exist", nil
	}
	s.count()
}

// set sets a field that is not empty.
func set(m map[string]any, key, value string) {
	if value != "" {
		m[key] = value
	}
}

// tree returns the status as it is written.
func (s *state) tree() map[string]any {
	tree := map[string]any{"state": s.state, "desiredResources": int64(s.desired), "submittedResources": int64(s.submitted)}
	if s.target != "" {
		tree["targetRef"] = map[string]any{"name": s.target}
	}
	if s.observed != 0 {
		tree["observedGeneration"] = s.observed
	}
	set(tree, "rescheduled", s.rescheduled)
	s.cluster.write(tree)
	var left, lost, conditions, resources []any
	for _, id := range s.lost {
		lost = append(lost, id)
	}
	for _, p := range s.left {
		m := map[string]any{"name": p.target}
		p.cluster.write(m)
		left = append(left, m)
	}
	for _, c := range s.conditions {
		conditions = append(conditions, manifest.NewCondition(c.kind, c.true, c.reason, c.message, c.since))
	}
	total := 0
	for _, r := range s.resources {
		m := map[string]any{"name": r.name, "state": r.state}
		if total += len(r.message); total <= mostMessages {
			set(m, "message", r.message)
		}
		set(m, "apiVersion", r.apiVersion)
		set(m, "kind", r.id.Kind)
		set(m, "remoteNamespace", r.id.Namespace)
		set(m, "remoteName", r.id.Name)
		if r.remote != nil {
			m["remote"] = r.remote
		}
		resources = append(resources, m)
	}
	for key, list := range map[string][]any{"leftTargetRefs": left, "leftClusters": lost, "conditions": conditions, "resources": resources} {
		if len(list) > 0 {
			tree[key] = list
		}
	}
	return tree
}

// publish writes the status if it has changed, or somebody wrote to the application.
func (w *worker) publish(ctx context.Context, s *state) error {
	before, now := manifest.AppendJSON(nil, w.status.tree()), manifest.AppendJSON(nil, s.tree())
	w.mu.Lock()
	written := w.written()
	w.mu.Unlock()
	if bytes.Equal(before, now) && !written {
		w.stands(s, w.version)
		return nil
	}
	t, err := w.home.Kind(ctx, w.app.Group, w.app.Kind)
	if err != nil {
		return err
	}
	body := manifest.AppendJSON(nil, map[string]any{
		"apiVersion": t.APIVersion(), "kind": w.app.Kind, "status": s.tree(),
		"metadata": map[string]any{"namespace": w.app.Namespace, "name": w.app.Name, "uid": w.uid}, // not of another application of the name
	})
	answer, err := w.home.Apply(ctx, t, w.app, body, kube.ApplyOptions{Force: true, Status: true})
	if err != nil {
		return err
	}
	w.stands(s, answer.Meta.ResourceVersion)
	return nil
}

// stands notes the status that the application has now, at a resourceVersion.
func (w *worker) stands(s *state, version string) {
	w.status = s
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at, w.version = s.targets(), version
}
