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

// Cause is one thing that is wrong with an object. It shows no value of the object. It is
// comparable.
type Cause struct {
	// Path is the field as the API server names it, "spec.rules[0].port"; empty for the
	// whole object.
	Path string
	// Why is the reason, of at most 300 bytes.
	Why string
}

// Causes is like [Schema.Check], but returns what the API server has against an object,
// at most [MostCauses]; none if it would accept the object. The error is why that is
// not known.
func (s *Schema) Causes(ctx context.Context, tree map[string]any) (causes []Cause, err error) {
	defer recovered(&err)
	errs, err := s.check(ctx, tree)
	return causesOf(errs), err
}

// Stuck returns what the API server has against an update that leaves an object as it
// is. What was wrong before may mostly stay as it is (the API server's ratcheting); if
// something may not, no change of the object is accepted that does not correct it. The
// error is why that is not known.
func (s *Schema) Stuck(ctx context.Context, tree map[string]any) (causes []Cause, err error) {
	defer recovered(&err)
	correlated := common.NewCorrelatedObject(tree, tree, &model.Structural{Structural: s.structural})
	errs := validation.ValidateCustomResourceUpdate(nil, tree, tree, s.validator, validation.WithRatcheting(correlated))
	errs = append(errs, objectmeta.Validate(ctx, nil, tree, s.structural, false)...)
	// Elements that are there twice may stay.
	errs, err = rules(ctx, s.structural, s.celRules, tree, tree, errs, cel.WithRatcheting(correlated))
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

// inBody begins most details of a check by schema; wrongFormat is one that ends in the
// value. failing begins with the error of a rule's evaluation, which may quote a value.
var (
	inBody      = regexp.MustCompile(`^\S* ?in body `)
	wrongFormat = regexp.MustCompile(`(?s)^(must be of type [^:]+): .*$`)
	failing     = regexp.MustCompile(`(?s)^.* evaluating rule: (.*)$`)
)

// reason returns an error's text without its field and values of the object.
func reason(e *field.Error) string {
	detail := inBody.ReplaceAllString(e.Detail, "")
	detail = wrongFormat.ReplaceAllString(detail, "$1")
	detail = failing.ReplaceAllString(detail, "a rule fails: $1")
	switch e.Type {
	case field.ErrorTypeRequired:
		return cmp.Or(detail, "is required")
	case field.ErrorTypeDuplicate:
		return "is there twice"
	}
	return cmp.Or(detail, strings.ToLower(e.Type.String()))
}
