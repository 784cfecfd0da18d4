package devcluster

import (
	"context"
	"encoding/json"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

// Tests share the running clusters, and can add, stop and resume some.
func TestStart(t *testing.T) {
	p := Start(t, "one")
	if again := Start(t, "one"); again != p {
		t.Error("a second test got control planes of its own")
	}
	if more := Start(t, "one", "two"); more != p || p.Kubeconfig("one") == p.Kubeconfig("two") {
		t.Error("another cluster is not beside the first")
	}
	for _, name := range []string{"one", "two"} {
		if v, err := version(p.Kubeconfig(name)); err != nil || !strings.HasPrefix(v, "v1.") {
			t.Errorf("%s: version %q, %v", name, v, err)
		}
	}
	if err := p.Stop(t.Context(), "two"); err != nil {
		t.Fatal(err)
	}
	if v, err := version(p.Kubeconfig("two")); err == nil {
		t.Errorf("it answers with %s although it is stopped", v)
	}
	if err := p.Resume(t.Context(), "two"); err != nil {
		t.Fatal(err)
	}
	if _, err := version(p.Kubeconfig("two")); err != nil {
		t.Error(err)
	}
}

func version(kubeconfig string) (string, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return "", err
	}
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return "", err
	}
	r, err := client.Get(cfg.Host + "/version")
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	var v struct{ GitVersion string }
	err = json.NewDecoder(r.Body).Decode(&v)
	return v.GitVersion, err
}

// Close leaves neither processes nor files.
func TestClose(t *testing.T) {
	dir := t.TempDir()
	p, err := Up(t.Context(), Config{Dir: dir, NoControllerManager: true}, "brief")
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", p.Kubeconfig("brief"))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	server, err := url.Parse(cfg.Host)
	if err != nil {
		t.Fatal(err)
	}
	if conn, err := net.Dial("tcp", server.Host); err == nil {
		conn.Close()
		t.Error("the API server still listens")
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

func TestUpFails(t *testing.T) {
	_, err := Up(t.Context(), Config{Dir: t.TempDir()}, "Not-A-Name")
	if err == nil || !strings.Contains(err.Error(), "Not-A-Name") {
		t.Errorf("error %v, want one that says what is wrong with the name", err)
	}
	if _, err := Up(t.Context(), Config{Dir: t.TempDir(), Binary: "/nowhere"}, "a"); err == nil {
		t.Error("a binary that is not there was started")
	}
}

// The binary is rebuilt only when its sources change.
func TestHashSources(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	hash := func() string {
		t.Helper()
		h, err := hashSources(dir)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	write("main.go", "package main")
	first := hash()
	write("README.md", "x")
	write("main_test.go", "package main")
	if hash() != first {
		t.Error("what is not built in changes the hash")
	}
	write("main.go", "package main // changed")
	if hash() == first {
		t.Error("a changed source does not change the hash")
	}
	changed := hash()
	write("go.sum", "x")
	if hash() == changed {
		t.Error("a changed go.sum does not change the hash")
	}
}

func TestBinary(t *testing.T) {
	t.Setenv(BinaryVariable, "/nowhere/devcluster")
	if _, err := Binary(context.Background(), os.Stderr); err == nil || !strings.Contains(err.Error(), BinaryVariable) {
		t.Errorf("error %v, want one that names %s", err, BinaryVariable)
	}
}
