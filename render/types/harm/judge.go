package harm

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/render/types/compat"
	"gitopsd.dev/render/validate"
)

// ourselves is gitopsd's name in metadata.managedFields. What it writes is checked where
// it is written.
const ourselves = "gitopsd"

// Judge judges the objects of one CustomResourceDefinition that another is to replace, or
// that is to be removed. One goroutine at a time may use it.
type Judge struct {
	group, kind string
	findings    []finding
	// old and new are the compiled versions, as far as they are needed. gone reports
	// whether there is no new definition.
	old, new map[string]*validate.Schema
	gone     bool
	// served are the versions of the new definition in which objects are validated, and
	// converts reports whether a webhook converts between versions.
	served   map[string]bool
	converts bool
	// known are the versions of the old definition, and list is the one that objects are
	// listed in.
	known    map[string]bool
	list     string
	defaults []moved
	survey   Survey
}

// New returns a judge for what compat.Compare found between two definitions; new is nil if
// the type goes. Neither is changed. The error is why objects cannot be judged.
func New(old, new map[string]any, findings []compat.Finding) (*Judge, error) {
	before, after := types.Read(old), types.Read(new)
	if manifest.KindOf(old) == manifest.XRD {
		return nil, errors.New("composites and claims are not looked at, since their types are Crossplane's")
	}
	if manifest.KindOf(old) != manifest.CRD || new != nil && manifest.KindOf(new) != manifest.CRD {
		return nil, fmt.Errorf("only objects of a %s can be judged", manifest.CRD.Kind)
	}
	j := &Judge{
		group: before.Group, kind: before.Names.Kind, gone: new == nil, converts: before.Converts || after.Converts,
		old: make(map[string]*validate.Schema), new: make(map[string]*validate.Schema), served: make(map[string]bool), known: make(map[string]bool),
	}
	for _, f := range findings {
		if f.Severity == compat.Breaking {
			j.findings = append(j.findings, newFinding(f))
			j.survey.Tolls = append(j.survey.Tolls, Toll{Name: f.Name, Version: f.Version, Path: f.Path, class: classes[f.Name]})
		}
	}
	if err := j.choose(before); err != nil || j.gone {
		return j, err
	}
	switch {
	case before.PreservesUnknownFields || after.PreservesUnknownFields:
		return nil, errors.New("spec.preserveUnknownFields keeps every field")
	case after.Group != before.Group || after.Names.Kind != before.Names.Kind || after.Names.Plural != before.Names.Plural || after.Scope != before.Scope:
		return nil, errors.New("it becomes another type")
	}
	for i, t := range j.survey.Tolls {
		if t.class == byNone {
			j.survey.Tolls[i].Unjudged = "is about every object"
		}
	}
	return j, j.compile(old, new, before, after)
}

// choose picks the version in which objects are listed: the one that they are stored in,
// of which nothing is hidden, unless that is not served or a webhook converts. Then it is
// the served one that the most findings are about.
//
// An object that is stored in another version than the listed one may have fields that
// are not shown. So it cannot tell about findings in other versions.
func (j *Judge) choose(before types.Definition) error {
	most := -1
	stored := before.StoredVersions()
	for _, v := range before.Versions() {
		j.known[v.Name] = true
		n := 0
		for i := range j.findings {
			if slices.Contains(j.findings[i].versions, v.Name) {
				n += 2
			}
		}
		if v.Storage {
			stored = append(stored, v.Name)
			n++
			if !j.converts {
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
	why := ""
	for _, v := range stored {
		if v != j.list {
			why = fmt.Sprintf(", and objects may be stored in %s, which shows in %s only in part", v, j.list)
		}
	}
	if j.converts {
		why = ", to which a webhook converts the objects"
	}
	for i := range j.findings {
		f := &j.findings[i]
		elsewhere := slices.ContainsFunc(f.versions, func(v string) bool { return v != j.list })
		if why != "" && elsewhere && f.class == byData {
			j.survey.Tolls[i].Unjudged = "is about " + f.Version + why
		}
	}
	return nil
}

// compile compiles the versions that objects are read in.
func (j *Judge) compile(old, new map[string]any, before, after types.Definition) error {
	concerned := map[string]bool{j.list: true}
	for i := range j.findings {
		if v := j.findings[i].last(); v != "" && !j.converts {
			concerned[v] = true
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
	schemas := make(map[string]map[string]any)
	for _, v := range after.Versions() {
		j.served[v.Name] = v.Served
		schemas[v.Name] = v.Schema
	}
	for _, v := range before.Versions() {
		if concerned[v.Name] && schemas[v.Name] != nil {
			j.defaults = append(j.defaults, movedDefaults(v.Name, v.Schema, schemas[v.Name], nil)...)
		}
	}
	return nil
}

// Version is the version of the type to list the objects in.
func (j *Judge) Version() string { return j.list }

// Group returns the type's group.
func (j *Judge) Group() string { return j.group }

// Kind returns the type's kind.
func (j *Judge) Kind() string { return j.kind }

// Restart drops everything that was looked at.
func (j *Judge) Restart() {
	fresh := Survey{Tolls: j.survey.Tolls}
	for i := range fresh.Tolls {
		t := &fresh.Tolls[i]
		t.Harmed, t.Writers, t.Written, t.Objects = 0, nil, 0, nil
	}
	j.survey = fresh
}

// Done returns the survey. unknown is why objects were not looked at; nil for all were.
func (j *Judge) Done(unknown error) *Survey {
	s := j.survey
	if unknown != nil && s.Unknown == "" {
		s.Unknown = unknown.Error()
	}
	for i := range s.Tolls {
		slices.Sort(s.Tolls[i].Writers)
	}
	return &s
}
