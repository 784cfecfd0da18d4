package kube

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"

	"gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// undeclared is the API server's text for a field that a type does not have.
const undeclared = "field not declared in schema"

// suggest adds to each undeclared field of an error the field that was probably meant,
// from the schema that the API server publishes (/openapi/v3). Without a schema it adds
// nothing.
func (c *Client) suggest(ctx context.Context, t Type, e *Error) {
	if e.Class != Invalid || e.ID.Is(manifest.Secret) || !slices.ContainsFunc(e.Fields, func(f Field) bool { return f.Problem == undeclared }) {
		return
	}
	doc, err := c.published(ctx, e.ID, t)
	if err != nil {
		return
	}
	for i, f := range e.Fields {
		if f.Problem == undeclared {
			e.Fields[i].Problem += doc.meant(t, f.Path)
		}
	}
	e.tellFields()
}

// published has the fields' names in a published schema.
type published struct {
	Components struct {
		Schemas map[string]*publishedType `json:"schemas"`
	} `json:"components"`
}

type publishedType struct {
	Ref        string                    `json:"$ref"`
	AllOf      []*publishedType          `json:"allOf"`
	Properties map[string]*publishedType `json:"properties"`
	Items      *publishedType            `json:"items"`
	// Values is the additionalProperties of a mapping: a schema, or true for anything.
	Values json.RawMessage `json:"additionalProperties"`
	Kinds  []publishedKind `json:"x-kubernetes-group-version-kind"`
}

type publishedKind struct {
	Group   string `json:"group"`
	Version string `json:"version"`
	Kind    string `json:"kind"`
}

// published reads the schemas of a type's group and version.
func (c *Client) published(ctx context.Context, id manifest.ID, t Type) (*published, error) {
	path := []string{"openapi", "v3", "apis", t.Group, t.Version}
	if t.Group == "" {
		path = []string{"openapi", "v3", "api", t.Version}
	}
	body, _, err := c.do(ctx, operation{verb: "read the schema of", id: id}, request{method: http.MethodGet, path: path, accept: mimeJSON})
	if err != nil {
		return nil, err
	}
	doc := new(published)
	if err := json.Unmarshal(body, doc); err != nil {
		return nil, err
	}
	return doc, nil
}

// meant suggests a field instead of the last one of a path; empty if none is similar.
func (p *published) meant(t Type, path string) string {
	steps, err := field.Parse(path)
	if err != nil || len(steps) == 0 || steps[len(steps)-1].List {
		return ""
	}
	at := p.kind(t)
	for _, s := range steps[:len(steps)-1] {
		at = p.resolve(at)
		switch {
		case at == nil:
			return ""
		case s.List:
			at = at.Items
		case at.Properties[s.Key] != nil:
			at = at.Properties[s.Key]
		default:
			of := new(publishedType)
			if json.Unmarshal(at.Values, of) != nil {
				return ""
			}
			at = of
		}
	}
	if at = p.resolve(at); at == nil {
		return ""
	}
	return sources.Meant(steps[len(steps)-1].Key, slices.Sorted(maps.Keys(at.Properties)))
}

func (p *published) kind(t Type) *publishedType {
	for _, s := range p.Components.Schemas {
		if slices.Contains(s.Kinds, publishedKind{t.Group, t.Version, t.Kind}) && s.Properties["metadata"] != nil {
			return s
		}
	}
	return nil
}

// resolve follows references, which the API server wraps to set a default beside them.
func (p *published) resolve(at *publishedType) *publishedType {
	for range 10 { // references could form a loop
		switch {
		case at == nil:
			return nil
		case at.Ref != "":
			at = p.Components.Schemas[strings.TrimPrefix(at.Ref, "#/components/schemas/")]
		case len(at.AllOf) == 1 && at.Properties == nil:
			at = at.AllOf[0]
		default:
			return at
		}
	}
	return nil
}
