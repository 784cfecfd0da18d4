package verify

import (
	"slices"

	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/render/types/compat"
)

// Facts are the rendered and the live state of one cluster, as far as they could be read.
type Facts struct {
	Name string
	// Definitions are the CRDs and XRDs that are rendered or live, by ID, without
	// CRDs that Crossplane made of an XRD.
	Definitions map[manifest.ID]*Definition
	// Controllers are the rendered workloads behind types, by ID.
	Controllers map[manifest.ID]*Controller
	// Webhooks are the rendered webhook configurations and admission policies.
	Webhooks []Webhook
	// Admission are all live webhooks and policies, declared or not. AdmissionRead reports
	// whether they were read.
	Admission     []Admission
	AdmissionRead bool
	// Planned are objects that were not applied or pruned; nil if no plan was made. See
	// Facts.Explain.
	Planned map[manifest.ID]Planned
	// Actors are workloads beside the declared controllers; nil if they were not read.
	Actors *Actors
	// Gaps are the reasons why something could not be read or rendered.
	Gaps []string
	// Omitted is what was left out of the comparison, with the reasons.
	Omitted []Omission
	// Unread reports whether nothing live could be read, so that nothing can be compared.
	// Gaps has the reason.
	Unread bool
}

// Definition is a CRD or XRD in one cluster.
type Definition struct {
	ID manifest.ID
	// Kind and Group are the objects'; of an XRD the composites'.
	Kind, Group string
	// Resources are the plural names of the types, claims included. Scope is "Namespaced"
	// or "Cluster"; empty if the types have different ones.
	Resources []string
	Scope     string
	// Package is the name of the package that it is rendered from; empty for a plain
	// manifest, and if it is not rendered.
	Package string
	// Source is that package as in the lock, "repository version".
	Source string
	// Rendered are the types as rendered, nil if they are not rendered.
	Rendered []types.Type
	// Live are the types that the API server has, nil if it has none.
	Live []types.Type
	// Drift is the difference from Rendered to Live, field by field.
	Drift []compat.Finding
	// Patches are the cluster's patches that changed the published types.
	Patches []string
	// Conversion is the digest of the conversion rules that the definition is rendered
	// with, empty if there are none.
	Conversion string
	// Converter is the address of the rendered conversion webhook, as [ConverterOf] writes it.
	Converter string
	// Converted is the live way of conversion in words; empty if it is the rendered one.
	Converted string
	// Behaviour acts on the rendered types; nil if unknown.
	Behaviour *behaviour.Identity
	// Misnamed reports whether the definition names a controller that is not rendered or
	// cannot be read; the cluster's Gaps have the reason.
	Misnamed bool
	// Composed is the live state of a Behaviour of Compositions, with the image IDs of the
	// running Functions, several of one separated by ", "; nil for others, and if it could
	// not be read.
	Composed *behaviour.Identity
}

// asRendered reports whether the live types and their conversion are the rendered ones.
func (d *Definition) asRendered() bool {
	return d.Converted == "" && slices.Equal(d.Rendered, d.Live)
}

// alone reports whether the definition comes from a package without a controller.
func (d *Definition) alone() bool {
	return d.Package != "" && d.ID.Is(manifest.CRD) && d.Behaviour == nil && !d.Misnamed
}

// name returns the type's name: "Widget.acme.example".
func (d *Definition) name() string { return d.Kind + "." + d.Group }

// Controller is a rendered workload and its running instances.
type Controller struct {
	// Wanted is the workload as rendered, Source its package.
	Wanted *behaviour.Identity
	Source string
	// Patches are the cluster's patches that changed the workload.
	Patches []string
	// Idle reports whether no replica is wanted.
	Idle bool
	// Unread reports whether reading the pods failed; the cluster's Gaps have the
	// reason.
	Unread bool
	// Instances are the running pods; pods with the same image IDs and settings are one.
	Instances []Instance
	// ConfigMaps and Secrets are the contents that the live workload refers to, as hashes
	// that only this run can compare ([behaviour.Config]). Rights are those of its account
	// ([behaviour.Rights]).
	ConfigMaps, Secrets, Rights Context
	// Waiting are some pods that do not run, or not with all of the workload's containers,
	// with their reasons.
	Waiting []string
	// Held are the images that the live workload itself has in place of the rendered ones,
	// and who set them, in words. New pods get them, too.
	Held []string
	// Added are the containers that pods have and the workload does not: admission or
	// `kubectl debug` added them. They are not in Instances.
	Added []string
}

// Instance is the pods with the same image IDs and settings.
type Instance struct {
	// Pod is one of them, "namespace/name", and Pods their number.
	Pod  string
	Pods int
	// Images are the image IDs by container, as their nodes report them: empty for a container
	// that was never started.
	Images []behaviour.Part
	// Settings are as in [behaviour.Identity], without those that admission added to the
	// pod.
	Settings []behaviour.Part
	// Partly reports whether no pod runs all of the rendered containers.
	Partly bool
	// Ending reports whether all of its pods are being deleted.
	Ending bool
	// Elsewhere reports whether it belongs to another workload with the labels of the same
	// package.
	Elsewhere bool
}

// Context is configuration or rights that a workload runs with.
type Context struct {
	// Read reports whether the rest is known.
	Read  bool
	Parts []behaviour.Part
	// Drift are the names of parts that are not as rendered, and From the objects, rendered
	// or live, that make the difference. Applied reports whether all of these are as gitopsd
	// applied them.
	Drift   []string
	From    []manifest.ID
	Applied bool
}

// Webhook is a rendered webhook configuration, or a rendered policy or its binding, in
// one cluster.
type Webhook struct {
	ID      manifest.ID
	Package string
	// Rendered is a hash of it without CA bundles.
	Rendered string
	// Missing reports whether it is not live, and Held whether that is intended because it
	// has no CA bundle yet.
	Missing, Held bool
	// Drift are the paths of fields that differ from rendered to live.
	Drift []string
}
