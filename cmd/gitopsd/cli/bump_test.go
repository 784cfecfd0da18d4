package cli

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"gitopsd.dev/reconcile/upgrade"
	"gitopsd.dev/render/edit"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/lockfile"
)

// Of two bumps at the same time, the second writes nothing over what the first has written.
func TestWriteBumpMeanwhile(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, err string }{
		{"prod/db.yaml", "prod/db.yaml was changed meanwhile; nothing was written: run the command again"},
		{sources.LockFile, "clusters.lock was changed meanwhile; nothing was written: run the command again"},
		{"prod/other.yaml", ""},
	} {
		root := t.TempDir()
		write := func(name, content string) {
			t.Helper()
			if err := os.WriteFile(filepath.Join(root, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Mkdir(filepath.Join(root, "prod"), 0o700); err != nil {
			t.Fatal(err)
		}
		write("prod/db.yaml", "v1")
		tree, err := openTree(t.Context(), root)
		if err != nil {
			t.Fatal(err)
		}
		defer tree.Close()
		seen := edit.NewSnapshot(tree.commit.Files)
		if _, err := fs.ReadFile(seen, "prod/db.yaml"); err != nil {
			t.Fatal(err)
		}
		write(tt.name, "of the first")
		if content, err := fs.ReadFile(seen, "prod/db.yaml"); err != nil || string(content) != "v1" {
			t.Errorf("%s: the bump reads %q, %v", tt.name, content, err)
		}
		b := &upgrade.Bump{Files: map[string][]byte{"prod/db.yaml": []byte("v2")}, Before: new(lockfile.File), Lock: new(lockfile.File)}
		err = writeBump(root, seen, b)
		if tt.err == "" && err != nil || tt.err != "" && (err == nil || err.Error() != tt.err) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.err)
		}
		want := map[bool]string{true: "v2", false: "v1"}[tt.err == ""]
		if tt.name == "prod/db.yaml" {
			want = "of the first"
		}
		if content, err := os.ReadFile(filepath.Join(root, "prod/db.yaml")); err != nil || string(content) != want {
			t.Errorf("%s: the file has %q, %v, want %q", tt.name, content, err, want)
		}
	}
}

// A move to another digest of the same tag shows the digests.
func TestMovedTag(t *testing.T) {
	m := &upgrade.Move{Repository: "reg.io/p", From: "v1", To: "v1", FromDigest: sources.DigestOf([]byte("a")), ToDigest: sources.DigestOf([]byte("b"))}
	if have, want := moved(m), "reg.io/p v1 (sha256:"+m.FromDigest.Short()+") -> v1 (sha256:"+m.ToDigest.Short()+")"; have != want {
		t.Errorf("have %s\nwant %s", have, want)
	}
}
