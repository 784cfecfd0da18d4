package serve

import (
	"net/http"
	"strings"
	"testing"

	"gitopsd.dev/render/manifest"
)

// The type of the traps has three versions, v1 the stored one. v3 is v1 but for one name.
const (
	trapFields = `
                number: {type: integer, format: int64}
                count: {type: integer, format: int64}
                words: {type: array, items: {type: string}}
                a.b/c: {type: string}
                marks: {type: object, additionalProperties: {type: string}}
                namespace: {type: string}
                __namespace__: {type: string}
                in: {type: string}
                a-b: {type: string}
                since: {type: string, format: date-time}
                wait: {type: string, format: duration}
                maybe: {type: string, nullable: true}
                never: {type: string, nullable: true}
                note: {type: string, maxLength: 100}
                timeout: {type: string}
                first: {type: string}
                second: {type: string}
                colours: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [name], items: {type: object, required: [name], properties: {name: {type: string}, shade: {type: string}, hidden: {type: string, maxLength: 9}}}}
`
	trapVersion = `
  - name: $VERSION
    served: true
    storage: $STORED
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
`
	trapRules = `
apiVersion: apis.kcp.dev/v1alpha1
kind: APIConversionRules
metadata: {name: $NAME}
spec:
  hub: v1
  conversions:
  - from: v1
    to: v2
    rules:
    - {from: v1.spec.name, to: spec.title}
    - {from: v1.spec.number, to: spec.amount}
    - {from: v1.spec.count + 1, to: spec.next}
    - {from: "v1.spec.words.map(w, 'a ' + w)", to: spec.phrases}
    - {from: 'v1.spec["a.b/c"]', to: 'spec.to["c.d/e"]'}
    - {from: "v1.spec.marks['x.y/key']", to: spec.to.key}
    - {from: v1.spec.namespace, to: spec.to.namespace}
    - {from: v1.spec.__namespace__, to: spec.to.__namespace__}
    - {from: v1.spec.in, to: spec.to.in}
    - {from: v1.spec.a-b, to: spec.to.c-d}
    - {from: v1.spec.since, to: spec.to.since}
    - {field: spec.wait, to: spec.to.wait, transformation: self}
    - {from: v1.spec.maybe, to: spec.perhaps}
    - {from: v1.spec.never, to: spec.always}
    - {field: spec.timeout, to: spec.seconds, transformation: duration(self).getSeconds()}
    - {from: v1.spec.first, to: spec.second}
    - {from: v1.spec.second, to: spec.first}
    - from: v1.spec.colours
      to: spec.palette
      itemRules: [{from: self.name, to: item.label}, {from: self.shade, to: item.tone}]
    preserve: [spec.note, "spec.colours[].hidden"]
  - from: v2
    to: v1
    rules:
    - {from: v2.spec.title, to: spec.name}
    - {from: v2.spec.amount, to: spec.number}
    - {from: v2.spec.next - 1, to: spec.count}
    - {from: "v2.spec.phrases.map(p, p.substring(2))", to: spec.words}
    - {from: 'v2.spec.to["c.d/e"]', to: 'spec["a.b/c"]'}
    - {from: v2.spec.to.key, to: "spec.marks['x.y/key']"}
    - {from: v2.spec.to.namespace, to: spec.namespace}
    - {from: v2.spec.to.__namespace__, to: spec.__namespace__}
    - {from: v2.spec.to.in, to: spec.in}
    - {from: v2.spec.to.c-d, to: spec.a-b}
    - {from: v2.spec.to.since, to: spec.since}
    - {from: v2.spec.to.wait, to: spec.wait}
    - {from: v2.spec.perhaps, to: spec.maybe}
    - {from: v2.spec.always, to: spec.never}
    - {field: spec.seconds, to: spec.timeout, transformation: string(self) + 's'}
    - {from: v2.spec.first, to: spec.second}
    - {from: v2.spec.second, to: spec.first}
    - from: v2.spec.palette
      to: spec.colours
      itemRules: [{from: self.label, to: item.name}, {from: self.tone, to: item.shade}]
    preserve: [spec.extra]
  - {from: v1, to: v3, rules: [{from: v1.spec.name, to: spec.label}]}
  - {from: v3, to: v1, rules: [{from: v3.spec.label, to: spec.name}]}
`
)

func trapDefinition() string {
	version := func(name, stored string) string {
		return strings.NewReplacer("$VERSION", name, "$STORED", stored).Replace(trapVersion)
	}
	return `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: $NAME}
spec:
  group: $GROUP
  scope: Namespaced
  names: {kind: Person, plural: people, singular: person, listKind: PersonList}
  versions:` + version("v1", "true") + "                name: {type: string}" + trapFields + version("v2", "false") + `
                title: {type: string}
                amount: {type: integer, format: int64}
                next: {type: integer, format: int64}
                phrases: {type: array, items: {type: string}}
                marks: {type: object, additionalProperties: {type: string}}
                to: {type: object, properties: {namespace: {type: string}, __namespace__: {type: string}, in: {type: string}, c-d: {type: string}, c.d/e: {type: string}, key: {type: string}, since: {type: string, format: date-time}, wait: {type: string, format: duration}}}
                perhaps: {type: string, nullable: true}
                always: {type: string}
                extra: {type: string, maxLength: 100}
                seconds: {type: integer}
                first: {type: string}
                second: {type: string}
                palette: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [label], items: {type: object, required: [label], properties: {label: {type: string}, tone: {type: string}}}}
` + version("v3", "false") + "                label: {type: string}" + trapFields
}

// Each trap that conversions of others fell into, through an API server.
func TestLiveTraps(t *testing.T) {
	b := newBedOf(t, trapDefinition(), trapRules)
	trap := func(name string, try func(object string)) {
		t.Run(name, func(t *testing.T) {
			parent := b.T
			b.T = t
			defer func() { b.T = parent }()
			try(strings.NewReplacer(" ", "-", ",", "").Replace(name))
		})
	}
	patch := func(version, name, spec string) {
		b.Helper()
		b.must(b.send(http.MethodPatch, b.people(version, name), "application/merge-patch+json", `{"spec":`+spec+`}`))
	}
	// both creates an object in v1, and has it read in v2 and come back from there when
	// something else is written.
	both := func(name, inV1, inV2 string) {
		b.Helper()
		b.spec(b.create(b.person("v1", name, inV1)), inV1)
		b.spec(b.get("v2", name), inV2)
		b.must(b.send(http.MethodPatch, b.people("v2", name), "application/merge-patch+json", `{"metadata":{"labels":{"touched":"yes"}}}`))
		b.spec(b.get("v1", name), inV1)
		// And as an object that v2 is written in.
		b.spec(b.create(b.person("v2", name+"-2", inV2)), inV2)
		b.spec(b.get("v2", name+"-2"), inV2)
	}

	trap("a third version does not overwrite the rules of the pair", func(name string) {
		b.create(b.person("v1", name, `{name: a, note: kept}`))
		b.spec(b.get("v2", name), `{title: a}`)
		b.spec(b.get("v3", name), `{label: a, note: kept}`)
		patch("v3", name, `{"label":"b"}`)
		b.spec(b.get("v2", name), `{title: b}`)
		patch("v2", name, `{"title":"c","extra":"x"}`)
		b.spec(b.get("v3", name), `{label: c, note: kept}`)
		patch("v3", name, `{"label":"d"}`)
		b.spec(b.get("v2", name), `{extra: x, title: d}`)
		b.spec(b.get("v1", name), `{name: d, note: kept}`)
	})
	trap("integers over 2 to the 53rd", func(name string) {
		both(name, `{count: 9007199254740993, number: -9223372036854775807}`, `{amount: -9223372036854775807, next: 9007199254740994}`)
		// The last one has no next one: the field is left out in v2, and comes back.
		b.create(b.person("v1", name+"-last", `{count: 9223372036854775807, number: 1}`))
		b.spec(b.get("v2", name+"-last"), `{amount: 1}`)
		patch("v2", name+"-last", `{"amount":2}`)
		b.spec(b.get("v1", name+"-last"), `{count: 9223372036854775807, number: 2}`)
	})
	trap("lists under a transformation", func(name string) {
		both(name, `{words: [b, "", b, a]}`, `{phrases: [a b, "a ", a b, a a]}`)
		both(name+"-empty", `{words: []}`, `{phrases: []}`)
	})
	trap("keys with dots", func(name string) {
		both(name, `{a.b/c: abc, marks: {l: m, x.y/key: k}}`, `{marks: {l: m}, to: {c.d/e: abc, key: k}}`)
	})
	trap("reserved and dashed names", func(name string) {
		both(name, `{__namespace__: m, a-b: ab, in: i, namespace: ns}`, `{to: {__namespace__: m, c-d: ab, in: i, namespace: ns}}`)
	})
	trap("the text of times and durations", func(name string) {
		both(name, `{since: "2024-01-02T03:04:05.120+01:00", wait: 90m}`, `{to: {since: "2024-01-02T03:04:05.120+01:00", wait: 90m}}`)
	})
	trap("null and absent", func(name string) {
		b.spec(b.create(b.person("v1", name, `{maybe: null, never: null}`)), `{maybe: null, never: null}`)
		b.spec(b.get("v2", name), `{perhaps: null}`)
		patch("v2", name, `{"seconds":1}`)
		b.spec(b.get("v1", name), `{maybe: null, never: null, timeout: 1s}`)
		both(name+"-empty", `{}`, `{}`)
		for _, version := range []string{"v2", "v3"} {
			b.create(b.person("v1", name+"-"+version, ""))
			if o := b.get(version, name+"-"+version); o["spec"] != nil {
				b.Errorf("%s has a spec: %v", version, o["spec"])
			}
		}
	})
	trap("a pass that restores and has to stash", func(name string) {
		b.create(b.person("v2", name, `{extra: x, title: a}`))
		patch("v1", name, `{"note":"n","timeout":"2m"}`)
		o := b.get("v2", name)
		b.spec(o, `{extra: x, seconds: 120, title: a}`)
		if text := stash(o); !strings.Contains(text, "spec.note") || strings.Contains(text, "spec.extra") {
			b.Errorf("the stash in v2 is %s", text)
		}
		patch("v2", name, `{"title":"b"}`)
		b.spec(b.get("v1", name), `{name: b, note: "n", timeout: 2m}`)
		b.spec(b.get("v2", name), `{extra: x, seconds: 120, title: b}`)
	})
	trap("items that are reordered or removed", func(name string) {
		b.create(b.person("v1", name, `{colours: [{hidden: one, name: red, shade: dark}, {hidden: two, name: blue}, {hidden: three, name: green}]}`))
		patch("v2", name, `{"palette":[{"label":"green","tone":"light"},{"label":"red","tone":"dark"},{"label":"new"}]}`)
		b.spec(b.get("v1", name), `{colours: [{hidden: three, name: green, shade: light}, {hidden: one, name: red, shade: dark}, {name: new}]}`)
	})
	trap("an edit wins over the stash", func(name string) {
		b.create(b.person("v1", name, `{name: a, timeout: 1m30s}`))
		patch("v2", name, `{"title":"b"}`)
		b.spec(b.get("v1", name), `{name: b, timeout: 1m30s}`)
		patch("v2", name, `{"seconds":120}`)
		b.spec(b.get("v1", name), `{name: b, timeout: 120s}`)
		patch("v2", name, `{"seconds":null}`)
		b.spec(b.get("v1", name), `{name: b}`)
		if o := b.get("v1", name); stash(o) != "" {
			b.Errorf("a stash is left: %s", stash(o))
		}
	})
	trap("names that swap their meaning", func(name string) {
		both(name, `{first: a, second: b}`, `{first: b, second: a}`)
		both(name+"-one", `{first: a}`, `{second: a}`)
	})
	trap("an annotation that is garbage, or that a user wrote", func(name string) {
		for i, text := range []string{
			"garbage",
			`{"v2":3,"v1":[],"v9":{}}`,
			`{"v2":[{"path":"spec.extra","value":3},{"path":"spec.title","value":"other"},{"path":"spec"},{"path":"metadata.name","value":"other"}]}`,
		} {
			o := b.person("v1", name+"-"+string(rune('a'+i)), `{name: a, note: "n"}`)
			o["metadata"].(map[string]any)["annotations"] = map[string]any{manifest.ConversionStashAnnotation: text}
			b.create(o)
			b.spec(b.get("v2", manifest.Text(o, "metadata", "name")), `{title: a}`)
			patch("v2", manifest.Text(o, "metadata", "name"), `{"title":"b"}`)
			b.spec(b.get("v1", manifest.Text(o, "metadata", "name")), `{name: b, note: "n"}`)
		}
		if items := manifest.List(b.get("v2", ""), "items"); len(items) < 20 {
			b.Errorf("the list has %d objects", len(items))
		}
	})
}
