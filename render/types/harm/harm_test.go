package harm_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/render/types/compat"
	"gitopsd.dev/render/types/harm"
	"gitopsd.dev/render/validate"
)

// definition returns a CRD with one version, v1, and a schema for its spec.
func definition(spec string) string {
	return `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.org}
spec:
  group: example.org
  scope: Namespaced
  names: {kind: Thing, plural: things}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: ` + spec + `}}}}
`
}

// thing returns an object; the manager kubectl owns fields, unless that is empty.
func thing(name, spec, fields string) string {
	text := "{apiVersion: example.org/v1, kind: Thing, metadata: {namespace: default, name: " + name
	if fields != "" {
		text += ", managedFields: [{manager: kubectl, operation: Update, apiVersion: example.org/v1, fieldsType: FieldsV1, fieldsV1: " + fields + "}]"
	}
	return text + "}, spec: " + spec + "}"
}

// keeping returns an object with an annotation of conversion rules.
func keeping(name, text string) string {
	return strings.Replace(thing(name, "{}", ""), "name: "+name, "name: "+name+", annotations: {"+manifest.ConversionStashAnnotation+": '"+text+"'}", 1)
}

// webhook is the conversion of a definition, to append to it.
const webhook = "  conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1], clientConfig: {url: 'https://example.org'}}}\n"

// withBeta returns a definition with v1beta1 as a second served version.
func withBeta(crd, spec string) string {
	return strings.Replace(crd, "  versions:\n", "  versions:\n  - {name: v1beta1, served: true, storage: false, schema: {openAPIV3Schema: {type: object, properties: {spec: "+spec+"}}}}\n", 1)
}

// compared returns the judges and the breaking findings between two definitions; now is
// empty if the type is removed.
func compared(t testing.TB, old, now string, o harm.Options) ([]*harm.Judge, []compat.Finding) {
	t.Helper()
	before := manifesttest.Tree(t, old)
	var after map[string]any
	if now != "" {
		after = manifesttest.Tree(t, now)
	}
	report, err := compat.Compare(t.Context(), before, after, compat.Options{})
	if err != nil {
		t.Fatal(err)
	}
	judges, err := harm.New(before, after, report.Findings, o)
	if err != nil {
		t.Fatal(err)
	}
	return judges, slices.DeleteFunc(report.Findings, func(f compat.Finding) bool { return f.Severity != compat.Breaking })
}

func look(t *testing.T, j *harm.Judge, fate harm.Fate, objects ...string) {
	t.Helper()
	for _, o := range objects {
		tree, err := validate.Decoded(manifesttest.Tree(t, o))
		if err != nil {
			t.Fatal(err)
		}
		j.Look(t.Context(), tree, fate)
	}
}

// survey returns the survey of objects and the breaking findings.
func survey(t *testing.T, old, now string, fate harm.Fate, objects ...string) (*harm.Survey, []compat.Finding) {
	t.Helper()
	judges, findings := compared(t, old, now, harm.Options{})
	if !slices.ContainsFunc(findings, harm.Tells) {
		t.Fatalf("objects can tell nothing about the findings %v", findings)
	}
	look(t, judges[0], fate, objects...)
	return judges[0].Done(nil), findings
}

func TestJudge(t *testing.T) {
	object := func(properties string) string { return "{type: object, properties: {" + properties + "}}" }
	compared := func(field string) string {
		return "{type: object, required: [a, b], x-kubernetes-validations: [{rule: self.a <= self.b, message: a comes before b}], properties: {a: " + field + ", b: " + field + "}}"
	}
	for _, tt := range []struct {
		name     string
		old, new string // schemas of spec
		objects  []string
		want     []string
		warnings string
	}{
		{
			name: "a field that goes", old: object("size: {type: integer}, colour: {type: string}"), new: object("size: {type: integer}"),
			objects: []string{
				thing("plain", "{size: 1}", ""),
				thing("red", "{colour: red}", `{"f:spec": {"f:colour": {}}}`),
				thing("null", "{colour: null}", ""),
			},
			want: []string{"default/red .spec.colour would be dropped, owned by kubectl"},
		},
		{
			name: "a default that goes with its field", old: object("size: {type: integer}, colour: {type: string, default: red}"), new: object("size: {type: integer}"),
			objects: []string{thing("plain", "{}", ""), thing("red", "{colour: red}", ""), thing("blue", "{colour: blue}", "")},
			want:    []string{"default/blue .spec.colour would be dropped"},
		},
		{
			name: "a field of elements", old: object("ports: {type: array, items: " + object("port: {type: integer}, name: {type: string}") + "}"), new: object("ports: {type: array, items: " + object("port: {type: integer}") + "}"),
			objects: []string{thing("one", "{ports: [{port: 1}, {port: 2, name: web}]}", `{"f:spec": {"f:ports": {}}}`), thing("none", "{ports: [{port: 1}]}", "")},
			want:    []string{"default/one .spec.ports[1].name would be dropped, owned by kubectl"},
		},
		{
			name: "a limit", old: object("size: {type: integer}"), new: object("size: {type: integer, maximum: 3}"),
			objects:  []string{thing("small", "{size: 3}", `{"f:spec": {"f:size": {}}}`), thing("unset", "{}", "")},
			warnings: "maximum-added .spec.size: written by kubectl, whose next write counts",
		},
		{
			name: "a limit that is exceeded", old: object("size: {type: integer}"), new: object("size: {type: integer, maximum: 3}"),
			objects: []string{thing("small", "{size: 3}", ""), thing("large", "{size: 777}", "")},
			want:    []string{"default/large .spec.size is not valid any more: should be less than or equal to 3"},
		},
		{
			name: "what was wrong before", old: object("size: {type: integer, maximum: 5}, name: {type: string}"), new: object("size: {type: integer, maximum: 5}, name: {type: string, minLength: 2}"),
			objects: []string{thing("large", "{size: 9, name: ab}", "")},
		},
		{
			name: "a rule", old: object("a: {type: integer}, b: {type: integer}"), new: "{type: object, properties: {a: {type: integer}, b: {type: integer}}, x-kubernetes-validations: [{rule: '!has(self.a) || !has(self.b) || self.a < self.b', message: a comes before b}]}",
			objects: []string{thing("good", "{a: 1, b: 2}", ""), thing("bad", "{a: 2, b: 1}", "")},
			want:    []string{"default/bad .spec is not valid any more: a comes before b"},
		},
		{
			name: "a rule that refuses every change of an object", old: object("sealed: {type: boolean}"),
			new:     "{type: object, properties: {sealed: {type: boolean}}, x-kubernetes-validations: [{rule: '!has(oldSelf.sealed) || !oldSelf.sealed', message: sealed objects do not change}]}",
			objects: []string{thing("open", "{sealed: false}", ""), thing("sealed", "{sealed: true}", "")},
			want:    []string{"default/sealed .spec is refused in every change of the object: sealed objects do not change"},
		},
		{
			name: "a rule that refuses every change but no creation", old: object("sealed: {type: boolean}"),
			new:     "{type: object, properties: {sealed: {type: boolean}}, x-kubernetes-validations: [{rule: '!oldSelf.hasValue() || !has(self.sealed)', optionalOldSelf: true, message: sealed objects do not change}]}",
			objects: []string{thing("open", "{}", ""), thing("sealed", "{sealed: true}", "")},
			want:    []string{"default/sealed .spec is refused in every change of the object: sealed objects do not change"},
		},
		{
			name: "a rule that existing objects need not obey", old: object("a: {type: string}"),
			new:     object("a: {type: string, x-kubernetes-validations: [{rule: 'oldSelf.hasValue() || self == \"x\"', optionalOldSelf: true, message: must be x}]}"),
			objects: []string{thing("x", "{a: x}", ""), thing("z", "{a: z}", "")},
			want:    []string{"default/z .spec.a is not valid any more: must be x"},
		},
		{
			name: "a rule of the same message that refuses changes, too", old: "{type: object, properties: {a: {type: string, x-kubernetes-validations: [{rule: 'self == \"x\"', message: must be x}]}}}",
			new:     object("a: {type: string, x-kubernetes-validations: [{rule: 'oldSelf == \"x\"', message: must be x}]}"),
			objects: []string{thing("x", "{a: x}", ""), thing("z", "{a: z}", "")},
			want:    []string{"default/z .spec.a is refused in every change of the object: must be x"},
		},
		{
			name: "a rule about changes", old: object("a: {type: string}"), new: object("a: {type: string, x-kubernetes-validations: [{rule: self == oldSelf}]}"),
			objects: []string{thing("x", "{a: x}", "")},
		},
		{
			name: "a format that a rule reads", old: compared("{type: string, format: duration}"), new: compared("{type: string}"),
			objects: []string{thing("text", "{a: 1h, b: 2h}", ""), thing("duration", "{a: 90m, b: 2h}", "")},
			want:    []string{"default/duration .spec is not valid any more: a comes before b"},
		},
		{
			name: "a required field", old: object("a: {type: integer}"), new: "{type: object, required: [a], properties: {a: {type: integer}}}",
			objects: []string{thing("good", "{a: 1}", ""), thing("bad", "{}", "")},
			want:    []string{"default/bad .spec.a is not valid any more: is required"},
		},
		{
			name: "another type", old: object("a: {type: integer}"), new: object("a: {type: string}"),
			objects: []string{thing("unset", "{}", ""), thing("set", "{a: 41}", "")},
			want:    []string{"default/set .spec.a is not valid any more: must be of type string"},
		},
		{
			name: "a new default", old: object("a: {type: string}"), new: object("a: {type: string, default: x}"),
			objects: []string{thing("set", "{a: set}", ""), thing("unset", "{}", "")},
			want:    []string{`default/unset .spec.a would become "x"`},
		},
		{
			name: "another default", old: object("a: {type: string, default: old}"), new: object("a: {type: string, default: new}"),
			objects: []string{thing("other", "{a: z}", ""), thing("stored", "{a: old}", `{"f:spec": {"f:a": {}}}`), thing("filled", "{a: old}", "")},
			want:    []string{`default/filled .spec.a may become "new"`},
		},
		{
			name: "the default of a mapping", old: object("a: {type: object, default: {}, properties: {b: {type: integer, default: 1}}}"), new: object("a: {type: object, properties: {b: {type: integer, default: 1}}}"),
			objects: []string{thing("filled", "{a: {b: 1}}", ""), thing("stored", "{a: {b: 1}}", `{"f:spec": {"f:a": {".": {}, "f:b": {}}}}`), thing("other", "{a: {b: 2}}", "")},
			want:    []string{"default/filled .spec.a may be dropped"},
		},
		{
			name: "a default in a list that is owned as a whole", old: object("a: {type: array, items: " + object("b: {type: string, default: old}, c: {type: integer}") + "}"), new: object("a: {type: array, items: " + object("b: {type: string, default: new}, c: {type: integer}") + "}"),
			objects: []string{thing("filled", "{a: [{b: old, c: 1}]}", `{"f:spec": {"f:a": {}}}`), thing("set", "{a: [{b: x, c: 1}]}", `{"f:spec": {"f:a": {}}}`)},
			want:    []string{`default/filled .spec.a[0].b may become "new", owned by kubectl`},
		},
		{
			name: "a null that gets a default", old: object("a: {type: string, nullable: true, default: x}"), new: object("a: {type: string, default: x}"),
			objects: []string{thing("empty", "{a: null}", ""), thing("set", "{a: z}", "")},
			want:    []string{"default/empty .spec.a would become another value"},
		},
		{
			name: "an embedded object", old: object("a: {type: object, x-kubernetes-preserve-unknown-fields: true}"), new: object("a: {type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}"),
			objects: []string{thing("good", "{a: {apiVersion: v1, kind: A, metadata: {name: a}}}", ""), thing("bad", "{a: {apiVersion: v1, kind: A, metadata: {name: a, colour: red}}}", "")},
			want:    []string{"default/bad .spec.a.metadata.colour would be dropped"},
		},
		{
			name: "a field with a default comes, another goes", old: object("a: {type: string}"), new: object("b: {type: string, default: x}"),
			objects: []string{thing("unset", "{}", "")},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, findings := survey(t, definition(tt.old), definition(tt.new), harm.Fate{}, tt.objects...)
			var have []string
			for _, o := range s.Objects {
				have = append(have, o.String())
			}
			if s.Unknown != "" || s.Looked != len(tt.objects) || s.Harmed != len(tt.want) || !slices.Equal(have, tt.want) {
				t.Errorf("looked at %d, harmed %d (unknown: %s)\nhave %q\nwant %q", s.Looked, s.Harmed, s.Unknown, have, tt.want)
			}
			for _, f := range findings {
				if s.Clears(f, false) != (len(tt.want) == 0) {
					t.Errorf("%s is cleared: %v", f, s.Clears(f, false))
				}
			}
			if w := strings.Join(s.Warnings(), "; "); w != tt.warnings {
				t.Errorf("warnings %q, want %q", w, tt.warnings)
			}
			if text := s.Text(1); strings.Contains(text, "777") || strings.Contains(text, "41") {
				t.Errorf("it shows a value: %s", text)
			}
		})
	}
}

// Status that only gitopsd owns is no loss for a definition whose objects' status it writes.
func TestOurStatus(t *testing.T) {
	const fields = "{type: object, properties: {a: {type: string}}}"
	old := strings.Replace(definition(fields), "spec: "+fields, "spec: "+fields+", status: "+fields, 1)
	now := strings.ReplaceAll(old, "a: {type: string}", "")
	object := func(spec, status string) string {
		return "{apiVersion: example.org/v1, kind: Thing, metadata: {namespace: default, name: x, managedFields: [" +
			`{manager: gitopsd, operation: Apply, apiVersion: example.org/v1, fieldsType: FieldsV1, fieldsV1: {"f:spec": {"f:a": {}}}}, ` +
			"{manager: " + status + `, operation: Apply, apiVersion: example.org/v1, subresource: status, fieldsType: FieldsV1, fieldsV1: {"f:status": {"f:a": {}}}}]}, spec: ` + spec + ", status: {a: x}}"
	}
	for _, tt := range []struct {
		name, object string
		ours         bool
		want         string
	}{
		{"gitopsd's status", object("{}", "gitopsd"), true, ""},
		{"somebody else's status", object("{}", "kubectl"), true, ".status.a would be dropped, owned by kubectl"},
		{"a manifest of the repository", object("{a: x}", "gitopsd"), true, ".spec.a would be dropped, owned by gitopsd"},
		{"another definition", object("{}", "gitopsd"), false, ".status.a would be dropped, owned by gitopsd"},
	} {
		judges, findings := compared(t, old, now, harm.Options{OurStatus: tt.ours})
		look(t, judges[0], harm.Fate{}, tt.object)
		s := judges[0].Done(nil)
		cleared := !slices.ContainsFunc(findings, func(f compat.Finding) bool { return !s.Clears(f, false) })
		if text := s.Text(1); s.Unknown != "" || (s.Harmed > 0) != (tt.want != "") || !strings.HasSuffix(text, tt.want) || cleared != (tt.want == "") {
			t.Errorf("%s: %s", tt.name, text)
		}
	}
}

// A default that comes with another type changes the objects without the field.
func TestDefaultOfAnotherType(t *testing.T) {
	for _, old := range []string{"type: integer", "type: boolean", "x-kubernetes-preserve-unknown-fields: true", "x-kubernetes-int-or-string: true"} {
		s, findings := survey(t, definition("{type: object, properties: {a: {"+old+"}}}"), definition("{type: object, properties: {a: {type: string, default: x}}}"), harm.Fate{}, thing("unset", "{}", ""))
		if want := `harms 1 of 1 object: default/unset .spec.a would become "x"`; s.Text(1) != want {
			t.Errorf("%s: %s\nwant %s", old, s.Text(1), want)
		}
		for _, f := range findings {
			if strings.HasPrefix(f.Name, "default-") && s.Clears(f, false) {
				t.Errorf("%s: %s is cleared", old, f)
			}
		}
	}
}

// Findings that do not concern objects are not cleared by unharmed objects.
func TestClears(t *testing.T) {
	const without = "{type: object}"
	crd := definition(without)
	two := withBeta(crd, "{type: object}")
	v1 := thing("a", "{}", `{"f:spec": {}}`)
	foreign := two + webhook
	ruled := strings.Replace(foreign, "https://example.org", "https://example.org/convert/dev/things.example.org/00", 1)
	ruled = strings.Replace(ruled, "{name: things.example.org}", "{name: things.example.org, annotations: {"+manifest.ConversionAnnotation+": 'h1:AA=='}}", 1)
	kept := keeping("a", `{"v1beta1":[{"path":"spec.colour","value":"hunter2"}]}`)
	beta := strings.Replace(v1, "apiVersion: example.org/v1, fieldsType", "apiVersion: example.org/v1beta1, fieldsType", 1)
	for _, tt := range []struct {
		name, old, new string
		objects        []string
		clears, back   bool
	}{
		{"a version that nobody writes", two, crd, []string{v1}, false, true},
		{"a version that somebody writes", two, crd, []string{beta}, false, false},
		{"a version for which an object keeps a field", two, crd, []string{kept}, false, false},
		{"a version without objects", two, crd, nil, false, true},
		{"a short name", strings.Replace(crd, "plural: things", "plural: things, shortNames: [th]", 1), crd, []string{v1}, false, true},
		{"a short name without objects", strings.Replace(crd, "plural: things", "plural: things, shortNames: [th]", 1), crd, nil, false, true},
		{"a wider type without objects", definition("{type: object, properties: {a: {type: integer}}}"), definition("{type: object, properties: {a: {type: number}}}"), nil, false, true},
		{"a limit without objects", crd, definition("{type: object, maxProperties: 1}"), nil, true, true},
		{"the type", crd, "", []string{v1}, false, false},
		{"the type without objects", crd, "", nil, true, true},
		{"rules that kept fields in annotations", ruled, foreign, []string{v1}, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, findings := survey(t, tt.old, tt.new, harm.Fate{}, tt.objects...)
			for _, f := range findings {
				if s.Clears(f, false) != tt.clears || s.Clears(f, true) != tt.back {
					t.Errorf("%s: %v, going back %v", f, s.Clears(f, false), s.Clears(f, true))
				}
			}
		})
	}
	s, findings := survey(t, definition("{type: object, properties: {a: {type: string}}}"), definition("{type: object, properties: {a: {type: integer}}}"), harm.Fate{})
	s.Unknown = "nobody looked"
	if s.Clears(findings[0], true) {
		t.Error("an unknown survey clears")
	}
	if (*harm.Survey)(nil).Clears(findings[0], true) {
		t.Error("no survey clears")
	}
}

// If server-side apply merges a list or a map another way, those who apply parts of it may
// remove each other's. No object shows that, but objects show who they are, and objects may
// be invalid as well.
func TestMerging(t *testing.T) {
	list := func(keywords string) string {
		return definition("{type: object, properties: {m: {type: array, maxItems: 9, " + keywords + "items: {type: object, x-kubernetes-map-type: atomic, required: [a, b], properties: {a: {type: string, maxLength: 9}, b: {type: string, maxLength: 9}}}}}}")
	}
	mapping := func(keywords string) string {
		return definition("{type: object, properties: {m: {type: object, " + keywords + "additionalProperties: {type: string}}}}")
	}
	const set, by = "x-kubernetes-list-type: set, ", "x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [%s], "
	byA, byAB := fmt.Sprintf(by, "a"), fmt.Sprintf(by, "a, b")
	const atomic, granular = "x-kubernetes-map-type: atomic, ", ""
	const one, twice, sameA = "{m: [{a: x, b: y}]}", "{m: [{a: x, b: y}, {a: x, b: y}]}", "{m: [{a: x, b: y}, {a: x, b: z}]}"
	for _, tt := range []struct {
		name, old, new, object, finding string
		harmed                          int
	}{
		{"a map becomes atomic", mapping(granular), mapping(atomic), "{m: {a: x}}", "map-type-changed", 0},
		{"a map becomes granular", mapping(atomic), mapping(granular), "{m: {a: x}}", "map-type-changed", 0},
		{"a set becomes atomic", list(set), list(""), one, "list-type-changed", 0},
		{"an atomic list becomes a set", list(""), list(set), one, "list-type-changed", 0},
		{"an atomic list with an element twice becomes a set", list(""), list(set), twice, "list-type-changed", 1},
		{"other keys", list(byAB), list(byA), one, "list-map-keys-changed", 0},
		{"other keys, which two elements share", list(byAB), list(byA), sameA, "list-map-keys-changed", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, findings := survey(t, tt.old, tt.new, harm.Fate{}, thing("x", tt.object, `{"f:spec": {"f:m": {}}}`))
			if len(findings) != 1 || findings[0].Name != tt.finding || s.Harmed != tt.harmed {
				t.Fatalf("findings %v: %s", findings, s.Text(9))
			}
			if s.Clears(findings[0], false) || s.Clears(findings[0], true) != (tt.harmed == 0) {
				t.Errorf("cleared: %v, going back %v", s.Clears(findings[0], false), s.Clears(findings[0], true))
			}
			if tt.harmed > 0 {
				return
			}
			if want := "harms no object today (1 object looked at), but clients: " + tt.finding; s.Text(9) != want {
				t.Errorf("%s\nwant %s", s.Text(9), want)
			}
			if want := tt.finding + " .spec.m: written by kubectl, whose next write counts"; strings.Join(s.Warnings(), "; ") != want {
				t.Errorf("warnings %q", s.Warnings())
			}
		})
	}
}

// The API server checks the fields of the subresource scale in every write, whatever changes.
// So objects show whether a new one harms them.
func TestScale(t *testing.T) {
	scaled := func(path string) string {
		crd := definition("{type: object, properties: {a: {type: integer}, m: {x-kubernetes-preserve-unknown-fields: true}, x: {type: string}}}")
		if path == "" {
			return crd
		}
		return strings.Replace(crd, "storage: true", "storage: true, subresources: {scale: {specReplicasPath: "+path+", statusReplicasPath: .status.a}}", 1)
	}
	const added, changed = "scale-subresource-added", "scale-subresource-changed"
	for _, tt := range []struct {
		name, old, new, finding, object string
		want                            string // empty without harm
	}{
		{"below zero", "", ".spec.a", added, "{a: -1}", "default/x .spec.a is refused in every change of the object: should be a non-negative integer"},
		{"too many", "", ".spec.a", added, "{a: 2147483648}", "default/x .spec.a is refused in every change of the object: should be less than or equal to 2147483647"},
		{"a text", "", ".spec.m", added, "{m: many}", "default/x .spec.m is refused in every change of the object: must be of type int64"},
		{"a number", "", ".spec.a", added, "{a: 3}", ""},
		{"no number", "", ".spec.a", added, "{}", ""},
		{"another path", ".spec.a", ".spec.m", changed, "{m: -1}", "default/x .spec.m is refused in every change of the object: should be a non-negative integer"},
		{"another path with a number", ".spec.a", ".spec.m", changed, "{m: 3}", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, findings := survey(t, scaled(tt.old), scaled(tt.new), harm.Fate{}, thing("x", tt.object, ""))
			if len(findings) != 1 || findings[0].Name != tt.finding {
				t.Fatalf("findings %v", findings)
			}
			have := ""
			if s.Harmed > 0 {
				have = s.Objects[0].String()
			}
			harmless := tt.want == ""
			if have != tt.want || s.Clears(findings[0], true) != harmless || s.Clears(findings[0], false) != (harmless && tt.finding == added) {
				t.Errorf("harm %q, want %q; cleared: %v, going back %v", have, tt.want, s.Clears(findings[0], false), s.Clears(findings[0], true))
			}
			live := manifesttest.Tree(t, thing("x", tt.object, ""))
			next := manifest.With(live, "other", "spec", "x")
			now, err := validate.Compile(manifesttest.Tree(t, scaled(tt.new)), "Thing", "v1")
			if err != nil {
				t.Fatal(err)
			}
			if err := now.Update(t.Context(), live, next); (err == nil) != harmless {
				t.Errorf("a change of another field: %v", err)
			}
		})
	}
}

// A survey without harm names the doubts, and for a removed version the objects that were
// written in it and their writers.
func TestTexts(t *testing.T) {
	crd := definition("{type: object}")
	two := withBeta(crd, "{type: object}")
	beta := func(name string) string {
		return strings.Replace(thing(name, "{}", `{"f:spec": {}}`), "apiVersion: example.org/v1, fieldsType", "apiVersion: example.org/v1beta1, fieldsType", 1)
	}
	var many []string
	for i := range 5 {
		many = append(many, beta(fmt.Sprintf("b%d", i)))
	}
	many = append(many, thing("a", "{}", `{"f:spec": {}}`))
	for _, tt := range []struct {
		name, old, new string
		objects        []string
		want, warnings string
	}{
		{
			"conversion goes", two + webhook, two, []string{thing("a", "{}", "")},
			"harms nobody today (1 object looked at), but conversion-removed is about every object", "",
		},
		{
			"a version", two, crd, []string{thing("a", "{}", `{"f:spec": {}}`)},
			"harms no object today (1 object looked at), but clients: version-removed", "",
		},
		{"a version without objects", two, crd, nil, "harms no object: there are no objects, but clients: version-removed", ""},
		{
			"a version that somebody writes", two, crd, many,
			"harms no object today (6 objects looked at), but clients: version-removed",
			"version-removed v1beta1: 5 objects were written in it by kubectl: default/b0, default/b1, default/b2 and 2 more",
		},
		{
			"a version that objects keep fields for", two, crd, []string{
				keeping("a", `{"v1":[{"path":"spec.a","value":1}],"v1beta1":[{"path":"spec.gone"},{"path":"spec.colour","value":"hunter2"}]}`),
				keeping("b", `{"v1beta1":[{"path":"spec.gone"}]}`), keeping("c", "garbage"), keeping("d", `{"v1beta1":[{"path":"spec","value":{}}]}`),
			},
			"harms no object today (4 objects looked at), but clients: version-removed",
			"version-removed v1beta1: 2 objects keep fields for it that no other version has: default/a .spec.colour, default/d .spec",
		},
	} {
		s, _ := survey(t, tt.old, tt.new, harm.Fate{}, tt.objects...)
		if have := s.Text(3); have != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, have, tt.want)
		}
		if have := strings.Join(s.Warnings(), "; "); have != tt.warnings {
			t.Errorf("%s: warnings %q, want %q", tt.name, have, tt.warnings)
		}
	}
}

// A value of the object that only one reading has is not a default, and is never shown.
func TestValuesAreNoDefaults(t *testing.T) {
	old := definition("{type: object, default: {n: 1}, properties: {n: {type: integer}}}")
	now := definition("{type: object, default: {n: 2}, properties: {n: {type: integer}, password: {type: string}}}")
	s, _ := survey(t, old, now, harm.Fate{}, thing("a", "{n: 5, password: hunter2}", ""))
	if s.Harmed != 0 || strings.Contains(s.Text(9), "hunter2") {
		t.Errorf("%s", s.Text(9))
	}
}

// A manifest in another version than the stored one is judged as the API server would
// store it.
func TestManifestInAnotherVersion(t *testing.T) {
	version := func(name string, storage bool, spec string) string {
		return fmt.Sprintf("  - {name: %s, served: true, storage: %v, schema: {openAPIV3Schema: {type: object, properties: {spec: %s}}}}\n", name, storage, spec)
	}
	head := definition("{type: object}")
	head = head[:strings.Index(head, "  - {name: v1")]
	const wide, narrow = "{type: object, properties: {a: {type: integer}}}", "{type: object, properties: {a: {type: integer, maximum: 3}}}"
	old := head + version("v1", true, wide) + version("v1beta1", false, wide)
	now := head + version("v1", true, narrow) + version("v1beta1", false, wide)
	beta := func(name, spec string) string {
		return strings.Replace(thing(name, spec, ""), "example.org/v1", "example.org/v1beta1", 1)
	}
	s, _ := survey(t, old, now, harm.Fate{}, beta("large", "{a: 9}"), beta("small", "{a: 1}"))
	if s.Unknown != "" || s.Text(9) != "harms 1 of 2 objects: default/large .spec.a is not valid any more: should be less than or equal to 3" {
		t.Errorf("%s", s.Text(9))
	}
}

// An object that is deleted with its type is reported with its writers, and a list that
// starts over counts each object once.
func TestRemoved(t *testing.T) {
	judges, _ := compared(t, definition("{type: object}"), "", harm.Options{})
	judge := judges[0]
	for range 2 {
		judge.Restart()
		look(t, judge, harm.Fate{}, thing("a", "{}", `{"f:spec": {}}`))
	}
	if s := judge.Done(nil); s.Text(1) != "harms 1 of 1 object: default/a would be deleted with its type, owned by kubectl" {
		t.Errorf("%s", s.Text(1))
	}
}

// by returns an object whose fields another manager owns, by server-side apply.
func by(manager, object string) string {
	return strings.Replace(object, "manager: kubectl, operation: Update", "manager: "+manager+", operation: Apply", 1)
}

// in returns an object in another version.
func in(version, object string) string {
	return strings.ReplaceAll(object, "example.org/v1,", "example.org/"+version+",")
}

// applies returns the fate of an object that gitopsd applies.
func applies(t testing.TB, object string) harm.Fate {
	t.Helper()
	o, err := manifest.New(manifesttest.Tree(t, object), manifest.Origin{})
	if err != nil {
		t.Fatal(err)
	}
	return harm.Fate{Applied: o}
}

// Objects that a plan changes together with the type are harmed if they still are after
// that.
func TestChanged(t *testing.T) {
	object := func(properties string) string { return "{type: object, properties: {" + properties + "}}" }
	one, both := object("a: {type: string}"), object("a: {type: string}, b: {type: string}")
	limited := object("a: {type: string}, b: {type: string, maxLength: 1}")
	ports := object("ports: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [id], items: {type: object, required: [id], properties: {id: {type: integer}, name: {type: string}}}}")
	defaulted := object("a: {type: string}, l: {type: array, items: {type: object, properties: {c: {type: integer}, b: {type: string, default: x}}}}")
	moved := strings.NewReplacer("storage: false", "storage: true", "storage: true", "storage: false").Replace(withBeta(definition(one), both)) + "status: {storedVersions: [v1beta1]}\n"
	second := func(spec string) string {
		return strings.Replace(definition(both), "  versions:\n", "  versions:\n  - {name: v2, served: true, storage: false, schema: {openAPIV3Schema: {type: object, properties: {spec: "+spec+"}}}}\n", 1)
	}
	const ab, a = `{"f:spec": {"f:a": {}, "f:b": {}}}`, `{"f:spec": {"f:a": {}}}`
	const nobody = ""
	for _, tt := range []struct {
		name           string
		old, new       string
		object, change string
		want           string // the harm; empty for none
	}{
		{"it gives up a field that goes", definition(both), definition(one), by("gitopsd", thing("x", "{a: x, b: w}", ab)), thing("x", "{a: x}", ""), nobody},
		{"it keeps it", definition(both), definition(one), by("gitopsd", thing("x", "{a: x, b: w}", ab)), thing("x", "{a: z, b: w}", ""), ".spec.b would be dropped, owned by gitopsd"},
		{"another manager has the field", definition(both), definition(one), thing("x", "{a: x, b: w}", ab), thing("x", "{a: x}", ""), ".spec.b would be dropped, owned by kubectl"},
		{"nobody has the field", definition(both), definition(one), by("gitopsd", thing("x", "{a: x, b: w}", a)), thing("x", "{a: z}", ""), ".spec.b would be dropped"},

		{"the storage version drops a field that it keeps", moved, withBeta(definition(one), both), in("v1beta1", by("gitopsd", thing("x", "{a: x, b: w}", ab))), in("v1beta1", thing("x", "{a: z, b: w}", "")), ".spec.b would be dropped, owned by gitopsd"},
		{"the storage version drops a field that it gives up", moved, withBeta(definition(one), both), in("v1beta1", by("gitopsd", thing("x", "{a: x, b: w}", ab))), in("v1beta1", thing("x", "{a: x}", "")), nobody},
		{"it moves to the storage version that drops a field", moved, withBeta(definition(one), both), in("v1beta1", by("gitopsd", thing("x", "{a: x, b: w}", ab))), thing("x", "{a: x}", ""), nobody},
		{"a new version lacks a field that it keeps", definition(both), second(one), by("gitopsd", thing("x", "{a: x, b: w}", ab)), thing("x", "{a: z, b: w}", ""), ".spec.b would be dropped, owned by gitopsd"},
		{"a new version lacks a field that it gives up", definition(both), second(one), by("gitopsd", thing("x", "{a: x, b: w}", ab)), thing("x", "{a: x}", ""), nobody},
		{"it moves to the new version", definition(both), second(one), by("gitopsd", thing("x", "{a: x, b: w}", ab)), in("v2", thing("x", "{a: x}", "")), nobody},
		{"a new version does not accept its value", definition(both), second(limited), by("gitopsd", thing("x", "{b: long}", ab)), thing("x", "{b: longer}", ""), ".spec.b is not valid any more: may not be more than 1 byte, owned by gitopsd"},
		{"a new version accepts its next value", definition(both), second(limited), by("gitopsd", thing("x", "{b: long}", ab)), thing("x", "{b: w}", ""), nobody},

		{"it corrects a value", definition(both), definition(limited), by("gitopsd", thing("x", "{b: long}", ab)), thing("x", "{b: w}", ""), nobody},
		{"it changes another value", definition(both), definition(limited), by("gitopsd", thing("x", "{a: x, b: long}", ab)), thing("x", "{a: z, b: long}", ""), ".spec.b is not valid any more: may not be more than 1 byte, owned by gitopsd"},
		{"it corrects a value that nobody owns", definition(both), definition(limited), by("gitopsd", thing("x", "{a: x, b: long}", a)), thing("x", "{a: z, b: w}", ""), nobody},
		{"it leaves a value that nobody owns", definition(both), definition(limited), by("gitopsd", thing("x", "{a: x, b: long}", a)), thing("x", "{a: z}", ""), ".spec.b is not valid any more: may not be more than 1 byte"},
		{"it leaves a value without managed fields", definition(both), definition(limited), thing("x", "{a: x, b: long}", ""), thing("x", "{a: x}", ""), ".spec.b is not valid any more: may not be more than 1 byte, owned by before-first-apply"},
		{"it leaves a value of another manager", definition(both), definition(limited), thing("x", "{b: long}", `{"f:spec": {"f:b": {}}}`), thing("x", "{a: x}", ""), ".spec.b is not valid any more: may not be more than 1 byte, owned by kubectl"},
		{"another manager's value is in the way", definition(both), definition(limited), thing("x", "{b: long}", ab), thing("x", "{b: w}", ""), ".spec.b is not valid any more: may not be more than 1 byte, owned by kubectl"},
		{"it sets a field that is required now", definition(both), definition(strings.Replace(both, "properties", "required: [b], properties", 1)), by("gitopsd", thing("x", "{a: x}", a)), thing("x", "{a: x, b: w}", ""), nobody},
		{"it still lacks a field that is required now", definition(both), definition(strings.Replace(both, "properties", "required: [b], properties", 1)), by("gitopsd", thing("x", "{a: x}", a)), thing("x", "{a: z}", ""), ".spec.b is not valid any more: is required"},

		{"it keeps a field of an element that moves", definition(ports), definition(strings.Replace(ports, ", name: {type: string}", "", 1)),
			by("gitopsd", thing("x", "{ports: [{id: 1, name: w}, {id: 2}]}", `{"f:spec": {"f:ports": {'k:{"id":1}': {".": {}, "f:id": {}, "f:name": {}}, 'k:{"id":2}': {".": {}, "f:id": {}}}}}`)),
			thing("x", "{ports: [{id: 2}, {id: 1, name: w}]}", ""), ".spec.ports[1].name would be dropped, owned by gitopsd"},
		{"the default of an element goes", definition(defaulted), definition(strings.Replace(defaulted, ", default: x", "", 1)),
			by("gitopsd", thing("x", "{l: [{c: 1, b: x}]}", `{"f:spec": {"f:l": {}}}`)), thing("x", "{a: z, l: [{c: 1}]}", ""), ".spec.l[0].b may be dropped, owned by gitopsd"},
		{"it gives up a field that goes, and sets one that the old type does not have", definition(both), definition(strings.Replace(both, "b:", "c:", 1)), by("gitopsd", thing("x", "{a: x, b: w}", ab)), thing("x", "{a: x, c: w}", ""), nobody},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if s, _ := survey(t, tt.old, tt.new, harm.Fate{}, tt.object); s.Harmed != 1 || len(s.Relies) > 0 {
				t.Fatalf("without the change it %s, relies on %v", s.Text(9), s.Relies)
			}
			s, findings := survey(t, tt.old, tt.new, applies(t, tt.change), tt.object)
			want := "harms nobody today (1 object looked at)"
			if tt.want != "" {
				want = "harms 1 of 1 object: default/x " + tt.want
			}
			if s.Text(9) != want {
				t.Errorf("%s\nwant %s", s.Text(9), want)
			}
			if tt.want == "" && len(s.Relies) != 1 {
				t.Errorf("relies on %v", s.Relies)
			}
			for _, f := range findings {
				if tt.want == "" && !s.Clears(f, false) {
					t.Errorf("%s is not cleared", f)
				}
			}
		})
	}
	// Where a webhook converts, only fields in the version of the manifest are known.
	drops := func(object string, fate harm.Fate) string {
		s, _ := survey(t, withBeta(definition(both), both)+webhook, withBeta(definition(one), both)+webhook, fate, object)
		return s.Text(9)
	}
	ours, gives := by("gitopsd", thing("x", "{a: x, b: w}", ab)), thing("x", "{a: x}", "")
	const lost = "harms 1 of 1 object: default/x .spec.b would be dropped, owned by gitopsd"
	for _, tt := range []struct{ name, object, change, want string }{
		{"it gives up the field", ours, gives, "harms nobody today (1 object looked at)"},
		{"its manifest is in another version", ours, in("v1beta1", gives), lost},
		{"a manager wrote in another version", strings.Replace(ours, "example.org/v1, fieldsType", "example.org/v1beta1, fieldsType", 1), gives, lost},
	} {
		if have := drops(tt.object, applies(t, tt.change)); have != tt.want {
			t.Errorf("with a webhook, %s: %s\nwant %s", tt.name, have, tt.want)
		}
	}
	// A plan that takes over a value corrects it.
	fate := applies(t, thing("x", "{b: w}", ""))
	fate.Force = true
	if s, _ := survey(t, definition(both), definition(limited), fate, thing("x", "{b: long}", ab)); s.Harmed != 0 || len(s.Relies) != 1 {
		t.Errorf("%s, relies on %v", s.Text(9), s.Relies)
	}
	// An object that goes is not harmed.
	if s, _ := survey(t, definition(both), definition(one), harm.Fate{Goes: true}, thing("x", "{b: w}", ab)); s.Harmed != 0 || len(s.Relies) != 1 {
		t.Errorf("%s, relies on %v", s.Text(9), s.Relies)
	}
}

// The size of a survey is limited for any object.
func TestBounds(t *testing.T) {
	judges, _ := compared(t, definition("{type: object, additionalProperties: {type: string}}"), definition("{type: object, additionalProperties: {type: string, maxLength: 1}}"), harm.Options{})
	judge := judges[0]
	key := strings.Repeat("k", 100_000)
	var managed []any
	for i := range 50 {
		managed = append(managed, map[string]any{"manager": fmt.Sprintf("writer-%02d", i), "apiVersion": "example.org/v1", "fieldsV1": map[string]any{"f:spec": map[string]any{"f:" + key: map[string]any{}}}})
	}
	judge.Look(t.Context(), map[string]any{
		"apiVersion": "example.org/v1", "kind": "Thing", "metadata": map[string]any{"name": "a", "managedFields": managed}, "spec": map[string]any{key: "long"},
	}, harm.Fate{})
	s := judge.Done(nil)
	if s.Harmed != 1 || len(s.Objects[0].Harms[0].Owners) > 8 || len(s.Objects[0].String()) > 1000 || len(s.Tolls[0].Writers) > 8 {
		t.Errorf("%.2000s", s.Text(1))
	}
}

// The work for an object is proportional to its size, also if the elements of a long list
// have owners.
func TestLongLists(t *testing.T) {
	item := "{type: object, required: [id], properties: {id: {type: integer}, mode: {type: string, default: %s}}}"
	list := "{type: object, properties: {items: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [id], items: %s}}}"
	of := func(mode string) map[string]any {
		return manifesttest.Tree(t, definition(fmt.Sprintf(list, fmt.Sprintf(item, mode))))
	}
	report, err := compat.Compare(t.Context(), of("old"), of("new"), compat.Options{})
	if err != nil {
		t.Fatal(err)
	}
	allocated := func(n int) float64 {
		var items, fields []string
		for i := range n {
			items = append(items, fmt.Sprintf("{id: %d, mode: old}", i))
			fields = append(fields, fmt.Sprintf(`'k:{"id":%d}': {"f:mode": {}}`, i))
		}
		tree, err := validate.Decoded(manifesttest.Tree(t, thing("a", "{items: ["+strings.Join(items, ", ")+"]}", `{"f:spec": {"f:items": {`+strings.Join(fields, ", ")+`}}}`)))
		if err != nil {
			t.Fatal(err)
		}
		managed := tree["metadata"].(map[string]any)["managedFields"]
		return testing.AllocsPerRun(1, func() {
			judges, err := harm.New(of("old"), of("new"), report.Findings, harm.Options{})
			if err != nil {
				t.Fatal(err)
			}
			judge := judges[0]
			tree["metadata"].(map[string]any)["managedFields"] = managed
			judge.Look(t.Context(), tree, harm.Fate{})
			if s := judge.Done(nil); s.Looked != 1 || s.Harmed != 0 || s.Unknown != "" {
				t.Fatalf("%s", s.Text(1))
			}
		})
	}
	if few, many := allocated(200), allocated(800); many > 6*few {
		t.Errorf("%v allocations for 200 elements, %v for 800", few, many)
	}
}

// Old faults of an object may hide new ones.
func TestTooMuchWrong(t *testing.T) {
	var fields, now, values []string
	for i := range validate.MostCauses {
		fields = append(fields, fmt.Sprintf("a%02d: {type: integer, maximum: 3}", i))
		values = append(values, fmt.Sprintf("a%02d: 4", i))
	}
	now = append(slices.Clone(fields), "z: {type: integer, maximum: 3}")
	fields, values = append(fields, "z: {type: integer}"), append(values, "z: 4")
	of := func(fields []string) string {
		return definition("{type: object, properties: {" + strings.Join(fields, ", ") + "}}")
	}
	for range 60 { // causes come in any order
		s, findings := survey(t, of(fields), of(now), harm.Fate{}, thing("a", "{"+strings.Join(values, ", ")+"}", ""))
		if s.Clears(findings[0], true) {
			t.Fatalf("cleared: %s", s.Text(9))
		}
	}

	// A schema that stays the same finds no new ones.
	storedIn := func(version string) string {
		crd := strings.Replace(withBeta(of(fields), "{type: object, properties: {"+strings.Join(fields, ", ")+", extra: {type: integer}}}"), "storage: false", "storage: "+fmt.Sprint(version == "v1beta1"), 1)
		return strings.Replace(crd, "{name: v1, served: true, storage: true", "{name: v1, served: true, storage: "+fmt.Sprint(version == "v1"), 1)
	}
	object := strings.Replace(thing("a", "{"+strings.Join(values, ", ")+"}", ""), "example.org/v1", "example.org/v1beta1", 1)
	s, findings := survey(t, storedIn("v1beta1")+"status: {storedVersions: [v1beta1]}\n", storedIn("v1"), harm.Fate{}, object)
	if len(findings) != 1 || !s.Clears(findings[0], true) {
		t.Errorf("findings %v, not cleared: %s", findings, s.Text(9))
	}
}

// An object that is stored in another version than the listed one may have fields that do
// not show, so it clears no finding in other versions.
func TestStoredElsewhere(t *testing.T) {
	const both, one = "{type: object, properties: {a: {type: integer}, b: {type: integer}}}", "{type: object, properties: {a: {type: integer}}}"
	version := func(name string, served, storage bool, spec string) string {
		return fmt.Sprintf("  - {name: %s, served: %v, storage: %v, schema: {openAPIV3Schema: {type: object, properties: {spec: %s}}}}\n", name, served, storage, spec)
	}
	head := definition("{type: object}")
	head = head[:strings.Index(head, "  - {name: v1")]
	for name, tt := range map[string]struct{ old, new string }{
		"the storage version is not served": {
			head + version("v1", true, false, one) + version("v2", true, false, both) + version("v3", true, false, both) + version("v4", false, true, both),
			head + version("v1", true, false, one) + version("v2", true, false, both) + version("v3", true, false, one) + version("v4", false, true, both),
		},
		"an older storage version": {
			head + version("v1", true, true, one) + version("v2", true, false, both) + "status: {storedVersions: [v2, v1]}\n",
			head + version("v1", true, true, one) + version("v2", true, false, one),
		},
		"a webhook that goes": {
			head + version("v1", true, false, one) + version("v2", true, true, both) + webhook,
			head + version("v1", true, false, one) + version("v2", true, true, both),
		},
	} {
		t.Run(name, func(t *testing.T) {
			judges, findings := compared(t, tt.old, tt.new, harm.Options{})
			listed := judges[0].Versions()[0]
			look(t, judges[0], harm.Fate{}, strings.Replace(thing("a", "{a: 1}", ""), "example.org/v1", "example.org/"+listed, 1))
			s := judges[0].Done(nil)
			for _, f := range findings {
				if f.Version != listed && f.Version != "" && s.Clears(f, true) {
					t.Errorf("%s is cleared by objects in %s", f, listed)
				}
			}
		})
	}
}

// Without a webhook an object is judged in every version in which it can be read.
func TestVersions(t *testing.T) {
	with := func(v1, beta string) string { return withBeta(definition(v1), beta) }
	const both, one = "{type: object, properties: {a: {type: integer}, b: {type: integer}}}", "{type: object, properties: {a: {type: integer}}}"
	s, _ := survey(t, with(both, both), with(both, one), harm.Fate{}, thing("b", "{b: 1}", ""), thing("a", "{a: 1}", ""))
	if s.Harmed != 1 || s.Objects[0].Harms[0].Version != "v1beta1" || s.Objects[0].Harms[0].Path != ".spec.b" {
		t.Errorf("%s: %+v", s.Text(9), s.Objects)
	}
	old, now := with(both, both)+webhook, with(one, both)+webhook
	s, findings := survey(t, old, now, harm.Fate{}, thing("a", "{a: 1}", ""))
	if s.Harmed != 0 || s.Unknown != "" || !s.Clears(findings[0], false) {
		t.Errorf("v1 with a webhook: %s", s.Text(9))
	}
	s, findings = survey(t, with(both, both)+webhook, with(one, one)+webhook, harm.Fate{}, thing("a", "{a: 1}", ""))
	cleared := 0
	for _, f := range findings {
		if s.Clears(f, false) {
			cleared++
		}
	}
	if cleared != 1 || !strings.Contains(s.Text(9), "to which a webhook converts") {
		t.Errorf("%d cleared: %s", cleared, s.Text(9))
	}
}

// Without a webhook, a version hides the fields that it lacks, and drops them once objects
// are stored in it. This harms the objects that have such a field.
func TestStorageMoves(t *testing.T) {
	const one, both = "{type: object, properties: {a: {type: string}}}", "{type: object, properties: {a: {type: string}, b: {type: string}}}"
	const defaulted = "{type: object, properties: {a: {type: string}, b: {type: string, default: w}}}"
	beta := func(stored, spec string) string {
		crd := withBeta(definition(one), spec)
		if stored == "v1beta1" {
			crd = strings.NewReplacer("storage: false", "storage: true", "storage: true", "storage: false").Replace(crd)
		}
		return crd
	}
	unserved := func(crd string) string {
		return strings.Replace(crd, "{name: v1beta1, served: true", "{name: v1beta1, served: false", 1)
	}
	third := func(crd, spec string) string {
		return strings.Replace(crd, "  versions:\n", "  versions:\n  - {name: v1alpha1, served: true, storage: false, schema: {openAPIV3Schema: {type: object, properties: {spec: "+spec+"}}}}\n", 1)
	}
	status := func(versions string) string { return "status: {storedVersions: [" + versions + "]}\n" }
	object := func(version, spec string) string {
		return strings.Replace(thing("x", spec, ""), "example.org/v1", "example.org/"+version, 1)
	}
	for _, tt := range []struct{ name, old, new, object, want string }{
		{
			"an object with the field", beta("v1beta1", both) + status("v1beta1"), beta("v1", both), object("v1beta1", "{a: x, b: w}"),
			"harms 1 of 1 object: default/x .spec.b would be dropped",
		},
		{
			"an object without it", beta("v1beta1", both) + status("v1beta1"), beta("v1", both), object("v1beta1", "{a: x}"),
			"harms nobody today (1 object looked at)",
		},
		{
			"an object with the default of the older version, which is not filled in once v1 is stored", beta("v1beta1", defaulted) + status("v1beta1"), beta("v1", defaulted), object("v1beta1", "{a: x, b: w}"),
			"harms 1 of 1 object: default/x .spec.b would be dropped",
		},
		{
			"an object with the field's old default, and the older version fills in another one", beta("v1beta1", defaulted) + status("v1beta1"), beta("v1", strings.Replace(defaulted, "default: w", "default: z", 1)),
			strings.Replace(thing("x", "{a: x, b: w}", `{"f:spec": {"f:b": {}}}`), "{apiVersion: example.org/v1,", "{apiVersion: example.org/v1beta1,", 1),
			"harms 1 of 1 object: default/x .spec.b would be dropped, owned by kubectl",
		},
		{
			"an object with another value", beta("v1beta1", defaulted) + status("v1beta1"), beta("v1", defaulted), object("v1beta1", "{a: x, b: z}"),
			"harms 1 of 1 object: default/x .spec.b would be dropped",
		},
		{
			"an object with the field, and the older version is no longer served", beta("v1beta1", both) + status("v1beta1"), unserved(beta("v1", both)), object("v1beta1", "{a: x, b: w}"),
			"harms 1 of 1 object: default/x .spec.b would be dropped",
		},
		{
			"an object with fields that nobody can see", unserved(beta("v1beta1", both)) + status("v1beta1"), unserved(beta("v1", both)), object("v1", "{a: x}"),
			"harms nobody today (1 object looked at), but storage-version-drops is about v1beta1 -> v1, and objects may be stored in v1beta1, which shows in v1 only in part",
		},
		{
			"an object that may be stored in a third version", strings.Replace(beta("v1beta1", both), "  versions:\n", "  versions:\n  - {name: v1alpha1, served: true, storage: false, schema: {openAPIV3Schema: {type: object}}}\n", 1) + status("v1alpha1, v1beta1"),
			strings.Replace(beta("v1", both), "  versions:\n", "  versions:\n  - {name: v1alpha1, served: true, storage: false, schema: {openAPIV3Schema: {type: object}}}\n", 1), object("v1beta1", "{a: x}"),
			"harms nobody today (1 object looked at), but storage-version-drops is about v1beta1 -> v1, and objects may be stored in v1alpha1, which shows in v1beta1 only in part",
		},
		{
			"a third version shows the field", third(beta("v1beta1", defaulted), both) + status("v1beta1"), third(beta("v1", defaulted), both), object("v1beta1", "{a: x, b: w}"),
			"harms 1 of 1 object: default/x .spec.b would be dropped",
		},
		{
			"a third version has the same default", third(beta("v1beta1", defaulted), defaulted) + status("v1beta1"), third(beta("v1", defaulted), defaulted), object("v1beta1", "{a: x, b: w}"),
			"harms 1 of 1 object: default/x .spec.b would be dropped",
		},
		{
			"a third version never showed the field", third(beta("v1beta1", defaulted), one) + status("v1beta1"), third(beta("v1", defaulted), one), object("v1beta1", "{a: x, b: w}"),
			"harms 1 of 1 object: default/x .spec.b would be dropped",
		},
		{
			"a third version is no longer served", third(beta("v1beta1", defaulted), both) + status("v1beta1"), strings.Replace(third(beta("v1", defaulted), both), "{name: v1alpha1, served: true", "{name: v1alpha1, served: false", 1), object("v1beta1", "{a: x, b: w}"),
			"harms 1 of 1 object: default/x .spec.b would be dropped",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, findings := survey(t, tt.old, tt.new, harm.Fate{}, tt.object)
			if s.Text(9) != tt.want {
				t.Errorf("%s\nwant %s", s.Text(9), tt.want)
			}
			if !slices.ContainsFunc(findings, func(f compat.Finding) bool { return f.Name == "storage-version-drops" }) {
				t.Fatalf("findings %v", findings)
			}
			for _, f := range findings {
				if f.Name != "storage-version-drops" {
					continue
				}
				if clear := !strings.Contains(tt.want, "dropped") && !strings.Contains(tt.want, "is about"); s.Clears(f, false) != clear {
					t.Errorf("%s is cleared: %v", f, !clear)
				}
			}
		})
	}
	// The older version is removed at once, and the storage version is judged for another
	// reason.
	limited := strings.Replace(one, "type: string", "type: string, maxLength: 9", 1)
	if s, _ := survey(t, beta("v1beta1", both)+status("v1beta1"), definition(limited), harm.Fate{}, object("v1beta1", "{a: x, b: w}")); s.Harmed != 1 {
		t.Errorf("removed: %s", s.Text(9))
	}
}

// A field that goes with its default is missed if another version has it, unless the stored
// version's default gives it back: no other version's default is filled in.
func TestDefaultsElsewhere(t *testing.T) {
	const none, plain = "{type: object, properties: {a: {type: string}}}", "{type: object, properties: {a: {type: string}, b: {type: string}}}"
	const defaulted = "{type: object, properties: {a: {type: string}, b: {type: string, default: w}}}"
	with := func(v1, beta string) string { return withBeta(definition(v1), beta) }
	const harmless, dropped = "harms nobody today (1 object looked at)", "harms 1 of 1 object: default/x .spec.b would be dropped"
	for _, tt := range []struct{ name, old, new, want string }{
		{"v1 is stored and loses the field of both versions", with(defaulted, plain), with(none, plain), dropped},
		{"v1beta1 has the default, too", with(defaulted, defaulted), with(none, defaulted), dropped},
		{"both versions lose the field", with(defaulted, defaulted), with(none, none), harmless},
		{"v1beta1 loses the field, and v1 gives it back", with(defaulted, defaulted), with(defaulted, none), harmless},
		{"v1beta1 loses the field, and v1 does not give it back", with(plain, defaulted), with(plain, none), dropped},
		{"v1beta1 is not served", strings.Replace(with(defaulted, plain), "v1beta1, served: true", "v1beta1, served: false", 1), strings.Replace(with(none, plain), "v1beta1, served: true", "v1beta1, served: false", 1), harmless},
	} {
		s, findings := survey(t, tt.old+"status: {storedVersions: [v1]}\n", tt.new, harm.Fate{}, thing("x", "{a: x, b: w}", ""))
		if s.Harmed > 0 && s.Objects[0].More > 0 || !strings.HasPrefix(s.Text(1), tt.want) {
			t.Errorf("%s: %s\nwant %s", tt.name, s.Text(1), tt.want)
		}
		for _, f := range findings {
			if s.Clears(f, false) != (tt.want == harmless) && f.Name == "field-removed" {
				t.Errorf("%s: %s is cleared: %v", tt.name, f, tt.want != harmless)
			}
		}
	}
}

// Objects that are stored in one version do not get the defaults of a new one.
func TestUnfilled(t *testing.T) {
	const none, plain, red = "{type: object, properties: {a: {type: string}}}", "{type: object, properties: {a: {type: string}, b: {type: string}}}",
		"{type: object, required: [b], properties: {a: {type: string}, b: {type: string, default: red}}}"
	added := func(old, spec string, storage bool) string {
		crd := strings.ReplaceAll(withBeta(definition(old), spec), "v1beta1", "v2")
		if storage {
			crd = strings.NewReplacer("storage: false", "storage: true", "storage: true", "storage: false").Replace(crd)
		}
		return crd
	}
	const lacks = `harms 1 of 1 object: default/x .spec.b would lack the default "red"`
	for _, tt := range []struct{ name, old, new, object, want string }{
		{"the new version is stored", definition(none), added(none, red, true), "{a: x}", lacks},
		{"it is not", definition(none), added(none, strings.Replace(red, "required: [b], ", "", 1), false), "{a: x}", lacks},
		{"the field has a default now", definition(plain), added(plain, red, true), "{a: x}", lacks},
		{"the object has the field", definition(plain), added(plain, red, true), "{a: x, b: blue}", "harms nobody today (1 object looked at)"},
	} {
		s, findings := survey(t, tt.old+"status: {storedVersions: [v1]}\n", tt.new, harm.Fate{}, thing("x", tt.object, ""))
		if s.Text(1) != tt.want {
			t.Errorf("%s: %s\nwant %s", tt.name, s.Text(1), tt.want)
		}
		for _, f := range findings {
			if f.Path == ".spec.b" && f.Version == "v1 -> v2" && s.Clears(f, false) != (tt.want != lacks) {
				t.Errorf("%s: %s is cleared: %v", tt.name, f, tt.want == lacks)
			}
		}
	}
	// The plan sets the field.
	s, _ := survey(t, definition(plain)+"status: {storedVersions: [v1]}\n", added(plain, red, true), applies(t, thing("x", "{b: blue}", "")), thing("x", "{a: x}", ""))
	if s.Harmed != 0 {
		t.Errorf("set by the plan: %s", s.Text(1))
	}
}

// Fields that objects keep for a removed version do not show in that version.
func TestVersionListed(t *testing.T) {
	crd := definition("{type: object}")
	judges, _ := compared(t, withBeta(crd, "{type: object}")+webhook, crd, harm.Options{})
	if len(judges) != 1 || !slices.Equal(judges[0].Versions(), []string{"v1"}) {
		t.Errorf("listed in %v", judges[0].Versions())
	}
}

// An object that is judged when the context ends is not what kept the others from being
// looked at.
func TestEnded(t *testing.T) {
	judges, findings := compared(t, definition("{type: object, properties: {a: {type: integer}}}"),
		definition("{type: object, properties: {a: {type: integer, maximum: 3}}, x-kubernetes-validations: [{rule: 'true'}]}"), harm.Options{})
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("that took too long"))
	judges[0].Look(ctx, manifesttest.Tree(t, thing("a", "{a: 1}", "")), harm.Fate{})
	if s := judges[0].Done(nil); s.Unknown != "that took too long" || s.Clears(findings[0], true) {
		t.Errorf("%q", s.Unknown)
	}
}

// An object that is not of the type, or in no version of it, makes the survey unknown.
func TestUnknown(t *testing.T) {
	old, now := definition("{type: object, properties: {a: {type: integer}}}"), definition("{type: object}")
	s, findings := survey(t, old, now, harm.Fate{}, strings.Replace(thing("a", "{}", ""), "example.org/v1", "example.org/v7", 1))
	if !strings.Contains(s.Unknown, "default/a cannot be judged: it is in v7") || s.Clears(findings[0], true) {
		t.Errorf("%q", s.Unknown)
	}
	if _, err := harm.New(manifesttest.Tree(t, "{apiVersion: v1, kind: ConfigMap}"), nil, nil, harm.Options{}); err == nil {
		t.Error("a ConfigMap is judged")
	}
	if _, err := harm.New(manifesttest.Tree(t, "{apiVersion: apiextensions.crossplane.io/v1, kind: CompositeResourceDefinition}"), nil, nil, harm.Options{}); err == nil || !strings.Contains(err.Error(), "names no kind") {
		t.Errorf("a definition without a kind is judged: %v", err)
	}
}
