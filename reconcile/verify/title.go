package verify

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"gitopsd.dev/reconcile/prose"
)

// Summary returns the report in one line.
func (r *Report) Summary() string {
	what := fmt.Sprintf("%s in %s", prose.Count(r.Types, "type"), prose.Count(len(r.Clusters), "cluster"))
	if r.Verdict == Same {
		return what + ": " + r.verified()
	}
	var parts []string
	if n := len(r.Findings); n > 0 {
		parts = append(parts, prose.Count(n, "difference"))
	}
	if len(r.Clusters) == 0 && len(r.Errors) > 0 {
		return "nothing was verified: " + prose.Count(len(r.Errors), "error")
	}
	var why []string
	if len(r.NotVerified) > 0 {
		names := make(map[string]bool)
		for _, g := range r.NotVerified {
			names[g.Cluster] = true
		}
		why = append(why, prose.Count(len(names), "cluster"))
	}
	if n := len(r.Errors); n > 0 {
		why = append(why, prose.Count(n, "error"))
	}
	if why != nil {
		parts = append(parts, fmt.Sprintf("not everything could be verified (%s)", strings.Join(why, ", ")))
	}
	return what + ": " + strings.Join(parts, ", and ")
}

// titles are the findings in one line, after their subject. {it} is the pronoun of the
// subject, {types} are the types, {odd} the clusters at fault, and {between} the clusters that
// differ.
var titles = map[Kind]string{
	TwoControllers:     "two controllers act on {it} at once in {odd}",
	UnknownImage:       "nobody knows what acts on {it} in {odd}: the image that runs is not in clusters.lock",
	WrongController:    "another controller than declared acts on {it} in {odd}",
	SecondActor:        "a workload that nobody declared may write {it} in {odd}",
	ControllerDiffers:  "the controller differs {between}",
	SettingsDrifted:    "the controller runs with other settings than declared in {odd}",
	SettingsDiffer:     "the controller's settings differ {between}",
	ConfigDrifted:      "the controller's configuration is not what was declared in {odd}",
	ConfigDiffers:      "the controller's configuration differs {between}",
	RightsDrifted:      "the controller has other rights than declared in {odd}",
	RightsDiffer:       "the controller's rights differ {between}",
	AdmissionDiffers:   "what it does to {types} differs {between}",
	CompositionDrifted: "what is composed of {it} is not what was declared in {odd}",
	NoController:       "nothing acts on {it} in {odd}: the controller does not run",
	Refused:            "what was declared is refused in {odd}",
	RolledBack:         "what was declared did not get ready and is rolled back in {odd}",
	NotApplied:         "what was declared is not applied yet in {odd}",
	Drifted:            "changed by somebody in {odd}",
	SchemaDiffers:      "the schema differs {between}",
	ConversionDrifted:  "not converted as declared in {odd}",
	ConversionDiffers:  "the conversion rules differ {between}",
	Missing:            "missing in {odd}",
	WebhookDrifted:     "not as declared in {odd}",
	WebhookDiffers:     "differs {between}",
	Unmanaged:          "live in {odd}, where nothing declares {it}",
}

// Title returns the finding in one line.
func (f *Finding) Title() string {
	subject, it := f.subject()
	in := strings.NewReplacer("{it}", it, "{types}", f.objects(), "{odd}", f.odd(), "{between}", f.between())
	return subject + ": " + in.Replace(cmp.Or(titles[f.Kind], string(f.Kind)))
}

// subject returns the subject of the finding and its pronoun.
func (f *Finding) subject() (subject, it string) {
	switch {
	case f.Object != "":
		return f.Object, "it"
	case len(f.Types) == 1:
		return f.Types[0], "it"
	case f.Package != "":
		return fmt.Sprintf("%d types of package %s", len(f.Types), f.Package), "them"
	}
	return fmt.Sprintf("%d types", len(f.Types)), "them"
}

// objects names the types that a webhook or policy matches.
func (f *Finding) objects() string {
	if len(f.Types) == 1 {
		return f.Types[0]
	}
	return prose.Count(len(f.Types), "type")
}

// odd names the clusters to check.
func (f *Finding) odd() string {
	var names []string
	for _, s := range f.Sides {
		if s.Odd {
			names = append(names, s.Clusters...)
		}
	}
	slices.Sort(names)
	return ClusterNames(names)
}

// between names the clusters that differ from each other.
func (f *Finding) between() string {
	if !f.Sides[0].Odd {
		return fmt.Sprintf("in %s from %s", f.odd(), ClusterNames(f.Sides[0].Clusters))
	}
	if len(f.Sides) == 2 {
		return fmt.Sprintf("between %s and %s", ClusterNames(f.Sides[0].Clusters), ClusterNames(f.Sides[1].Clusters))
	}
	return fmt.Sprintf("between %d groups of clusters", len(f.Sides))
}

// ClusterNames returns clusters as part of a sentence: "dev and prod", or the number
// and the first of many.
func ClusterNames(names []string) string {
	if len(names) > 4 {
		return fmt.Sprintf("%d clusters (%s, …)", len(names), strings.Join(names[:2], ", "))
	}
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}
