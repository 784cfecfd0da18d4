package verify

import (
	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/render/types/compat"
)

// Facts are what is known of one cluster: what is rendered for it, and what is live,
// as far as it could be read.
type Facts struct {
	Name string
	// Definitions are the CRDs and XRDs that are rendered or live, by ID. CRDs
	// that Crossplane made of an XRD are not among them.
	Definitions map[manifest.ID]*Definition
	// Controllers are the rendered workloads behind types, by ID.
	Controllers map[manifest.ID]*Controller
	// Webhooks are the webhook configurations that are rendered.
	Webhooks []Webhook
	// Gaps are why something could not be read or rendered.
	Gaps []string
	// Unread says that nothing live is known, so that there is nothing to
	// compare: Gaps has the reason.
	Unread bool
}

// Definition is a CRD or XRD in one cluster.
type Definition struct {
	ID manifest.ID
	// Kind and Group of the objects, of an XRD the composites'.
	Kind, Group string
	// Package is the name of the package that it is rendered from; empty for
	// one of a plain manifest, or of nothing.
	Package string
	// Source is that package as the lock names it, "repository version".
	Source string
	// Rendered are the types as rendered, nil if they are not rendered.
	Rendered []types.Type
	// Live are the types that the API server has, nil if it has none.
	Live []types.Type
	// Drift is the difference from Rendered to Live, field by field.
	Drift []compat.Finding
	// Patches are the cluster's patches that changed its types from what was
	// published.
	Patches []string
	// Behaviour acts on the types as rendered; nil where nothing is known to.
	Behaviour *behaviour.Identity
	// Composed is what is live of a Behaviour that consists of Compositions,
	// with the digests that run for the Functions; nil for others, and where
	// it could not be read.
	Composed *behaviour.Identity
}

// name returns the type's name: "Widget.acme.example".
func (d *Definition) name() string { return d.Kind + "." + d.Group }

// Controller is a rendered workload and its running instances.
type Controller struct {
	// Wanted is the workload as rendered, Source the package it is from.
	Wanted *behaviour.Identity
	Source string
	// Patches are the cluster's patches that changed the workload.
	Patches []string
	// Idle says that no replica is wanted.
	Idle bool
	// Unread says that the pods could not be read; the cluster's Gaps have
	// the reason.
	Unread bool
	// Instances are the running pods; pods that run the same are one.
	Instances []Instance
	// Waiting are some pods that do not run, each with the reason.
	Waiting []string
}

// Instance is pods that run the same images with the same settings.
type Instance struct {
	// Pod is one of them, "namespace/name", and Pods how many there are.
	Pod  string
	Pods int
	// Images are the image IDs by container, as their nodes report them.
	Images []behaviour.Part
	// Settings as in behaviour.Identity, without those that only the pod has:
	// what admission adds to pods is not the controller's.
	Settings []behaviour.Part
	// Elsewhere says that it is not the rendered workload's: another one says
	// by its labels that it runs the same package.
	Elsewhere bool
}

// Webhook is a rendered webhook configuration in one cluster.
type Webhook struct {
	ID      manifest.ID
	Package string
	// Rendered is a hash of it, CA bundles aside.
	Rendered string
	// Missing says that it is not live; Held that this is meant, since it has
	// no CA bundle yet.
	Missing, Held bool
	// Drift is what differs from rendered to live.
	Drift []string
}
