package conversion

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/render/conversion/stash"
	"gitopsd.dev/render/conversion/structural"
	"gitopsd.dev/render/exact"
)

// Anybody who may write an object may write a stash. API servers fail every LIST of a type
// if they cannot read one converted object: a number that is not finite as a float64, more
// than 10,000 levels, or an embedded object that is none.

// maxDepth is how deep a field of a stash may be, with the path to it. The review around the
// object has some levels, too.
const maxDepth = 9_980

// unsound returns the reason why API servers may not be able to read an object with an entry
// of a stash; empty if they can. schema is the object's.
func unsound(schema map[string]any, e stash.Entry) string {
	for i, s := range e.Path {
		if i == 0 && (s.Key == "apiVersion" || s.Key == "kind") {
			return "the version gives it"
		}
		if embedded(schema) && (s.Key == "apiVersion" || s.Key == "kind" || s.Key == "metadata") {
			return "it is part of what identifies an embedded object"
		}
		if s.List {
			schema = structural.Element(schema)
		} else {
			schema = structural.Child(schema, s.Key)
		}
	}
	if err := readable(schema, e.Value, len(e.Path)); err != nil {
		return err.Error()
	}
	return ""
}

func embedded(schema map[string]any) bool { return schema["x-kubernetes-embedded-resource"] == true }

func readable(schema map[string]any, v any, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("it has more than %d levels", maxDepth)
	}
	switch v := v.(type) {
	case json.Number:
		if _, err := strconv.ParseFloat(string(v), 64); err != nil {
			return errors.New("it holds a number that no API server reads")
		}
	case []any:
		for _, item := range v {
			if err := readable(structural.Element(schema), item, depth+1); err != nil {
				return err
			}
		}
	case map[string]any:
		if embedded(schema) {
			var meta metav1.PartialObjectMetadata
			text, err := exact.Encode(map[string]any{"apiVersion": v["apiVersion"], "kind": v["kind"], "metadata": v["metadata"]})
			if err != nil || json.Unmarshal(text, &meta) != nil {
				return errors.New("an embedded object in it has an apiVersion, kind or metadata that no API server reads")
			}
		}
		for name, child := range v {
			if err := readable(structural.Child(schema, name), child, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}
