package upgrade

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/render/remote"
	"gitopsd.dev/render/types"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/resolve"
	"gitopsd.dev/sources/rules"
)

// shelf is a registry: "repository:tag" -> a package.
type shelf map[string]*sources.Package

// put publishes a Configuration with XRDs named after kinds ("A", or "A:field"),
// and dependencies as "repository range".
func (s shelf) put(ref, kinds string, deps ...string) {
	r, err := sources.ParseRef(ref)
	if err != nil {
		panic(err)
	}
	pkg := &sources.Package{Repository: r.Repository, Digest: sources.DigestOf([]byte(ref)), Content: sources.DigestOf([]byte(kinds))}
	pkg.Meta = sources.PackageMeta{Kind: sources.Configuration, Name: "x"}
	for _, d := range deps {
		repo, constraint, _ := strings.Cut(d, " ")
		pkg.Meta.DependsOn = append(pkg.Meta.DependsOn, sources.Dependency{Repository: repo, Constraint: constraint})
	}
	var text strings.Builder
	for kind := range strings.FieldsSeq(kinds) {
		kind, field, _ := strings.Cut(kind, ":")
		plural := strings.ToLower(kind) + "s"
		fmt.Fprintf(&text, "---\napiVersion: apiextensions.crossplane.io/v1\nkind: CompositeResourceDefinition\nmetadata: {name: %s.acme.example}\n"+
			"spec: {group: acme.example, names: {kind: %s, plural: %s}, versions: [{name: v1, served: true, referenceable: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {%s}}}}}}]}\n",
			plural, kind, plural, strings.ReplaceAll(field, ",", ": {type: string}, ")+": {type: string}")
	}
	if pkg.Documents, err = sources.DecodeYAML(strings.NewReader(text.String()), sources.Limits{}); err != nil {
		panic(err)
	}
	s[ref] = pkg
}

func (s shelf) upgrader(t *testing.T, prerelease bool) *Upgrader {
	t.Helper()
	return s.upgraderWith(t, prerelease, desired.Config{})
}

// upgraderWith takes from computer all but how packages are resolved.
func (s shelf) upgraderWith(t *testing.T, prerelease bool, computer desired.Config) *Upgrader {
	t.Helper()
	cfg := Config{
		Prerelease: prerelease,
		Digest: func(_ context.Context, from sources.Origin, tag string) (sources.Digest, error) {
			ref := sources.Ref{Repository: from.Repository, Tag: tag}
			if pkg := s[ref.String()]; pkg != nil {
				return pkg.Digest, nil
			}
			return "", fmt.Errorf("%s: %w", ref, sources.ErrNotFound)
		},
		Verify: func(_ context.Context, from sources.Origin, d sources.Digest, policy *sources.Verification) (string, error) {
			for ref, pkg := range s {
				if pkg.Repository == from.Repository && pkg.Digest == d && !strings.HasSuffix(ref, ":v1.0.0") {
					return "", fmt.Errorf("%s: not signed by %s: %w", ref, policy.Authorities[0].Name, sources.ErrUnfit)
				}
			}
			return "signed", nil
		},
		Fetch: func(_ context.Context, from sources.Origin, d sources.Digest) (*sources.Package, error) {
			repo := from.Repository
			for _, pkg := range s {
				if pkg.Repository == repo && pkg.Digest == d {
					return pkg, nil
				}
			}
			return nil, fmt.Errorf("%s@%s: %w", repo, d, sources.ErrNotFound)
		},
		Tags: func(_ context.Context, from sources.Origin) ([]string, error) {
			repo := from.Repository
			if strings.HasSuffix(repo, "/silent") {
				return nil, fmt.Errorf("%s: its tags are not listed", repo)
			}
			var tags []string
			for ref := range s {
				if tag, ok := strings.CutPrefix(ref, repo+":"); ok {
					tags = append(tags, tag)
				}
			}
			return tags, nil
		},
	}
	computer.Resolve = resolve.Config{Digest: cfg.Digest, Verify: cfg.Verify, Fetch: cfg.Fetch, Tags: cfg.Tags,
		Types: func(pkg *sources.Package) (string, error) { return types.Package(pkg.Documents) }}
	cfg.Computer = desired.New(computer)
	u, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func packages() shelf {
	s := make(shelf)
	s.put("reg.io/acme/db:v1.0.0", "Db:size")
	s.put("reg.io/acme/db:v1.1.0", "Db:size,class")
	s.put("reg.io/acme/db:v2.0.0", "Db:class Table:rows")
	s.put("reg.io/acme/app:v1.0.0", "App:name", "reg.io/acme/db <2.0.0")
	s.put("reg.io/acme/silent:v1.0.0", "Silent:a")
	s.put("reg.io/acme/silent:v1.1.0", "Silent:a")
	s.put("reg.io/other/db:v1.0.0", "Other:size")
	return s
}

func declare(name, ref string) string {
	return "apiVersion: pkg.crossplane.io/v1\nkind: Configuration\nmetadata:\n  name: " + name + "\nspec:\n  package: " + ref + "\n"
}

// fleet is a repository with the clusters a, b and c.
func fleet(more map[string]string) fstest.MapFS {
	files := make(fstest.MapFS)
	var registry strings.Builder
	for _, name := range []string{"a", "b", "c"} {
		fmt.Fprintf(&registry, "---\napiVersion: gitopsd.dev/v1alpha1\nkind: Cluster\nmetadata: {name: %s}\nspec: {path: %s, kubeconfig: {file: x}}\n", name, name)
		files[name+"/settings.yaml"] = &fstest.MapFile{Data: []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: s}\n")}
	}
	files["clusters.yaml"] = &fstest.MapFile{Data: []byte(registry.String())}
	for name, text := range more {
		files[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return files
}

const db1, db11, db2 = "reg.io/acme/db:v1.0.0", "reg.io/acme/db:v1.1.0", "reg.io/acme/db:v2.0.0"

// tagged has a tag that a follows, and that waits for approval in b.
var tagged = map[string]string{
	"a/db.yaml": always, "b/db.yaml": always + "  revisionActivationPolicy: Manual\n",
	"clusters.lock": "@a reg.io/acme/db v1.0.0\n@b reg.io/acme/db v1.0.0\nreg.io/acme/db v1.0.0 " + string(sources.DigestOf([]byte(db1))) + "\n",
}

var always = declare("db", db1) + "  packagePullPolicy: Always\n"

func TestBumpRefuses(t *testing.T) {
	kustomize := "resources: [../base/db.yaml]\n"
	for _, tt := range []struct {
		name  string
		files map[string]string
		req   Request
		want  []string
		not   string
	}{
		{name: "two packages of one name", files: map[string]string{"a/db.yaml": declare("one", db1), "b/db.yaml": declare("two", "reg.io/other/db:v1.0.0")}, req: Request{Package: "db"},
			want: []string{`"db" may be reg.io/acme/db or reg.io/other/db; write which`}},
		{name: "nothing of the name", files: map[string]string{"a/db.yaml": declare("db", db1)}, req: Request{Package: "cache"}, want: []string{`no cluster declares a package "cache"; there are reg.io/acme/db`}},
		{name: "a conflict", files: map[string]string{"a/db.yaml": "<<<<<<< HEAD\n" + declare("db", db1)}, req: Request{Package: "db"}, want: []string{"a/db.yaml:1: Git left a merge conflict here"}, not: "no cluster declares"},
		{name: "a dependency", files: map[string]string{"a/app.yaml": declare("app", "reg.io/acme/app:v1.0.0")}, req: Request{Package: "db"},
			want: []string{"reg.io/acme/db is declared nowhere: reg.io/acme/app depends on it", "gitopsd lock --update=reg.io/acme/db"}},
		{name: "no such cluster", files: map[string]string{"a/db.yaml": declare("db", db1)}, req: Request{Package: "db", Clusters: []string{"d"}}, want: []string{`cluster "d" is not registered`}},
		{name: "not declared in the cluster", files: map[string]string{"a/db.yaml": declare("db", db1)}, req: Request{Package: "db", Clusters: []string{"a", "b"}}, want: []string{"cluster b does not declare reg.io/acme/db"}},
		{name: "declared in none of the clusters", files: map[string]string{"a/db.yaml": declare("db", db1)}, req: Request{Package: "db", Clusters: []string{"b"}}, want: []string{`b: nothing declares a package "db"`}},
		{name: "a digest alone", files: map[string]string{"a/db.yaml": declare("db", "reg.io/acme/db@"+string(sources.DigestOf([]byte(db1))))}, req: Request{Package: "db"},
			want: []string{"cluster a declares it by its digest alone", "db@VERSION"}},
		{name: "no such version", files: map[string]string{"a/db.yaml": declare("db", db1)}, req: Request{Package: "db", Version: ">=3"}, want: []string{"reg.io/acme/db: no version is >=3; the registry has v2.0.0, v1.1.0, v1.0.0"}},
		{name: "tags that are not listed", files: map[string]string{"a/s.yaml": declare("silent", "reg.io/acme/silent:v1.0.0")}, req: Request{Package: "silent"}, want: []string{"its tags are not listed"}},
		{name: "a shared base", files: map[string]string{"base/db.yaml": declare("db", db1), "a/kustomization.yaml": kustomize, "b/kustomization.yaml": kustomize}, req: Request{Package: "db", Clusters: []string{"a"}},
			want: []string{"base/db.yaml:6 decides for cluster b too", "give a a version of its own", "target: {group: pkg.crossplane.io, kind: Configuration, name: db}", "value: " + db11}},
		{name: "a base that may be shared", files: map[string]string{"base/db.yaml": declare("db", db1), "a/kustomization.yaml": kustomize, "b/kustomization.yaml": kustomize + "patches: [{path: none.yaml}]\n"}, req: Request{Package: "db", Clusters: []string{"a"}},
			want: []string{"base/db.yaml:6 may decide for cluster b too, which cannot be rendered", "none.yaml"}},
		{name: "put together from parts", files: map[string]string{"a/db.yaml": declare("db", "reg.io/acme/db:x") + "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: versions}\ndata: {db: v1.0.0}\n",
			"a/kustomization.yaml": "resources: [db.yaml]\nreplacements:\n- source: {kind: ConfigMap, name: versions, fieldPath: data.db}\n  targets: [{select: {kind: Configuration}, fieldPaths: [spec.package], options: {delimiter: ':', index: 1}}]\n"},
			req: Request{Package: "db"}, want: []string{"cluster a: Configuration db gets " + db1 + ", which stands in one piece in none of the files below a; change it by hand"}},
		{name: "a patch that tests the version", files: map[string]string{"a/db.yaml": declare("db", db1),
			"a/kustomization.yaml": "resources: [db.yaml]\npatches:\n- target: {kind: Configuration}\n  patch: |\n    - {op: test, path: /spec/package, value: \"" + db1 + "\"}\n"},
			req: Request{Package: "db"}, want: []string{"cluster a: Configuration db gets " + db1 + ", and with another version in its place the manifests cannot be rendered: ", "change it by hand in all places"}},
		{name: "a base under a patch that tests the version", files: map[string]string{"base/db.yaml": declare("db", db1), "a/kustomization.yaml": kustomize,
			"b/kustomization.yaml": kustomize + "patches:\n- target: {kind: Configuration}\n  patch: |\n    - {op: test, path: /spec/package, value: \"" + db1 + "\"}\n"}, req: Request{Package: "db", Clusters: []string{"a"}},
			want: []string{"base/db.yaml:6 may decide for cluster b too, which cannot be rendered: ", "test"}, not: "nil"},
		{name: "what depends on it does not allow it", files: map[string]string{"a/db.yaml": declare("db", db1), "a/app.yaml": declare("app", "reg.io/acme/app:v1.0.0")}, req: Request{Package: "db", Version: "v2.0.0"},
			want: []string{"nothing was written, since then: ", "reg.io/acme/app:v1.0.0 needs reg.io/acme/db <2.0.0, but db declares v2.0.0"}},
		{name: "a tag that another cluster has", files: tagged, req: Request{Package: "db", Version: "v1.0.0@" + string(sources.DigestOf([]byte(db11))), Clusters: []string{"a"}},
			want: []string{"nothing was written: cluster b has reg.io/acme/db:v1.0.0 too, and a tag has one digest in the whole fleet; leave out --cluster to move it in all clusters, or name the digest alone: db@" + string(sources.DigestOf([]byte(db11)))}},
		{name: "a digest of nothing", files: map[string]string{"a/db.yaml": declare("db", db1)}, req: Request{Package: "db", Version: "v1.1.0@" + string(sources.DigestOf(nil))}, want: []string{"nothing was written, since then: ", "not found"}},
		{name: "half a digest", files: map[string]string{"a/db.yaml": declare("db", db1)}, req: Request{Package: "db", Version: "v1.1.0@sha256:00"}, want: []string{"want 64"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := packages().upgrader(t, false).Bump(t.Context(), sources.Commit{Files: fleet(tt.files)}, tt.req)
			for _, want := range tt.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error\n%v\nwant one with\n%s", err, want)
				}
			}
			if tt.not != "" && strings.Contains(err.Error(), tt.not) {
				t.Errorf("error\n%v\nwant one without\n%s", err, tt.not)
			}
		})
	}
}

func TestNamed(t *testing.T) {
	all := []string{"reg.io/acme/db", "reg.io/other/db", "xpkg.crossplane.io/acme/app", "db"}
	for _, tt := range []struct{ pattern, want, err string }{
		{"reg.io/acme/db", "reg.io/acme/db", ""},
		{"db", "db", ""},
		{"app", "xpkg.crossplane.io/acme/app", ""},
		{"acme/app", "xpkg.crossplane.io/acme/app", ""},
		{"reg.io:443/acme/db", "reg.io/acme/db", ""},
		{"none", "", ""},
	} {
		if have, err := Named(tt.pattern, all); have != tt.want || err != nil {
			t.Errorf("%s: %q, %v, want %q", tt.pattern, have, err, tt.want)
		}
	}
	if have, err := Named("db", all[:3]); have != "" || err == nil || err.Error() != `"db" may be reg.io/acme/db or reg.io/other/db; write which` {
		t.Errorf("%q, %v", have, err)
	}
}

func TestBump(t *testing.T) {
	digest := func(ref string) string { return string(sources.DigestOf([]byte(ref))) }
	for _, tt := range []struct {
		name  string
		files map[string]string
		req   Request
		// edits as "place: new text", moves as "repository from to: types; refused".
		edits, moves, notes []string
	}{
		{name: "each within its own major", files: map[string]string{"a/db.yaml": declare("db", db1), "b/db.yaml": declare("db", db2)}, req: Request{Package: "db"},
			edits: []string{"a/db.yaml:6: " + db11}, moves: []string{"reg.io/acme/db v1.0.0 v1.1.0: 1 type changed; "}, notes: []string{"b: v2.0.0 is the newest"}},
		{name: "the next major is for a person to ask for", files: map[string]string{"a/db.yaml": declare("db", db11)}, req: Request{Package: "db"},
			notes: []string{"a: v1.1.0 is the newest of its major version; db@v2.0.0 goes to the next"}},
		{name: "latest that suits", files: map[string]string{"a/db.yaml": declare("db", db1), "a/app.yaml": declare("app", "reg.io/acme/app:v1.0.0")}, req: Request{Package: "db", Version: "latest"},
			edits: []string{"a/db.yaml:6: " + db11}, moves: []string{"reg.io/acme/db v1.0.0 v1.1.0: 1 type changed; "}},
		{name: "breaking", files: map[string]string{"a/db.yaml": declare("db", db1)}, req: Request{Package: "reg.io/acme/db", Version: "latest"},
			edits: []string{"a/db.yaml:6: " + db2}, moves: []string{"reg.io/acme/db v1.0.0 v2.0.0: 1 type added, 1 changed, 1 breaking; field-removed"}},
		{name: "breaking, and allowed already", files: map[string]string{"a/db.yaml": strings.Replace(declare("db", db1), "  name: db\n", "  name: db\n  annotations: {gitopsd.dev/allow-breaking: 'v2.0.0:field-removed=fine'}\n", 1)}, req: Request{Package: "db", Version: "v2.0.0"},
			edits: []string{"a/db.yaml:7: " + db2}, moves: []string{"reg.io/acme/db v1.0.0 v2.0.0: 1 type added, 1 changed, 1 breaking; "}},
		{name: "digests are renewed", files: map[string]string{"a/db.yaml": declare("db", db1+"@"+digest(db1)), "b/db.yaml": declare("db", "reg.io/acme/db@"+digest(db1))}, req: Request{Package: "db", Version: "v1.1.0"},
			edits: []string{"a/db.yaml:6: " + db11 + "@" + digest(db11), "b/db.yaml:6: reg.io/acme/db@" + digest(db11)},
			moves: []string{"reg.io/acme/db v1.0.0 v1.1.0: 1 type changed; ", "reg.io/acme/db " + digest(db1) + " " + digest(db11) + ": 1 type changed; "}},
		{name: "to a digest", files: map[string]string{"a/db.yaml": declare("db", db1)}, req: Request{Package: "db", Version: digest(db11)},
			edits: []string{"a/db.yaml:6: reg.io/acme/db@" + digest(db11)}, moves: []string{"reg.io/acme/db v1.0.0 " + digest(db11) + ": 1 type changed; "}},
		{name: "to the digest of a tag, where all have it", files: tagged, req: Request{Package: "db", Version: "v1.0.0@" + digest(db11)},
			edits: []string{"a/db.yaml:6: " + db1 + "@" + digest(db11), "b/db.yaml:6: " + db1 + "@" + digest(db11)},
			moves: []string{"reg.io/acme/db v1.0.0 v1.0.0: 1 type changed; "}, notes: []string{"v1.0.0 has another digest in its registry: " + digest(db1)}},
		{name: "to a tag with its digest", files: map[string]string{"a/db.yaml": declare("db", db1)}, req: Request{Package: "db", Version: "v1.1.0@" + digest(db11)},
			edits: []string{"a/db.yaml:6: " + db11 + "@" + digest(db11)}, moves: []string{"reg.io/acme/db v1.0.0 v1.1.0: 1 type changed; "}},
		{name: "to a digest, where others have the tag", files: tagged, req: Request{Package: "db", Version: digest(db11), Clusters: []string{"a"}},
			edits: []string{"a/db.yaml:6: reg.io/acme/db@" + digest(db11)}, moves: []string{"reg.io/acme/db v1.0.0 " + digest(db11) + ": 1 type changed; "}},
		{name: "back", files: map[string]string{"a/db.yaml": declare("db", db11)}, req: Request{Package: "db", Version: "v1.0.0"},
			edits: []string{"a/db.yaml:6: " + db1}, moves: []string{"reg.io/acme/db v1.1.0 v1.0.0: 1 type changed, 1 breaking; field-removed"}},
		{name: "away from a version that is gone", files: map[string]string{"a/db.yaml": declare("db", "reg.io/acme/db:v0.9.0")}, req: Request{Package: "db", Version: "v1.0.0"},
			edits: []string{"a/db.yaml:6: " + db1}, moves: []string{"reg.io/acme/db v0.9.0 v1.0.0: its types before are not known; "}},
		{name: "another cluster is broken", files: map[string]string{"a/db.yaml": declare("db", db1), "b/kustomization.yaml": "resources: [none.yaml]\n", "c/s.yaml": declare("silent", "reg.io/acme/silent:v0")}, req: Request{Package: "db", Clusters: []string{"a"}},
			edits: []string{"a/db.yaml:6: " + db11}, moves: []string{"reg.io/acme/db v1.0.0 v1.1.0: 1 type changed; "}},
		{name: "what is wrong with another package is known, wherever it is still so",
			files: map[string]string{"a/db.yaml": declare("db", "reg.io/acme/db:v0"), "b/db.yaml": declare("db", "reg.io/acme/db:v0"), "c/db.yaml": declare("db", db1)},
			req:   Request{Package: "db", Version: "v1.1.0", Clusters: []string{"a"}},
			edits: []string{"a/db.yaml:6: " + db11}, moves: []string{"reg.io/acme/db v0 v1.1.0: its types before are not known; "}},
		{name: "a tag of a registry that lists none", files: map[string]string{"a/s.yaml": declare("silent", "reg.io/acme/silent:v1.0.0")}, req: Request{Package: "silent", Version: "v1.1.0"},
			edits: []string{"a/s.yaml:6: reg.io/acme/silent:v1.1.0"}, moves: []string{"reg.io/acme/silent v1.0.0 v1.1.0: same types; "}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			files := fleet(tt.files)
			b, err := packages().upgrader(t, false).Bump(t.Context(), sources.Commit{Files: files}, tt.req)
			if err != nil {
				t.Fatal(err)
			}
			var edits, moves, notes []string
			for _, n := range b.Notes {
				notes = append(notes, n.String())
			}
			for _, e := range b.Edits {
				edits = append(edits, e.Place.String()+": "+e.To)
			}
			for _, m := range b.Moves {
				what := m.Types.String()
				if m.Error != "" {
					what = m.Error
				}
				moves = append(moves, fmt.Sprintf("%s %s %s: %s; %s", m.Repository, m.From, m.To, what, strings.Join(m.Refused, ", ")))
				if text := m.Allowance(); (text == "") != (len(m.Refused) == 0) || text != "" && !strings.Contains(text, m.To+":"+m.Refused[0]+"=<") {
					t.Errorf("allowance %q", text)
				}
			}
			slices.Sort(moves)
			slices.Sort(tt.moves)
			if !slices.Equal(edits, tt.edits) || !slices.Equal(moves, tt.moves) || !slices.Equal(notes, tt.notes) {
				t.Errorf("edits %q\nwant  %q\nmoves %q\nwant  %q\nnotes %q\nwant  %q", edits, tt.edits, moves, tt.moves, notes, tt.notes)
			}
		})
	}
}

// However many of the files a run has written when it is killed, the next comes
// to the same.
// What another repository declares is not changed; where this one patches its
// version, that is.
func TestBumpInRemoteBase(t *testing.T) {
	t.Parallel()
	commit := strings.Repeat("1", 40)
	prefixes, err := remote.ParsePrefixes([]string{"https://git.example.org"})
	if err != nil {
		t.Fatal(err)
	}
	u := packages().upgraderWith(t, false, desired.Config{Remote: prefixes, FetchTree: func(context.Context, sources.Tree) (fs.FS, error) {
		return fstest.MapFS{
			"kustomization.yaml": &fstest.MapFile{Data: []byte("resources: [db.yaml]\n")},
			"db.yaml":            &fstest.MapFile{Data: []byte(declare("db", "reg.io/acme/db:v1.0.0"))},
		}, nil
	}})
	based := "resources: ['https://git.example.org/bases.git?ref=" + commit + "']\n"
	_, err = u.Bump(t.Context(), sources.Commit{Files: fleet(map[string]string{"a/kustomization.yaml": based})}, Request{Package: "db"})
	want := "cluster a: git.example.org/bases.git@" + commit + "/db.yaml is in another repository, which is not changed"
	if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "value: reg.io/acme/db:v1.1.0") {
		t.Errorf("have %v\nwant %s", err, want)
	}
	patched := based + "patches:\n- target: {kind: Configuration}\n  patch: '- {op: replace, path: /spec/package, value: reg.io/acme/db:v1.0.0}'\n"
	b, err := u.Bump(t.Context(), sources.Commit{Files: fleet(map[string]string{"a/kustomization.yaml": patched})}, Request{Package: "db"})
	if err != nil || len(b.Edits) != 1 || b.Edits[0].String() != "a/kustomization.yaml:4" {
		t.Errorf("have %+v, %v", b, err)
	}
}

// The types of a package that a new version no longer depends on go with it.
func TestDependencyGoes(t *testing.T) {
	s := make(shelf)
	s.put("reg.io/acme/db:v1.0.0", "Db:size Table:rows")
	s.put("reg.io/acme/app:v1.0.0", "App:name", "reg.io/acme/db >=1.0.0")
	s.put("reg.io/acme/app:v1.1.0", "App:name")
	b, err := s.upgrader(t, false).Bump(t.Context(), sources.Commit{Files: fleet(map[string]string{"a/app.yaml": declare("app", "reg.io/acme/app:v1.0.0")})}, Request{Package: "app"})
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, m := range b.Moves {
		have = append(have, fmt.Sprintf("%s %q %q: %s", m.Repository, m.From, m.To, m.Types))
	}
	want := []string{`reg.io/acme/app "v1.0.0" "v1.1.0": same types`, `reg.io/acme/db "v1.0.0" "": 2 types removed, 2 breaking`}
	if !slices.Equal(have, want) {
		t.Errorf("moves\n%q, want\n%q", have, want)
	}
}

func TestBumpIsCompleted(t *testing.T) {
	start := fleet(map[string]string{"a/db.yaml": declare("db", db1), "b/db.yaml": declare("db", db1), "c/db.yaml": declare("db", db1)})
	req := Request{Package: "db", Version: "v1.1.0"}
	bump := func(files fs.FS) *Bump {
		t.Helper()
		b, err := packages().upgrader(t, false).Bump(t.Context(), sources.Commit{Files: files}, req)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	whole := bump(start)
	names := slices.Sorted(maps.Keys(whole.Files))
	if len(names) != 3 {
		t.Fatalf("changed %v", names)
	}
	for written := range len(names) + 1 {
		tree := maps.Clone(start)
		for _, name := range names[:written] {
			tree[name] = &fstest.MapFile{Data: whole.Files[name]}
		}
		b := bump(tree)
		for name, content := range b.Files {
			tree[name] = &fstest.MapFile{Data: content}
		}
		for _, name := range names {
			if have := string(tree[name].Data); have != string(whole.Files[name]) {
				t.Errorf("after %d files: %s is\n%s", written, name, have)
			}
		}
		selected := "@a reg.io/acme/db v1.1.0\n@b reg.io/acme/db v1.1.0\n@c reg.io/acme/db v1.1.0\n"
		if have := string(b.Lock.Format()); !strings.HasPrefix(have, selected) || !strings.Contains(have, "\nreg.io/acme/db v1.1.0 sha256:") {
			t.Errorf("after %d files the lock is\n%s", written, have)
		}
	}
}

func TestOutdated(t *testing.T) {
	files := fleet(map[string]string{
		"a/db.yaml": declare("db", db1), "b/db.yaml": declare("db", db1), "b/app.yaml": declare("app", "reg.io/acme/app:v1.0.0"),
		"c/silent.yaml": declare("silent", "reg.io/acme/silent:v1.0.0"), "c/gone.yaml": declare("db", "reg.io/acme/db:v0.9.0"),
	})
	all, state, err := packages().upgrader(t, false).Outdated(t.Context(), sources.Commit{Files: files}, nil)
	if err != nil || state.Err() == nil {
		t.Fatal(err, state.Err())
	}
	var have []string
	for _, p := range all {
		line := fmt.Sprintf("%s %s %v:", p.Repository, p.Current, p.Clusters)
		for _, c := range candidates(p) {
			line += " " + c.Version + " " + c.Types.String() + c.Error + ";"
		}
		have = append(have, line+strings.Join(p.Held, "")+p.Error)
	}
	want := []string{
		"reg.io/acme/app v1.0.0 [b]:",
		"reg.io/acme/db v0.9.0 [c]: v2.0.0 same typesreg.io/acme/db v0.9.0 could not be read, to compare it with what is newer;",
		"reg.io/acme/db v1.0.0 [a]: v1.1.0 1 type changed; v2.0.0 1 type added, 1 changed, 1 breaking;",
		"reg.io/acme/db v1.0.0 [b]: v1.1.0 1 type changed; v2.0.0 1 type added, 1 changed, 1 breaking;<2.0.0 (needed by reg.io/acme/app:v1.0.0)",
		"reg.io/acme/silent v1.0.0 [c]:reg.io/acme/silent: its tags are not listed",
	}
	if !slices.Equal(have, want) {
		t.Errorf("have\n%s\nwant\n%s", strings.Join(have, "\n"), strings.Join(want, "\n"))
	}
	all, _, err = packages().upgrader(t, false).Outdated(t.Context(), sources.Commit{Files: files}, []string{"app"})
	if err != nil || len(all) != 1 || all[0].Outdated() {
		t.Errorf("app alone: %v, %v", all, err)
	}
	if _, _, err = packages().upgrader(t, false).Outdated(t.Context(), sources.Commit{Files: files}, []string{"app", "cache"}); err == nil || !strings.Contains(err.Error(), `no cluster has a package "cache"; there are reg.io/acme/app`) {
		t.Errorf("error %v", err)
	}
}

// A version that is excluded by its digest is neither proposed nor chosen.
func TestExcludedDigest(t *testing.T) {
	commit := func() sources.Commit {
		files := fleet(map[string]string{"a/db.yaml": declare("db", db1)})
		files["clusters.yaml"].Data = append(files["clusters.yaml"].Data, "---\napiVersion: gitopsd.dev/v1alpha1\nkind: Packages\nspec:\n  exclude:\n  - {package: reg.io/acme/db, version: '"+
			string(sources.DigestOf([]byte(db2)))+"', reason: broken}\n"...)
		return sources.Commit{Files: files}
	}
	all, state, err := packages().upgrader(t, false).Outdated(t.Context(), commit(), nil)
	if err != nil || state.Err() != nil || len(all) != 1 {
		t.Fatal(err, state.Err(), all)
	}
	if p := all[0]; p.Latest == nil || p.Latest.Version != "v1.1.0" || len(p.Skipped) != 1 || !strings.HasPrefix(p.Skipped[0], "v2.0.0 is excluded: broken (clusters.yaml:") {
		t.Errorf("have %+v, skipped %q", p.Latest, p.Skipped)
	}
	b, err := packages().upgrader(t, false).Bump(t.Context(), commit(), Request{Package: "db", Version: "latest"})
	if err != nil || len(b.Edits) != 1 || !strings.Contains(b.Edits[0].To, ":v1.1.0") {
		t.Errorf("have %+v, %v", b, err)
	}
	if _, err = packages().upgrader(t, false).Bump(t.Context(), commit(), Request{Package: "db", Version: "v2.0.0"}); err == nil || !strings.Contains(err.Error(), "reg.io/acme/db: v2.0.0 is excluded: broken") {
		t.Errorf("error %v", err)
	}
}

// A version in use that is excluded is compared with newer ones, as the lock has it.
func TestExcludedInUse(t *testing.T) {
	files := fleet(map[string]string{"a/db.yaml": declare("db", db1)})
	_, state, err := packages().upgrader(t, false).Outdated(t.Context(), sources.Commit{Files: files}, nil)
	if err := errors.Join(err, state.Err()); err != nil {
		t.Fatal(err)
	}
	lock, clusters := state.Lock.Format(), files["clusters.yaml"].Data
	for _, version := range []string{"v1.0.0", string(sources.DigestOf([]byte(db1)))} {
		files["clusters.lock"] = &fstest.MapFile{Data: lock}
		files["clusters.yaml"].Data = slices.Concat(clusters, []byte("---\napiVersion: gitopsd.dev/v1alpha1\nkind: Packages\nspec:\n  exclude:\n  - {package: reg.io/acme/db, version: '"+version+"', reason: broken}\n"))
		all, _, err := packages().upgrader(t, false).Outdated(t.Context(), sources.Commit{Files: files}, nil)
		if err != nil || len(all) != 1 || all[0].Latest == nil {
			t.Fatalf("%v, %v", all, err)
		}
		if p := all[0]; !strings.HasPrefix(p.Excluded, "broken") || p.Latest.Error != "" || p.Latest.Types.Breaking == 0 {
			t.Errorf("excluded %q, latest %+v", p.Excluded, p.Latest)
		}
		b, err := packages().upgrader(t, false).Bump(t.Context(), sources.Commit{Files: files}, Request{Package: "db", Version: "latest"})
		if err != nil || len(b.Moves) != 1 {
			t.Fatalf("%+v, %v", b, err)
		}
		if m := b.Moves[0]; m.Error != "" || m.From != "v1.0.0" || m.To != "v2.0.0" || len(m.Refused) == 0 {
			t.Errorf("have %+v", m)
		}
		delete(files, "clusters.lock")
		all, _, err = packages().upgrader(t, false).Outdated(t.Context(), sources.Commit{Files: files}, nil)
		if want := "reg.io/acme/db v1.0.0 could not be read, to compare it with what is newer"; err != nil || all[0].Latest.Error != want && version == "v1.0.0" {
			t.Errorf("without a lock: %v, %v, want %s", all[0].Latest, err, want)
		}
	}
}

// While it is unknown which versions are retracted, none is proposed, and a person may name
// one. The highest version that is a package has the retractions.
func TestUnknownRetractions(t *testing.T) {
	s := packages()
	s.put("reg.io/acme/db:v3.0.0", "Db:class")
	s["reg.io/acme/db:v2.0.0"].Meta.Document.Tree = map[string]any{"metadata": map[string]any{"annotations": map[string]any{rules.RetractAnnotation: "v1.1.0: loses data"}}}
	commit := sources.Commit{Files: fleet(map[string]string{"a/db.yaml": declare("db", db1)})}
	unknown := "reg.io/acme/db: it is unknown which versions the publisher retracts; name a version, or correct this first: connection refused"
	for _, tt := range []struct {
		err            error  // of reading v3.0.0
		outdated, bump string // errors
		edits          int
		note           string // of a bump to v1.1.0
	}{
		{err: fmt.Errorf("not a package: %w", sources.ErrUnfit), note: "v1.1.0 is retracted: loses data"},
		{err: errors.New("connection refused"), outdated: unknown, bump: unknown, note: "it is unknown whether v1.1.0 is retracted: "},
	} {
		u := s.upgrader(t, false)
		fetch := u.cfg.Fetch
		u.cfg.Fetch = func(ctx context.Context, from sources.Origin, d sources.Digest) (*sources.Package, error) {
			if d == s["reg.io/acme/db:v3.0.0"].Digest {
				return nil, tt.err
			}
			return fetch(ctx, from, d)
		}
		all, _, err := u.Outdated(t.Context(), commit, nil)
		if err != nil || len(all) != 1 || all[0].Error != tt.outdated || all[0].Update != nil {
			t.Errorf("%v: outdated has %+v, %v, want %q", tt.err, all, err, tt.outdated)
		}
		b, err := u.Bump(t.Context(), commit, Request{Package: "db"})
		if text := fmt.Sprint(err); err == nil && (tt.bump != "" || len(b.Edits) > 0) || err != nil && text != tt.bump {
			t.Errorf("%v: bump has %+v, %v, want %q", tt.err, b, err, tt.bump)
		}
		b, err = u.Bump(t.Context(), commit, Request{Package: "db", Version: "v1.1.0"})
		if err != nil || len(b.Edits) != 1 || len(b.Notes) != 1 || !strings.HasPrefix(b.Notes[0].Text, tt.note) {
			t.Errorf("%v: bump to v1.1.0 has %+v, %v, want a note %q", tt.err, b, err, tt.note)
		}
	}
}

// A query that looks like a tag is a range, unless the registry has that tag. The highest version
// of a range may be retracted or excluded by its digest.
func TestBumpRange(t *testing.T) {
	digest := string(sources.DigestOf([]byte("reg.io/acme/db:v1.2.0")))
	excludes := "---\napiVersion: gitopsd.dev/v1alpha1\nkind: Packages\nspec: {exclude: [{package: reg.io/acme/db, version: '" + digest + "', reason: slow}]}\n"
	for _, tt := range []struct {
		query, rules string
		want         string // the edit, the note, or the error
	}{
		{query: "1.2", want: "reg.io/acme/db: no version is 1.2; the registry has v2.0.0, v1.1.0, v1.0.0; v1.2.0 is retracted: loses data"},
		{query: "~1.2", want: "reg.io/acme/db: no version is ~1.2; the registry has v2.0.0, v1.1.0, v1.0.0; v1.2.0 is retracted: loses data"},
		{query: "1", want: db11},
		{query: "v1.2.0", want: "reg.io/acme/db:v1.2.0, v1.2.0 is retracted: loses data"},
		{query: "1", rules: excludes, want: db11},
		{query: "1.2", rules: excludes, want: "reg.io/acme/db: no version is 1.2; the registry has v2.0.0, v1.1.0, v1.0.0; v1.2.0 is excluded: slow (clusters.yaml:19)"},
	} {
		s := packages()
		s.put("reg.io/acme/db:v1.2.0", "Db:size,class")
		if tt.rules == "" {
			s["reg.io/acme/db:v2.0.0"].Meta.Document.Tree = map[string]any{"metadata": map[string]any{"annotations": map[string]any{rules.RetractAnnotation: digest + ": loses data"}}}
		}
		files := fleet(map[string]string{"a/db.yaml": declare("db", db1)})
		files["clusters.yaml"].Data = append(files["clusters.yaml"].Data, tt.rules...)
		b, err := s.upgrader(t, false).Bump(t.Context(), sources.Commit{Files: files}, Request{Package: "db", Version: tt.query})
		var have []string
		if err != nil {
			have = append(have, err.Error())
		} else {
			for _, e := range b.Edits {
				have = append(have, e.To)
			}
			for _, n := range b.Notes {
				have = append(have, n.String())
			}
		}
		if have := strings.Join(have, ", "); have != tt.want {
			t.Errorf("%s %s: have %s\nwant %s", tt.query, tt.rules, have, tt.want)
		}
	}
}

func candidates(p *Versions) (all []*Candidate) {
	for _, c := range []*Candidate{p.Update, p.Latest} {
		if c != nil && !slices.Contains(all, c) {
			all = append(all, c)
		}
	}
	return all
}

// What a cluster would refuse for want of a signature is neither compared nor
// moved to; a cluster that asks for none is not held up.
func TestSigned(t *testing.T) {
	const policy = "apiVersion: pkg.crossplane.io/v1beta1\nkind: ImageConfig\nmetadata: {name: signed}\nspec:\n  matchImages: [{prefix: reg.io/acme/}]\n" +
		"  verification: {provider: Cosign, cosign: {authorities: [{name: ci, keyless: {identities: [{issuer: https://x, subject: y}]}}]}}\n"
	files := fleet(map[string]string{"a/db.yaml": declare("db", db1), "a/signed.yaml": policy, "b/db.yaml": declare("db", db1)})
	all, state, err := packages().upgrader(t, false).Outdated(t.Context(), sources.Commit{Files: files}, nil)
	if err := errors.Join(err, state.Err()); err != nil || len(all) != 1 || all[0].Update == nil {
		t.Fatalf("%v, %v", all, err)
	}
	if have, want := all[0].Update.Error, "reg.io/acme/db:v1.1.0: not signed by ci: unfit"; have != want || len(all[0].Update.Changes) > 0 {
		t.Errorf("error %q with %v, want %q", have, all[0].Update.Changes, want)
	}
	_, err = packages().upgrader(t, false).Bump(t.Context(), sources.Commit{Files: files}, Request{Package: "db"})
	if err == nil || !strings.Contains(err.Error(), "nothing was written") || !strings.Contains(err.Error(), "not signed by ci") {
		t.Errorf("bump: error %v", err)
	}
	b, err := packages().upgrader(t, false).Bump(t.Context(), sources.Commit{Files: files}, Request{Package: "db", Clusters: []string{"b"}})
	if err != nil || len(b.Edits) != 1 {
		t.Errorf("bump of b: %v, %v", b, err)
	}
}

// A package whose version is gone is looked for where the cluster would get it.
func TestMirrorOfWhatIsGone(t *testing.T) {
	s := packages()
	s.put("mirror.io/acme/cache:v1.1.0", "Cache:size")
	files := fleet(map[string]string{
		"a/cache.yaml":  declare("cache", "reg.io/acme/cache:v1.0.0"),
		"a/mirror.yaml": "apiVersion: pkg.crossplane.io/v1beta1\nkind: ImageConfig\nmetadata: {name: m}\nspec: {matchImages: [{prefix: reg.io/}], rewriteImage: {prefix: mirror.io/}}\n",
	})
	b, err := s.upgrader(t, false).Bump(t.Context(), sources.Commit{Files: files}, Request{Package: "cache"})
	if err != nil || len(b.Edits) != 1 || !strings.HasSuffix(b.Edits[0].To, "reg.io/acme/cache:v1.1.0") {
		t.Errorf("%v, %v", b, err)
	}
}
