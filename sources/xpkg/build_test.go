package xpkg

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"gitopsd.dev/sources"
)

func mapFS(files ...string) fstest.MapFS {
	dir := make(fstest.MapFS)
	for i := 0; i < len(files); i += 2 {
		dir[files[i]] = &fstest.MapFile{Data: []byte(files[i+1])}
	}
	return dir
}

// TestBuild: what is in the package, in which order, and what is left out.
func TestBuild(t *testing.T) {
	t.Parallel()
	img, err := Build(mapFS(
		"a.yaml", "---\n"+testCRD,
		"sub/b.yml", "# no newline at the end\napiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: b}",
		"z/package-meta.yaml", testMeta+"---\n"+strings.ReplaceAll(testCRD, "buckets", "tables"),
		"empty.yaml", "# nothing\n",
		"examples/c.yaml", "not: [valid",
		".github/workflow.yaml", "on: push",
		"sub/.hidden/x.yaml", "on: push",
		"README.md", "# read me",
		"values.json", "{",
	), nil)

	if err != nil {
		t.Fatal(err)
	}
	p, err := Read(t.Context(), img, "r", img.Digest())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range p.Documents {
		names = append(names, text(d.Tree, "metadata", "name"))
	}
	if got := strings.Join(names, " "); got != "tables.s3.example.org buckets.s3.example.org b" || p.Meta.Name != "provider-example" {
		t.Errorf("package %s with %s", p.Meta.Name, got)
	}
	if p.Meta.Document.Line != 2 {
		t.Errorf("the meta object is at line %d, not first", p.Meta.Document.Line)
	}
}

// Webhook configurations lie in a directory of their own, as Crossplane's design of
// webhooks has it, and ask for their CA by a variable.
func TestBuildWebhooks(t *testing.T) {
	t.Parallel()
	const hooks = "apiVersion: admissionregistration.k8s.io/v1\nkind: %KWebhookConfiguration\nmetadata:\n  name: %N\nwebhooks:\n- name: mapplication.kb.io\n  clientConfig:\n    caBundle: ${CA_BUNDLE}\n    service:\n      name: webhook-service\n"
	of := func(kind, name string) string { return strings.NewReplacer("%K", kind, "%N", name).Replace(hooks) }
	img, err := Build(mapFS("crossplane.yaml", testMeta, "crds/a.yaml", testCRD,
		"webhookconfigurations/mutating.yaml", of("Mutating", "config"), "webhookconfigurations/validating.yaml", of("Validating", "config")), nil)

	if err != nil {
		t.Fatal(err)
	}
	p, err := Read(t.Context(), img, "r", img.Digest())
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, d := range p.Documents {
		kinds = append(kinds, text(d.Tree, "kind"))
	}
	if have := strings.Join(kinds, " "); have != "CustomResourceDefinition MutatingWebhookConfiguration ValidatingWebhookConfiguration" {
		t.Errorf("it holds %s", have)
	}
}

func TestBuildErrors(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		dir  fs.FS
		want string
	}{
		"nothing":      {mapFS("README.md", "x"), "there is no YAML file in the directory"},
		"no meta":      {mapFS("a.yaml", testCRD), "there is no meta object"},
		"two meta":     {mapFS("a.yaml", testMeta, "b.yaml", "# b\n"+testMeta), "b.yaml:2: Provider provider-example: a package has one meta object, and Provider provider-example is at a.yaml:1"},
		"syntax":       {mapFS("a.yaml", testMeta, "crds/b.yaml", "a: 1\nb: [\n"), "crds/b.yaml: line 2"},
		"twice":        {mapFS("a.yaml", testMeta, "b.yaml", testCRD, "c.yaml", "\n"+testCRD), "c.yaml:2: CustomResourceDefinition buckets.s3.example.org: duplicate of the one at b.yaml:1"},
		"other kind":   {mapFS("a.yaml", testMeta, "kustomization.yaml", "kind: Kustomization\napiVersion: kustomize.config.k8s.io/v1beta1\n"), "kustomization.yaml:1: Kustomization without a name: a Provider package cannot hold"},
		"retraction":   {mapFS("a.yaml", strings.Replace(testMeta, "metadata:", "metadata:\n  annotations: {meta.gitopsd.dev/retract: v1.2.0}", 1)), `a.yaml:1: Provider provider-example: metadata.annotations: meta.gitopsd.dev/retract: "v1.2.0": want VERSIONS: reason`},
		"field":        {mapFS("a.yaml", testMeta+"spec:\n  controler: {image: x}\n"), "a.yaml:1: Provider provider-example: spec.controler: is not a field here; did you mean controller?"},
		"name":         {mapFS("a.yaml", strings.Replace(testMeta, "provider-example", "acme/Widgets", 1)), "a.yaml:1: Provider acme/Widgets: metadata.name: want lower-case letters"},
		"inner field":  {mapFS("a.yaml", testMeta+"spec:\n  controller: {permissionRequests: [{verb: [get]}]}\n"), "spec.controller.permissionRequests[0].verb: is not a field here; did you mean verbs?"},
		"other field":  {mapFS("a.yaml", testMeta+"metrics: true\n"), "metrics: is not a field here; there are apiVersion, kind, metadata, spec"},
		"annotation":   {mapFS("a.yaml", strings.Replace(testMeta, "metadata:", "metadata:\n  annotations: {meta.gitopsd.dev/retrct: 'v1.2.0: x', example.org/any: x}", 1)), "metadata.annotations: there is no annotation meta.gitopsd.dev/retrct; did you mean meta.gitopsd.dev/retract?"},
		"directive":    {mapFS("a.yaml", testMeta, "b.yaml", "%YAML 1.1\n---\na: 1\n"), "b.yaml:1: leave out YAML directives"},
		"end marker":   {mapFS("a.yaml", testMeta, "b.yaml", testCRD+"...\n"), "b.yaml:5: leave out"},
		"bomb":         {mapFS("a.yaml", testMeta, "b.yaml", "a: "+strings.Repeat("[", 600)+strings.Repeat("]", 600)), "b.yaml: line 1: nested deeper"},
		"no directory": {os.DirFS(filepath.Join(t.TempDir(), "none")), "no such file"},
		"symbolic link": {fstest.MapFS{"a.yaml": {Data: []byte(testMeta)}, "b.yaml": {Data: []byte("/etc/passwd"), Mode: fs.ModeSymlink}},
			"b.yaml is not a regular file"},
		"linked directory": {fstest.MapFS{"a.yaml": {Data: []byte(testMeta)}, "config/crd/b.yaml": {Data: []byte(testCRD)},
			"README": {Data: []byte("a.yaml"), Mode: fs.ModeSymlink}, ".git": {Data: []byte("config"), Mode: fs.ModeSymlink}, "crds": {Data: []byte("config/crd"), Mode: fs.ModeSymlink}},
			"crds is a symbolic link, which is not followed"},
		"submodule":       {fstest.MapFS{"a.yaml": {Data: []byte(testMeta)}, "crds": {Mode: fs.ModeIrregular}}, "crds is a submodule"},
		"link to nothing": {fstest.MapFS{"a.yaml": {Data: []byte(testMeta)}, "crds": {Data: []byte("none"), Mode: fs.ModeSymlink}}, "crds is a symbolic link"},
	}
	for name, test := range tests {
		img, err := Build(test.dir, nil)
		if img != nil || err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
		if err != nil && strings.HasPrefix(err.Error(), ":") {
			t.Errorf("%s: %v has an empty subject", name, err)
		}
	}
}

// TestPushInvalid: what is wrong with a file is said of the file.
func TestPushInvalid(t *testing.T) {
	t.Parallel()
	m := newMaker()
	m.img.root = m.image(nil, m.layer(noiseEntry)).Digest
	name := filepath.Join(t.TempDir(), "a.xpkg")
	if err := m.img.WriteFile(name); err != nil {
		t.Fatal(err)
	}
	ref := sources.Ref{Repository: "r.example.org/a", Tag: "v1"}
	if _, err := Push(t.Context(), nil, []string{name}, ref); err == nil || !strings.HasPrefix(err.Error(), name+": there is no package.yaml") {
		t.Errorf("error %v", err)
	}
	ref.Digest = sources.DigestOf(nil)
	if _, err := Push(t.Context(), nil, []string{name}, ref); err == nil || !strings.Contains(err.Error(), "the package to be pushed has digest "+string(m.img.root)) {
		t.Errorf("another digest: %v", err)
	}
}

// TestFile: a package file says the same as the image, twice the same, and
// damage is found when it is opened.
func TestFile(t *testing.T) {
	t.Parallel()
	img, err := Build(mapFS("a.yaml", testMeta, "b.yaml", testCRD), nil)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "a.xpkg")
	if err := img.WriteFile(name); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	opened, err := Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	var again bytes.Buffer
	if n, err := opened.WriteTo(&again); err != nil || n != int64(len(content)) || !bytes.Equal(again.Bytes(), content) {
		t.Errorf("written again: %d bytes, %v", n, err)
	}
	p, err := Read(t.Context(), opened, "r", opened.Digest())
	if err != nil || opened.Digest() != img.Digest() || len(p.Documents) != 1 {
		t.Errorf("package %+v, %v", p, err)
	}
	if left, err := os.ReadDir(filepath.Dir(name)); err != nil || len(left) != 1 {
		t.Errorf("files %v, %v", left, err)
	}
	if err := img.WriteFile(filepath.Join(filepath.Dir(name), "none", "a.xpkg")); err == nil {
		t.Error("written to a directory that is not there")
	}

	files := func(entries ...entry) []byte { return tarOf(entries...) }
	damaged := bytes.Clone(content)
	damaged[bytes.Index(damaged, []byte(`"rootfs"`))+1] ^= 1
	none := string(sources.DigestOf([]byte("none")))
	for what, test := range map[string]struct {
		content []byte
		want    string
	}{
		"empty":               {nil, "neither index.json nor manifest.json"},
		"not tar":             {bytes.Repeat([]byte("x"), 2000), "not a package file"},
		"damaged":             {damaged, "it is damaged: blobs/sha256/"},
		"truncated":           {content[:len(content)/2], "unexpected EOF"},
		"twice":               {files(entry{name: "index.json", content: "{}"}, entry{name: "./index.json", content: "{}"}), "index.json is in it twice"},
		"two images":          {files(entry{name: "index.json", content: `{"schemaVersion":2,"manifests":[{},{}]}`}), "does not name one image"},
		"no manifest":         {files(entry{name: "index.json", content: `{"schemaVersion":2,"manifests":[{"digest":"` + none + `"}]}`}), none + " is not in it"},
		"bad digest":          {files(entry{name: "index.json", content: `{"schemaVersion":2,"manifests":[{"digest":"x"}]}`}), `digest "x"`},
		"bad JSON":            {files(entry{name: "index.json", content: `{`}), "a manifest in it is not valid"},
		"Docker, two":         {files(entry{name: "manifest.json", content: `[{},{}]`}), "it has 2 images"},
		"Docker, no config":   {files(entry{name: "manifest.json", content: `[{"Config":"c"}]`}), `configuration "c" is not in it`},
		"Docker, no layer":    {files(entry{name: "manifest.json", content: `[{"Config":"c","Layers":["l"]}]`}, entry{name: "c", content: "{}"}), `layer "l" is not in it`},
		"too many files":      {files(manyFiles(maxFileEntries + 1)...), "more than 10000 files"},
		"only a link as file": {files(entry{name: "index.json", content: "x", kind: tar.TypeSymlink}), "neither index.json"},
	} {
		name := filepath.Join(t.TempDir(), "a.xpkg")
		if err := os.WriteFile(name, test.content, 0o600); err != nil {
			t.Fatal(err)
		}
		img, err := Open(name)
		if img != nil || err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", what, err, test.want)
		}
	}
	if _, err := Open(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

func manyFiles(n int) []entry {
	entries := make([]entry, n)
	for i := range entries {
		entries[i] = entry{name: strings.Repeat("x", 1+i%90) + string(rune('a'+i/90%26)) + string(rune('a'+i/2340))}
	}
	return entries
}
