package validate

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"strings"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
)

// Type is a kind in one version, compiled. It is immutable and safe for concurrent
// use.
type Type struct {
	kind       schema.GroupVersionKind
	namespaced bool
	// status reports whether status is a subresource. Then an apply does not change it.
	status   bool
	converts bool
	scale    scale

	checks
	fields *managedfields.FieldManager
}

// Namespaced reports whether objects of the type live in namespaces.
func (t *Type) Namespaced() bool { return t.namespaced }

// ErrNotDefined is wrapped by the errors of [Compile] and [CompileSchema] for a kind or
// version that the definition does not have.
var ErrNotDefined = errors.New("not served")

// Compile compiles a kind in one version from a CustomResourceDefinition or a
// CompositeResourceDefinition. It fails if the definition does not serve them
// ([ErrNotDefined]), or if the API server would refuse the schema.
func Compile(definition map[string]any, kind, version string) (t *Type, err error) {
	defer recovered(&err)
	d := types.Read(definition)
	for _, v := range d.Versions() {
		if v.Name != version || !v.Served || !d.Defines(manifest.GroupKind{Group: d.Group, Kind: kind}) {
			continue
		}
		t, err := compile(d, v, kind)
		if err != nil {
			return nil, fmt.Errorf("%s/%s %s: %w", d.Group, version, kind, err)
		}
		return t, nil
	}
	return nil, fmt.Errorf("%s/%s %s: %w", d.Group, version, kind, ErrNotDefined)
}

func compile(d types.Definition, v types.Version, kind string) (*Type, error) {
	if v.Schema == nil {
		return nil, errors.New("it has no schema")
	}
	if d.PreservesUnknownFields {
		return nil, errors.New("spec.preserveUnknownFields keeps every field")
	}
	t := &Type{
		kind:       schema.GroupVersionKind{Group: d.Group, Version: v.Name, Kind: kind},
		namespaced: d.Scope == "Namespaced", status: v.Subresources["status"] != nil, converts: d.Converts,
		scale: scaleOf(manifest.Mapping(v.Subresources, "scale")),
	}
	tree := v.Schema
	if d.XRD {
		claim := kind == d.Claims.Kind
		tree = compositeSchema(d, v.Schema, claim)
		t.status, t.scale = true, scale{}
		t.namespaced = t.namespaced || claim
	}
	var err error
	if t.checks, err = compileSchema(tree); err != nil {
		return nil, err
	}
	t.fields, err = t.fieldManager()
	return t, err
}

// internalSchema converts a schema to the API server's internal type.
func internalSchema(tree map[string]any) (*apiextensions.JSONSchemaProps, error) {
	var external apiextensionsv1.JSONSchemaProps
	if err := json.Unmarshal(manifest.AppendJSON(nil, tree), &external); err != nil {
		return nil, err
	}
	internal := new(apiextensions.JSONSchemaProps)
	return internal, apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(&external, internal, nil)
}

// fieldManager returns the field manager that merges applied objects, with the OpenAPI model
// that the API server publishes for the type.
func (t *Type) fieldManager() (*managedfields.FieldManager, error) {
	model := t.structural.ToKubeOpenAPI()
	text := *spec.StringProperty()
	model.SetProperty("apiVersion", text)
	model.SetProperty("kind", text)
	model.SetProperty("metadata", *spec.RefSchema(modelPrefix + metav1.ObjectMeta{}.OpenAPIModelName()))
	embed(model)
	model.AddExtension("x-kubernetes-group-version-kind", []any{map[string]any{
		"group": t.kind.Group, "version": t.kind.Version, "kind": t.kind.Kind,
	}})
	models := map[string]*spec.Schema{"object": model}
	maps.Copy(models, metaModels())
	converter, err := managedfields.NewTypeConverter(models, false)
	if err != nil {
		return nil, err
	}
	return managedfields.NewDefaultCRDFieldManager(converter, versions{t.kind.Group}, defaulter{t.structural}, creator{}, t.kind, t.kind.GroupVersion(), "", nil)
}

// embed adds the fields of every object to embedded objects.
func embed(s *spec.Schema) {
	for k, p := range s.Properties {
		embed(&p)
		s.Properties[k] = p
	}
	if s.Items != nil && s.Items.Schema != nil {
		embed(s.Items.Schema)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		embed(s.AdditionalProperties.Schema)
	}
	if is, ok := s.Extensions.GetBool("x-kubernetes-embedded-resource"); !ok || !is {
		return
	}
	s.SetProperty("apiVersion", *spec.StringProperty())
	s.SetProperty("kind", *spec.StringProperty())
	s.SetProperty("metadata", *spec.RefSchema(modelPrefix + metav1.ObjectMeta{}.OpenAPIModelName()))
}

const modelPrefix = "#/components/schemas/"

// metaModels are the models of metadata. They are shared and not changed.
var metaModels = sync.OnceValue(func() map[string]*spec.Schema {
	all := openapi.GetOpenAPIDefinitions(func(name string) spec.Ref { return spec.MustCreateRef(modelPrefix + name) })
	models := make(map[string]*spec.Schema)
	var add func(name string)
	add = func(name string) {
		d, ok := all[name]
		if !ok || models[name] != nil {
			return
		}
		models[name] = &d.Schema
		for _, other := range d.Dependencies {
			add(other)
		}
	}
	add(metav1.ObjectMeta{}.OpenAPIModelName())
	return models
})

// versions converts objects as the API server does without a webhook: it changes only
// apiVersion.
type versions struct{ group string }

func (c versions) Convert(_, _, _ any) error { return errors.New("not used") }

func (c versions) ConvertToVersion(in runtime.Object, target runtime.GroupVersioner) (runtime.Object, error) {
	kind := in.GetObjectKind().GroupVersionKind()
	to, ok := target.KindForGroupVersionKinds([]schema.GroupVersionKind{kind})
	if !ok {
		return nil, fmt.Errorf("%v is unstructured and is not suitable for converting to %q", kind, target)
	}
	if kind == to {
		return in, nil
	}
	u, ok := in.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("converting %T", in)
	}
	u = u.DeepCopy()
	u.SetGroupVersionKind(to)
	return u, nil
}

func (c versions) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}

type defaulter struct{ structural *structural.Structural }

func (d defaulter) Default(in runtime.Object) {
	if u, ok := in.(*unstructured.Unstructured); ok {
		defaulting.Default(u.Object, d.structural)
	}
}

type creator struct{}

func (creator) New(kind schema.GroupVersionKind) (runtime.Object, error) {
	u := new(unstructured.Unstructured)
	u.SetGroupVersionKind(kind)
	return u, nil
}

// empty returns the live object for an apply that creates one.
func (t *Type) empty() *unstructured.Unstructured {
	u := new(unstructured.Unstructured)
	u.SetGroupVersionKind(t.kind)
	return u
}

// scale has the paths of the subresource scale; they are empty without it.
type scale struct{ replicas, ready, selector string }

func scaleOf(m map[string]any) scale {
	return scale{replicas: manifest.Text(m, "specReplicasPath"), ready: manifest.Text(m, "statusReplicasPath"), selector: manifest.Text(m, "labelSelectorPath")}
}

func (s scale) check(object map[string]any) field.ErrorList {
	var errs field.ErrorList
	for _, path := range []string{s.replicas, s.ready} {
		if path == "" {
			continue
		}
		n, _, err := unstructured.NestedInt64(object, fieldsOf(path)...)
		switch {
		case err != nil:
			errs = append(errs, field.Invalid(field.NewPath(path), n, err.Error()))
		case n < 0:
			errs = append(errs, field.Invalid(field.NewPath(path), n, "should be a non-negative integer"))
		case n > math.MaxInt32:
			errs = append(errs, field.Invalid(field.NewPath(path), n, fmt.Sprintf("should be less than or equal to %v", math.MaxInt32)))
		}
	}
	if s.selector != "" {
		if text, _, err := unstructured.NestedString(object, fieldsOf(s.selector)...); err != nil {
			errs = append(errs, field.Invalid(field.NewPath(s.selector), text, err.Error()))
		}
	}
	return errs
}

func fieldsOf(path string) []string { return strings.Split(strings.TrimPrefix(path, "."), ".") }
