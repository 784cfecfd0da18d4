package kustomize

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	fieldpath "gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/render/remote"
	"gitopsd.dev/sources"
)

// Each archive has a value of a Secret, MARK or in base64 MARK64, in another place, and an
// error, which does not quote it. A short value is not searched for in errors, so a late case
// shows a long one only.
func TestErrorsQuoteNoSecret(t *testing.T) {
	t.Parallel()
	const objects = "-- a/s.yaml --\napiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {a: MARK}\ndata: {b: MARK64}\n-- a/cm.yaml --\n" + configMap + "data: {a: b}\n"
	with := func(fields, files string) string {
		return "-- a/kustomization.yaml --\nresources: [s.yaml, cm.yaml]\n" + fields + "\n" + objects + files
	}
	replaced := func(source, target string) string {
		return with("replacements: [{source: {kind: Secret, name: s, "+source+"}, targets: [{select: {kind: ConfigMap}, "+target+"}]}]", "")
	}
	into := func(target string) string {
		return with("replacements: [{source: {kind: ConfigMap, name: a, fieldPath: data.a}, targets: [{select: {kind: Secret}, "+target+"}]}]", "")
	}
	patched := func(patch string) string {
		return with("patches:\n- target: {kind: Secret}\n  patch: |\n    "+strings.ReplaceAll(patch, "\n", "\n    "), "")
	}
	untargeted := func(patch string) string {
		return with("patches:\n- patch: |\n    "+strings.ReplaceAll(patch, "\n", "\n    "), "")
	}
	generated := func(fields, files string) string {
		return with("secretGenerator:\n- name: g\n  "+fields, files)
	}
	plugin := func(kind, fields string) string {
		return with("transformers:\n- |\n  kind: "+kind+"\n  "+indent(builtin)+strings.ReplaceAll(fields, "\n", "\n  "), "")
	}
	object := func(fields, secret string) string {
		return "-- a/kustomization.yaml --\nresources: [s.yaml]\n" + fields + "\n-- a/s.yaml --\napiVersion: v1\nkind: Secret\n" + secret
	}
	const full = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n"
	for _, tt := range []struct {
		name, archive, want string
		late                bool
	}{
		{name: "replacement out of bounds", archive: replaced("fieldPath: stringData.a, options: {delimiter: x, index: 7}", "fieldPaths: [data.a]"), want: "a: options.index 7 is out of bounds"},
		{name: "replacement as a name", archive: replaced("fieldPath: stringData.a", "fieldPaths: [metadata.name]"), want: `metadata.name: "(hidden)" is not a name`, late: true},
		{name: "replacement as a kind", archive: replaced("fieldPath: stringData.a", "fieldPaths: [kind]"), want: `"(hidden)" is not a kind`, late: true},
		{name: "replacement as an apiVersion", archive: replaced("fieldPath: stringData.a", "fieldPaths: [apiVersion]"), want: `apiVersion: "(hidden)" is neither`, late: true},
		{name: "replacement of a mapping", archive: replaced("fieldPath: stringData, options: {delimiter: x, index: 7}", "fieldPaths: [data.a]"), want: "only be used with scalar nodes"},
		{name: "replacement below a value", archive: into("fieldPaths: [stringData.a.b]"), want: `unable to find field "stringData.a.b" in replacement target: want a mapping, have a scalar`},
		{name: "replacement that makes a field below a value", archive: into("fieldPaths: [stringData.a.b], options: {create: true}"), want: "want a mapping, have a scalar"},
		{name: "constant below a value", archive: with("replacements: [{sourceValue: MARK, targets: [{select: {kind: Secret}, fieldPaths: [stringData.a.b], options: {create: true}}]}]", ""), want: "want a mapping, have a scalar"},

		{name: "patch of data", archive: patched(full + "data: MARK"), want: "a/kustomization.yaml:4: patches: the patch: data: want a mapping of strings"},
		{name: "patch of data without a target", archive: untargeted(full + "stringData: [MARK]"), want: "a/kustomization.yaml:3: patches: the patch: stringData: want a mapping"},
		{name: "patch of data in a file", archive: with("patches: [{path: p.yaml}]", "-- a/p.yaml --\n"+full+"data: MARK\n"), want: "a/p.yaml:4: data: want a mapping of strings"},
		{name: "patch with a mapping", archive: patched(full + "stringData: {a: {b: MARK}}"), want: "want a scalar, have a mapping"},
		{name: "patch with a list", archive: patched(full + "stringData: {a: [MARK]}"), want: "want a scalar, have a list"},
		{name: "patch without a kind", archive: untargeted("stringData: {a: MARK}"), want: "a/kustomization.yaml:3: patches: the patch is neither a list of JSON 6902 operations nor a strategic merge patch: is not a Kubernetes object: kind is missing"},
		{name: "patch without a kind, with a target", archive: patched("data: {a: MARK64}"), want: "kind is missing"},
		{name: "patch without a name", archive: untargeted("kind: Secret\nstringData: {a: MARK}"), want: "Secret: metadata.name is missing"},
		{name: "patch without a name, in a file", archive: with("patches: [{path: p.yaml}]", "-- a/p.yaml --\nkind: Secret\nstringData: {a: MARK}\n"), want: "a/p.yaml:1: the patch is neither"},
		{name: "patch for nothing", archive: untargeted("apiVersion: v1\nkind: Secret\nmetadata: {name: t}\nstringData: {a: MARK}"), want: "a patch is for Secret t"},
		{name: "patch and path", archive: with("patches: [{path: p.yaml, patch: '{apiVersion: v1, kind: Secret, metadata: {name: s}, stringData: {a: MARK}}'}]", "-- a/p.yaml --\n"), want: "a patch has both patch and path"},
		{name: "several documents with a target", archive: patched(full + "stringData: {a: MARK}\n---\n" + full + "stringData: {b: MARK}"), want: "a strategic merge patch with a target is one document"},
		{name: "directive", archive: patched(full + "stringData: {a: b, $patch: MARK}"), want: "unknown patch strategy; $patch is delete, merge or replace"},
		{name: "labels in a patch", archive: patched(full[:len(full)-2] + ", labels: {a: {b: MARK}}}"), want: "metadata.labels: a: want a string"},
		{name: "operations without a target", archive: untargeted("- {op: replace, path: /stringData/a, value: MARK}"), want: "a list of JSON 6902 operations needs a target"},
		{name: "operation for no field", archive: patched("- {op: replace, path: /stringDat/a, value: MARK}"), want: "doc is missing path: /stringDat/a"},
		{name: "operation below a value", archive: patched("- {op: add, path: /stringData/a/b, value: MARK}"), want: "doc is missing path"},
		{name: "unknown operation", archive: patched("- {op: replce, path: /stringData/a, value: MARK}"), want: "Unexpected kind: replce"},
		{name: "test operation", archive: patched("- {op: test, path: /stringData/a, value: MARK-}"), want: "testing value /stringData/a failed"},
		{name: "value as an operation", archive: patched("- MARK"), want: "the patch is neither"},
		{name: "value as a patch", archive: patched("MARK"), want: "a document must be a mapping"},
		{name: "operation on annotations", archive: patched("- {op: add, path: /metadata/annotations, value: {a: {b: MARK}}}"), want: "metadata.annotations: a: want a string"},
		{name: "merge patch without a name", archive: with("patchesStrategicMerge: ['{kind: Secret, stringData: {a: MARK}}']", ""), want: "a/kustomization.yaml:2: patchesStrategicMerge: the entry is neither a path nor YAML of objects: metadata.name is missing"},
		{name: "merge patch of several lines", archive: with("patchesStrategicMerge:\n- |\n  kind: Secret\n  stringData: {a: MARK}", ""), want: "a/kustomization.yaml:3: patchesStrategicMerge: the entry is neither"},
		{name: "merge patch of data", archive: with("patchesStrategicMerge: ['{apiVersion: v1, kind: Secret, metadata: {name: s}, stringData: MARK}']", ""), want: "stringData: want a mapping"},

		{name: "literal without a key", archive: generated("literals: [ok=MARK, MARK-literal]", ""), want: "a/kustomization.yaml:4: secretGenerator.literals[1]: want key=value"},
		{name: "literal with an empty key", archive: generated("literals: [ok=MARK, =MARK]", ""), want: "secretGenerator.literals[1]: want key=value"},
		{name: "literal twice", archive: generated("literals: [ok=MARK, ok=MARK]", ""), want: "the generator of g has a key twice"},
		{name: "literal as a mapping", archive: generated("literals: [{a: MARK}]", ""), want: "cannot unmarshal object"},
		{name: "literals as a string", archive: generated("literals: MARK", ""), want: "cannot unmarshal string"},
		{name: "literals for nothing", archive: generated("behavior: merge\n  literals: ['a={MARK}}: MARK']", ""), want: "is to merge with or replace Secret g"},
		{name: "literals for another Secret", archive: with("secretGenerator: [{name: s, literals: ['a={MARK}}: MARK']}]", ""), want: "id Secret s exists"},
		{name: "generator without a name", archive: with("secretGenerator: [{literals: ['a=MARK']}]", ""), want: "must have a name"},
		{name: "type of a generator", archive: generated("type: {a: MARK}", ""), want: "cannot unmarshal object"},
		{name: "env file with another encoding", archive: generated("envs: [e]", "-- a/e --\nA=b\nB=MARK\xff\n"), want: "a/e:2: the line is not valid UTF-8"},
		{name: "env file with a line without =", archive: generated("envs: [e]", "-- a/e --\n\ufeff# a comment\n\nA=b\nMARK\n"), want: "a/e:4: want key=value, a comment or an empty line; name files with other content under files of the secretGenerator"},
		{name: "env file with a long line", archive: generated("envs: [e]", "-- a/e --\nA=b\nB=MARK"+strings.Repeat("x", 1<<16)+"\n"), want: "a/e:2: the line has 64 KiB or more"},
		{name: "env file with a value twice", archive: generated("envs: [e]", "-- a/e --\nKEY=begin\nMARK=\nMARK=\n"), want: "the generator of g has a key twice"},
		{name: "value as a file", archive: generated("files: [a=MARK]", ""), want: "a/kustomization.yaml:4: secretGenerator.files: the file is not in the repository; write values under literals"},
		{name: "value as an env file", archive: generated("envs: [a=MARK]", ""), want: "secretGenerator.envs: the file is not in the repository"},
		{name: "file twice", archive: generated("files: [f, ./f]", "-- a/f --\nMARK\n"), want: "has a key twice"},
		{name: "inline generator", archive: with("generators:\n- |\n  kind: SecretGenerator\n  "+indent(builtin)+"literals: [a=MARK, MARK]", ""), want: "SecretGenerator.literals[1]: want key=value"},
		{name: "inline generator without a name", archive: with("generators: ['{apiVersion: builtin, kind: SecretGenerator, literals: [a=MARK]}']", ""), want: "generators: the entry is neither a path nor YAML of objects: metadata.name is missing"},
		{name: "inline generator of several lines without a name", archive: with("generators:\n- |\n  apiVersion: builtin\n  kind: SecretGenerator\n  literals: [a=MARK]", ""), want: "metadata.name is missing"},
		{name: "generator in a file", archive: with("generators: [g.yaml]", "-- a/g.yaml --\n{apiVersion: builtin, kind: SecretGenerator, literals: [a=MARK]}\n"), want: "a/g.yaml: metadata.name is missing"},
		{name: "annotations of a generator", archive: with("generators: [g.yaml]", "-- a/g.yaml --\n{apiVersion: builtin, kind: SecretGenerator, metadata: {annotations: {"+fieldpath.LastApplied+": MARK}}}\n"), want: "a/g.yaml: metadata.name is missing"},

		{name: "PatchTransformer", archive: plugin("PatchTransformer", "target: {kind: Secret}\npatch: 'stringData: MARK'"), want: "PatchTransformer: the patch is neither"},
		{name: "PatchStrategicMergeTransformer", archive: plugin("PatchStrategicMergeTransformer", "patches: '{stringData: {a: MARK}}'"), want: "missing Resource metadata"},
		{name: "paths of a PatchStrategicMergeTransformer", archive: plugin("PatchStrategicMergeTransformer", "paths: ['{stringData: {a: MARK}}']"), want: "the entry is neither a path nor YAML"},
		{name: "PatchJson6902Transformer", archive: plugin("PatchJson6902Transformer", "target: {kind: Secret, name: s}\njsonOp: '[{op: add, path: /x, value: MARK}]'"), want: "jsonOp is not a list of JSON 6902 operations"},
		{name: "PatchJson6902Transformer with one operation", archive: plugin("PatchJson6902Transformer", "target: {kind: Secret, name: s}\njsonOp: '{op: add, path: /x, value: MARK}'"), want: "the patch is neither"},
		{name: "ValueAddTransformer", archive: plugin("ValueAddTransformer", "value: x\ntargets: [{selector: {kind: Secret}, fieldPath: stringData/a/b}]"), want: "want a mapping, have a scalar"},
		{name: "validator", archive: with("validators:\n- |\n  kind: PatchTransformer\n  "+indent(builtin)+"target: {kind: Secret}\n  patch: '{apiVersion: v1, kind: Secret, metadata: {name: s}, stringData: {b: MARK}}'", ""), want: "a: a validator changes objects; name it under transformers"},

		{name: "no name", archive: object("", "stringData: {a: MARK}\n"), want: "a/s.yaml:1: Secret: metadata.name is missing"},
		{name: "annotations", archive: object("", "metadata: {name: s, annotations: {a: {b: MARK}}}\n"), want: "a/s.yaml:3: secret/s: metadata.annotations: a: want a string, have a mapping"},
		{name: "last applied configuration", archive: object("namePrefix: x-\nreplacements: [{source: {kind: Secret, name: s, fieldPath: 'metadata.annotations.["+fieldpath.LastApplied+"]'}, targets: [{select: {kind: Secret}, fieldPaths: [metadata.name]}]}]", "metadata: {name: s, annotations: {"+fieldpath.LastApplied+": '{\"stringData\":{\"a\":\"MARK\"}}'}}\n"), want: "(hidden)", late: true},
		{name: "namespace", archive: object("namespace: x", "metadata: {name: s, namespace: {a: MARK}}\n"), want: "object Secret s: want a scalar, have a mapping"},
		{name: "lists of values", archive: object("secretGenerator: [{name: s, behavior: merge, literals: [a=b]}]", "metadata: {name: s}\ndata: {1: [MARK]}\n"), want: "Secret s: a key is a number, true, false or null; quote it"},
		{name: "alias", archive: object("", "metadata: {name: s}\nstringData:\n  a: *MARK\n"), want: "a/s.yaml: an alias has no anchor; quote a text that begins with *"},
		{name: "alias of another document", archive: object("", "metadata: {name: s}\nstringData:\n  a: &MARK b\n---\na: *MARK\n"), want: "a/s.yaml:7: an alias has no anchor in this document; quote a text that begins with *"},
		{name: "tag", archive: object("", "metadata: {name: s}\nstringData:\n  a: !MARK\n"), want: "a/s.yaml:5: the tag means nothing in a Kubernetes document; a text that begins with ! needs quotes"},
		{name: "escape", archive: object("", "metadata: {name: s}\nstringData:\n  a: \"MARK\\q\"\n"), want: "a/s.yaml:5: found unknown escape character"},
		{name: "no mapping", archive: object("", "metadata: {name: s}\n---\nMARK\n"), want: "a/s.yaml:5: a document must be a mapping"},
		{name: "two Secrets in one namespace", archive: object("namespace: x", "metadata: {name: s, namespace: a}\nstringData: {a: MARK}\n---\napiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: b}\ndata: {a: MARK64}\n"), want: "in the namespace, several objects would have the same kind and name"},
		{name: "name reference", archive: object("namePrefix: x-\nconfigurations: [c.yaml]", "metadata: {name: s}\nstringData: {a: {b: MARK}}\n-- a/c.yaml --\nnamePrefix: [{kind: Secret, path: stringData/a}]\n"), want: "considering field 'stringData/a' of object Secret s: want a scalar, have a mapping"},
		{name: "inside another object", archive: "-- a/kustomization.yaml --\nresources: [b.yaml]\nreplacements: [{source: {kind: A, name: a, fieldPath: spec.stringData.a}, targets: [{select: {kind: A}, fieldPaths: [metadata.name]}]}]\n-- a/b.yaml --\napiVersion: v1\nkind: A\nmetadata: {name: a}\nspec: {x: {y: {}}, apiVersion: v1, kind: Secret, stringData: {a: MARK}}\n", want: `"(hidden)" is not a name`, late: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for _, mark := range []string{"hunter2 is long", "a/hunter/é}\": x", "hq2z"} {
				if tt.late && mark == "hq2z" || strings.Contains(mark, "/") && !tt.late {
					continue
				}
				written := mark
				if strings.ContainsAny(mark, "\"") {
					written = fmt.Sprintf("%q", mark)
				}
				if strings.Contains(mark, "\"") && strings.Contains(tt.archive, "'{") {
					continue // within quotes
				}
				if strings.Contains(tt.archive, "*MARK") || strings.Contains(tt.archive, "!MARK") {
					written = strings.ReplaceAll(mark, " ", "-")
				}
				in64 := base64.StdEncoding.EncodeToString([]byte(mark))
				archive := strings.ReplaceAll(strings.ReplaceAll(tt.archive, "MARK64", in64), "MARK", written)
				objects, _, err := new(Builder).Build(t.Context(), txtarFS(t, archive), "a", remote.Bases{})
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("have %v, %v\nwant an error with %q", objects, err, tt.want)
					continue
				}
				for _, part := range []string{"hunter", "hq2z", in64[:5]} {
					if strings.Contains(err.Error(), part) {
						t.Errorf("a value is in %v", err)
					}
				}
			}
		})
	}
}

// Errors of a cluster's patches quote no values either, of the patches or of the objects.
func TestErrorsOfPatchesQuoteNoSecret(t *testing.T) {
	t.Parallel()
	objects := manifesttest.Objects(t, "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {a: hunter2 x}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n")
	secret, any := &Selector{Kind: "Secret"}, &Selector{Kind: ".*"}
	for _, tt := range []struct {
		patch Patch
		want  string
	}{
		{Patch{Patch: "stringData: {a: hunter2}"}, "patches.0: is neither a list of JSON 6902 operations nor a strategic merge patch: "},
		{Patch{Target: secret, Patch: "{apiVersion: v1, kind: Secret, metadata: {name: s}, stringData: hunter2}"}, "want a mapping, have a scalar"},
		{Patch{Target: secret, Patch: "{apiVersion: v1, kind: Secret, metadata: {name: s}, stringData: {a: {b: hunter2}}}"}, "want a scalar, have a mapping"},
		{Patch{Target: secret, Patch: "- {op: copy, from: /stringData/a, path: /metadata/name}"}, `"(hidden)" is not a name`},
		{Patch{Target: any, Patch: "- {op: add, path: /stringData/a/b, value: hunter2}"}, "doc is missing path"},
		{Patch{Patch: "{kind: Secret, metadata: {name: s}, stringData: {a: *hunter2}}"}, "an alias has no anchor"},
	} {
		p, err := NewPatches([]Patch{tt.patch})
		if err == nil {
			_, err = p.Apply(t.Context(), objects)
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hunter") {
			t.Errorf("%s: have %v\nwant an error with %q", tt.patch.Patch, err, tt.want)
		}
	}
}

// Only values of Secrets are replaced, wherever they overlap, and no names of objects or files.
func TestHide(t *testing.T) {
	t.Parallel()
	s := new(secrets)
	s.documents([]byte("apiVersion: v1\nkind: Secret\nmetadata: {name: postgres-main}\ndata: {a: aHVudGVyMg==}\nstringData: {b: postgres, c: \"first line\\nsecond \\\"line\\\"\", d: abcdefgh, e: efghijkl, f: short, g: 12345678}\n" +
		"---\napiVersion: v1\nkind: ConfigMap\ndata: {x: config}\n"))
	s.publishID(manifest.Secret.ID("ns", "postgres-main"))
	for text, want := range map[string]string{
		"aHVudGVyMg== and hunter2":          "(hidden) and (hidden)",
		"hunter2hunter2":                    "(hidden)",
		"no Secret postgres":                "no Secret postgres",
		"  first line\n  second \"line\"\n": "  (hidden)\n  (hidden)\n",
		`"first line\nsecond \"line\""`:     `"(hidden)\n(hidden)"`,
		"xabcdefghijklx":                    "x(hidden)x",
		"short config":                      "short config",
		"12345678":                          "(hidden)",
		"":                                  "",
	} {
		if have := s.hide(errors.New(text)).Error(); have != want {
			t.Errorf("%q: have %q, want %q", text, have, want)
		}
	}
	joined := s.hide(errors.Join(errors.New("hunter2"), fmt.Errorf("%w: hunter2", fs.ErrNotExist)))
	parts, ok := joined.(interface{ Unwrap() []error })
	if !ok || len(parts.Unwrap()) != 2 || joined.Error() != "(hidden)\nfile does not exist: (hidden)" || !errors.Is(joined, fs.ErrNotExist) {
		t.Errorf("have %#v", joined)
	}
	if have := new(secrets).hide(fs.ErrNotExist); have != fs.ErrNotExist {
		t.Errorf("without a Secret: have %v", have)
	}
	s.spend(maxSpent)
	s.add("hunter3")
	if have := s.hide(fmt.Errorf("%w: hunter3", sources.ErrLimit)); strings.Contains(have.Error(), "hunter") || !errors.Is(have, sources.ErrLimit) {
		t.Errorf("with too many values: have %v", have)
	}
}
