package namespaces

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"gitopsd.dev/reconcile/etcd/identity"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/render/etcd"
	"gitopsd.dev/render/manifest"
)

// The types of conditions.
const (
	provisionedCondition  = etcd.ProvisionedCondition
	certificatesCondition = "CertificatesReady"
	servedCondition       = "Served" // by the daemon
	readyCondition        = "Ready"
)

// condition is a condition of an object.
type condition struct {
	kind            string
	ok              bool
	reason, message string
	since           time.Time // when ok last changed
}

// state is the wanted status of an object.
type state struct {
	address, prefix string
	// counted reports whether keys is known, and sized whether bytes is. used is the part of the
	// quota that bytes is; empty without a quota.
	counted, sized bool
	keys, bytes    int64
	used           string
	certificates   []certificate
	conditions     []condition
}

// certificate is a client certificate in a Secret.
type certificate struct {
	secret  string
	expires time.Time
}

// shown is the status of an object, for a generation.
type shown struct {
	state
	generation int64
}

func (s *state) set(kind string, ok bool, reason, message string) {
	s.conditions = append(s.conditions, condition{kind: kind, ok: ok, reason: reason, message: message})
}

// certify sets the certificates of a declaration, and their condition. If tell is false, writes that failed
// are not in the condition: many failures pass.
func (s *state) certify(d *etcd.Declaration, kept identity.Kept, tell bool) {
	problems := slices.Clone(kept.Problems)
	if tell {
		for _, err := range kept.Refused {
			problems = append(problems, problem.Message(err))
		}
	}
	told := append(problems, kept.Notes...)
	ok := kept.Ready && len(problems) == 0
	reason := available
	if !ok {
		reason = certificatesMissing
		if len(told) == 0 {
			told = []string{"not all certificates are there yet"}
		}
	}
	s.set(certificatesCondition, ok, reason, strings.Join(told, "; "))
	for _, c := range d.Certificates {
		if expires, ok := kept.Expires[manifest.Secret.ID(d.Namespace, c.Secret)]; ok {
			s.certificates = append(s.certificates, certificate{c.Secret, expires.UTC().Truncate(time.Second)})
		}
	}
	slices.SortFunc(s.certificates, func(a, b certificate) int { return strings.Compare(a.secret, b.secret) })
}

// conclude sets the condition Ready from the others.
func (s *state) conclude() {
	for _, c := range s.conditions {
		if !c.ok {
			s.set(readyCondition, false, c.reason, c.message)
			return
		}
	}
	s.set(readyCondition, true, available, "it is served at "+s.address)
}

// trouble says why an object cannot be used; empty if it can.
func (s *shown) trouble() string {
	for _, c := range s.conditions {
		if c.kind == readyCondition && !c.ok {
			return c.message
		}
	}
	return ""
}

// show writes the status of an object if it has changed.
func (p *pass) show(ctx context.Context, t *task, s *state) error {
	id := t.object()
	if t.known.shown == nil {
		tree, meta, err := p.Client.Get(ctx, namespaceType, id)
		switch {
		case kube.ClassOf(err) == kube.NotFound:
			return nil // the watch is about to report that
		case err != nil:
			return err
		case meta.UID != t.meta.UID:
			return nil
		}
		t.known.shown = readShown(tree)
	}
	for i := range s.conditions {
		c := &s.conditions[i]
		c.since = p.now.UTC().Truncate(time.Second)
		for _, before := range t.known.shown.conditions {
			if before.kind == c.kind && before.ok == c.ok && !before.since.IsZero() {
				c.since = before.since
			}
		}
	}
	next := &shown{state: *s, generation: t.meta.Generation}
	if reflect.DeepEqual(next, t.known.shown) {
		return nil
	}
	body, err := json.Marshal(map[string]any{
		"apiVersion": namespaceType.APIVersion(), "kind": id.Kind,
		"metadata": map[string]any{"name": id.Name, "namespace": id.Namespace, "uid": t.meta.UID},
		"status":   next.tree(),
	})
	if err != nil {
		return err
	}
	// Nobody else owns the status.
	_, err = p.Client.Apply(ctx, namespaceType, id, body, kube.ApplyOptions{Status: true, Force: true})
	if kube.IsStale(err) { // it was deleted, or another has its name
		return nil
	}
	if err != nil {
		return err
	}
	if before, now := t.known.shown.trouble(), next.trouble(); before != now {
		p.Log.Info("an etcd namespace has another condition", "namespace", p.id(t).String(), "ready", now == "", "message", now)
	}
	t.known.shown = next
	return nil
}

func (s *shown) tree() map[string]any {
	var conditions []any
	for _, c := range s.conditions {
		entry := manifest.NewCondition(c.kind, c.ok, c.reason, c.message, c.since.Format(time.RFC3339))
		entry["observedGeneration"] = s.generation
		conditions = append(conditions, entry)
	}
	tree := map[string]any{"conditions": conditions, "observedGeneration": s.generation}
	if s.address != "" {
		tree["address"] = s.address
	}
	if s.prefix != "" {
		tree["prefix"] = s.prefix
	}
	if s.counted {
		tree["keys"] = s.keys
	}
	if s.sized {
		tree["bytes"] = s.bytes
	}
	if s.used != "" {
		tree["used"] = s.used
	}
	var certificates []any
	for _, c := range s.certificates {
		certificates = append(certificates, map[string]any{"secret": c.secret, "notAfter": c.expires.Format(time.RFC3339)})
	}
	if certificates != nil {
		tree["clientCertificates"] = certificates
	}
	return tree
}

// used returns the used part of a quota, such as "3%". It is rounded up, so that only an empty namespace
// has 0%.
func used(n, quota int64) string {
	return fmt.Sprintf("%.0f%%", math.Ceil(float64(n)/float64(quota)*100))
}

// readShown parses the status of an object.
func readShown(tree map[string]any) *shown {
	status := manifest.Mapping(tree, "status")
	s := &shown{state: state{address: manifest.Text(status, "address"), prefix: manifest.Text(status, "prefix")}}
	s.generation, _ = status["observedGeneration"].(int64)
	s.keys, s.counted = status["keys"].(int64)
	s.bytes, s.sized = status["bytes"].(int64)
	s.used = manifest.Text(status, "used")
	for _, item := range manifest.List(status, "clientCertificates") {
		c, _ := item.(map[string]any)
		expires, _ := time.Parse(time.RFC3339, manifest.Text(c, "notAfter"))
		s.certificates = append(s.certificates, certificate{manifest.Text(c, "secret"), expires})
	}
	for _, item := range manifest.List(status, "conditions") {
		c, _ := item.(map[string]any)
		since, _ := time.Parse(time.RFC3339, manifest.Text(c, "lastTransitionTime"))
		s.conditions = append(s.conditions, condition{
			kind: manifest.Text(c, "type"), ok: manifest.Text(c, "status") == "True",
			reason: manifest.Text(c, "reason"), message: manifest.Text(c, "message"), since: since,
		})
	}
	return s
}
