// Package validate checks objects against the definitions of their types, as the API
// server does when objects are applied, but without a server: no cluster needs to have
// the definition yet.
//
//   - compile.go compiles a definition to a [Type], and cache.go has a [Cache] of types.
//   - composite.go and derived.go know the types that Crossplane makes of
//     CompositeResourceDefinitions.
//   - validate.go applies an object to a [Type], with the API server's code and in its
//     order: server-side apply onto the live object, defaults, schema, metadata, embedded
//     resources, list types, and rules in CEL within the API server's cost budget.
//   - schema.go checks whole objects in any version with a [Schema], as they are stored or
//     converted. cause.go returns the errors without values of the object.
//
// It does not know admission: mutating webhooks may change an object before the API
// server checks it, and validating webhooks may refuse it. It does not convert objects.
package validate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	metavalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/common"

	fieldpath "gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// Refusal is the error for an object that the API server would refuse.
type Refusal struct {
	// Causes are the errors in the API server's words: the path of a field, a colon,
	// and the reason. There are at most [MostCauses], of at most 300 bytes each.
	Causes []string
	// Early reports whether the API server would refuse the object before admission, so
	// that no webhook can change that: a field is unknown or has another type.
	Early bool
	// Live reports whether the live object does not fit its type. Then the API server
	// refuses every change of it.
	Live bool
}

// MostCauses is the maximum number of errors for an object, and longestCause the maximum
// length of each in bytes.
const (
	MostCauses   = 16
	longestCause = 300
)

func (r *Refusal) Error() string { return strings.Join(r.Causes, "; ") }

// manager is the field manager of the simulated apply.
const manager = "gitopsd"

// Create checks an object that does not exist yet. The error is a [*Refusal] if the API
// server would refuse the object. Other errors mean that the result is not known.
func (t *Type) Create(ctx context.Context, tree map[string]any) (err error) {
	defer recovered(&err)
	_, err = t.create(ctx, tree)
	return err
}

func (t *Type) create(ctx context.Context, tree map[string]any) (map[string]any, error) {
	patch, err := Decoded(tree)
	if err != nil {
		return nil, err
	}
	u, err := t.merge(t.empty(), patch, true)
	if err != nil {
		return nil, err
	}
	if t.status {
		delete(u.Object, "status")
	}
	meta, errs := metaOf(u.Object)
	if meta != nil {
		errs = append(errs, metavalidation.ValidateObjectMeta(meta, t.namespaced, metavalidation.NameIsDNSSubdomain, field.NewPath("metadata"))...)
	}
	errs = append(errs, validation.ValidateCustomResource(nil, u.Object, t.validator)...)
	errs = append(errs, t.scale.check(u.Object)...)
	errs = append(errs, objectmeta.Validate(ctx, nil, u.Object, t.structural, false)...)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, t.structural, u.Object)...)
	return u.Object, t.refusal(ctx, u.Object, nil, errs)
}

// Update checks an update of a live object. Rules that compare an object with its previous
// state apply, and errors that existed before are accepted (the API server's ratcheting).
// live is the whole object from the API server, in any version of the type. Errors are as
// for [Type.Create].
func (t *Type) Update(ctx context.Context, live, tree map[string]any) (err error) {
	defer recovered(&err)
	old, err := t.decoded(live)
	if err != nil {
		return err
	}
	return t.update(ctx, old, tree)
}

// Apply returns the live object as an apply of tree leaves it, with its defaults and
// metadata.managedFields. It checks no limits and no rules. It fails if tree has unknown
// fields or if one of the objects does not fit the type, and without force if other field
// managers own what tree changes. live is as for [Type.Update]; it is not changed.
func (t *Type) Apply(live, tree map[string]any, force bool) (applied map[string]any, err error) {
	defer recovered(&err)
	old, err := t.decoded(live)
	if err != nil {
		return nil, err
	}
	return t.apply(old, tree, force)
}

// decoded returns a copy of a live object as the API server reads it with the new type.
func (t *Type) decoded(live map[string]any) (map[string]any, error) {
	old, err := Decoded(live)
	if err != nil {
		return nil, err
	}
	if err := t.read(old); err != nil {
		return nil, err
	}
	defaulting.Default(old, t.structural)
	return old, nil
}

// Succeed checks an update if the live object is not known. The earlier object in the
// repository stands for it. Errors are as for [Type.Create].
func (t *Type) Succeed(ctx context.Context, before, tree map[string]any) (err error) {
	defer recovered(&err)
	live, err := Decoded(before)
	if err != nil {
		return err
	}
	if err := t.read(live); err != nil {
		return err
	}
	// The API server's defaults have no owner, so they stay.
	old, err := t.merge(t.empty(), live, true)
	if _, refused := errors.AsType[*Refusal](err); refused {
		// The live object may have errors that are refused in a request, such as duplicate
		// items of a set. Then its fields have no owner, and all of them stay.
		defaulting.Default(live, t.structural)
		return t.update(ctx, live, tree)
	}
	if err != nil {
		return err
	}
	if t.status {
		delete(old.Object, "status")
	}
	return t.update(ctx, old.Object, tree)
}

// apply returns old as an apply of tree leaves it. It does not change old.
func (t *Type) apply(old, tree map[string]any, force bool) (map[string]any, error) {
	patch, err := Decoded(tree)
	if err != nil {
		return nil, err
	}
	u, err := t.merge(&unstructured.Unstructured{Object: runtime.DeepCopyJSON(old)}, patch, force)
	if err != nil {
		return nil, err
	}
	if t.status {
		delete(u.Object, "status")
		if was, ok := old["status"]; ok {
			u.Object["status"] = was
		}
	}
	return u.Object, nil
}

func (t *Type) update(ctx context.Context, old, tree map[string]any) error {
	object, err := t.apply(old, tree, true)
	if err != nil {
		return err
	}
	correlated := common.NewCorrelatedObject(object, old, &model.Structural{Structural: t.structural})
	meta, errs := metaOf(object)
	was, _ := metaOf(old)
	if meta != nil && was != nil {
		meta.ResourceVersion = was.ResourceVersion
		errs = append(errs, metavalidation.ValidateObjectMeta(meta, t.namespaced, metavalidation.NameIsDNSSubdomain, field.NewPath("metadata"))...)
	}
	errs = append(errs, validation.ValidateCustomResourceUpdate(nil, object, old, t.validator, validation.WithRatcheting(correlated))...)
	errs = append(errs, t.scale.check(object)...)
	errs = append(errs, objectmeta.Validate(ctx, nil, object, t.structural, false)...)
	if len(listtype.ValidateListSetsAndMaps(nil, t.structural, old)) == 0 {
		errs = append(errs, listtype.ValidateListSetsAndMaps(nil, t.structural, object)...)
	}
	return t.refusal(ctx, object, old, errs, cel.WithRatcheting(correlated))
}

// refusal runs the rules in CEL and returns the result of all checks.
func (t *Type) refusal(ctx context.Context, object, old map[string]any, errs field.ErrorList, opts ...cel.Option) error {
	errs, err := t.rules(ctx, object, old, errs, opts...)
	if err != nil {
		return err
	}
	return refusal(errs)
}

// rules adds the errors of the rules in CEL to errs, unless an API server would not run
// the rules because of errs.
func (c *checks) rules(ctx context.Context, object, old map[string]any, errs field.ErrorList, opts ...cel.Option) (field.ErrorList, error) {
	if c.celRules != nil && !slices.ContainsFunc(errs, blocks) {
		var before any
		if old != nil {
			before = old
		}
		broken, _ := c.celRules.Validate(ctx, nil, c.structural, object, before, celconfig.RuntimeCELCostBudget, opts...)
		errs = append(errs, broken...)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	for _, e := range errs {
		if strings.HasPrefix(e.Detail, "rule compile error") {
			return nil, fmt.Errorf("a rule of its type cannot be evaluated: %s", bounded(e.Error()))
		}
	}
	return errs, nil
}

// refusal returns errors as a [*Refusal]; nil for none.
func refusal(errs field.ErrorList) error {
	var causes []string
	for _, e := range errs {
		if c := bounded(e.Error()); !slices.Contains(causes, c) {
			causes = append(causes, c)
		}
	}
	if len(causes) == 0 {
		return nil
	}
	if n := len(causes) - MostCauses; n > 0 {
		causes = append(causes[:MostCauses-1:MostCauses-1], fmt.Sprintf("… %d more", n+1))
	}
	return &Refusal{Causes: causes}
}

// blocks reports whether the API server evaluates no rules after an error.
func blocks(e *field.Error) bool {
	switch e.Type {
	case field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid:
		return true
	}
	return false
}

// merge applies an object to the live one by server-side apply.
func (t *Type) merge(live *unstructured.Unstructured, patch map[string]any, force bool) (*unstructured.Unstructured, error) {
	merged, err := t.fields.Apply(live, &unstructured.Unstructured{Object: patch}, manager, force)
	if err != nil {
		text := err.Error()
		switch {
		case unreadLive.MatchString(text):
			return nil, unreadable(typedCauses(text))
		case unreadPatch.MatchString(text):
			causes := typedCauses(text)
			for i, c := range causes {
				causes[i] = c + t.meant(c)
			}
			return nil, &Refusal{Causes: causes, Early: true}
		}
		return nil, errors.New(bounded(text))
	}
	u, ok := merged.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("merging the object: have %T", merged)
	}
	return u, nil
}

// meant suggests the field that was most likely meant if the cause is an unknown field.
func (t *Type) meant(cause string) string {
	path, ok := strings.CutSuffix(cause, ": field not declared in schema")
	steps, err := fieldpath.Parse(path)
	if !ok || err != nil || len(steps) == 0 || steps[len(steps)-1].List {
		return ""
	}
	at := t.structural
	for _, s := range steps[:len(steps)-1] {
		child, has := at.Properties[s.Key]
		switch {
		case s.List && at.Items != nil:
			at = at.Items
		case !s.List && has:
			at = &child
		case !s.List && at.AdditionalProperties != nil && at.AdditionalProperties.Structural != nil:
			at = at.AdditionalProperties.Structural
		default:
			return ""
		}
	}
	return sources.Meant(steps[len(steps)-1].Key, slices.Sorted(maps.Keys(at.Properties)))
}

// The errors of server-side apply for an object that does not fit its type.
var (
	unreadPatch = regexp.MustCompile(`^failed to create typed patch object \([^)]*\): `)
	unreadLive  = regexp.MustCompile(`^failed to create typed live object \([^)]*\): |^failed to create manager for existing fields: failed to convert new object \([^)]*\) to smd typed: `)
	errorsWord  = regexp.MustCompile(`^errors:\s*`)
	// goValue and goType match a value of a wrong type in an error.
	goValue = regexp.MustCompile(`, got &?(?:value\.valueUnstructured)?\{(?:Value:)?(.*)\}$`)
	goType  = regexp.MustCompile(`, got (map\[|\[).*$`)
)

// unreadable returns the refusal for a live object that does not fit its type.
func unreadable(causes []string) *Refusal {
	fields := slices.Clone(causes)
	fields[0] = "the live object does not fit it, so that no change of it would be accepted; delete the object to have it created anew: " + fields[0]
	return &Refusal{Causes: fields, Early: true, Live: true}
}

// typedCauses returns the causes in an error of server-side apply, which have the form
// ".spec.size: field not declared in schema".
func typedCauses(text string) []string {
	for _, prefix := range []*regexp.Regexp{unreadPatch, unreadLive, errorsWord} {
		text = prefix.ReplaceAllString(text, "")
	}
	var causes []string
	for line := range strings.SplitSeq(text, "\n") {
		line = goValue.ReplaceAllString(strings.TrimPrefix(strings.TrimSpace(line), "."), ", got $1")
		line = goType.ReplaceAllStringFunc(line, func(got string) string {
			if strings.HasPrefix(got, ", got map[") {
				return ", got a map"
			}
			return ", got a list"
		})
		if line != "" && len(causes) < MostCauses {
			causes = append(causes, bounded(line))
		}
	}
	if causes == nil {
		causes = []string{"it does not fit its type"}
	}
	return causes
}

// read changes a live object as the API server does when it reads it with the new type, in
// this version and without removed fields. It does not set defaults.
func (t *Type) read(live map[string]any) error {
	version := t.kind.GroupVersion().String()
	if t.converts && !sameVersion(live, version) {
		return fmt.Errorf("a webhook converts the live object to %s", version)
	}
	live["apiVersion"] = version
	pruning.Prune(live, t.structural, true)
	defaulting.PruneNonNullableNullsWithoutDefaults(live, t.structural)
	return nil
}

// sameVersion reports whether an object and its managed fields are in a version.
func sameVersion(live map[string]any, version string) bool {
	for _, item := range manifest.List(live, "metadata", "managedFields") {
		if entry, ok := item.(map[string]any); ok && manifest.Text(entry, "apiVersion") != version {
			return false
		}
	}
	return manifest.Text(live, "apiVersion") == version
}

// Decoded returns a copy of an object, decoded as in a request to the API server.
func Decoded(tree map[string]any) (map[string]any, error) {
	var decoded map[string]any
	if err := json.Unmarshal(manifest.AppendJSON(nil, tree), &decoded); err != nil {
		return nil, err
	}
	return decoded, nil
}

func metaOf(object map[string]any) (*metav1.ObjectMeta, field.ErrorList) {
	tree, ok := object["metadata"].(map[string]any)
	if !ok {
		return nil, field.ErrorList{field.Required(field.NewPath("metadata"), "")}
	}
	meta := new(metav1.ObjectMeta)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(tree, meta); err != nil {
		return nil, field.ErrorList{field.Invalid(field.NewPath("metadata"), "", err.Error())}
	}
	return meta, nil
}

// bounded returns the text of an error in one line, of at most longestCause bytes.
func bounded(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) <= longestCause {
		return text
	}
	const kept = longestCause/2 - len("…")
	return strings.ToValidUTF8(text[:kept], "") + "…" + strings.ToValidUTF8(text[len(text)-kept:], "")
}

// recovered turns a panic of the API server's code into an error. That code expects
// definitions that the API server has checked.
func recovered(err *error) {
	if v := recover(); v != nil {
		*err = fmt.Errorf("its type cannot be evaluated: %s", bounded(fmt.Sprint(v)))
	}
}
