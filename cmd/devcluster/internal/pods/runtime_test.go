package pods

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// runtimeOf returns a runtime without an API server, for pods without references.
func runtimeOf(t *testing.T) *Runtime {
	t.Helper()
	r, err := New(Config{API: &rest.Config{}, Dir: t.TempDir(), Logs: t.TempDir(), Changed: func(string, string) {}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// runs starts a pod that is a shell script, waits until it has written the file
// "started" in its directory, and returns that directory.
func runs(t *testing.T, r *Runtime, name, script string) string {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-of-" + name)},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}},
	}
	if _, err := r.Run(pod, "10.244.0.1", map[string][]string{"c": {"/bin/sh", "-c", script}}); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(podsIn(r.cfg.Dir), string(pod.UID))
	eventually(t, name+" has started", func() error {
		_, err := os.Stat(filepath.Join(dir, "started"))
		return err
	})
	return dir
}

func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
	}
}

// isGone checks that the process with the ID in a file has ended.
func isGone(t *testing.T, file string) func() error {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return func() error {
		// A zombie has ended, too.
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || bytes.Contains(stat, []byte(") Z ")) {
			return nil
		}
		return errors.New("it runs")
	}
}

// A grace period of an hour is cut by a later, shorter one.
func TestGraceBecomesShorter(t *testing.T) {
	t.Parallel()
	const stubborn = `trap '' TERM; echo $$ >pid; touch started; while :; do sleep 0.02; done`
	for name, shorten := range map[string]func(*Runtime){
		"deleted-again": func(r *Runtime) { r.Stop("default", "deleted-again", 0) },
		"the-node-ends": func(r *Runtime) { r.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := runtimeOf(t)
			gone := isGone(t, filepath.Join(runs(t, r, name, stubborn), "pid"))
			if r.Stop("default", name, time.Hour) || gone() == nil {
				t.Error("it ended at once")
			}
			shorten(r)
			eventually(t, "its process is gone", gone)
		})
	}
}

// The processes that a container starts end with it, even in sessions of their own.
func TestDescendantsEnd(t *testing.T) {
	t.Parallel()
	const daemon = `setsid sh -c 'trap "" TERM; echo $$ >pid; touch started; while :; do sleep 0.02; done' & wait`
	r := runtimeOf(t)
	dir := runs(t, r, "stopped", daemon)
	gone := isGone(t, filepath.Join(dir, "pid"))
	r.Stop("default", "stopped", 0)
	eventually(t, "it is gone with its pod", gone)
	eventually(t, "the pod's directory is gone", func() error {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("it is there: %w", err)
		}
		return nil
	})
	// The next runtime ends those of a killed one.
	dir = runs(t, r, "left", strings.Replace(daemon, "wait", "wait; sleep 60", 1))
	gone = isGone(t, filepath.Join(dir, "pid"))
	if err := End(r.cfg.Dir + "0"); err != nil || gone() == nil {
		t.Errorf("it belongs to another directory, and has ended; %v", err)
	}
	if err := End(r.cfg.Dir); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is gone", gone)
	r.Stop("default", "left", 0)
}

// A process with endless output does not fill the disk.
func TestLogIsBounded(t *testing.T) {
	t.Parallel()
	r := runtimeOf(t)
	runs(t, r, "talker", fmt.Sprintf(`yes 0123456789abcdef | head -c %d; echo the last word; touch started; sleep 60`, logSize+logKept))
	path := filepath.Join(r.cfg.Logs, "default", "talker", "c.log")
	eventually(t, "only its end is kept", func() error {
		log, err := os.ReadFile(path)
		if err == nil && (len(log) > 2*logKept || !bytes.HasPrefix(log, []byte("(devcluster has dropped what was before)\n01234")) ||
			!bytes.HasSuffix(log, []byte("the last word\n"))) {
			err = fmt.Errorf("%d bytes, which begin with %.60q and end with %q", len(log), log, log[max(0, len(log)-30):])
		}
		return err
	})
	r.Stop("default", "talker", 0)
}
