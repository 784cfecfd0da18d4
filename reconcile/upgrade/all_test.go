package upgrade

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"gitopsd.dev/render/edit"
	"gitopsd.dev/sources"
)

// All packages move, each to what those before it allow. One that cannot be moved is an
// error, and a second run has nothing to do.
func TestBumpAll(t *testing.T) {
	shelf := packages()
	shelf.put("reg.io/acme/app:v1.1.0", "App:name,colour", "reg.io/acme/db <2.0.0")
	digest := string(sources.DigestOf([]byte("reg.io/other/db:v1.0.0")))
	files := fleet(map[string]string{
		"a/db.yaml":     declare("db", db1),
		"a/app.yaml":    declare("app", "reg.io/acme/app:v1.0.0"),
		"b/db.yaml":     declare("db", db11),
		"b/other.yaml":  declare("other", "reg.io/other/db@"+digest),
		"c/silent.yaml": declare("silent", "reg.io/acme/silent:v1.0.0"),
	})
	u := shelf.upgrader(t, false)
	bump := func(commit sources.Commit, clusters ...string) (*Bump, string) {
		t.Helper()
		b, err := u.BumpAll(t.Context(), commit, clusters)
		if b == nil {
			t.Fatal(err)
		}
		if err == nil {
			return b, ""
		}
		return b, err.Error()
	}
	b, failed := bump(sources.Commit{Files: files})
	var edits, moves, notes []string
	for _, e := range b.Edits {
		edits = append(edits, e.String()+" "+e.To+" "+strings.Join(e.Clusters, ","))
	}
	for _, m := range b.Moves {
		moves = append(moves, m.Repository+" "+m.From+" "+m.To+" "+strings.Join(m.Clusters, ","))
	}
	for _, n := range b.Notes {
		notes = append(notes, n.String())
	}
	for _, is := range []struct{ have, want []string }{
		{edits, []string{"a/app.yaml:6 reg.io/acme/app:v1.1.0 a", "a/db.yaml:6 " + db11 + " a"}},
		{moves, []string{"reg.io/acme/app v1.0.0 v1.1.0 a", "reg.io/acme/db v1.0.0 v1.1.0 a"}},
		{notes, []string{
			"db: b: v1.1.0 is the newest of its major version; db@v2.0.0 goes to the next",
			"reg.io/other/db: cluster b declares it by its digest alone, which says nothing about versions; name the one to go to: db@VERSION",
		}},
	} {
		if !slices.Equal(is.have, is.want) {
			t.Errorf("%q\nwant %q", is.have, is.want)
		}
	}
	if !strings.Contains(failed, "reg.io/acme/silent: its tags are not listed") {
		t.Errorf("error %q", failed)
	}
	if _, ok := b.Lock.Digest("reg.io/acme/db", "v1.1.0"); !ok || len(b.Before.Clusters()) > 0 {
		t.Errorf("lock before:\n%s\nafter:\n%s", b.Before.Format(), b.Lock.Format())
	}

	// Nothing is left to do, but for what failed.
	again, failed := bump(sources.Commit{Files: edit.Overlay(files, b.Files)})
	if len(again.Edits)+len(again.Moves) > 0 || !strings.Contains(failed, "not listed") {
		t.Errorf("edits %v, moves %v, error %q", again.Edits, again.Moves, failed)
	}

	// Clusters limit it, and what they do not declare is no error.
	one, failed := bump(sources.Commit{Files: files}, "b")
	if len(one.Edits) > 0 || failed != "" {
		t.Errorf("edits %v, error %q", one.Edits, failed)
	}
	if b, err := u.BumpAll(t.Context(), sources.Commit{Files: files}, []string{"d"}); b != nil || err == nil || !strings.Contains(err.Error(), `cluster "d" is not registered`) {
		t.Errorf("%v %v", b, err)
	}
	if b, err := u.BumpAll(t.Context(), sources.Commit{Files: fleet(nil)}, nil); b != nil || err == nil || err.Error() != "no cluster declares a package" {
		t.Errorf("%v %v", b, err)
	}
}

// What cannot be read is left out, and told.
func TestBumpLeavesOut(t *testing.T) {
	broken := fleet(map[string]string{
		"a/db.yaml": declare("db", db1),
		"b/db.yaml": declare("db", db1) + "  packagePullPolicy: Alwys\n",
		"c/db.yaml": declare("db", db1), "c/bad.yaml": "kind: [\n",
	})
	registry := fleet(map[string]string{"a/db.yaml": declare("db", db1)})
	registry["clusters.yaml"].Data = []byte(strings.Replace(string(registry["clusters.yaml"].Data), "path: c", "paht: c", 1))
	for _, tt := range []struct {
		name  string
		files fstest.MapFS
		req   Request
		want  []string
	}{
		{"one", broken, Request{Package: "db"}, []string{"c: left out, since its manifests cannot be read: c/bad.yaml", "b: the declaration of db is left out, since it has errors (b/db.yaml:1)"}},
		{"one of a cluster", broken, Request{Package: "db", Clusters: []string{"a"}}, nil},
		{"all", broken, Request{}, []string{"c: left out, since", "b: the declaration of db is left out, since"}},
		{"the registry", registry, Request{Package: "db"}, []string{"clusters whose documents cannot be read are left out: clusters.yaml:15: paht"}},
		{"all, and the registry", registry, Request{}, []string{"clusters whose documents cannot be read are left out: clusters.yaml:15: paht"}},
	} {
		u, commit := packages().upgrader(t, false), sources.Commit{Files: tt.files}
		bump := func() (*Bump, error) { return u.Bump(t.Context(), commit, tt.req) }
		if tt.req.Package == "" {
			bump = func() (*Bump, error) { return u.BumpAll(t.Context(), commit, nil) }
		}
		b, err := bump()
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		var notes []string
		for _, n := range b.Notes {
			if text := n.String(); strings.Contains(text, "left out") {
				notes = append(notes, text)
			}
		}
		have := strings.Join(notes, "\n")
		for _, want := range tt.want {
			if !strings.Contains(have, want) {
				t.Errorf("%s: notes\n%s\nwant %q", tt.name, have, want)
			}
		}
		if len(notes) != len(tt.want) || len(b.Edits) != 1 {
			t.Errorf("%s: notes\n%s\nedits %v", tt.name, have, b.Edits)
		}
	}
}
