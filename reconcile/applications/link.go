package applications

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/unit"
	"gitopsd.dev/render/application"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources/errgroup"
)

// link is a connection to the cluster of a target.
type link struct {
	*unit.Connection
	client *kube.Client
	// made identifies the target, the Secret's version and the ServiceAccount that it was
	// made from.
	made string
	// mirrored are copies of the statuses of remote objects.
	mirrored map[manifest.ID]copied
	// id is the cluster's identity if asked.
	id    identity
	asked bool
	// unfollow ends its Follow, and waits for that.
	unfollow func()
}

// connect returns the connection to a target. It makes a new one if the Secret was replaced or
// the cluster did not answer.
func (w *worker) connect(ctx context.Context, app *application.Application, t *target) (*link, error) {
	namespace := app.Namespace
	from := func(version string) string {
		return strings.Join([]string{t.uid, t.secret, version, app.ServiceAccount}, " ")
	}
	made := from(t.secretVersion)
	if l := w.links[t.name]; l != nil && l.made == made && !w.unreachable {
		return l, nil
	}
	var as *kube.ServiceAccount
	if app.ServiceAccount != "" {
		ns, name, _ := strings.Cut(app.ServiceAccount, "/")
		if ns == "" || name == "" { // do not act as the connection's user instead
			return nil, fmt.Errorf("spec.serviceAccount: %q is not namespace/name", app.ServiceAccount)
		}
		as = &kube.ServiceAccount{Namespace: ns, Name: name}
	}
	secret, meta, err := w.secret(ctx, namespace, t.secret)
	if err != nil {
		return nil, fmt.Errorf("the connection Secret of target %s: %w", t.name, err)
	}
	if meta.Labels[manifest.ClusterLabel] != "" {
		return nil, fmt.Errorf("the connection Secret %s of target %s: by its label %s it is the daemon's own", t.secret, t.name, manifest.ClusterLabel)
	}
	w.drop(t.name)
	client, err := w.cfg.Connect(namespace+"/"+t.name, secret, as)
	if err != nil {
		return nil, fmt.Errorf("the connection Secret %s of target %s: %s", t.secret, t.name, problem.Message(err))
	}
	conn, err := unit.New(unit.Config{Unit: w.id, Client: client, Fleet: w.cfg.Fleet, Completers: []unit.Completer{namespaces{}}, Log: w.log})
	if err != nil {
		return nil, err
	}
	l := &link{Connection: conn, client: client, made: from(meta.ResourceVersion), mirrored: make(map[manifest.ID]copied)}
	following, cancel := context.WithCancel(kube.Waiting(context.WithoutCancel(ctx))) // beyond this attempt
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer func() {
			if v := recover(); v != nil {
				p := errgroup.Recovered(v)
				w.log.Error(p.Error()+" in a watch; the daemon goes on", "stack", string(p.Stack))
			}
		}()
		conn.Follow(following, w.wake)
	}()
	l.unfollow = func() {
		cancel()
		<-ended
	}
	w.links[t.name] = l
	return l, nil
}

// drop ends the connection to a target, if there is one.
func (w *worker) drop(name string) {
	if l := w.links[name]; l != nil {
		l.unfollow()
		l.Close()
		delete(w.links, name)
	}
}

// disconnect ends all connections.
func (w *worker) disconnect() {
	for name := range w.links {
		w.drop(name)
	}
}

// identity has the UIDs of two objects that identify a cluster: its namespace kube-system,
// and the application's inventory there. One is empty if it does not exist, or if the account
// may not read it.
type identity struct{ system, inventory string }

// readIdentity reads an identity as write wrote it.
func readIdentity(tree map[string]any) identity {
	return identity{manifest.Text(tree, "cluster"), manifest.Text(tree, "inventory")}
}

func (id identity) write(tree map[string]any) {
	set(tree, "cluster", id.system)
	set(tree, "inventory", id.inventory)
}

// differs reports whether a connection leads to another cluster now. Inventories count if
// not both accounts may read kube-system.
func (id identity) differs(now identity) bool {
	if id.system != "" && now.system != "" {
		return id.system != now.system
	}
	return id.inventory != "" && id.inventory != now.inventory
}

// String returns the UID to name the cluster by.
func (id identity) String() string { return cmp.Or(id.system, id.inventory) }

// identity returns the identity of the link's cluster, if it is known.
func (l *link) identity(ctx context.Context) (id identity, known bool) {
	if !l.asked {
		system, err := systemOf(ctx, l.client)
		if err != nil && kube.ClassOf(err) != kube.Forbidden {
			return identity{}, false
		}
		inventory, err := l.Inventory(ctx)
		if err != nil {
			return identity{}, false
		}
		l.id, l.asked = identity{system, inventory}, true
	}
	return l.id, true
}

// recorded notes the inventory after something was applied, which may have made it.
func (l *link) recorded(ctx context.Context, s *state) {
	if inventory, err := l.Inventory(ctx); err == nil && inventory != "" {
		l.id.inventory, s.cluster.inventory = inventory, inventory
	}
}

// systemOf reads the UID of a cluster's namespace kube-system.
func systemOf(ctx context.Context, c *kube.Client) (string, error) {
	t, err := c.Type(ctx, "v1", manifest.Namespace.Kind)
	if err != nil {
		return "", err
	}
	meta, err := c.GetMetadata(ctx, t, manifest.Namespace.ID("", metav1.NamespaceSystem))
	if err != nil {
		return "", err
	}
	return string(meta.UID), nil
}

// recognise compares the identity of the target's cluster with the earlier one. If the
// connection was replaced by one to another cluster, the objects in the former cluster stay,
// and the status says so until the target leads there again.
func (w *worker) recognise(ctx context.Context, l *link, j *job, s *state) {
	now, known := l.identity(ctx)
	if !known {
		return
	}
	if s.cluster.differs(now) {
		w.log.Warn("the target leads to another cluster now; the application's objects in the former one stay", "target", s.target, "former UID", s.cluster)
		s.lose(s.cluster)
		s.cluster = now
	}
	s.cluster = identity{cmp.Or(now.system, s.cluster.system), cmp.Or(now.inventory, s.cluster.inventory)}
	s.tellLost(j)
}

// lose adds a cluster to those that are lost. Without an identity nothing was applied there.
func (s *state) lose(id identity) {
	if id != (identity{}) && !slices.Contains(s.lost, id.String()) {
		s.lost = append(s.lost, id.String())
	}
}

// tellLost sets the condition about lost clusters. The one where the application runs is not
// lost.
func (s *state) tellLost(j *job) {
	s.lost = slices.DeleteFunc(s.lost, func(uid string) bool { return uid == s.cluster.system || uid == s.cluster.inventory })
	s.lost = s.lost[max(0, len(s.lost)-mostLost):]
	if len(s.lost) == 0 {
		s.unset(leftCondition)
		return
	}
	s.set(leftCondition, true, "Disconnected", fmt.Sprintf("a target of the application is gone, or leads to another cluster than before. In the former cluster its objects stay, and nobody looks after them (the UID of the namespace kube-system there, or of the inventory: %s): delete there what has the annotation %s: %s, or connect the target to that cluster again",
		strings.Join(s.lost, ", "), manifest.ApplicationAnnotation, j.app))
}

// mostLost bounds the former clusters that a status names.
const mostLost = 10

// secret reads a Secret of the application's namespace in the home.
func (w *worker) secret(ctx context.Context, namespace, name string) (map[string]any, *metav1.PartialObjectMetadata, error) {
	if name == "" {
		return nil, nil, errors.New("there is none yet")
	}
	t, err := w.home.Type(ctx, "v1", manifest.Secret.Kind)
	if err != nil {
		return nil, nil, err
	}
	tree, meta, err := w.home.Get(ctx, t, manifest.Secret.ID(namespace, name))
	if kube.ClassOf(err) == kube.NotFound {
		return nil, nil, fmt.Errorf("%s does not exist", manifest.Secret.ID(namespace, name))
	}
	return tree, meta, err
}

// renew has the connection Secret written again, if gitopsd wrote it: its token is invalid
// once its account or its cluster was made anew. Without the annotation reconcile/target
// replaces its content, even if the cluster is not ready.
func (w *worker) renew(ctx context.Context, namespace string, t *target) error {
	id := manifest.Secret.ID(namespace, t.secret)
	secrets, err := w.home.Type(ctx, "v1", manifest.Secret.Kind)
	if err != nil {
		return err
	}
	meta, err := w.home.GetMetadata(ctx, secrets, id)
	switch {
	case kube.ClassOf(err) == kube.NotFound:
		return nil
	case err != nil:
		return err
	case meta.ResourceVersion != t.secretVersion || meta.Labels[manifest.ConnectionLabel] != "true" || meta.Annotations[manifest.ConnectionLabel] == "":
		return nil // it was replaced already, or gitopsd did not write it
	}
	w.log.Info("the connection is not accepted, and another is asked for", "target", t.name)
	err = w.home.Patch(ctx, secrets, id, map[string]any{"metadata": map[string]any{"annotations": map[string]any{manifest.ConnectionLabel: nil}}}, meta.ResourceVersion)
	if kube.ClassOf(err) == kube.Changed {
		return nil
	}
	return err
}

// namespaces is a [unit.Completer] that creates missing namespaces of objects, unless a
// template has them. They are in no inventory, and stay when the application goes, since
// others may use them.
type namespaces struct{}

// Complete implements [unit.Completer].
func (namespaces) Complete(ctx context.Context, r unit.Request) (unit.Completion, error) {
	// The result stands until something changes; see rest.
	done := unit.Completion{Relied: make(map[manifest.ID]string)}
	seen := make(map[string]bool)
	for _, o := range r.Objects.All() {
		name := o.ID().Namespace
		id := manifest.Namespace.ID("", name)
		if name == "" || seen[name] || r.Objects.Get(id) != nil {
			continue
		}
		// Charts print the field for cluster-wide objects, too.
		if kind, err := r.Client.Kind(ctx, o.ID().Group, o.ID().Kind); err == nil && !kind.Namespaced {
			continue
		}
		seen[name] = true
		t, err := r.Client.Type(ctx, "v1", manifest.Namespace.Kind)
		if err == nil {
			_, err = r.Client.GetMetadata(ctx, t, id)
		}
		switch class := kube.ClassOf(err); {
		case kube.IsClusterWide(err):
			return done, err
		case class != kube.NotFound: // it exists, or applying the objects fails with the reason
		case r.Preview:
			done.Notes = append(done.Notes, fmt.Sprintf("namespace %s does not exist, and is created", name))
		default:
			body := manifest.AppendJSON(nil, map[string]any{"apiVersion": "v1", "kind": manifest.Namespace.Kind, "metadata": map[string]any{"name": name}})
			if _, err := r.Client.Create(ctx, t, id, body); kube.IsClusterWide(err) {
				return done, err
			}
		}
	}
	return done, nil
}
