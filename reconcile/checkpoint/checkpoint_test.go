package checkpoint

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/status"
)

func TestStore(t *testing.T) {
	t.Parallel()
	s := &Store{Dir: filepath.Join(t.TempDir(), "made", "when needed")}
	if r := s.Load("dev", "input"); r != nil {
		t.Errorf("out of nothing: %+v", r)
	}
	r := &Record{
		Input: "input", Objects: 2, Notes: []string{"note"}, Packages: []status.PackageState{{Name: "p", State: "Ready"}},
		Cluster: &apply.Checkpoint{
			Kinds:      []apply.KindCheckpoint{{Type: kube.Type{Version: "v1", Kind: "Pod", Resource: "pods", Namespaced: true, Listable: true}, Members: 2, Print: "x"}},
			Namespaces: []string{"default"},
		},
	}
	older := &Record{Input: "older", Cluster: r.Cluster}
	for _, r := range []*Record{older, r} {
		if err := s.Save("dev", r); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.Load("dev", "input"); !got.Equal(r) {
		t.Errorf("%+v", got)
	}
	if got := s.Load("dev", "older"); got != nil {
		t.Errorf("what was overwritten: %+v", got)
	}
	if got := s.Load("prod", "input"); got != nil {
		t.Errorf("of another cluster: %+v", got)
	}
	files, err := os.ReadDir(s.Dir)
	if err != nil || len(files) != 1 {
		t.Errorf("left behind: %v, %v", files, err)
	}
	// Of a cluster that is not at rest, only the certificates are known.
	certificate := status.Certificate{Secret: "acme/hooks-tls", Use: status.Serving, Expires: time.Unix(1e9, 0).UTC()}
	if err := s.Save("dev", &Record{Certificates: []status.Certificate{certificate}}); err != nil {
		t.Fatal(err)
	}
	if got := s.Load("dev", ""); got != nil {
		t.Errorf("not at rest: %+v", got)
	}
	if got := s.Certificates("dev"); len(got) != 1 || got[0] != certificate {
		t.Errorf("certificates %+v", got)
	}
	for range 2 {
		if err := s.Delete("dev"); err != nil {
			t.Error(err)
		}
	}
	if got := s.Load("dev", "input"); got != nil {
		t.Errorf("deleted: %+v", got)
	}
}

// What is not a record is none.
func TestGarbled(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"empty": "", "no JSON": "\x00\x00", "cut off": `{"input":"input","cluster":{"kin`, "null": "null",
		"another type": `[]`, "no cluster": `{"input":"input"}`,
	} {
		s := &Store{Dir: t.TempDir()}
		if err := os.WriteFile(filepath.Join(s.Dir, "dev.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if r := s.Load("dev", "input"); r != nil {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// A place that cannot be written to is an error that names the cluster.
func TestSaveFails(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := &Store{Dir: filepath.Join(file, "below")}
	if err := s.Save("dev", &Record{}); err == nil || !strings.Contains(err.Error(), "cluster dev") {
		t.Error(err)
	}
}
