package cel

import (
	"strings"

	"github.com/google/cel-go/common/types"
)

// Type is the type of a variable or a result. The zero Type allows any value.
type Type struct {
	t        *types.Type
	provider *provider
}

// StringType is the type of strings.
var StringType = Type{t: types.StringType}

// ObjectType returns the type of a whole object with this schema.
func ObjectType(schema map[string]any) Type {
	registry, err := types.NewRegistry()
	if err != nil {
		return Type{}
	}
	return Type{t: types.NewObjectType(root), provider: &provider{Provider: registry, schema: schema}}
}

// Field returns the type of a field of an object, or of the values of a map; ok is
// false if there is no such field.
func (t Type) Field(name string) (field Type, ok bool) {
	if t.t == nil {
		return Type{}, true
	}
	switch t.t.Kind() {
	case types.StructKind:
		f, ok := t.provider.FindStructFieldType(t.t.TypeName(), name)
		if !ok {
			return Type{}, false
		}
		return Type{f.Type, t.provider}, true
	case types.MapKind:
		return Type{t.t.Parameters()[1], t.provider}, true
	case types.DynKind:
		return Type{}, true
	}
	return Type{}, false
}

// Element returns the type of a list's elements or of a map's values; ok is false for
// other types.
func (t Type) Element() (element Type, ok bool) {
	if t.t == nil || t.t.Kind() == types.DynKind {
		return Type{}, true
	}
	if p := t.t.Parameters(); t.t.Kind() == types.ListKind || t.t.Kind() == types.MapKind {
		return Type{p[len(p)-1], t.provider}, true
	}
	return Type{}, false
}

// Kind returns "string", "int", "double", "bool", "list", "map", "object" or "null", "dyn"
// for any value, and CEL's name for types that no field has.
func (t Type) Kind() string {
	if t.t == nil {
		return "dyn"
	}
	if t.t.Kind() == types.StructKind && t.provider != nil {
		return "object"
	}
	switch t.t.Kind() {
	case types.ListKind:
		return "list"
	case types.MapKind:
		return "map"
	case types.NullTypeKind:
		return "null"
	case types.TypeParamKind:
		return "dyn"
	}
	return t.t.TypeName()
}

// Schema returns the schema of an object's type; nil for other types.
func (t Type) Schema() map[string]any {
	if t.provider == nil || t.t.Kind() != types.StructKind {
		return nil
	}
	name := t.t.TypeName()
	schema := t.provider.at(name)
	if name == root {
		fields, _ := properties(schema, true)
		return map[string]any{"type": "object", "properties": fields}
	}
	return schema
}

// String returns CEL's name for the type.
func (t Type) String() string {
	if t.t == nil {
		return "dyn"
	}
	if t.Kind() == "object" {
		return "object"
	}
	return strings.ReplaceAll(t.t.String(), root, "self")
}
