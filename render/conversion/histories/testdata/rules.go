// Package gitopsdrules converts objects by conversion rules, in the place of the
// conversion that the project wrote. It asks the test, which has compiled the rules.
package gitopsdrules

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"reflect"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Stash is the annotation in which a conversion keeps what a version cannot hold.
const Stash = "gitopsd.dev/conversion-stash"

// Object is an object of either version.
type Object interface {
	runtime.Object
	metav1.Object
}

// stashes have the annotation of an object by its address. The project's tests compare
// annotations, and do not know of this one.
var stashes sync.Map

// Convert converts from an object of a version to one of another.
func Convert(from Object, fromVersion string, to Object, toVersion, group, kind string) error {
	stash, _ := stashes.Load(from)
	text, err := marshal(from, stash, schema.GroupVersionKind{Group: group, Version: fromVersion, Kind: kind})
	if err != nil {
		return err
	}
	response, err := http.Post(os.Getenv("GITOPSD_RULES")+"?to="+toVersion, "application/json", bytes.NewReader(text))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	converted, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", response.Status, converted)
	}
	if err := json.Unmarshal(converted, to); err != nil {
		return err
	}
	to.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	stashes.Delete(to)
	if stash, ok := Take(to, Stash); ok {
		stashes.Store(to, stash)
	}
	return nil
}

func marshal(o Object, stash any, kind schema.GroupVersionKind) ([]byte, error) {
	o = o.DeepCopyObject().(Object)
	if text, ok := stash.(string); ok {
		annotations := o.GetAnnotations()
		if annotations == nil {
			annotations = make(map[string]string)
		}
		annotations[Stash] = text
		o.SetAnnotations(annotations)
	}
	o.GetObjectKind().SetGroupVersionKind(kind)
	return json.Marshal(o)
}

// Take takes an annotation off an object.
func Take(o Object, name string) (text string, ok bool) {
	annotations := o.GetAnnotations()
	if text, ok = annotations[name]; !ok {
		return "", false
	}
	delete(annotations, name)
	if len(annotations) == 0 {
		annotations = nil
	}
	o.SetAnnotations(annotations)
	return text, true
}

// ThroughJSON makes an object what is left of it in JSON, as objects in a cluster are:
// an empty list is absent there, and a time has no zero.
func ThroughJSON(o any) {
	text, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	reflect.ValueOf(o).Elem().SetZero()
	if err := json.Unmarshal(text, o); err != nil {
		panic(err)
	}
}
