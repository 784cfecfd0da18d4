package pods

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func TestImages(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "images.json")
	if images, err := LoadImages(path); err != nil || len(images) != 0 {
		t.Errorf("no file: %v, %v", images, err)
	}
	for text, bad := range map[string]bool{
		`{"nginx": ["/bin/web"], "localhost:5000/a": ["/bin/a", "-x"]}`: false,
		`{"nginx": []}`: true,
		`{"nginx": `:    true,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadImages(path); (err != nil) != bad || err != nil && !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", text, err)
		}
	}
	images := Images{"nginx": {"/bin/web"}, "localhost:5000/a": {"/bin/a", "-x"}}
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{
		{Name: "one", Image: "localhost:5000/a:v1@sha256:12"}, {Name: "two", Image: "nginx:1"}, {Name: "three", Image: "docker.io/library/nginx"},
	}}}
	want := map[string][]string{"one": {"/bin/a", "-x"}, "two": {"/bin/web"}}
	if got := images.Commands(pod); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	var a, b addresses
	defer a.close()
	defer b.close()
	seen := map[netip.Addr]bool{}
	take := func(from *addresses) netip.Addr {
		t.Helper()
		addr, err := from.take()
		if err != nil {
			t.Fatal(err)
		}
		if seen[addr] || !addr.IsLoopback() || addr == netip.MustParseAddr("127.0.0.1") {
			t.Errorf("%s", addr)
		}
		seen[addr] = true
		return addr
	}
	for range 300 { // more than a block
		take(&a)
	}
	addr := take(&b)
	b.release(addr)
	take(&b) // another one, so far
	l, err := net.Listen("tcp4", netip.AddrPortFrom(addr, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	// Nobody else can claim a claimed block until its owner ends.
	name := "@devcluster-pods-" + b.blocks[0].first.String()
	if _, err := net.Listen("unix", name); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("claimed twice: %v", err)
	}
	b.close()
	again, err := net.Listen("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}

func read(t *testing.T, dir string) map[string]string {
	t.Helper()
	got := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || strings.HasPrefix(d.Name(), "..") {
			if d != nil && d.IsDir() {
				return fs.SkipDir
			}
			return err
		}
		if info, err := os.Stat(path); err != nil || info.IsDir() {
			if err == nil && d.Type()&fs.ModeSymlink != 0 {
				for name, text := range read(t, path+"/.") {
					got[filepath.Join(d.Name(), name)] = text
				}
			}
			return err
		}
		text, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, path)
		got[rel] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestReplaceFiles(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "volume")
	for _, want := range []map[string]string{
		{"a": "1", "b": "1", "c/d": "1", "c/e": "1"},
		{"a": "2", "c/d": "2"},
		{},
		{"a": "3", "f/g/h": "3"},
		{"a": "3", "f": "a file where a directory was"},
	} {
		files := map[string][]byte{}
		for path, text := range want {
			files[path] = []byte(text)
		}
		if err := replaceFiles(dir, files); err != nil {
			t.Fatal(err)
		}
		// A file that a process creates does not stay in the volume.
		for _, path := range []string{"f", "mine/too"} {
			if err := os.RemoveAll(filepath.Join(dir, "f")); err != nil {
				t.Fatal(err)
			}
			if err := os.MkdirAll(filepath.Join(dir, path, "sub"), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if err := replaceFiles(dir, files); err != nil {
			t.Fatal(err)
		}
		if got := read(t, dir); !reflect.DeepEqual(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	left, err := filepath.Glob(filepath.Join(dir, "..*"))
	if err != nil || len(left) != 2 { // ..data and what it leads to
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// A reader always sees all files of one version.
func TestReplaceFilesIsAtomic(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "volume")
	write := func(n int) {
		text := []byte(fmt.Sprint(n))
		if err := replaceFiles(dir, map[string][]byte{"crt": text, "key": text}); err != nil {
			t.Error(err)
		}
	}
	write(0)
	var stop atomic.Bool
	var reader sync.WaitGroup
	reader.Go(func() {
		for !stop.Load() {
			version, err := os.Readlink(filepath.Join(dir, current))
			if err != nil {
				t.Error(err)
				return
			}
			crt, errCrt := os.ReadFile(filepath.Join(dir, version, "crt"))
			key, errKey := os.ReadFile(filepath.Join(dir, version, "key"))
			if errCrt == nil && errKey == nil && string(crt) != string(key) {
				t.Errorf("crt of %s, key of %s", crt, key)
			}
		}
	})
	for n := range 200 {
		write(n)
	}
	stop.Store(true)
	reader.Wait()
}

func TestWait(t *testing.T) {
	t.Parallel()
	s := newSpawner()
	for _, tt := range []struct {
		name, script string
		stop, kill   bool
		code, signal int32
	}{
		{"success", "exit 0", false, false, 0, 0},
		{"failure", "exit 3", false, false, 3, 0},
		{"killed by itself", "kill -KILL $$", false, false, 137, 9},
		{"stopped", "echo ready; exec sleep 60", true, false, 143, 15},
		{"stopped, and obeys", `trap 'exit 5' TERM; echo ready; while :; do sleep 0.01; done`, true, false, 5, 0},
		{"stopped, and does not obey", `trap '' TERM; echo ready; while :; do sleep 0.01; done`, true, true, 137, 9},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			out, in, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer out.Close()
			cmd := exec.Command("sh", "-c", tt.script)
			cmd.Stdout = in
			if err := s.start(cmd); err != nil {
				t.Fatal(err)
			}
			in.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if tt.stop {
				if _, err := out.Read(make([]byte, 6)); err != nil {
					t.Fatal(err)
				}
				cancel()
			}
			killed := make(chan struct{})
			if tt.kill {
				close(killed)
			}
			code, signal := exitOf(wait(ctx, cmd, killed))
			if code != tt.code || signal != tt.signal {
				t.Errorf("exit code %d, signal %d; want %d, %d", code, signal, tt.code, tt.signal)
			}
		})
	}
}

// A process's children end with it.
func TestWaitEndsChildren(t *testing.T) {
	t.Parallel()
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command("sh", "-c", "sleep 60 & exit 0")
	cmd.Stdout = in
	if err := newSpawner().start(cmd); err != nil {
		t.Fatal(err)
	}
	in.Close()
	wait(t.Context(), cmd, nil)
	// Nobody has the other end of the pipe open.
	if err := out.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the child runs")
	}
}

func TestRestarts(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		policy corev1.RestartPolicy
		code   int32
		want   bool
	}{
		{corev1.RestartPolicyAlways, 0, true}, {corev1.RestartPolicyAlways, 1, true},
		{corev1.RestartPolicyOnFailure, 0, false}, {corev1.RestartPolicyOnFailure, 1, true},
		{corev1.RestartPolicyNever, 0, false}, {corev1.RestartPolicyNever, 1, false},
	} {
		if got := restarts(tt.policy, tt.code); got != tt.want {
			t.Errorf("%s after %d: %v", tt.policy, tt.code, got)
		}
	}
}

func TestReadiness(t *testing.T) {
	t.Parallel()
	var status atomic.Int64
	status.Store(http.StatusServiceUnavailable)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" || r.Host != "probe.example" {
			w.WriteHeader(http.StatusTeapot)
			return
		}
		w.WriteHeader(int(status.Load()))
	}))
	defer server.Close()
	addr := server.Listener.Addr().(*net.TCPAddr).AddrPort()
	c := &corev1.Container{
		Name:  "c",
		Ports: []corev1.ContainerPort{{Name: "https", ContainerPort: int32(addr.Port())}},
		ReadinessProbe: &corev1.Probe{
			ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
				Path: "/readyz", Port: intstr.FromString("https"), Scheme: corev1.URISchemeHTTPS,
				HTTPHeaders: []corev1.HTTPHeader{{Name: "host", Value: "probe.example"}},
			}},
			PeriodSeconds: 1, SuccessThreshold: 2, FailureThreshold: 1,
		},
	}
	ready := make(chan bool)
	go watchReadiness(t.Context(), c, addr.Addr(), func(r bool) { ready <- r })
	for _, want := range []int{http.StatusOK, http.StatusInternalServerError, http.StatusFound} {
		status.Store(int64(want))
		if got := <-ready; got != (want < 400) {
			t.Errorf("with status %d: ready is %v", want, got)
		}
	}
	// Other probes, once each.
	for _, tt := range []struct {
		name  string
		probe corev1.ProbeHandler
		want  string
	}{
		{"open port", corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(int32(addr.Port()))}}, ""},
		{"closed port", corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(1)}}, "refused"},
		{"unknown port", corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("dns")}}, "container c has no port dns"},
		{"number as text", corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("1")}}, "refused"},
	} {
		c := c.DeepCopy()
		c.ReadinessProbe.ProbeHandler = tt.probe
		err := checkOf(c, addr.Addr())(t.Context())
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if checkOf(&corev1.Container{}, addr.Addr()) != nil {
		t.Error("a check without a probe")
	}
}
