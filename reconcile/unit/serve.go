package unit

import (
	"context"
	"errors"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/etcd"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/target"
)

var definitionType = kube.Type{Group: manifest.CRD.Group, Version: "v1", Kind: manifest.CRD.Kind, Resource: "customresourcedefinitions"}

// Serve calls Config.Serve, and reports whether the cluster is a home; see [Outcome.Home].
// It is for a unit that Apply cannot be called for, because it does not render or must be
// left alone, in a process that serves nothing for it yet. It changes nothing in the
// cluster. home may be true in spite of an error, which then is Config.Serve's.
func (c *Connection) Serve(ctx context.Context, want *desired.Unit) (home bool, err error) {
	if err := c.applier.Check(ctx); err != nil {
		return false, err
	}
	owns := func(id manifest.ID, meta *metav1.ObjectMeta) bool { return c.applier.Owns(id, meta, nil) }
	var failed error
	if c.serve != nil {
		failed = c.serve(ctx, Request{Unit: want, Objects: want.Objects, Client: c.client, Owns: owns, Lists: c.applier.Lists})
		if kube.IsClusterWide(failed) || ctx.Err() != nil {
			return false, errors.Join(failed, ctx.Err())
		}
	}
	targets, err := target.Definitions()
	if err != nil {
		return false, err
	}
	spaces, err := etcd.Definition()
	if err != nil {
		return false, err
	}
	for _, o := range slices.Concat(targets, []*manifest.Object{spaces}) {
		meta, err := c.client.GetMetadata(ctx, definitionType, o.ID())
		switch {
		case kube.IsMissing(err):
		case err != nil:
			return false, err
		case owns(o.ID(), &meta.ObjectMeta):
			return true, failed
		}
	}
	return false, failed
}

// serveLeaving calls Config.Serve for a unit that is being emptied: its objects can be read
// and deleted only while their conversion rules are served. The error is about the whole
// cluster.
func (c *Connection) serveLeaving(ctx context.Context, want *desired.Unit, owns func(manifest.ID, *metav1.ObjectMeta) bool) error {
	if c.serve == nil {
		return nil
	}
	if err := c.applier.Check(ctx); err != nil {
		return err
	}
	err := c.serve(ctx, Request{Unit: want, Objects: want.Objects, Client: c.client, Owns: owns, Lists: c.applier.Lists})
	if kube.IsClusterWide(err) || ctx.Err() != nil {
		return errors.Join(err, ctx.Err())
	}
	if err != nil {
		c.log.Warn("the conversion rules in the cluster cannot be read; those that were read are served", "error", err)
	}
	return nil
}
