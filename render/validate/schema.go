package validate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

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
	"k8s.io/kube-openapi/pkg/validation/strfmt"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
)

// Schema checks whole objects of one version of a CustomResourceDefinition, served or
// not. Unlike [Type] it does not apply them: they are stored objects, or results of a
// conversion. It is immutable and safe for concurrent use.
//
// Trees hold map[string]any, []any, string, bool, int64, float64 and nil.
type Schema struct {
	checks
	scale scale
	// Transitions reports whether rules compare an object with its previous state. Otherwise
	// [Schema.Stuck] finds no more than [Schema.Causes].
	Transitions bool
}

// checks is a compiled schema.
type checks struct {
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
		checks, err := compileSchema(v.Schema)
		if err != nil {
			return nil, fmt.Errorf("%s/%s %s: %w", d.Group, version, d.Names.Kind, err)
		}
		return &Schema{checks, scaleOf(manifest.Mapping(v.Subresources, "scale")), transitions(v.Schema)}, nil
	}
	return nil, fmt.Errorf("%s/%s %s: %w", d.Group, version, d.Names.Kind, ErrNotDefined)
}

// transitions reports whether a rule in a schema, or in a part of one, reads oldSelf.
func transitions(part any) bool {
	switch part := part.(type) {
	case map[string]any:
		if rule, ok := part["rule"].(string); ok && strings.Contains(rule, "oldSelf") {
			return true
		}
		for _, v := range part {
			if transitions(v) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(part, transitions)
	}
	return false
}

func compileSchema(tree map[string]any) (c checks, err error) {
	internal, err := internalSchema(tree)
	if err != nil {
		return c, err
	}
	shape, err := structural.NewStructural(internal)
	if err != nil {
		return c, err
	}
	if errs := structural.ValidateStructural(field.NewPath("openAPIV3Schema"), shape); len(errs) > 0 {
		return c, errors.New(bounded(errs[0].Error()))
	}
	c.structural = shape.DeepCopy()
	if err := defaulting.PruneDefaults(c.structural); err != nil {
		return c, err
	}
	if c.validator, _, err = validation.NewSchemaValidator(internal); err != nil {
		return c, err
	}
	silence(c.structural)
	c.celRules = cel.NewValidator(c.structural, true, celconfig.PerCallLimit)
	return c, nil
}

// silence removes the message expressions of rules, which may quote values of the object.
// Then messages name the rule.
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

// Default adds the schema's defaults to an object, as the API server does when it reads
// one. It also removes nulls from fields that are not nullable.
func (s *Schema) Default(tree map[string]any) (err error) {
	defer recovered(&err)
	defaulting.PruneNonNullableNullsWithoutDefaults(tree, s.structural)
	defaulting.Default(tree, s.structural)
	return nil
}

// Prune removes fields that the schema does not have, as the API server does when it reads
// or stores an object. Metadata of embedded objects keeps the fields of metadata.
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

// Drops returns the paths of the fields that an object has in a version with the schema own,
// and that s does not have: they are lost if the object is stored in the version of s, and
// nothing converts. The object is not changed.
func (s *Schema) Drops(own *Schema, tree map[string]any) ([]string, error) {
	lost, err := s.Unknown(tree)
	if err != nil || len(lost) == 0 {
		return nil, err
	}
	unknown, err := own.Unknown(tree)
	return slices.DeleteFunc(lost, func(path string) bool { return slices.Contains(unknown, path) }), err
}

// Check checks an object against the schema, its list types, the version's subresource
// scale, and the rules in CEL, except for rules that compare an object with its previous
// state. It ignores metadata and unknown
// fields. The error is a [*Refusal] if the API server would refuse the object. Other errors
// mean that the result is not known.
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
	errs = append(errs, s.scale.check(tree)...)
	errs = append(errs, objectmeta.Validate(ctx, nil, tree, s.structural, false)...)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, s.structural, tree)...)
	return s.rules(ctx, tree, nil, errs)
}

// Format reports whether a text has a format of a schema, such as date-time. The API server
// ignores formats that it does not know.
func Format(format, text string) bool {
	return !strfmt.Default.ContainsName(format) || strfmt.Default.Validates(format, text)
}
