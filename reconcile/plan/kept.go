package plan

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/render/validate"
)

// refuseUnkept refuses the new and changed objects with fields that the API server would accept and drop: the version
// of the object has them, and the version that objects are stored in does not, while nothing converts. An API server
// refuses a field that no version has itself.
func refuseUnkept(p *Plan, reportDrift bool) {
	var defined map[schema.GroupKind]*Step
	known := make(map[*Step]*storage)
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.Object == nil || s.Action != Create && s.Action != Configure || manifest.BuiltIn(s.ID.Group) {
			continue
		}
		if defined == nil {
			defined = definers(p)
		}
		d := defined[kindOf(s.ID)]
		if d == nil || d.Action != Create && d.Action != Configure && d.Action != Unchanged || d.Drift && reportDrift {
			continue // what the definition will be is not known here
		}
		if known[d] == nil {
			known[d] = storageOf(d.Object)
		}
		if lost := known[d].loses(s.Object); len(lost) > 0 {
			s.Action, s.Reason = Refused, fmt.Sprintf("the API server would drop %s: objects of %s are stored in %s, which does not have it, and nothing converts them; remove it from the manifest%s",
				prose.Some(lost, 3), d.ID, known[d].version, s.Object.Origin().InPackage())
			s.Wrong = append(s.Wrong, lost...)
		}
	}
}

// storage is the version in which objects of a definition are stored.
type storage struct {
	definition map[string]any
	version    string // empty if objects lose nothing on the way there
	schemas    map[string]*validate.Schema
}

func storageOf(definition *manifest.Object) *storage {
	s := &storage{definition: definition.Tree(), schemas: make(map[string]*validate.Schema)}
	d := types.Read(s.definition)
	versions := d.Versions()
	if d.Converts || len(versions) < 2 || definition.Annotation(manifest.ConversionAnnotation) != "" {
		return s
	}
	if i := slices.IndexFunc(versions, func(v types.Version) bool { return v.Storage }); i >= 0 {
		s.version = versions[i].Name
	}
	return s
}

// loses returns the paths of the fields of an object that its version has, and the storage version does not.
func (s *storage) loses(o *manifest.Object) []string {
	if s.version == "" || s.version == o.Version() {
		return nil
	}
	to, own := s.schema(s.version), s.schema(o.Version())
	if to == nil || own == nil {
		return nil
	}
	lost, err := to.Drops(own, o.Tree())
	if err != nil {
		return nil
	}
	return lost
}

// schema compiles the schema of a version; nil if it cannot be read, which others report.
func (s *storage) schema(version string) *validate.Schema {
	if _, ok := s.schemas[version]; !ok {
		s.schemas[version], _ = validate.CompileSchema(s.definition, version)
	}
	return s.schemas[version]
}
