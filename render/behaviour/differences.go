package behaviour

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// Difference is one part that differs between two behaviours. It is comparable, and its
// JSON is documented.
type Difference struct {
	// What is [List.What].
	What string `json:"what"`
	// Name is the name of the part: a container, "<container> argument --debug", a
	// Composition.
	Name string `json:"name"`
	// Before and After are the values if they may be shown ([List.Shown]), and else empty.
	// One is empty if only one side has the part.
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
	// Added and Removed report whether only one side has the part.
	Added   bool `json:"added,omitempty"`
	Removed bool `json:"removed,omitempty"`
}

// String returns the difference in one line: "image c: sha256:5f… -> sha256:7a…",
// "setting c argument --debug added".
func (d Difference) String() string {
	text := d.What + " " + d.Name
	switch {
	case d.Added && d.After != "":
		return text + " added: " + brief(d.After)
	case d.Added:
		return text + " added"
	case d.Removed && d.Before != "":
		return text + " removed: " + brief(d.Before)
	case d.Removed:
		return text + " removed"
	case d.Before != "" || d.After != "":
		return fmt.Sprintf("%s: %s -> %s", text, brief(d.Before), brief(d.After))
	}
	return text
}

// brief shortens a digest.
func brief(value string) string {
	const shown = len("h1:") + 12
	if strings.HasPrefix(value, "h1:") && len(value) > shown {
		return value[:shown]
	}
	return cmp.Or(sources.Abbreviate(value), "not declared")
}

// Differences returns the parts that differ between two behaviours, in the order of
// [Identity.Digest]; none if their digests are equal.
func Differences(before, after *Identity) []Difference {
	var all []Difference
	olds, nows := before.Lists(), after.Lists()
	for n := range olds {
		was, is := olds[n], nows[n]
		for _, name := range Differing(was.Parts, is.Parts) {
			old, had := find(was.Parts, name)
			now, has := find(is.Parts, name)
			d := Difference{What: was.What, Name: name, Added: !had, Removed: !has}
			if was.Shown {
				d.Before, d.After = old.Value, now.Value
			}
			all = append(all, d)
		}
	}
	return all
}

// find returns the part with this name.
func find(parts []Part, name string) (p Part, found bool) {
	i, found := slices.BinarySearchFunc(parts, name, func(p Part, name string) int { return cmp.Compare(p.Name, name) })
	if found {
		p = parts[i]
	}
	return p, found
}

// Summary returns differences in one line, grouped by What, with at most most names in
// each group.
func Summary(all []Difference, most int) string {
	var parts []string
	for len(all) > 0 {
		n := 0
		for n < len(all) && all[n].What == all[0].What {
			n++
		}
		var names []string
		for _, d := range all[:min(n, most)] {
			names = append(names, strings.TrimPrefix(d.String(), d.What+" "))
		}
		if n > most {
			names = append(names, fmt.Sprintf("%d more", n-most))
		}
		parts = append(parts, all[0].What+" "+strings.Join(names, ", "))
		all = all[n:]
	}
	return strings.Join(parts, "; ")
}

// Pin returns the digest of the behaviour that an object is pinned to; "" if there is
// none. On a definition, the same annotation names a controller.
func Pin(o *manifest.Object) string {
	if o.ID().Is(manifest.Definitions...) || o.ID().Is(manifest.MRD) {
		return ""
	}
	return o.Annotation(manifest.ControllerAnnotation)
}
