package unit

import (
	"context"
	"fmt"
	"slices"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render"
	"gitopsd.dev/render/application"
	"gitopsd.dev/render/composition"
	"gitopsd.dev/render/etcd"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/target"
)

// Notes returns notes about a unit that would apply: Compositions that cannot compose their
// objects, annotations without effect, and an etcd that the daemon needs, unless it is
// known to have one. serves reports whether the cluster serves a kind that nothing in the
// repository defines; nil if the cluster is not asked.
func Notes(want *desired.Unit, serves func(apiVersion, kind string) bool, daemon DaemonEtcd) []string {
	if want.Objects == nil || want.Remove {
		return nil
	}
	has := func(list []render.PackageType, kind manifest.GroupKind) int {
		return slices.IndexFunc(list, func(t render.PackageType) bool { return t.Group == kind.Group && t.Kind == kind.Kind })
	}
	notes := append(misplaced(want.Objects), etcdNotes(want, daemon)...)
	for _, f := range composition.Check(want.Objects, composition.Known{
		Delegated: func(kind manifest.GroupKind) bool { return has(want.Delegated, kind) >= 0 },
		Inactive: func(kind manifest.GroupKind) string {
			i := has(want.Inactive, kind)
			if i < 0 {
				return ""
			}
			return fmt.Sprintf("name %s in spec.activate of a ManagedResourceActivationPolicy (package %s is installed by type)", want.Inactive[i].Definition.Name, want.Inactive[i].Package)
		},
	}) {
		if f.Kind != "" && (!want.Complete() || len(want.Incomplete) > 0 || serves != nil && serves(f.APIVersion, f.Kind)) {
			continue // a package with errors may define it, or the cluster has it from elsewhere
		}
		notes = append(notes, f.String())
	}
	return notes
}

// DaemonEtcd reports whether the daemon has an etcd.
type DaemonEtcd int

// The values of DaemonEtcd.
const (
	EtcdUnknown DaemonEtcd = iota
	EtcdPresent
	EtcdMissing
)

// daemonEtcd reads from the status of a live EtcdNamespace whether the daemon has an etcd.
func daemonEtcd(namespace map[string]any) DaemonEtcd {
	for _, c := range manifest.List(namespace, "status", "conditions") {
		c, _ := c.(map[string]any)
		switch {
		case manifest.Text(c, "type") == etcd.ProvisionedCondition && manifest.Text(c, "status") == "True":
			return EtcdPresent
		case manifest.Text(c, "reason") == etcd.MissingReason:
			return EtcdMissing
		}
	}
	return EtcdUnknown
}

// etcdNotes returns the note that etcd namespaces need an etcd of the daemon.
func etcdNotes(want *desired.Unit, has DaemonEtcd) []string {
	if has == EtcdPresent {
		return nil
	}
	declared := 0
	for _, o := range want.Objects.All() {
		if o.ID().Is(manifest.EtcdNamespace) {
			declared++
		}
	}
	own := want.Spec.Etcd != nil && want.Spec.Etcd.Namespace != ""
	needs := "the daemon must have an etcd, by --etcd-servers or --etcd-embedded; whether it has one is not known here"
	if has == EtcdMissing {
		needs = "the daemon has no etcd; start it with --etcd-servers or --etcd-embedded"
	}
	switch {
	case declared > 0:
		return []string{fmt.Sprintf("%s: %s", prose.Count(declared, "etcd namespace"), needs)}
	case own:
		return []string{"spec.etcd.namespace: " + needs}
	}
	return nil
}

// notes returns the unit's notes with what its cluster serves.
func (c *Connection) notes(ctx context.Context, want *desired.Unit) []string {
	return Notes(want, func(apiVersion, kind string) bool {
		_, err := c.client.Type(ctx, apiVersion, kind)
		return err == nil
	}, c.daemonEtcd(ctx, want))
}

// daemonEtcd asks the etcd namespaces in the cluster whether the daemon has an etcd. Only a
// note depends on it, so an error leaves it unknown.
func (c *Connection) daemonEtcd(ctx context.Context, want *desired.Unit) (has DaemonEtcd) {
	if len(etcdNotes(want, EtcdUnknown)) == 0 {
		return EtcdUnknown // and nobody asks
	}
	t, err := c.client.Kind(ctx, manifest.EtcdNamespace.Group, manifest.EtcdNamespace.Kind)
	if err != nil {
		return EtcdUnknown
	}
	_ = c.client.ListFull(ctx, t, kube.ListOptions{}, func(tree map[string]any) bool {
		has = daemonEtcd(tree)
		return has == EtcdUnknown
	})
	return has
}

// stranded returns notes about the applications that lose their target by a plan.
func (c *Connection) stranded(ctx context.Context, want *desired.Unit, p *plan.Plan) []string {
	going, loses := make(map[manifest.ID]bool), false
	follows := make(map[manifest.ID]string)
	for i := range p.Steps {
		if s := &p.Steps[i]; s.Action == plan.Prune && s.ID.Is(manifest.Target, manifest.Application) {
			going[s.ID] = true
			if s.ID.Is(manifest.Target) {
				loses, follows[s.ID] = true, c.renamed(ctx, want, s.ID)
			}
		}
	}
	if !loses {
		return nil
	}
	var notes []string
	t, err := c.client.Kind(ctx, manifest.Application.Group, manifest.Application.Kind)
	if err == nil {
		err = c.client.ListFull(ctx, t, kube.ListOptions{}, func(tree map[string]any) bool {
			namespace, name, target := manifest.Text(tree, "metadata", "namespace"), manifest.Text(tree, "metadata", "name"), manifest.Text(tree, "status", "targetRef", "name")
			app, _ := application.Read(tree) // one with errors may name a target, too
			follow := follows[manifest.Target.ID(namespace, target)]
			switch {
			case !going[manifest.Target.ID(namespace, target)]:
			case going[manifest.Application.ID(namespace, name)]:
				notes = append(notes, fmt.Sprintf("application %s/%s runs on target %s, and this plan deletes both: its objects in that cluster stay if the connection loses its rights first, as it may if the cluster is no longer published; to be sure that they are deleted, delete the application in an earlier commit",
					namespace, name, target))
			case follow != "" && app.TargetRef != "":
				notes = append(notes, fmt.Sprintf("application %s/%s runs on target %s, which this plan deletes, since its cluster is renamed: its objects stay, and are not kept up to date until its spec.targetRef names %s",
					namespace, name, target, follow))
			case follow != "":
				notes = append(notes, fmt.Sprintf("application %s/%s runs on target %s, which this plan deletes, since its cluster is renamed: its objects stay, and are not kept up to date until it moves to target %s; annotate it with %s: %s, or set spec.targetRef if its selector selects more targets",
					namespace, name, target, follow, manifest.RescheduleAnnotation, follow))
			default:
				notes = append(notes, fmt.Sprintf("application %s/%s runs on target %s, which this plan deletes: its objects in that cluster stay, and are no longer kept up to date; to have them deleted, delete the application first, or move it to another cluster (%s, or spec.targetRef)",
					namespace, name, target, manifest.RescheduleAnnotation))
			}
			return true
		})
	}
	if err != nil && kube.ClassOf(err) != kube.NoSuchType {
		notes = []string{fmt.Sprintf("it is not known which applications run on targets that this plan deletes: %v", err)}
	}
	if n := len(notes) - mostStranded; n > 0 {
		notes = append(notes[:mostStranded], prose.Agree(n, "more application loses its target", "more applications lose their targets"))
	}
	return notes
}

// renamed returns the name of the target that the repository has for the cluster of a live one,
// if the cluster is renamed; else "". A renamed cluster's document adopts the ApplySet of the
// former name. Only targets that gitopsd makes have their cluster's name.
func (c *Connection) renamed(ctx context.Context, want *desired.Unit, id manifest.ID) string {
	if want.Objects == nil {
		return ""
	}
	former := plan.ApplySetSource(apply.SetID(id.Name))
	name := ""
	for _, cluster := range want.Beside {
		if cluster.Name == id.Name {
			return "" // it only is no longer published here
		}
		next := want.Objects.Get(id.GroupKind().ID(id.Namespace, cluster.Name))
		sources, _ := plan.ParseAdopt(cluster.Annotations[manifest.AdoptAnnotation])
		if next != nil && next.Label(target.AutomaticLabel) == "true" && slices.Contains(sources, former) {
			name = cluster.Name
		}
	}
	if name == "" {
		return ""
	}
	t, err := c.client.Kind(ctx, id.Group, id.Kind)
	if err != nil {
		return ""
	}
	if meta, err := c.client.GetMetadata(ctx, t, id); err != nil || meta.Labels[target.AutomaticLabel] != "true" {
		return ""
	}
	return name
}

// mostStranded is how many of these applications are named.
const mostStranded = 20

// misplaced returns notes about annotations for storage migrations without effect.
func misplaced(objects *manifest.Set) []string {
	var notes []string
	for _, o := range objects.All() {
		switch v := o.Annotation(manifest.MigrateStorageAnnotation); {
		case v == "":
		case !o.ID().Is(manifest.CRD):
			notes = append(notes, fmt.Sprintf("%s: %s does nothing here; it belongs on a CustomResourceDefinition (%s)", o.ID(), manifest.MigrateStorageAnnotation, o.Origin()))
		case v != "true":
			notes = append(notes, fmt.Sprintf("%s: %s: %q does nothing; it has to be \"true\" (%s)", o.ID(), manifest.MigrateStorageAnnotation, v, o.Origin()))
		}
	}
	return notes
}

// unproven returns notes about conversion rules that were not tried on all objects.
func unproven(p *plan.Plan) []string {
	var notes []string
	for i := range p.Steps {
		if s := &p.Steps[i]; s.Proof != nil && s.Proof.Unfinished {
			notes = append(notes, fmt.Sprintf("%s: its conversion rules were tried on only %s before the time was over; `gitopsd convert --check` tries the rest", s.ID, prose.Count(s.Proof.Objects(), "object")))
		}
	}
	return notes
}
