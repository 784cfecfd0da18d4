package validate

import (
	"context"
	"errors"
	"fmt"

	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	"gitopsd.dev/render/types"
)

// Schema checks whole objects of one version of a CustomResourceDefinition, served or
// not. Unlike [Type] it merges nothing: the object is taken as one that is stored, or
// that a conversion returned. It is immutable and safe for concurrent use.
//
// Trees hold map[string]any, []any, string, bool, int64, float64 and nil.
type Schema struct {
	structural *structural.Structural
	validator  validation.SchemaValidator
	celRules   *cel.Validator
}

// CompileSchema compiles one version of a CustomResourceDefinition. It fails if the
// definition has no such version ([ErrNotDefined]), or if the API server would not
// accept its schema.
func CompileSchema(definition map[string]any, version string) (s *Schema, err error) {
	defer recovered(&err)
	d := types.Read(definition)
	for _, v := range d.Versions() {
		if v.Name != version {
			continue
		}
		if v.Schema == nil {
			return nil, fmt.Errorf("%s/%s %s: it has no schema", d.Group, version, d.Names.Kind)
		}
		s, err := compileSchema(v.Schema)
		if err != nil {
			return nil, fmt.Errorf("%s/%s %s: %w", d.Group, version, d.Names.Kind, err)
		}
		return s, nil
	}
	return nil, fmt.Errorf("%s/%s %s: %w", d.Group, version, d.Names.Kind, ErrNotDefined)
}

func compileSchema(tree map[string]any) (*Schema, error) {
	internal, err := internalSchema(tree)
	if err != nil {
		return nil, err
	}
	shape, err := structural.NewStructural(internal)
	if err != nil {
		return nil, err
	}
	if errs := structural.ValidateStructural(field.NewPath("openAPIV3Schema"), shape); len(errs) > 0 {
		return nil, errors.New(bounded(errs[0].Error()))
	}
	s := &Schema{structural: shape.DeepCopy()}
	if err := defaulting.PruneDefaults(s.structural); err != nil {
		return nil, err
	}
	if s.validator, _, err = validation.NewSchemaValidator(internal); err != nil {
		return nil, err
	}
	silence(s.structural)
	s.celRules = cel.NewValidator(s.structural, true, celconfig.PerCallLimit)
	return s, nil
}

// silence takes away the expressions by which rules compute messages, which may quote
// values of the object. Then the API server's code says which rule it is.
func silence(s *structural.Structural) {
	drop := func(e *structural.ValidationExtensions) bool {
		for i := range e.XValidations {
			e.XValidations[i].MessageExpression = ""
		}
		return true
	}
	v := structural.Visitor{
		Structural:            func(s *structural.Structural) bool { return drop(&s.ValidationExtensions) },
		NestedValueValidation: func(v *structural.NestedValueValidation) bool { return drop(&v.ValidationExtensions) },
	}
	v.Visit(s)
}

// Default adds the schema's defaults to an object, as the API server does whenever it
// reads one. It also removes nulls from fields that may not be null.
func (s *Schema) Default(tree map[string]any) (err error) {
	defer recovered(&err)
	defaulting.PruneNonNullableNullsWithoutDefaults(tree, s.structural)
	defaulting.Default(tree, s.structural)
	return nil
}

// Prune removes the fields that the schema does not have, as the API server does whenever
// it reads or stores an object. Metadata of embedded objects has the fields of metadata.
func (s *Schema) Prune(tree map[string]any) (err error) {
	defer recovered(&err)
	pruning.Prune(tree, s.structural, true)
	if err := objectmeta.Coerce(nil, tree, s.structural, false, true); err != nil {
		return errors.New(bounded(err.Error()))
	}
	return nil
}

// Unknown returns the paths of fields that the schema does not have. The API server
// drops them, and server-side apply fails on them. The object is not changed.
func (s *Schema) Unknown(tree map[string]any) (paths []string, err error) {
	defer recovered(&err)
	return pruning.PruneWithOptions(runtime.DeepCopyJSON(tree), s.structural, true, structural.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}), nil
}

// Check checks an object by the schema, its list types and its rules in CEL, but for
// rules that compare an object with its previous state. Metadata and unknown fields are
// not looked at. The error is a [*Refusal] if the API server would not accept the
// object; any other error is why that is not known.
func (s *Schema) Check(ctx context.Context, tree map[string]any) (err error) {
	defer recovered(&err)
	errs, err := s.check(ctx, tree)
	if err != nil {
		return err
	}
	return refusal(errs)
}

func (s *Schema) check(ctx context.Context, tree map[string]any) (field.ErrorList, error) {
	errs := validation.ValidateCustomResource(nil, tree, s.validator)
	errs = append(errs, objectmeta.Validate(ctx, nil, tree, s.structural, false)...)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, s.structural, tree)...)
	return rules(ctx, s.structural, s.celRules, tree, nil, errs)
}
