// Package verify compares live clusters with each other and with the repository,
// type by type: `gitopsd verify`.
//
// It is pure: [Compare] takes the facts of clusters (facts.go) and returns a [Report].
//
// compare.go compares the types and, with conversion.go and composes.go, their conversions
// and Compositions; controllers.go the controllers behind them; contexts.go the configuration
// and rights of these; admission.go the webhooks and policies that match the types, and
// webhooks.go rendered webhooks with live ones. actors.go reports other workloads that may
// write a type. planned.go distinguishes what was refused or not applied yet from what others
// changed. gather.go merges findings that are the same for many types or clusters, so that a
// report on 1,000 types in 50 clusters fits on a screen; title.go has a line for each kind of
// finding, and looked.go counts what was compared. cmd/gitopsd/findings prints a report.
//
// [Repository.Wanted] returns the facts that follow from the repository alone (wanted.go);
// reconcile/verify/live reads clusters. render/types, render/behaviour and
// render/types/compat define types, what acts on them, and differences between schemas.
package verify

import (
	"slices"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types/compat"
)

// Kind is the kind of a finding. Kinds are stable: programs may depend on them.
type Kind string

// The kinds, worst first: those about programs that act on objects, then those about API
// servers.
const (
	// TwoControllers: different controllers act on the type at once in one
	// cluster.
	TwoControllers Kind = "two-controllers"
	// UnknownImage: the image of a running controller is neither the rendered one
	// nor one in the lock.
	UnknownImage Kind = "unknown-image"
	// WrongController: the running controller is in the lock, but is not the one
	// rendered for the cluster.
	WrongController Kind = "wrong-controller"
	// SecondActor: a workload that the repository does not declare may write the type
	// beside its declared controller.
	SecondActor Kind = "second-actor"
	// ControllerDiffers: each cluster runs its rendered controller, but these
	// differ.
	ControllerDiffers Kind = "controller-differs"
	// SettingsDrifted: the rendered image runs with other arguments or another
	// environment than rendered, or where no replica was rendered, or the workload has another
	// image for new pods.
	SettingsDrifted Kind = "settings-drifted"
	// SettingsDiffer: one image was rendered with different arguments or
	// environments.
	SettingsDiffer Kind = "settings-differ"
	// ConfigDrifted: a ConfigMap or Secret that the controller refers to has another
	// content than rendered.
	ConfigDrifted Kind = "config-drifted"
	// ConfigDiffers: the ConfigMaps or Secrets that controllers refer to have different
	// contents.
	ConfigDiffers Kind = "config-differs"
	// RightsDrifted: the controller's account has other rights than were rendered for
	// it.
	RightsDrifted Kind = "rights-drifted"
	// RightsDiffer: the controllers' accounts have different rights.
	RightsDiffer Kind = "rights-differ"
	// CompositionDrifted: live Compositions or Functions behind a composite type
	// differ from the rendered ones.
	CompositionDrifted Kind = "composition-drifted"
	// NoController: no controller runs for the type.
	NoController Kind = "no-controller"
	// AdmissionDiffers: webhooks or policies of the API servers that match the type
	// differ, whoever made them.
	AdmissionDiffers Kind = "admission-differs"
	// Refused: `gitopsd run` refuses to apply the rendered type or its controller, and
	// the cluster keeps what it had.
	Refused Kind = "refused"
	// RolledBack: the rendered controller did not get ready, and the one before runs.
	RolledBack Kind = "rolled-back"
	// NotApplied: the rendered type or its controller is not applied yet.
	NotApplied Kind = "not-applied"
	// Drifted: the live type differs from the rendered one.
	Drifted Kind = "drifted"
	// SchemaDiffers: clusters have different types of one name.
	SchemaDiffers Kind = "schema-differs"
	// ConversionDrifted: the API server does not have objects converted by the rendered
	// conversion rules, or asks another webhook than the rendered one.
	ConversionDrifted Kind = "conversion-drifted"
	// ConversionDiffers: clusters with the same type convert its objects by different
	// rules.
	ConversionDiffers Kind = "conversion-differs"
	// Missing: the type was rendered, but does not exist.
	Missing Kind = "missing"
	// WebhookDrifted: a webhook configuration or admission policy differs from the
	// rendered one, or does not exist.
	WebhookDrifted Kind = "webhook-drifted"
	// WebhookDiffers: webhook configurations or admission policies of one name were
	// rendered differently.
	WebhookDiffers Kind = "webhook-differs"
	// Unmanaged: the repository defines the type for other clusters, but not for
	// this one.
	Unmanaged Kind = "unmanaged"
)

var kinds = []Kind{
	TwoControllers, UnknownImage, WrongController, SecondActor, ControllerDiffers, SettingsDrifted, SettingsDiffer,
	ConfigDrifted, ConfigDiffers, RightsDrifted, RightsDiffer, CompositionDrifted, NoController, AdmissionDiffers,
	Refused, RolledBack, NotApplied, Drifted, SchemaDiffers, ConversionDrifted, ConversionDiffers, Missing, WebhookDrifted, WebhookDiffers, Unmanaged,
}

// rank orders kinds, worst first.
func (k Kind) rank() int {
	if k == NotVerifiedState {
		return len(kinds)
	}
	return slices.Index(kinds, k)
}

// Verdict is the report in one word.
type Verdict string

// The verdicts.
const (
	// Same: there is no finding. Everything was verified except Secrets that the account may
	// not read, which are in Report.Omitted.
	Same Verdict = "same"
	// Different: everything was verified, and there are findings.
	Different Verdict = "different"
	// NotVerified: something could not be verified. There may be findings.
	NotVerified Verdict = "not-verified"
)

// Report is the result of a comparison. The fields document its JSON.
type Report struct {
	Verdict Verdict `json:"verdict"`
	// Clusters are the names of all clusters to verify, sorted.
	Clusters []string `json:"clusters"`
	// Types is the number of kinds, live or rendered.
	Types int `json:"types"`
	// NotVerified is what could not be read or rendered, with the reasons.
	NotVerified []Gap `json:"notVerified"`
	// Findings are the differences, worst first.
	Findings []Finding `json:"findings"`
	// Groups are all types, by package.
	Groups []Group `json:"groups"`
	// LookedAt is what was compared, and Omitted what was not.
	LookedAt Looked     `json:"lookedAt"`
	Omitted  []Omission `json:"omitted"`
	// DefinitionOnly is the number of types with only their definition verified, because not
	// everything that acts on them is declared.
	DefinitionOnly int `json:"definitionOnly"`
	// Errors are those of the repository, because of which some clusters, or all, are missing.
	Errors []string `json:"errors,omitempty"`
	// Notes are for a person to read; they are not differences.
	Notes []string `json:"notes,omitempty"`
}

// Fail adds errors about what is not in the report.
func (r *Report) Fail(errors ...string) {
	if len(errors) > 0 {
		r.Verdict, r.Errors = NotVerified, append(r.Errors, errors...)
	}
}

// Failed returns the report if errors left nothing to verify.
func Failed(errors ...string) *Report {
	return &Report{Verdict: NotVerified, Errors: errors, Clusters: []string{}, NotVerified: []Gap{}, Findings: []Finding{}, Groups: []Group{}, Omitted: []Omission{}}
}

// Gap is something that could not be verified.
type Gap struct {
	Cluster string `json:"cluster"`
	Reason  string `json:"reason"`
}

// Finding is one difference, with all types and clusters in which it is the same.
type Finding struct {
	Kind Kind `json:"kind"`
	// Package is the name of the types' package; empty for types of plain manifests
	// and those that nothing defines.
	Package string `json:"package,omitempty"`
	// Types are the kinds concerned, "Widget.acme.example", sorted. Empty for
	// rendered webhook configurations.
	Types []string `json:"types,omitempty"`
	// Object is a webhook configuration's name, with its kind:
	// "validatingwebhookconfiguration.admissionregistration.k8s.io/widgets"; or a
	// webhook or policy that matches the types: "mutating webhook a.acme.example".
	Object string `json:"object,omitempty"`
	// Sides are the clusters concerned, grouped by what they have. For a kind that
	// ends in "differs" or "differ" they are all compared clusters, the most
	// frequent side first; for others, the clusters at fault.
	Sides []Side `json:"sides"`
	// Details are lines for people: names of pods, settings, patches.
	Details []string `json:"details,omitempty"`
	// Changes are the differences field by field of types whose schema differs, as
	// in `gitopsd types diff`. At most MaxChanges types of a report have them.
	Changes []Change `json:"changes,omitempty"`
	// Advice is one line on what to do.
	Advice string `json:"advice"`
}

// Side is a group of clusters that have the same.
type Side struct {
	Clusters []string `json:"clusters"`
	// What describes what they have.
	What string `json:"what"`
	// Odd is false for the side with more than half of the clusters.
	Odd bool `json:"odd"`
}

// Change is the difference between two definitions of a type.
type Change struct {
	Type string `json:"type"`
	// From and To are the places of the two definitions: a cluster's name, or
	// "rendered" for the definition rendered for the cluster To.
	From string `json:"from"`
	To   string `json:"to"`
	// Fields are the findings for a change from the one to the other.
	Fields []compat.Finding `json:"fields"`
}

// MaxChanges bounds the types in one report that are compared field by field.
const MaxChanges = 200

// Group is the types of one package, of plain manifests, or those that nothing in
// the repository defines.
type Group struct {
	// Package is the package's name; empty for the others.
	Package string `json:"package,omitempty"`
	// Managed is false for types that nothing in the repository defines.
	Managed bool `json:"managed"`
	// Types are the kinds in it, sorted.
	Types []string `json:"types"`
	// DefinitionOnly are the types with only their definition verified, because not
	// everything that acts on them is declared.
	DefinitionOnly []string `json:"definitionOnly,omitempty"`
	// NoController are those in DefinitionOnly from a package without a controller.
	NoController []string `json:"noController,omitempty"`
	// States are the clusters that have any of the types, by their worst finding:
	// "same", "not-verified", or a finding's kind.
	States []State `json:"states"`
}

// State is the clusters with the same state.
type State struct {
	State    string   `json:"state"`
	Clusters []string `json:"clusters"`
	// Types is the number of types of the group in this state, in each cluster at
	// fault; for "same" the largest number in one of the clusters.
	Types int `json:"types"`
}

// States beside the kinds of findings.
const (
	// SameState: there are no findings.
	SameState = "same"
	// NotVerifiedState: there are no findings, and something about the types could not be
	// read.
	NotVerifiedState = "not-verified"
)

// heldAdvice is the advice where the workload itself has the image.
var heldAdvice = map[Kind]string{
	UnknownImage:    "treat it as an intrusion until you know better: ask who set the image, and where it came from. New pods get it too, until the workload is as declared again; `gitopsd run` sees to that, unless the cluster is suspended or only reports drift",
	WrongController: "ask who set the image. New pods get it too, until the workload is as declared again; `gitopsd run` sees to that, unless the cluster is suspended or only reports drift",
}

var advice = map[Kind]string{
	TwoControllers:     "find out which controller is the right one and stop the other: they undo each other's work",
	UnknownImage:       "treat it as an intrusion until you know better: find out where the image came from; deleting the pod makes its node pull the locked image",
	WrongController:    "see whether `gitopsd run` reports an error for the cluster; until it has rolled out, objects are handled as another version does",
	SecondActor:        "find out what it does with them, and stop it; if it belongs there, declare it in the repository, or name its ServiceAccount in the Cluster's annotation " + manifest.ActorsAnnotation,
	ControllerDiffers:  "declare the same version in these clusters, or keep its users from taking the clusters for equal",
	SettingsDrifted:    "see who changed the workload, and take it back or declare it: what others add gitopsd leaves alone",
	SettingsDiffer:     "make the declarations the same, or keep its users from taking the clusters for equal",
	ConfigDrifted:      "see who changed it; gitopsd puts back what it declares. Pods that started before have the older values of variables",
	ConfigDiffers:      "make the contents the same, or keep its users from taking the clusters for equal",
	RightsDrifted:      "declare the rights beside the controller, or take them back: see who made or changed the bindings and roles",
	RightsDiffer:       "make the roles and bindings the same: what a controller may do in one cluster fails in another",
	AdmissionDiffers:   "make it the same in these clusters, declared or not: an object that one of them takes as it is, another changes or refuses",
	CompositionDrifted: "see who changed the Composition or Function; gitopsd puts back what it declares",
	NoController:       "find out why its pods do not run: objects are accepted, and nothing happens to them",
	Refused:            "do what the reason says, or declare what the cluster has; `gitopsd plan` shows every step",
	RolledBack:         "mend the package or its DeploymentRuntimeConfig, or revert the commit; `gitopsd plan` says how to try the same again",
	NotApplied:         "commit it, and wait for `gitopsd run`; if it does not come, its status says why",
	Drifted:            "see who changed the definition; gitopsd puts it right unless the cluster is suspended or only reports drift, or objects use what was added, which `gitopsd plan` shows",
	SchemaDiffers:      "declare the same version in these clusters: what one accepts another refuses or drops",
	ConversionDrifted:  "see who changed the definition; gitopsd puts it right unless the cluster is suspended or only reports drift, or objects use what was added, which `gitopsd plan` shows. Until then objects lose fields in other versions than their own, or somebody else's server reads and rewrites them",
	ConversionDiffers:  "make the rules the same in these clusters: one object reads differently in another version",
	Missing:            "see what `gitopsd plan` says of the cluster; until then its API does not exist there",
	WebhookDrifted:     "see who changed the configuration: what it checks or fills in differs from what was declared",
	WebhookDiffers:     "declare the same version in these clusters: one checks or fills in what another does not",
	Unmanaged:          "declare its package for the cluster too, or delete the definition there",
}
