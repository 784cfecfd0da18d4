package validate

import (
	"cmp"
	"context"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/cel/common"
)

// Cause is one error of an object, without values of the object. It is comparable.
type Cause struct {
	// Path is the field in the API server's syntax, "spec.rules[0].port"; empty for the
	// whole object.
	Path string
	// Why is the reason, of at most 300 bytes.
	Why string
}

// Causes is like [Schema.Check], but returns the errors of the API server for an object, at
// most [MostCauses]. It fails if they are not known.
func (s *Schema) Causes(ctx context.Context, tree map[string]any) (causes []Cause, err error) {
	defer recovered(&err)
	errs, err := s.check(ctx, tree)
	return causesOf(errs), err
}

// Stuck returns the errors of the API server for an update that does not change an object.
// The API server's ratcheting accepts most errors that existed before. If it does not, it
// refuses all updates that do not correct the error. Stuck fails if the errors are not
// known.
func (s *Schema) Stuck(ctx context.Context, tree map[string]any) (causes []Cause, err error) {
	defer recovered(&err)
	correlated := common.NewCorrelatedObject(tree, tree, &model.Structural{Structural: s.structural})
	errs := validation.ValidateCustomResourceUpdate(nil, tree, tree, s.validator, validation.WithRatcheting(correlated))
	errs = append(errs, s.scale.check(tree)...) // these are never accepted
	errs = append(errs, objectmeta.Validate(ctx, nil, tree, s.structural, false)...)
	// Elements that are there twice may stay.
	errs, err = s.rules(ctx, tree, tree, errs, cel.WithRatcheting(correlated))
	return causesOf(errs), err
}

func causesOf(errs field.ErrorList) []Cause {
	var causes []Cause
	for _, e := range errs {
		c := Cause{Path: e.Field, Why: bounded(reason(e))}
		if c.Path == "<nil>" {
			c.Path = ""
		}
		if !slices.Contains(causes, c) && len(causes) < MostCauses {
			causes = append(causes, c)
		}
	}
	return causes
}

// inBody is the prefix of most details of a check by schema. wrongFormat is a detail that
// ends in the value. wrongType is a detail of scale's check, which quotes the value. failing
// is the detail of a rule that could not be evaluated; its prefix may quote a value.
var (
	inBody      = regexp.MustCompile(`^\S* ?in body `)
	wrongFormat = regexp.MustCompile(`(?s)^(must be of type [^:]+): .*$`)
	wrongType   = regexp.MustCompile(`(?s)^.* accessor error: .* is of the type .+, expected (.+)$`)
	failing     = regexp.MustCompile(`(?s)^.* evaluating rule: (.*)$`)
)

// reason returns an error's text without its field and values of the object.
func reason(e *field.Error) string {
	detail := inBody.ReplaceAllString(e.Detail, "")
	detail = wrongFormat.ReplaceAllString(detail, "$1")
	detail = wrongType.ReplaceAllString(detail, "must be of type $1")
	detail = failing.ReplaceAllString(detail, "a rule fails: $1")
	switch e.Type {
	case field.ErrorTypeRequired:
		return cmp.Or(detail, "is required")
	case field.ErrorTypeDuplicate:
		return "is there twice"
	}
	return cmp.Or(detail, strings.ToLower(e.Type.String()))
}
