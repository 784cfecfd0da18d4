// Package harm finds out how replacing a type's definition affects existing objects.
//
// Package compat (beside this one) compares two definitions by their schemas: removing a
// field breaks everyone who uses it. Only the objects show whether anyone does. This
// package reads each object with the old and the new definition, with the API server's
// own code (render/validate), and compares the results.
//
// It owns
//   - the vocabulary: harms to an object, and the survey of all objects of a type (this
//     file);
//   - the judge of a type's objects (judge.go), and the judgement of one object (look.go),
//     as it is and as the plan leaves it (subject.go): both readings (read.go), their
//     differences (trees.go), and changed defaults (defaults.go);
//   - the writers of a field, from metadata.managedFields (writers.go);
//   - the sum of several surveys (sum.go);
//   - the findings of compat that objects can clear (clear.go), and the findings that
//     cause a harm (match.go).
//
// The package does no I/O. reconcile/apply lists the objects of a cluster, and
// reconcile/plan decides what follows. A survey keeps names of objects, paths of fields
// and names of their writers, but no values.
//
// Objects are judged as the API server shows them, which hides two things. A value may be
// stored, or the old definition's default may have filled it in on reading. So if nobody
// owns the field, a changed default is reported as something that may happen. And objects
// may be stored in another version than the listed one, with fields that are not shown.
// So if that is possible, or if a webhook converts between versions, only the listed
// version is judged. If conversion rules convert, the objects are listed in each version
// that findings are about, and the results of the new rules are checked by the new
// definition.
//
// Composites and claims of a CompositeResourceDefinition are judged by the
// CustomResourceDefinitions that Crossplane makes of it.
package harm

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"gitopsd.dev/render/manifest"
)

// liveFor is how long a field manager counts as live after it wrote an object of the type.
// A live manager is expected to write again.
const liveFor = 90 * 24 * time.Hour

// Kind is a kind of harm.
type Kind string

// The kinds of harm.
const (
	// Lost: a value is dropped. The old definition's default does not count as a value, unless
	// another version goes on to have the field.
	Lost Kind = "lost"
	// Invalid: the API server would refuse to create the object, and refuses writes of
	// the field with this value. It accepts other changes of the object.
	Invalid Kind = "invalid"
	// Stuck: the API server refuses every change of the object that does not correct it.
	Stuck Kind = "stuck"
	// Defaulted: an unset field gets another value.
	Defaulted Kind = "defaulted"
	// Unfilled: a field is unset in a version that has a default for it, since the version
	// that the object is stored in has none.
	Unfilled Kind = "unfilled"
	// Removed: the object is deleted with its type.
	Removed Kind = "removed"
)

// Harm is one harm to an object.
type Harm struct {
	Kind Kind `json:"kind"`
	// Version is the version of the API in which it happens.
	Version string `json:"version,omitempty"`
	// Path is the field, ".spec.rules[0].port"; empty for the whole object.
	Path string `json:"path,omitempty"`
	// Why is the reason why a value is invalid, or the default that a field gets or lacks.
	Why string `json:"why,omitempty"`
	// Perhaps is set if the harm depends on the stored value, which is not known.
	Perhaps bool `json:"perhaps,omitempty"`
	// Owners are the field managers that own the field, sorted; at most eight.
	Owners []string `json:"owners,omitempty"`
}

// String returns the harm as text to write after the object's name:
// ".spec.colour would be dropped, owned by kubectl".
func (h Harm) String() string {
	text := strings.TrimSpace(h.Path + " " + h.effect())
	if len(h.Owners) > 0 {
		text += ", owned by " + strings.Join(h.Owners, " and ")
	}
	return text
}

func (h Harm) effect() string {
	would := "would"
	if h.Perhaps {
		would = "may"
	}
	switch h.Kind {
	case Lost:
		return would + " be dropped"
	case Defaulted:
		return would + " become " + h.Why
	case Unfilled:
		return would + " lack the default " + h.Why
	case Removed:
		return would + " be deleted with its type"
	case Stuck:
		return "is refused in every change of the object: " + h.Why
	}
	return "is not valid any more: " + h.Why
}

// Object is a harmed object.
type Object struct {
	// Kind is set if the survey is of several kinds.
	Kind      string `json:"kind,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Harms are the first harms, at most four.
	Harms []Harm `json:"harms"`
	// More is the number of other harms.
	More int `json:"more,omitempty"`
}

// name returns the object's name with its namespace and kind.
func (o Object) name() string {
	name := o.Name
	if o.Namespace != "" {
		name = o.Namespace + "/" + name
	}
	if o.Kind != "" {
		name = o.Kind + " " + name
	}
	return name
}

// String names the object with its first harm.
func (o Object) String() string {
	text := o.name() + " " + o.Harms[0].String()
	if n := len(o.Harms) - 1 + o.More; n > 0 {
		text += fmt.Sprintf(", and %d more", n)
	}
	return text
}

// Limits of a survey.
const (
	// mostObjects limits the objects that are named; the others are counted.
	mostObjects = 50
	// mostHarms limits the harms of an object.
	mostHarms = 4
	// mostWriters limits the writers and owners of a field that are named, and the
	// objects written in a version.
	mostWriters = 8
	// mostKnown limits the writers of a field that are remembered; live ones are named
	// first.
	mostKnown = 64
	// mostManagers limits the field managers with a known time of their last write;
	// others count as live.
	mostManagers = 1000
	// shownWritten limits the objects that a warning names.
	shownWritten = 3
)

// Survey has the effects of a changed definition on the existing objects.
type Survey struct {
	// Looked is the number of objects looked at.
	Looked int `json:"looked"`
	// Harmed is the number of harmed objects, and Objects are the first of these, in the
	// order of the list.
	Harmed  int      `json:"harmed"`
	Objects []Object `json:"objects,omitempty"`
	// Tolls are the effects of each breaking finding, in the order of the findings.
	Tolls []Toll `json:"findings,omitempty"`
	// Unknown is the reason why not all objects could be judged. If it is set, the
	// findings of compat decide alone.
	Unknown string `json:"unknown,omitempty"`
	// At is the time at which reading the objects began.
	At time.Time `json:"-"`
	// Relies are the objects that are only unharmed because the plan changes or deletes
	// them.
	Relies []manifest.ID `json:"-"`

	// unmatched is the number of harms that no finding causes.
	unmatched int
	// unnamed are the harmed objects that are not in Objects, if there are several lists.
	unnamed map[string]bool
}

// Toll has the effects of a breaking finding on the objects.
type Toll struct {
	// Name, Version and Path are the finding's.
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	Path    string `json:"path,omitempty"`
	// Harmed is the number of objects that the finding harms.
	Harmed int `json:"harmed"`
	// Writers are the field managers, without gitopsd, that write the field or in the
	// version in any object and wrote within 90 days: sorted, at most eight. They may write
	// another value next. Former are those that last wrote before.
	Writers []string `json:"writers,omitempty"`
	Former  []string `json:"formerWriters,omitempty"`
	// Written is the number of objects that a manager wrote in the removed version, and
	// Objects are the first of them, "namespace/name".
	Written int      `json:"written,omitempty"`
	Objects []string `json:"objects,omitempty"`
	// Kept is the number of objects that keep, in the annotation of conversion rules,
	// fields that only the removed version has. Keepers are the first of them with such a
	// field, "namespace/name .spec.note".
	Kept    int      `json:"kept,omitempty"`
	Keepers []string `json:"keepers,omitempty"`
	// Unjudged is the reason why the objects do not show whether the finding harms them;
	// empty if they do.
	Unjudged string `json:"unjudged,omitempty"`

	class class
	// by are all writers.
	by []string
}

// Known reports whether all objects were judged. It is false for a nil Survey.
func (s *Survey) Known() bool { return s != nil && s.Unknown == "" }

// Text returns the survey in one line, with at most most objects:
// "harms 3 of 2112 objects: acme/a .spec.colour would be dropped, owned by kubectl; …".
func (s *Survey) Text(most int) string {
	switch {
	case s == nil:
		return ""
	case s.Harmed > 0:
		text := fmt.Sprintf("harms %d of %s: ", s.Harmed, objects(s.Looked))
		shown := s.Objects[:min(most, len(s.Objects))]
		for i, o := range shown {
			if i > 0 {
				text += "; "
			}
			text += o.String()
		}
		if n := s.Harmed - len(shown); n > 0 {
			text += fmt.Sprintf("; and %d more", n)
		}
		if s.Unknown != "" {
			text += "; " + s.Unknown
		}
		return text
	case s.Unknown != "":
		return "its effect on the objects is not known: " + s.Unknown
	}
	who, but := "nobody", s.Doubts()
	if others := s.Others(); len(others) > 0 {
		who, but = "no object", append([]string{"clients: " + strings.Join(others, ", ")}, but...)
	}
	text := fmt.Sprintf("harms %s today (%s looked at)", who, objects(s.Looked))
	if s.Looked == 0 {
		text = "harms " + who + ": there are no objects"
	}
	if len(but) > 0 {
		text += ", but " + strings.Join(but, "; ")
	}
	return text
}

// Doubts returns the findings that the objects show nothing about, each with the reason;
// none if there are no objects.
func (s *Survey) Doubts() []string {
	var all []string
	for _, t := range s.Tolls {
		if doubt := t.Name + " " + t.Unjudged; s.Looked > 0 && t.Unjudged != "" && !slices.Contains(all, doubt) {
			all = append(all, doubt)
		}
	}
	return all
}

// Others returns the names of the findings that concern clients, whatever the objects show.
func (s *Survey) Others() []string {
	var names []string
	for _, t := range s.Tolls {
		if (t.class == byClients || t.class == byBoth || t.class == byVersion || t.class == never) && !slices.Contains(names, t.Name) {
			names = append(names, t.Name)
		}
	}
	return names
}

func objects(n int) string { return count(n, "1 object", "objects") }

// count returns one if n is 1, and otherwise n and many.
func count(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// some names the first of the given number of objects.
func some(objects []string, of int) string {
	shown := min(shownWritten, len(objects))
	text := strings.Join(objects[:shown], ", ")
	if n := of - shown; n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	return text
}

// who names the writers. next is written after the live ones.
func (t *Toll) who(next string) string {
	var all []string
	if len(t.Writers) > 0 {
		all = append(all, "by "+strings.Join(t.Writers, ", ")+next)
	}
	if len(t.Former) > 0 {
		all = append(all, fmt.Sprintf("by %s, not for %d days", strings.Join(t.Former, ", "), int(liveFor.Hours()/24)))
	}
	return strings.Join(all, ", and ")
}

// Warnings returns the writers of fields that no object is harmed by yet, since their next
// write may cause harm, and the objects that keep fields for a removed version.
func (s *Survey) Warnings() []string {
	if s == nil {
		return nil
	}
	var all []string
	for _, t := range s.Tolls {
		if t.Kept > 0 {
			all = append(all, fmt.Sprintf("%s %s: %s fields for it that no other version has: %s", t.Name, t.Version, count(t.Kept, "1 object keeps", "objects keep"), some(t.Keepers, t.Kept)))
		}
		if t.Harmed > 0 || len(t.Writers) == 0 && len(t.Former) == 0 {
			continue
		}
		what := cmp.Or(t.Path, t.Version)
		if what == "" {
			continue
		}
		line := fmt.Sprintf("%s %s: written %s", t.Name, what, t.who(", whose next write counts"))
		if t.Written > 0 {
			line = fmt.Sprintf("%s %s: %s written in it %s: %s", t.Name, what, count(t.Written, "1 object was", "objects were"), t.who(""), some(t.Objects, t.Written))
		}
		if !slices.Contains(all, line) {
			all = append(all, line)
		}
	}
	return all
}
