package verify

import (
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
	if len(r.NotVerified) > 0 {
		names := make(map[string]bool)
		for _, g := range r.NotVerified {
			names[g.Cluster] = true
		}
		parts = append(parts, fmt.Sprintf("not everything could be verified (%s)", prose.Count(len(names), "cluster")))
	}
	return what + ": " + strings.Join(parts, ", and ")
}

// Title returns the finding in one line.
func (f *Finding) Title() string {
	subject, it := f.subject()
	odd := f.odd()
	switch f.Kind {
	case TwoControllers:
		return fmt.Sprintf("%s: two controllers act on %s at once in %s", subject, it, odd)
	case UnknownImage:
		return fmt.Sprintf("%s: nobody knows what acts on %s in %s: the image that runs is not in clusters.lock", subject, it, odd)
	case WrongController:
		return fmt.Sprintf("%s: another controller than declared acts on %s in %s", subject, it, odd)
	case SecondActor:
		return fmt.Sprintf("%s: a workload that nobody declared may write %s in %s", subject, it, odd)
	case ControllerDiffers:
		return fmt.Sprintf("%s: the controller differs %s", subject, f.between())
	case SettingsDrifted:
		return fmt.Sprintf("%s: the controller runs with other settings than declared in %s", subject, odd)
	case SettingsDiffer:
		return fmt.Sprintf("%s: the controller's settings differ %s", subject, f.between())
	case ConfigDrifted:
		return fmt.Sprintf("%s: the controller's configuration is not what was declared in %s", subject, odd)
	case ConfigDiffers:
		return fmt.Sprintf("%s: the controller's configuration differs %s", subject, f.between())
	case RightsDrifted:
		return fmt.Sprintf("%s: the controller has other rights than declared in %s", subject, odd)
	case RightsDiffer:
		return fmt.Sprintf("%s: the controller's rights differ %s", subject, f.between())
	case AdmissionDiffers:
		return fmt.Sprintf("%s: what it does to %s differs %s", subject, f.objects(), f.between())
	case CompositionDrifted:
		return fmt.Sprintf("%s: what is composed of %s is not what was declared in %s", subject, it, odd)
	case NoController:
		return fmt.Sprintf("%s: nothing acts on %s in %s: the controller does not run", subject, it, odd)
	case Refused:
		return fmt.Sprintf("%s: what was declared is refused in %s", subject, odd)
	case RolledBack:
		return fmt.Sprintf("%s: what was declared did not get ready and is rolled back in %s", subject, odd)
	case NotApplied:
		return fmt.Sprintf("%s: what was declared is not applied yet in %s", subject, odd)
	case Drifted:
		return fmt.Sprintf("%s: changed by somebody in %s", subject, odd)
	case SchemaDiffers:
		return fmt.Sprintf("%s: the schema differs %s", subject, f.between())
	case ConversionDrifted:
		return fmt.Sprintf("%s: not converted by the declared rules in %s", subject, odd)
	case ConversionDiffers:
		return fmt.Sprintf("%s: the conversion rules differ %s", subject, f.between())
	case Missing, WebhookDrifted, WebhookDiffers:
		what := map[Kind]string{Missing: "missing in " + odd, WebhookDrifted: "not as declared in " + odd, WebhookDiffers: "differs " + f.between()}
		return subject + ": " + what[f.Kind]
	case Unmanaged:
		return fmt.Sprintf("%s: live in %s, where nothing declares %s", subject, odd, it)
	}
	return subject + ": " + string(f.Kind)
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
