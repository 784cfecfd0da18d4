// Package claim makes KubernetesTargets for clusters that others provision in a home by
// claims: a Bound KubernetesCluster, a Cluster of Cluster API, or a ClusterProfile
// (KEP-4322). The target has the name and the labels of the claim, and refers to the Secret
// that the claim's controller writes. The claim owns it, so that the garbage collector
// deletes it with the claim. Users need no right to make targets for that.
//
// kinds.go reads claims, and claim.go keeps the targets.
package claim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/home"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/target"
)

// waitPause is the pause before a claim that failed is tried again.
const waitPause = 30 * time.Second

// inventoryLabels is the prefix of labels of members of an inventory (KEP-3659).
const inventoryLabels = "applyset.kubernetes.io/"

var (
	targets = home.Kind{GroupKind: target.Target}
	// profileSecrets are the Secrets with connections for ClusterProfiles.
	profileSecrets = home.Kind{GroupKind: manifest.Secret, Selector: manifest.ClusterProfileLabel}

	targetType = kube.Type{Group: target.Group, Version: target.Version, Kind: target.Target.Kind, Resource: "kubernetestargets", Namespaced: true, HasStatus: true}
)

// Controller makes targets of claims. It is a [home.Controller].
type Controller struct {
	kinds []manifest.GroupKind
	// known are the claims by UID.
	known map[string]*known
}

// known is the state of a claim that is kept between passes.
type known struct {
	// version is the resourceVersion at which state was read.
	version string
	state   state
	// applied is the target as it was last applied, and generation its generation then.
	applied    string
	generation int64
}

// New makes a Controller for these kinds.
func New(kinds []manifest.GroupKind) *Controller {
	return &Controller{kinds: kinds, known: make(map[string]*known)}
}

// Name implements [home.Controller].
func (c *Controller) Name() string { return "claims" }

// Kinds implements [home.Controller].
func (c *Controller) Kinds() []home.Kind {
	all := []home.Kind{targets}
	for _, gk := range c.kinds {
		all = append(all, home.Kind{GroupKind: gk})
		if gk == clusterProfile {
			all = append(all, profileSecrets)
		}
	}
	return all
}

// Close implements [home.Controller].
func (c *Controller) Close() {}

// Reconcile implements [home.Controller].
func (c *Controller) Reconcile(ctx context.Context, v *home.View) (again time.Time, err error) {
	if _, err := v.Objects(targets); kube.ClassOf(err) == kube.NoSuchType {
		return time.Time{}, nil
	} else if err != nil {
		return time.Time{}, err
	}
	there := make(map[string]bool)
	var errs []error
	for _, gk := range c.kinds {
		claims, err := v.Objects(home.Kind{GroupKind: gk})
		if kube.ClassOf(err) == kube.NoSuchType {
			continue
		}
		if err != nil { // of this kind alone
			errs = append(errs, err)
			continue
		}
		for _, m := range claims {
			there[string(m.UID)] = true
			err := c.one(ctx, v, gk, m)
			if kube.IsClusterWide(err) || ctx.Err() != nil {
				return again, errors.Join(append(errs, err)...)
			}
			if err != nil {
				v.ReportOn(gk.ID(m.Namespace, m.Name), problem.Problem{Reason: "no target was made of it: " + problem.Message(err)})
				again = time.Now().Add(waitPause)
			}
		}
	}
	if len(errs) == 0 { // otherwise some may be there
		maps.DeleteFunc(c.known, func(uid string, _ *known) bool { return !there[uid] })
	}
	return again, errors.Join(errs...)
}

// one makes the target of a claim.
func (c *Controller) one(ctx context.Context, v *home.View, gk manifest.GroupKind, m *metav1.PartialObjectMetadata) (err error) {
	// In the daemon's own namespace, a ClusterProfile is for a registration.
	if m.DeletionTimestamp != nil || v.Reserves(m.Namespace) {
		return nil
	}
	k := c.known[string(m.UID)]
	if k == nil {
		k = new(known)
		c.known[string(m.UID)] = k
	}
	if k.version != m.ResourceVersion {
		if k.state, err = read(ctx, v, gk, m); err != nil {
			k.version = ""
			return err
		}
		k.version = m.ResourceVersion
	}
	s := k.state
	if s.profile != "" {
		if s.secret, s.why, err = ofProfile(v, m.Namespace, s.profile); err != nil {
			return err
		}
	}
	if s.why != "" {
		v.ReportOn(gk.ID(m.Namespace, m.Name), problem.Problem{Reason: "no target was made of it: " + s.why})
	}
	if s.secret == "" {
		return nil
	}
	existing, err := v.Object(targets, m.Namespace, m.Name)
	if err != nil {
		return err
	}
	if existing != nil && !slices.ContainsFunc(existing.OwnerReferences, func(r metav1.OwnerReference) bool { return r.UID == m.UID }) {
		v.ReportOn(gk.ID(m.Namespace, m.Name), problem.Problem{
			Reason: fmt.Sprintf("no target was made of it: %s exists and is not its own", targets.ID(m.Namespace, m.Name)),
			Advice: "delete or rename one of them",
		})
		return nil
	}
	body, err := targetOf(gk, s, m)
	if err != nil {
		return err
	}
	if existing != nil && k.applied == string(body) && k.generation == existing.Generation && has(existing, labelsOf(m)) {
		return nil
	}
	id := targets.ID(m.Namespace, m.Name)
	// A target that others make meanwhile is not taken over: without Force its fields
	// conflict.
	applied, err := v.Client.Apply(ctx, targetType, id, body, kube.ApplyOptions{Force: existing != nil})
	if err != nil {
		return err
	}
	if existing == nil {
		v.Log.Info("a target was made", "target", id.String(), "of", gk.ID(m.Namespace, m.Name).String())
	}
	k.applied, k.generation = string(body), applied.Meta.Generation
	return nil
}

// has reports whether an object has all of these labels.
func has(m *metav1.PartialObjectMetadata, labels map[string]string) bool {
	for key, value := range labels {
		if m.Labels[key] != value {
			return false
		}
	}
	return true
}

// labelsOf returns the labels of a claim's target, without those of an inventory: as a member
// of one, the target would be pruned at once.
func labelsOf(m *metav1.PartialObjectMetadata) map[string]string {
	labels := maps.Clone(m.Labels)
	maps.DeleteFunc(labels, func(key, _ string) bool {
		return strings.HasPrefix(key, inventoryLabels) || strings.HasPrefix(key, manifest.Group+"/")
	})
	if labels == nil {
		labels = make(map[string]string)
	}
	labels[target.AutomaticLabel] = "true"
	return labels
}

// targetOf returns the target of a claim, as JSON.
func targetOf(gk manifest.GroupKind, s state, m *metav1.PartialObjectMetadata) ([]byte, error) {
	return json.Marshal(map[string]any{
		"apiVersion": target.Target.APIVersion(target.Version), "kind": target.Target.Kind,
		"metadata": map[string]any{
			"name": m.Name, "namespace": m.Namespace, "labels": labelsOf(m),
			"ownerReferences": []any{map[string]any{"apiVersion": s.apiVersion, "kind": gk.Kind, "name": m.Name, "uid": m.UID, "controller": true}},
		},
		"spec": map[string]any{"connectionSecretRef": map[string]any{"name": s.secret}},
	})
}

// read reads the state of a claim.
func read(ctx context.Context, v *home.View, gk manifest.GroupKind, m *metav1.PartialObjectMetadata) (state, error) {
	t, err := v.Client.Kind(ctx, gk.Group, gk.Kind)
	if err != nil {
		return state{}, err
	}
	if !t.Namespaced {
		return state{why: "the kind is cluster-wide, and a target is in a namespace"}, nil
	}
	tree, _, err := v.Client.Get(ctx, t, t.ID(m.Namespace, m.Name))
	if kube.ClassOf(err) == kube.NotFound {
		return state{}, nil
	}
	if err != nil {
		return state{}, err
	}
	s := stateOf(gk, tree)
	s.apiVersion = t.APIVersion()
	return s, nil
}

// ofProfile returns the Secret with the connection to a ClusterProfile's cluster, or why
// there is none.
func ofProfile(v *home.View, namespace, profile string) (secret, why string, err error) {
	all, err := v.Objects(profileSecrets)
	if err != nil {
		return "", "", err
	}
	var names []string
	for _, m := range all {
		// With another namespace in the label, it is for another profile.
		of := m.Labels[manifest.ClusterProfileNamespaceLabel]
		if m.Namespace == namespace && m.Labels[manifest.ClusterProfileLabel] == profile && (of == "" || of == namespace) {
			names = append(names, m.Name)
		}
	}
	label := manifest.ClusterProfileLabel + "=" + profile
	switch len(names) {
	case 0:
		return "", "no Secret of its namespace has the label " + label, nil
	case 1:
		return names[0], "", nil
	}
	return "", fmt.Sprintf("%d Secrets of its namespace have the label %s; leave it on one", len(names), label), nil
}
