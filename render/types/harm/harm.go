// Package harm finds what replacing a type's definition does to the objects that there
// are.
//
// Package compat (beside this one) judges two definitions by their schemas: a field that
// goes away breaks whoever uses it. Whether anybody does, only the objects can say.
// Here each object is read by the old and by the new definition with the API server's
// own code (render/validate), and the results are compared.
//
// It owns
//   - the vocabulary (this file): what can happen to an object, and the sum over all
//     objects of a type;
//   - the judge of a type's objects (judge.go), and what it makes of one (look.go): the two
//     readings of it (read.go), the differences between them (trees.go), and the defaults
//     that it may hold (defaults.go);
//   - who writes a field, from metadata.managedFields (writers.go);
//   - the sum of what several judges found (sum.go);
//   - which findings of compat the objects can clear (clear.go), and which finding an
//     object is harmed by (match.go).
//
// It is pure. reconcile/apply lists the objects of a cluster, and reconcile/plan decides
// what follows. Of an object nothing is kept but its name, the paths of fields and the
// names of those who write them: no value.
//
// An object is judged as the API server shows it. Two things cannot be seen there. A
// value may have been filled in by the old definition's default when the object was
// read, or be stored: if nobody owns the field, a changed default is told as something
// that may happen. And objects may be stored in another version than they are listed in:
// what only the stored one has is not seen. So if any may be, or if a webhook converts
// between versions, only the listed version is judged. Where conversion rules convert, the
// objects are listed in each version that findings are about: what such a version would lose
// shows there, and what the new rules make of an object is checked by the new definition.
//
// Composites and claims of a CompositeResourceDefinition are judged by the
// CustomResourceDefinitions that Crossplane makes of it.
package harm

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"gitopsd.dev/render/manifest"
)

// LiveFor is how long a field manager counts as live after it wrote an object of the type:
// its next write is to be expected. One that has written nothing for longer may be gone.
const LiveFor = 90 * 24 * time.Hour

// Kind is what happens to an object.
type Kind string

// The kinds of harm.
const (
	// Lost: a value is dropped. A value that is the old definition's default is not
	// lost: the default comes and goes with the definition.
	Lost Kind = "lost"
	// Invalid: the object would not be accepted if it were created again, nor a write of
	// the field with such a value. Other changes of the object are accepted.
	Invalid Kind = "invalid"
	// Stuck: no change of the object is accepted that does not correct it.
	Stuck Kind = "stuck"
	// Defaulted: a field that is not set gets another value.
	Defaulted Kind = "defaulted"
	// Removed: the object is deleted with its type.
	Removed Kind = "removed"
)

// Harm is one thing that happens to an object.
type Harm struct {
	Kind Kind `json:"kind"`
	// Version of the API in which it happens.
	Version string `json:"version,omitempty"`
	// Path is the field, ".spec.rules[0].port"; empty for the whole object.
	Path string `json:"path,omitempty"`
	// Why says more: what is wrong with the value, or the default that it gets.
	Why string `json:"why,omitempty"`
	// Perhaps: it depends on what is stored, which cannot be seen.
	Perhaps bool `json:"perhaps,omitempty"`
	// Owners are the field managers that own the field, sorted; at most eight.
	Owners []string `json:"owners,omitempty"`
}

// String returns the harm for people, as what follows an object's name:
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
	case Removed:
		return would + " be deleted with its type"
	case Stuck:
		return "is refused in every change of the object: " + h.Why
	}
	return "is not valid any more: " + h.Why
}

// Object is an object that is harmed.
type Object struct {
	// Kind is set if objects of several kinds are looked at.
	Kind      string `json:"kind,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Harms are at most [MostHarms].
	Harms []Harm `json:"harms"`
	// More is how many others there are.
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

// Bounds on what is kept of the objects of a type.
const (
	// MostObjects are named; the others are counted.
	MostObjects = 50
	// MostHarms of an object are kept.
	MostHarms = 4
	// mostWriters and owners of a field are named, and so many objects that were written
	// in a version. mostKnown writers of a field are known, of whom the live ones are named
	// first, and mostManagers are known by when they wrote last; others are taken for live.
	mostWriters  = 8
	mostKnown    = 64
	mostManagers = 1000
	// shownWritten of these are in a text.
	shownWritten = 3
)

// Survey is what the change of a definition means to the objects that there are.
type Survey struct {
	// Looked is how many objects were looked at.
	Looked int `json:"looked"`
	// Harmed is how many of them are harmed, and Objects are the first of these, in the
	// order of the list.
	Harmed  int      `json:"harmed"`
	Objects []Object `json:"objects,omitempty"`
	// Tolls are what each breaking finding costs, in the order of the findings.
	Tolls []Toll `json:"findings,omitempty"`
	// Unknown is why not all objects could be judged. Then the verdict on the schema
	// stands.
	Unknown string `json:"unknown,omitempty"`
	// At is when the objects began to be read.
	At time.Time `json:"-"`
	// Relies are the objects that are not harmed only because the plan changes or deletes
	// them.
	Relies []manifest.ID `json:"-"`

	unmatched int
	// unnamed are the harmed objects that are not among Objects, if there are several lists.
	unnamed map[string]bool
}

// Toll is what a breaking finding means to the objects.
type Toll struct {
	// Name, Version and Path are the finding's.
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	Path    string `json:"path,omitempty"`
	// Harmed is how many objects are harmed by it.
	Harmed int `json:"harmed"`
	// Writers are the live field managers (see [LiveFor]) that write the field, or in the
	// version, in any object, sorted; at most eight, without gitopsd. Their next write may be
	// another value. Former are those that are not live.
	Writers []string `json:"writers,omitempty"`
	Former  []string `json:"formerWriters,omitempty"`
	// Written is how many objects somebody wrote in the version that goes, and Objects
	// are the first of them, "namespace/name".
	Written int      `json:"written,omitempty"`
	Objects []string `json:"objects,omitempty"`
	// Kept is how many objects keep fields that only the version that goes has, as
	// conversion rules left them in an annotation, and Keepers are the first of them with
	// such a field, "namespace/name .spec.note".
	Kept    int      `json:"kept,omitempty"`
	Keepers []string `json:"keepers,omitempty"`
	// Unjudged is why the objects cannot tell whether it harms them; empty if they can.
	Unjudged string `json:"unjudged,omitempty"`

	class class
	// by are all writers.
	by []string
}

// Known reports whether all objects were judged. A nil survey is of none.
func (s *Survey) Known() bool { return s != nil && s.Unknown == "" }

// Text returns the survey in one line, with at most so many objects:
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
		return "what it means to the objects is not known: " + s.Unknown
	case s.Looked == 0:
		return "harms nobody: there are no objects"
	}
	who, but := "nobody", s.Doubts()
	if others := s.Others(); len(others) > 0 {
		who, but = "no object", append([]string{"clients: " + strings.Join(others, ", ")}, but...)
	}
	text := fmt.Sprintf("harms %s today (%s looked at)", who, objects(s.Looked))
	if len(but) > 0 {
		text += ", but " + strings.Join(but, "; ")
	}
	return text
}

// Doubts returns the findings that the objects cannot tell about, each with the reason;
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

// Others returns the names of the findings that are not about objects, but about those who
// ask for them; none if there are no objects.
func (s *Survey) Others() []string {
	var names []string
	for _, t := range s.Tolls {
		if s.Looked > 0 && (t.class == byClients || t.class == byVersion || t.class == never) && !slices.Contains(names, t.Name) {
			names = append(names, t.Name)
		}
	}
	return names
}

func objects(n int) string {
	if n == 1 {
		return "1 object"
	}
	return fmt.Sprintf("%d objects", n)
}

func were(n int) string {
	if n == 1 {
		return "1 object was"
	}
	return fmt.Sprintf("%d objects were", n)
}

func keep(n int) string {
	if n == 1 {
		return "1 object keeps"
	}
	return fmt.Sprintf("%d objects keep", n)
}

// some names some of so many objects.
func some(objects []string, of int) string {
	shown := min(shownWritten, len(objects))
	text := strings.Join(objects[:shown], ", ")
	if n := of - shown; n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	return text
}

// who names writers, and what is to be expected of them.
func (t *Toll) who(next string) string {
	var all []string
	if len(t.Writers) > 0 {
		all = append(all, "by "+strings.Join(t.Writers, ", ")+next)
	}
	if len(t.Former) > 0 {
		all = append(all, fmt.Sprintf("by %s, not for %d days", strings.Join(t.Former, ", "), int(LiveFor.Hours()/24)))
	}
	return strings.Join(all, ", and ")
}

// Warnings returns who writes what a finding is about although no object is harmed by
// it: their next write may be. And it returns which objects keep fields for a version that
// goes.
func (s *Survey) Warnings() []string {
	if s == nil {
		return nil
	}
	var all []string
	for _, t := range s.Tolls {
		if t.Kept > 0 {
			all = append(all, fmt.Sprintf("%s %s: %s fields for it that no other version has: %s", t.Name, t.Version, keep(t.Kept), some(t.Keepers, t.Kept)))
		}
		if t.Harmed > 0 || len(t.Writers) == 0 && len(t.Former) == 0 {
			continue
		}
		what := t.Path
		if what == "" {
			what = t.Version
		}
		if what == "" {
			continue
		}
		line := fmt.Sprintf("%s %s: written %s", t.Name, what, t.who(", whose next write counts"))
		if t.Written > 0 {
			line = fmt.Sprintf("%s %s: %s written in it %s: %s", t.Name, what, were(t.Written), t.who(""), some(t.Objects, t.Written))
		}
		if !slices.Contains(all, line) {
			all = append(all, line)
		}
	}
	return all
}
