package harm_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/util/json"

	"gitopsd.dev/render/types/harm"
)

// FuzzLook checks that no object or managers make the judge panic or write a long text.
func FuzzLook(f *testing.F) {
	old := definition("{type: object, properties: {a: {type: string, default: x}, l: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [k], items: {type: object, required: [k], properties: {k: {type: integer}, v: {type: string}}}}, " +
		"m: {type: object, additionalProperties: {type: integer}}, e: {type: object, x-kubernetes-preserve-unknown-fields: true}}}")
	now := definition("{type: object, properties: {a: {type: string, default: y}, l: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [k], items: {type: object, required: [k], properties: {k: {type: integer, maximum: 3}}}}, " +
		"m: {type: object, additionalProperties: {type: integer, maximum: 3}}, e: {type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}}, x-kubernetes-validations: [{rule: 'self.a != \"z\"'}]}")
	judges, _ := compared(f, old, now, harm.Options{})
	judge := judges[0]
	fates := []harm.Fate{{}, applies(f, thing("a", "{a: x, l: [{k: 9}]}", "")), {Goes: true}}
	f.Add(`{"apiVersion":"example.org/v1","kind":"Thing","metadata":{"name":"a","managedFields":[{"manager":"m","apiVersion":"example.org/v1","fieldsV1":{"f:spec":{"f:l":{"k:{\"k\":1}":{"f:v":{}}},"f:m":{},"f:a":{}}}}]},"spec":{"a":"x","l":[{"k":1,"v":"b"},{"k":9}],"m":{"a.b[0]":7},"e":{"apiVersion":"v1","kind":"K","metadata":{"name":"n","x":1}}}}`, 0)
	f.Add(`{"apiVersion":"example.org/v1","kind":"Thing","metadata":7,"spec":[null]}`, 1)
	f.Add(`{"apiVersion":"example.org/v1","kind":"Thing","metadata":{"managedFields":[null,{"manager":"m","fieldsV1":{"f:spec":{"v:":{},"k:":{},"i:x":{},".":null}}}]},"spec":{"l":[[],{}],"m":null}}`, 2)
	f.Fuzz(func(t *testing.T, object string, fate int) {
		var tree map[string]any
		if json.Unmarshal([]byte(object), &tree) != nil {
			return
		}
		judge.Restart()
		judge.Look(t.Context(), tree, fates[uint(fate)%uint(len(fates))])
		s := judge.Done(nil)
		if n := len(s.Text(1)); s.Looked != 1 || n > 20_000+2*len(object) {
			t.Errorf("looked at %d, and says %d bytes", s.Looked, n)
		}
	})
}
