package applications

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"gitopsd.dev/reconcile/home"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/manifest"
)

// target is a KubernetesTarget. It is immutable.
type target struct {
	name, uid, version string
	labels             map[string]string
	// secret is the name of its connection Secret, empty if it has none yet, and
	// secretVersion the Secret's resourceVersion, empty if it does not exist.
	secret, secretVersion string
	// unready is why nothing new may be placed on it. since is when it became ready or was
	// first seen; zero if it was ready and no longer is.
	unready string
	since   time.Time
	// profile is the name of the ClusterProfile (KEP-4322) in its namespace that it is made
	// from; may be empty.
	profile string
	// silent is the first application of its namespace that its cluster did not answer in the
	// last attempt, by name; empty if it answers, or nothing was tried.
	silent string
}

// key identifies everything of it that a worker uses.
func (t *target) key() string {
	return fmt.Sprintf("%s/%s/%s/%s/%s", t.name, t.uid, t.secret, t.secretVersion, t.profile)
}

// readTargets reads the targets that changed. unread are the namespaces with targets that could
// not be read; their errors are in err.
func (c *Controller) readTargets(ctx context.Context, v *home.View) (unread map[string]bool, err error) {
	metas, err := objects(v, targetKind)
	if err != nil {
		return nil, err
	}
	there, unread := make(map[manifest.ID]bool, len(metas)), make(map[string]bool)
	var errs []error
	for _, meta := range metas {
		id := targetKind.ID(meta.Namespace, meta.Name)
		there[id] = true
		before := c.targets[id]
		t := before
		if t == nil || t.version != meta.ResourceVersion || t.uid != string(meta.UID) {
			kind, err := v.Client.Kind(ctx, manifest.Target.Group, manifest.Target.Kind)
			if err != nil {
				return nil, err
			}
			tree, now, err := v.Client.Get(ctx, kind, id)
			if kube.ClassOf(err) == kube.NotFound {
				delete(there, id)
				continue
			} else if err != nil {
				errs, unread[id.Namespace] = append(errs, err), true
				continue
			}
			t = readTarget(tree)
			t.uid, t.version, t.labels = string(now.UID), now.ResourceVersion, now.Labels
			for _, o := range now.OwnerReferences {
				if group, _ := manifest.GroupVersion(o.APIVersion); group == manifest.ClusterProfile.Group && o.Kind == manifest.ClusterProfile.Kind {
					t.profile = o.Name
				}
			}
		}
		current := *t
		if current.secretVersion = ""; t.secret != "" {
			secret, err := v.Object(home.Secrets, meta.Namespace, t.secret)
			if err != nil {
				return nil, err
			}
			if secret != nil {
				current.secretVersion = secret.ResourceVersion
			}
		}
		current.since = since(before, &current, time.Now())
		c.targets[id] = &current
	}
	maps.DeleteFunc(c.targets, func(id manifest.ID, _ *target) bool { return !there[id] })
	return unread, errors.Join(errs...)
}

// readTarget reads a target, without its metadata.
func readTarget(tree map[string]any) *target {
	t := &target{name: manifest.Text(tree, "metadata", "name"), unready: "nothing is known of its cluster yet"}
	// A Secret in the spec comes first.
	if t.secret = manifest.Text(tree, "spec", "connectionSecretRef", "name"); t.secret == "" {
		t.secret = manifest.Text(tree, "status", "connectionSecretRef", "name")
	}
	switch c := manifest.Condition(tree, "Ready"); {
	case c["status"] == "True":
		t.unready = ""
	case c != nil:
		t.unready = cmp.Or(manifest.Text(c, "message"), "it is not ready")
	}
	if manifest.Text(tree, "metadata", "deletionTimestamp") != "" {
		t.unready = "it is being deleted"
	}
	return t
}

// why returns why nothing new may be placed on the target; empty if something may. connected
// reports whether its connection Secret exists.
func (t *target) why(connected bool) string {
	switch {
	case t.unready != "":
		return t.unready
	case t.secret == "":
		return "it has no connection Secret"
	case !connected:
		return fmt.Sprintf("its connection Secret %s is missing", t.secret)
	}
	return ""
}

// since returns target.since for a current target. before is the earlier state; may be nil.
func since(before, current *target, now time.Time) time.Time {
	switch {
	case before == nil || current.ready() && !before.ready():
		return now
	case before.ready() && !current.ready():
		return time.Time{}
	}
	return before.since
}

// ready reports whether something new may be placed on the target.
func (t *target) ready() bool { return t.why(t.secretVersion != "") == "" }

// targetsOf returns the targets of a namespace by name. apps are its applications.
func (c *Controller) targetsOf(namespace string, apps []*known) map[string]*target {
	all := make(map[string]*target)
	for id, t := range c.targets {
		if id.Namespace != namespace {
			continue
		}
		now := *t
		now.unready = t.why(t.secretVersion != "")
		all[t.name] = &now
	}
	for _, k := range apps {
		w := c.workers[string(k.meta.UID)]
		if w == nil {
			continue
		}
		if t := all[w.unanswered()]; t != nil && (t.silent == "" || k.app.Name < t.silent) {
			t.silent = k.app.Name
		}
	}
	return all
}
