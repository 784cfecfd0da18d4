package applications

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/unit"
	"gitopsd.dev/render/application"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/target/placement"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/clusters"
)

// Preview is a [unit.Completer] for clusters with KubernetesApplications or KubernetesTargets
// among their manifests. For a plan, it notes where applications will be placed, also those from
// outside of the repository that its targets will get. It completes no object: the objects of an
// application are another unit of work.
type Preview struct{}

// Complete implements [unit.Completer].
func (Preview) Complete(ctx context.Context, r unit.Request) (unit.Completion, error) {
	done := unit.Completion{Relied: make(map[manifest.ID]string)}
	if !r.Preview {
		return done, nil
	}
	p := &preview{apps: make(map[manifest.ID]*application.Application), targets: make(map[manifest.ID]placement.Target), declared: make(map[manifest.ID]bool)}
	for _, o := range r.Objects.All() {
		switch {
		case o.ID().Is(manifest.Target):
			p.declared[o.ID()] = true
		case o.ID().Is(manifest.Application):
			p.apps[o.ID()], _ = application.Read(o.Tree()) // one with errors is not rendered
		}
	}
	if len(p.apps)+len(p.declared) == 0 {
		return done, nil
	}
	if err := p.look(ctx, r); err != nil {
		if kube.IsClusterWide(err) {
			return done, err
		}
		done.Notes = []string{fmt.Sprintf("it is not known where applications will be placed: %v", err)}
		return done, nil
	}
	done.Notes = p.notes()
	return done, nil
}

// preview has the applications and targets of the repository and those of others in the
// cluster.
type preview struct {
	apps    map[manifest.ID]*application.Application
	targets map[manifest.ID]placement.Target
	// declared are the repository's targets.
	declared map[manifest.ID]bool
	// others are applications that the repository does not have.
	others []*application.Application
}

// look reads the cluster.
func (p *preview) look(ctx context.Context, r unit.Request) error {
	err := list(ctx, r.Client, manifest.Application, "", func(id manifest.ID, tree map[string]any) {
		live, err := application.Read(tree)
		if ours := p.apps[id]; ours != nil {
			ours.Placed, ours.Rescheduled = live.Placed, live.Rescheduled
		} else if leaves(r, id, tree) {
			return
		} else if (err == nil || live.Placed != "") && manifest.Text(tree, "metadata", "deletionTimestamp") == "" {
			if err != nil { // with errors it does not move
				live.TargetRef, live.Reschedule = "", ""
			}
			p.others = append(p.others, live)
		}
	})
	if err != nil {
		return err
	}
	secrets := make(map[manifest.ID]*target)
	err = list(ctx, r.Client, manifest.Target, "", func(id manifest.ID, tree map[string]any) {
		if leaves(r, id, tree) {
			return
		}
		t := readTarget(tree)
		p.targets[id] = placement.Target{Name: t.name, Labels: labelsOf(tree), Unready: t.why(true)}
		secrets[id] = t
	})
	decided := p.namespaces()
	for id, t := range secrets {
		if t.why(true) != "" || !decided[id.Namespace] {
			continue
		}
		secret := manifest.Secret.ID(id.Namespace, t.secret)
		typ, err := r.Client.Type(ctx, "v1", manifest.Secret.Kind)
		if err == nil {
			_, err = r.Client.GetMetadata(ctx, typ, secret)
		}
		if kube.ClassOf(err) == kube.NotFound { // other errors are not about placement
			placed := p.targets[id]
			placed.Unready = t.why(false)
			p.targets[id] = placed
		}
	}
	for _, o := range r.Objects.All() {
		if o.ID().Is(manifest.Target) {
			// A new one counts as ready if the registry publishes its cluster.
			p.targets[o.ID()] = placement.Target{Name: o.ID().Name, Labels: o.Labels(), Unready: cmp.Or(unpublished(r.Unit, o), p.targets[o.ID()].Unready)}
		}
	}
	return err
}

// unpublished returns why a target gets no connection to the cluster that it names; empty if it
// gets one, or if its Secret is not gitopsd's.
func unpublished(u *desired.Unit, target *manifest.Object) string {
	name := manifest.Text(target.Tree(), "spec", "clusterRef", "name")
	if name == "" || manifest.Text(target.Tree(), "spec", "connectionSecretRef", "name") != "" {
		return ""
	}
	i := slices.IndexFunc(u.Beside, func(c clusters.Cluster) bool { return c.Name == name })
	if i < 0 {
		return fmt.Sprintf("cluster %s is not registered in %s", name, sources.RegistryFile)
	}
	if _, ok := u.Beside[i].Publication(u.Name, target.ID().Namespace); !ok {
		return fmt.Sprintf("cluster %s is not published to this namespace", name)
	}
	return ""
}

// leaves reports whether a live object will be pruned: it is in the unit's inventory, and no
// longer in the repository.
func leaves(r unit.Request, id manifest.ID, tree map[string]any) bool {
	if r.Objects.Get(id) != nil {
		return false
	}
	var meta metav1.ObjectMeta
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(manifest.Mapping(tree, "metadata"), &meta)
	return err == nil && r.Owns(id, &meta)
}

// namespaces returns the namespaces in which the plan may place an application: those with one
// of the repository, and those with a waiting one and a target of the repository.
func (p *preview) namespaces() map[string]bool {
	decided, targets := make(map[string]bool), make(map[string]bool)
	for id := range p.apps {
		decided[id.Namespace] = true
	}
	for id := range p.declared {
		targets[id.Namespace] = true
	}
	for _, app := range p.others {
		if a := app.Placement(); targets[app.Namespace] && (a.Placed == "" || a.Moves) {
			decided[app.Namespace] = true
		}
	}
	return decided
}

// list yields the objects of a kind in a namespace, or in all; none if the cluster does not serve
// it.
func list(ctx context.Context, c *kube.Client, kind manifest.GroupKind, namespace string, yield func(id manifest.ID, tree map[string]any)) error {
	t, err := c.Kind(ctx, kind.Group, kind.Kind)
	if kube.ClassOf(err) == kube.NoSuchType {
		return nil
	} else if err != nil {
		return err
	}
	return c.ListFull(ctx, t, kube.ListOptions{Namespace: namespace}, func(tree map[string]any) bool {
		yield(t.ID(manifest.Text(tree, "metadata", "namespace"), manifest.Text(tree, "metadata", "name")), tree)
		return true
	})
}

func labelsOf(tree map[string]any) map[string]string {
	labels := make(map[string]string)
	for key, v := range manifest.Mapping(tree, "metadata", "labels") {
		labels[key], _ = v.(string)
	}
	return labels
}

// lacks returns why the target that an application names cannot run it; empty if it can.
func (p *preview) lacks(app *application.Application) string {
	t, ok := p.targets[manifest.Target.ID(app.Namespace, app.TargetRef)]
	switch {
	case !ok:
		return "which does not exist"
	case t.Unready != "":
		return "which is not ready: " + t.Unready
	}
	return ""
}

// notes returns the new placements of the repository's applications, and of others on the
// repository's targets.
func (p *preview) notes() []string {
	decided := p.namespaces()
	namespaces := make(map[string][]placement.Application)
	for _, app := range p.apps {
		namespaces[app.Namespace] = append(namespaces[app.Namespace], app.Placement())
	}
	others := make(map[manifest.ID]*application.Application)
	for _, app := range p.others {
		if decided[app.Namespace] {
			namespaces[app.Namespace] = append(namespaces[app.Namespace], app.Placement())
			others[manifest.Application.ID(app.Namespace, app.Name)] = app
		}
	}
	var notes []string
	for namespace, apps := range namespaces {
		var targets []placement.Target
		for id, t := range p.targets {
			if id.Namespace == namespace {
				targets = append(targets, t)
			}
		}
		decisions := placement.Decide(namespace, apps, targets)
		for _, name := range slices.Sorted(maps.Keys(decisions)) {
			id, d := manifest.Application.ID(namespace, name), decisions[name]
			app := p.apps[id]
			if app == nil && d.New && p.declared[manifest.Target.ID(namespace, d.Target)] {
				app = others[id]
			}
			switch {
			case app == nil:
			case d.New && app.TargetRef != "" && p.lacks(app) != "":
				notes = append(notes, fmt.Sprintf("application %s names target %s, %s", app, app.TargetRef, p.lacks(app)))
			case d.Target == "" || d.Stuck:
				notes = append(notes, fmt.Sprintf("application %s: %s", app, d.Why))
			case d.New && app.Placed != "":
				notes = append(notes, fmt.Sprintf("application %s moves from target %s to %s: %s", app, app.Placed, d.Target, d.Why))
			case d.New:
				notes = append(notes, fmt.Sprintf("application %s will be placed on target %s: %s", app, d.Target, d.Why))
			}
		}
	}
	slices.Sort(notes)
	return notes
}
