// Package verify compares live clusters with each other and with the repository,
// type by type: `gitopsd verify`.
//
// It is pure: facts of clusters go in (facts.go), a [Report] comes out. compare.go
// compares the types, controllers.go the controllers behind them, and gather.go
// merges findings that are the same for many types or clusters, since a report on
// 1,000 types in 50 clusters must fit on a screen; title.go says a finding in
// a line. A Report in JSON is for programs; cmd/gitopsd/findings shows it to people.
//
// [Repository.Wanted] makes the facts that follow from the repository alone;
// reconcile/verify/live reads clusters. render/types defines what a type is,
// render/behaviour what acts on it, and render/types/compat what a difference
// between two schemas means.
package verify

import (
	"slices"

	"gitopsd.dev/render/types/compat"
)

// Kind is what a finding says. Kinds are stable: programs may depend on them.
type Kind string

// The kinds, worst first. First what acts on objects otherwise than it looks
// like, which no API server will tell; then what the API servers themselves
// differ in.
const (
	// TwoControllers: different controllers act on the type at once in one
	// cluster.
	TwoControllers Kind = "two-controllers"
	// UnknownImage: a controller runs whose image is not the rendered one, nor
	// any that the lock knows.
	UnknownImage Kind = "unknown-image"
	// WrongController: a controller runs that the lock knows, and that is not
	// the one rendered for the cluster.
	WrongController Kind = "wrong-controller"
	// ControllerDiffers: each cluster runs what was rendered for it, and that
	// is not the same.
	ControllerDiffers Kind = "controller-differs"
	// SettingsDrifted: the right image runs with other arguments or another
	// environment than was rendered.
	SettingsDrifted Kind = "settings-drifted"
	// SettingsDiffer: one image was rendered with other arguments or another
	// environment than elsewhere.
	SettingsDiffer Kind = "settings-differ"
	// CompositionDrifted: live Compositions or Functions behind a composite
	// type are not what was rendered.
	CompositionDrifted Kind = "composition-drifted"
	// NoController: nothing runs that would act on the type.
	NoController Kind = "no-controller"
	// Drifted: the live type is not what was rendered.
	Drifted Kind = "drifted"
	// SchemaDiffers: clusters have different types of one name.
	SchemaDiffers Kind = "schema-differs"
	// Missing: the type was rendered, and is not there.
	Missing Kind = "missing"
	// WebhookDrifted: a webhook configuration is not what was rendered, or is
	// not there.
	WebhookDrifted Kind = "webhook-drifted"
	// WebhookDiffers: webhook configurations of one name were rendered
	// differently.
	WebhookDiffers Kind = "webhook-differs"
	// Unmanaged: nothing in the repository defines the type for this cluster,
	// while it does for others.
	Unmanaged Kind = "unmanaged"
)

var kinds = []Kind{
	TwoControllers, UnknownImage, WrongController, ControllerDiffers, SettingsDrifted, SettingsDiffer, CompositionDrifted,
	NoController, Drifted, SchemaDiffers, Missing, WebhookDrifted, WebhookDiffers, Unmanaged,
}

// rank orders kinds, worst first.
func (k Kind) rank() int { return slices.Index(kinds, k) }

// Verdict is the report in a word.
type Verdict string

// The verdicts.
const (
	// Same: everything was verified, and there is no finding.
	Same Verdict = "same"
	// Different: everything was verified, and there are findings.
	Different Verdict = "different"
	// NotVerified: something could not be verified, whatever else was found.
	NotVerified Verdict = "not-verified"
)

// Report is the outcome. Its JSON is documented by its fields.
type Report struct {
	Verdict Verdict `json:"verdict"`
	// Clusters are the names of all that were to be verified, sorted.
	Clusters []string `json:"clusters"`
	// Types is the number of kinds that were seen, live or rendered.
	Types int `json:"types"`
	// NotVerified is what could not be read or rendered, and why.
	NotVerified []Gap `json:"notVerified"`
	// Findings are what differs, worst first.
	Findings []Finding `json:"findings"`
	// Groups is every type there is, by package.
	Groups []Group `json:"groups"`
	// Notes are what is no difference and worth knowing.
	Notes []string `json:"notes,omitempty"`
}

// Gap is something that could not be verified.
type Gap struct {
	Cluster string `json:"cluster"`
	Reason  string `json:"reason"`
}

// Finding is one difference, of all types and clusters that it is the same for.
type Finding struct {
	Kind Kind `json:"kind"`
	// Package is the name of the package that the types are from; empty for
	// types of plain manifests and those that nothing defines.
	Package string `json:"package,omitempty"`
	// Types are the kinds concerned, "Widget.acme.example", sorted. Empty for
	// webhook configurations.
	Types []string `json:"types,omitempty"`
	// Object is a webhook configuration's name, with its kind:
	// "validatingwebhookconfiguration.admissionregistration.k8s.io/widgets".
	Object string `json:"object,omitempty"`
	// Sides are the clusters concerned, by what they have. Of a kind that ends
	// in "differs" or "differ" they are all clusters that were compared, the
	// most frequent first; of others, those at fault.
	Sides []Side `json:"sides"`
	// Details are lines for people: names of pods, settings, patches.
	Details []string `json:"details,omitempty"`
	// Changes are the differences field by field of types whose schema
	// differs, as `gitopsd types diff` has them. At most MaxChanges types of
	// a report have them.
	Changes []Change `json:"changes,omitempty"`
	// Advice is one line on what to do.
	Advice string `json:"advice"`
}

// Side is clusters that have the same of something.
type Side struct {
	Clusters []string `json:"clusters"`
	// What they have, in words.
	What string `json:"what"`
	// Odd says that most other clusters have something else, or that there is
	// no most.
	Odd bool `json:"odd"`
}

// Change is what differs between two definitions of a type.
type Change struct {
	Type string `json:"type"`
	// From and To say where the two definitions are: a cluster's name, or
	// "rendered" for what was rendered for the cluster To.
	From string `json:"from"`
	To   string `json:"to"`
	// Fields as seen by somebody who goes from the one to the other.
	Fields []compat.Finding `json:"fields"`
}

// MaxChanges bounds the types that are compared field by field in one report.
const MaxChanges = 200

// Group is the types of one package, or those of plain manifests, or those that
// nothing in the repository defines.
type Group struct {
	// Package is the package's name; empty for the others.
	Package string `json:"package,omitempty"`
	// Managed is false for types that nothing in the repository defines.
	Managed bool `json:"managed"`
	// Types are the kinds in it, sorted.
	Types []string `json:"types"`
	// States are the clusters that have any of the types, by the worst that
	// is said of them: "same", or a finding's kind.
	States []State `json:"states"`
}

// State is clusters of which the same is to be said.
type State struct {
	State    string   `json:"state"`
	Clusters []string `json:"clusters"`
	// Types is how many types of the group it is said of, in each cluster at
	// fault; of "same" the most that one of the clusters has.
	Types int `json:"types"`
}

// SameState is the State of clusters of which there is no finding.
const SameState = "same"

var advice = map[Kind]string{
	TwoControllers:     "find out which controller is the right one and stop the other: they undo each other's work",
	UnknownImage:       "treat it as an intrusion until you know better: find out where the image came from; deleting the pod makes its node pull the locked image",
	WrongController:    "see whether `gitopsd run` reports an error for the cluster; until it has rolled out, objects are handled as another version does",
	ControllerDiffers:  "declare the same version in these clusters, or keep its users from taking the clusters for equal",
	SettingsDrifted:    "see who changed the workload, and take it back or declare it: what others add gitopsd leaves alone",
	SettingsDiffer:     "make the declarations the same, or keep its users from taking the clusters for equal",
	CompositionDrifted: "see who changed the Composition or Function; gitopsd puts back what it declares",
	NoController:       "find out why its pods do not run: objects are accepted, and nothing happens to them",
	Drifted:            "see who changed the definition; gitopsd puts it right unless the cluster is suspended or only reports drift",
	SchemaDiffers:      "declare the same version in these clusters: what one accepts another refuses or drops",
	Missing:            "see what `gitopsd plan` says of the cluster; until then its API does not exist there",
	WebhookDrifted:     "see who changed the configuration: what it checks or fills in differs from what was declared",
	WebhookDiffers:     "declare the same version in these clusters: one checks or fills in what another does not",
	Unmanaged:          "declare its package for the cluster too, or delete the definition there",
}
