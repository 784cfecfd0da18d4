package conversion

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/validation"
	labels "k8s.io/apimachinery/pkg/util/validation"

	"gitopsd.dev/render/conversion/rules"
	"gitopsd.dev/render/conversion/stash"
)

// API servers validate the labels and annotations that a conversion changes, and an object
// with an invalid one fails every LIST of its type (restoreObjectMeta in
// apiextensions-apiserver's webhook_converter.go). A rule that would write one writes
// nothing, as any other rule that fails.

// qualified returns an error if a label or annotation cannot have the name in a path.
func qualified(to rules.Path) error {
	if why := unnameable(to[1].Key, to[2].Key); why != "" {
		return fmt.Errorf("%s: no name of a label or annotation: %s", to, why)
	}
	return nil
}

// unnameable returns the reason why labels or annotations cannot have a name; empty if they can.
func unnameable(what, name string) string {
	if what == "annotations" {
		name = strings.ToLower(name)
	}
	return strings.Join(labels.IsQualifiedName(name), "; ")
}

// unlabelled returns the reason why a label cannot have a value; empty if it can.
func unlabelled(v any) string {
	text, _ := v.(string)
	return strings.Join(labels.IsValidLabelValue(text), "; ")
}

// labels returns an error if the rule writes a label that cannot have the value.
func (r *rule) labels(v any) error {
	if !r.writes("labels") {
		return nil
	}
	if why := unlabelled(v); why != "" {
		return errors.New("not the value of a label: " + why)
	}
	return nil
}

// unfit returns the reason why an entry of a stash cannot be a label or annotation; empty if it can, or is neither.
func unfit(e stash.Entry) string {
	if len(e.Path) != 3 || e.Path[0].Key != "metadata" || e.Absent {
		return ""
	}
	if why := unnameable(e.Path[1].Key, e.Path[2].Key); why != "" || e.Path[1].Key != "labels" {
		return why
	}
	return unlabelled(e.Value)
}

// writes reports whether the rule writes into the labels or annotations of the object.
func (r *rule) writes(name string) bool {
	return r.whole && r.to[0].Key == "metadata" && r.to[1].Key == name
}

// sizeOfTexts returns the size of annotations, as an API server counts it.
func sizeOfTexts(all map[string]any) int {
	size := 0
	for k, v := range all {
		text, _ := v.(string)
		size += len(k) + len(text)
	}
	return size
}

// fitAnnotations takes annotations that rules wrote out of all annotations of an object,
// the largest first, until those that are left are as small as an API server wants them.
func (r *run) fitAnnotations(all map[string]any) {
	size := sizeOfTexts(all)
	if size <= validation.TotalAnnotationSizeLimitB {
		return
	}
	length := func(r *rule) int {
		text, _ := all[r.to[2].Key].(string)
		return len(text)
	}
	written := slices.DeleteFunc(slices.Clone(r.pair.root.rules), func(r *rule) bool {
		return !r.writes("annotations") || all[r.to[2].Key] == nil
	})
	slices.SortStableFunc(written, func(a, b *rule) int { return length(b) - length(a) })
	for _, rule := range written {
		if size <= validation.TotalAnnotationSizeLimitB {
			return
		}
		name := rule.to[2].Key
		size -= len(name) + length(rule)
		delete(all, name)
		r.fail(rule, fmt.Errorf("with it the annotations of the object would have more than %d KiB", validation.TotalAnnotationSizeLimitB>>10))
	}
}
