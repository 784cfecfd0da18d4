package harm

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"time"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/render/types/compat"
	"gitopsd.dev/render/validate"
)

// ourselves is gitopsd's name in metadata.managedFields. Its own writes are checked when
// it makes them.
const ourselves = "gitopsd"

// Options are the inputs of judges beside the definitions.
type Options struct {
	// Now is the time at which a field manager is live or not; if it is zero, all are.
	Now time.Time
	// Stored has the versions that objects of a plural may be stored in: the
	// status.storedVersions of the CustomResourceDefinitions that Crossplane made of a
	// CompositeResourceDefinition. A CustomResourceDefinition has its own.
	Stored map[string][]string
	// Convert converts an object of the new definition to a version, by the conversion rules
	// that the new definition will have. It does not change the object. It is nil if nothing
	// converts objects, or not by such rules.
	Convert func(object map[string]any, to string) (map[string]any, error)
	// OurStatus: gitopsd writes the status of the objects. It writes again whatever only it
	// owns there.
	OurStatus bool
}

// Judge judges the objects of one kind whose definition will be replaced or removed. One
// goroutine at a time may use it.
type Judge struct {
	group, kind, plural string
	namespaced          bool
	// named is set if objects are named with their kind.
	named    bool
	opts     Options
	findings []finding
	// definition is the old one. types are its types by version, compiled when they are needed.
	definition map[string]any
	types      map[string]*validate.Type
	// old and new are the compiled versions that are needed. gone is set if there is no new
	// definition.
	old, new map[string]*validate.Schema
	gone     bool
	// same are the compiled versions whose schema and subresource scale stay the same.
	same map[string]bool
	// versions are those of the new definition, as they are written.
	versions map[string]types.Version
	// served are the versions of the new definition in which objects are validated.
	// converts is set if a webhook converts between versions.
	served   map[string]bool
	converts bool
	// storage is the new storage version if it is another than before; empty if not.
	storage string
	// known are the versions of the old definition, lists are the versions that objects are
	// listed in, and list is the version of the current list.
	known    map[string]bool
	lists    []string
	list     string
	defaults []moved
	// last is the time of each field manager's last write to an object; zero if unknown.
	last   map[string]time.Time
	survey Survey
	// begun is the survey as it was before the current list.
	begun Survey
}

// New returns a judge for each kind that a definition defines, with the findings of
// compat.Compare between it and the new definition; new is nil if the type is removed.
// New does not change them. The kinds of a CompositeResourceDefinition are judged by the
// CustomResourceDefinitions that Crossplane makes of it. The error is the reason why
// objects cannot be judged.
func New(old, new map[string]any, findings []compat.Finding, o Options) ([]*Judge, error) {
	if kind := manifest.KindOf(old); !slices.Contains(manifest.Definitions, kind) || new != nil && manifest.KindOf(new) != kind {
		return nil, fmt.Errorf("only objects of a %s or a %s can be judged", manifest.CRD.Kind, manifest.XRD.Kind)
	}
	if manifest.KindOf(old) == manifest.CRD {
		j, err := newJudge(old, new, findings, o)
		if err != nil {
			return nil, err
		}
		return []*Judge{j}, nil
	}
	var judges []*Judge
	for _, claim := range []bool{false, true} {
		before := validate.Derived(old, claim)
		if before == nil {
			continue
		}
		var after map[string]any
		if new != nil {
			after = validate.Derived(new, claim)
		}
		plural := manifest.Text(before, "spec", "names", "plural")
		if stored := o.Stored[plural]; len(stored) > 0 {
			var list []any
			for _, v := range stored {
				list = append(list, v)
			}
			before["status"] = map[string]any{"storedVersions": list}
		}
		j, err := newJudge(before, after, findings, o)
		if err != nil {
			return nil, err
		}
		j.named = true
		judges = append(judges, j)
	}
	if len(judges) == 0 {
		return nil, errors.New("it names no kind")
	}
	return judges, nil
}

// newJudge returns the judge of the objects of a CustomResourceDefinition.
func newJudge(old, new map[string]any, findings []compat.Finding, o Options) (*Judge, error) {
	before, after := types.Read(old), types.Read(new)
	j := &Judge{
		group: before.Group, kind: before.Names.Kind, plural: before.Names.Plural, namespaced: before.Scope == "Namespaced", opts: o,
		definition: old, types: make(map[string]*validate.Type),
		gone: new == nil, converts: before.Converts || after.Converts,
		old: make(map[string]*validate.Schema), new: make(map[string]*validate.Schema), served: make(map[string]bool), known: make(map[string]bool), same: make(map[string]bool),
		last: make(map[string]time.Time),
	}
	for _, f := range findings {
		if f.Severity == compat.Breaking {
			j.findings = append(j.findings, newFinding(f))
			j.survey.Tolls = append(j.survey.Tolls, Toll{Name: f.Name, Version: f.Version, Path: f.Path, class: classes[f.Name]})
		}
	}
	if err := j.choose(before, after); err != nil {
		return nil, err
	}
	if j.gone {
		j.Begin(j.list)
		return j, nil
	}
	switch {
	case before.PreservesUnknownFields || after.PreservesUnknownFields:
		return nil, errors.New("spec.preserveUnknownFields keeps every field")
	case after.Group != before.Group || after.Names.Kind != before.Names.Kind || after.Names.Plural != before.Names.Plural || after.Scope != before.Scope:
		return nil, errors.New("it becomes another type")
	}
	if was, is := storage(before), storage(after); was != is {
		j.storage = is
	}
	for i, t := range j.survey.Tolls {
		if t.class == byNone {
			j.survey.Tolls[i].Unjudged = "is about every object"
		}
	}
	if err := j.compile(old, new, before, after); err != nil {
		return nil, err
	}
	j.Begin(j.list)
	return j, nil
}

// storage returns the storage version of a definition; empty if it has none.
func storage(d types.Definition) string {
	for _, v := range d.Versions() {
		if v.Storage {
			return v.Name
		}
	}
	return ""
}

// choose picks the version in which objects are listed: the storage version, which hides
// nothing, unless it is not served or a webhook converts. In that case it picks the served
// version with the most findings.
//
// Objects that are stored in another version than the listed one may have fields that are
// not shown, and so show nothing about findings in other versions. If conversion rules
// convert, these versions are listed as well.
func (j *Judge) choose(before, after types.Definition) error {
	ruled := j.opts.Convert != nil && after.Converts
	most := -1
	stored := before.StoredVersions()
	served := make(map[string]bool)
	for _, v := range before.Versions() {
		j.known[v.Name] = true
		served[v.Name] = v.Served
		n := 0
		for i := range j.findings {
			// Any version shows who writes in a version.
			if f := &j.findings[i]; f.class != byVersion && slices.Contains(f.versions, v.Name) {
				n += 2
			}
		}
		if v.Storage {
			stored = append(stored, v.Name)
			n++
			if !j.converts || ruled {
				n = math.MaxInt
			}
		}
		if v.Served && n > most {
			most, j.list = n, v.Name
		}
	}
	if j.list == "" {
		return errors.New("it serves no version, so that its objects cannot be seen")
	}
	j.lists = []string{j.list}
	why := ""
	for _, v := range stored {
		if v != j.list {
			why = fmt.Sprintf(", and objects may be stored in %s, which shows in %s only in part", v, j.list)
		}
	}
	if ruled = ruled && why == ""; j.converts && !ruled && why == "" || j.converts && j.opts.Convert == nil {
		why = ", to which a webhook converts the objects"
	}
	remains := make(map[string]bool)
	for _, v := range after.Versions() {
		remains[v.Name] = true
	}
	for i := range j.findings {
		f := &j.findings[i]
		if !f.class.byObjects() || !slices.ContainsFunc(f.versions, func(v string) bool { return v != j.list }) {
			continue
		}
		switch v := f.versions[0]; {
		case ruled && len(f.versions) == 1 && served[v] && remains[v]:
			if !slices.Contains(j.lists, v) {
				j.lists = append(j.lists, v)
			}
			j.survey.Tolls[i].Unjudged = fmt.Sprintf("is about %s, in which the objects were not read", v)
		case ruled:
			j.survey.Tolls[i].Unjudged = fmt.Sprintf("is about %s, in which the objects cannot be read", f.Version)
		case why != "":
			j.survey.Tolls[i].Unjudged = "is about " + f.Version + why
		}
	}
	return nil
}

// compile compiles the versions that objects are read in.
func (j *Judge) compile(old, new map[string]any, before, after types.Definition) error {
	concerned := make(map[string]bool)
	for _, v := range j.lists {
		concerned[v] = true
	}
	for i := range j.findings {
		f := &j.findings[i]
		if v := f.last(); v != "" && !j.converts {
			concerned[v] = true
		}
		if f.Name == "storage-version-drops" && !j.converts {
			concerned[f.versions[0]] = true
		}
	}
	for _, side := range []struct {
		tree    map[string]any
		of      types.Definition
		schemas map[string]*validate.Schema
	}{{old, before, j.old}, {new, after, j.new}} {
		for _, v := range side.of.Versions() {
			if !concerned[v.Name] {
				continue
			}
			s, err := validate.CompileSchema(side.tree, v.Name)
			if err != nil {
				return err
			}
			side.schemas[v.Name] = s
		}
	}
	j.versions = make(map[string]types.Version)
	for _, v := range after.Versions() {
		j.served[v.Name] = v.Served
		j.versions[v.Name] = v
	}
	for _, v := range before.Versions() {
		if n := j.versions[v.Name]; concerned[v.Name] && n.Schema != nil {
			j.same[v.Name] = reflect.DeepEqual(v.Schema, n.Schema) && reflect.DeepEqual(v.Subresources["scale"], n.Subresources["scale"])
			j.defaults = append(j.defaults, movedDefaults(v.Name, v.Schema, n.Schema, nil)...)
		}
	}
	return nil
}

// Group returns the group of the kind.
func (j *Judge) Group() string { return j.group }

// Kind returns the kind.
func (j *Judge) Kind() string { return j.kind }

// Plural returns the plural name of the kind.
func (j *Judge) Plural() string { return j.plural }

// Namespaced reports whether objects of the kind live in namespaces.
func (j *Judge) Namespaced() bool { return j.namespaced }

// Versions returns the versions to list the objects in: one, or several if conversion
// rules convert. [Judge.Begin] must be called before the objects of each.
func (j *Judge) Versions() []string { return j.lists }

// Begin begins the list of one of the Versions. A new judge has begun the first.
func (j *Judge) Begin(version string) {
	j.list = version
	for i := range j.findings {
		if f := &j.findings[i]; version != j.lists[0] && len(f.versions) == 1 && f.versions[0] == version {
			j.survey.Tolls[i].Unjudged = ""
		}
	}
	j.begun = j.survey.clone()
}

// Restart forgets the objects looked at since Begin.
func (j *Judge) Restart() {
	j.survey = j.begun.clone()
}

// Done returns the survey. unknown is the reason why some objects were not looked at; nil
// if all were.
func (j *Judge) Done(unknown error) *Survey {
	s := j.survey.clone()
	s.unnamed = nil
	if unknown != nil {
		s.Unknown = cmp.Or(s.Unknown, unknown.Error())
	}
	for i := range s.Tolls {
		j.divide(&s.Tolls[i])
	}
	return &s
}
