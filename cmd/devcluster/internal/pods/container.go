package pods

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"gitopsd.dev/cmd/devcluster/internal/podspec"
	"gitopsd.dev/cmd/devcluster/internal/process"
)

const (
	// These are shorter than a kubelet's (10 s, 5 min and 10 min), since tests and
	// people wait here.
	firstBackoff = 200 * time.Millisecond
	mostBackoff  = 10 * time.Second
	stableAfter  = 30 * time.Second
	// messageSize is how much of its log is the message of a failed container, as with
	// terminationMessagePolicy FallbackToLogsOnError, whatever the pod's policy.
	messageSize = 2048
	// logSize bounds a log, like a kubelet's containerLogMaxSize. A longer log is cut to
	// its last logKept bytes.
	logSize = 10 << 20
	logKept = 1 << 20
)

// runContainer runs a container's process until ctx ends, or it has ended for good.
func (l *life) runContainer(ctx context.Context, c *corev1.Container, command []string) {
	backoff := firstBackoff
	for {
		begun := time.Now()
		ended := l.runOnce(ctx, c, command)
		switch {
		case ctx.Err() != nil && ended == nil:
			return
		case ctx.Err() != nil || !restarts(l.pod.Spec.RestartPolicy, ended.ExitCode):
			l.update(c.Name, func(s *Container) { s.State, s.Ready = corev1.ContainerState{Terminated: ended}, false })
			return
		}
		if time.Since(begun) > stableAfter {
			backoff = firstBackoff
		}
		l.update(c.Name, func(s *Container) {
			s.Ready = false
			s.Last = corev1.ContainerState{Terminated: ended}
			s.State = waitingState("CrashLoopBackOff",
				fmt.Sprintf("back-off %s restarting failed container=%s pod=%s_%s(%s)", backoff, c.Name, l.pod.Name, l.pod.Namespace, l.pod.UID))
		})
		if !sleep(ctx, backoff) {
			return
		}
		backoff = min(2*backoff, mostBackoff)
		l.update(c.Name, func(s *Container) { s.RestartCount++ })
	}
}

// restarts reports whether an ended container should run again.
func restarts(policy corev1.RestartPolicy, exitCode int32) bool {
	switch policy {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyOnFailure:
		return exitCode != 0
	}
	return true
}

// runOnce runs a container's process to its end. It returns nil if ctx ends before the
// process starts.
func (l *life) runOnce(ctx context.Context, c *corev1.Container, command []string) *corev1.ContainerStateTerminated {
	program, ok := l.process(ctx, c, command)
	if !ok {
		return nil
	}
	ended := &corev1.ContainerStateTerminated{StartedAt: metav1.Now()}
	log, err := os.OpenFile(l.log(c.Name), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return startError(ended, err)
	}
	defer log.Close()
	before, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return startError(ended, err)
	}
	cmd := &exec.Cmd{
		Path: program.Args[0], Args: program.Args, Dir: l.dir, Stdout: log, Stderr: log,
		Env: append(program.Env, Mark+"="+filepath.Join(l.dir, c.Name)),
	}
	if err := l.spawner.start(cmd); err != nil {
		return startError(ended, err)
	}
	l.update(c.Name, func(s *Container) {
		s.State, s.Ready = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: ended.StartedAt}}, false
	})
	probing, stop := context.WithCancel(ctx)
	var probes sync.WaitGroup
	probes.Go(func() {
		watchReadiness(probing, c, l.address, func(ready bool) {
			l.update(c.Name, func(s *Container) { s.Ready = ready })
		})
	})
	state := wait(ctx, cmd, l.killed)
	// Kill children that left the process group, too.
	if err := process.KillMarked(Mark, filepath.Join(l.dir, c.Name)); err != nil {
		utilruntime.HandleErrorWithContext(ctx, err, "Processes of a container are left", "pod", l.pod.Namespace+"/"+l.pod.Name)
	}
	stop()
	probes.Wait()
	ended.FinishedAt = metav1.Now()
	ended.ExitCode, ended.Signal = exitOf(state)
	ended.Reason = "Completed"
	if ended.ExitCode != 0 {
		ended.Reason, ended.Message = "Error", endOf(log, before)
	}
	return ended
}

func startError(ended *corev1.ContainerStateTerminated, err error) *corev1.ContainerStateTerminated {
	ended.FinishedAt = metav1.Now()
	ended.ExitCode, ended.Reason, ended.Message = 128, "StartError", err.Error()
	return ended
}

// process returns the container's process once the objects that it needs exist. It reports
// false if ctx ends before.
func (l *life) process(ctx context.Context, c *corev1.Container, command []string) (p podspec.Process, ok bool) {
	ok = retry(ctx, func() error {
		mounts, err := l.mounts(c)
		if err == nil {
			p, err = podspec.Container(l.pod, c, command, l.environment(c), l.facts(), mounts, l.references)
		}
		return err
	}, func(message string) {
		l.update(c.Name, func(s *Container) { s.State = waitingState("CreateContainerConfigError", message) })
	})
	return p, ok
}

// boundLog drops the beginning of a log that has become too long. The process continues to
// append to it; output of this very moment may be lost.
func boundLog(path string) error {
	log, err := os.OpenFile(path, os.O_APPEND|os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer log.Close()
	size, err := log.Seek(0, io.SeekEnd)
	if err != nil || size <= logSize {
		return err
	}
	text := make([]byte, logKept)
	if _, err := log.ReadAt(text, size-logKept); err != nil {
		return err
	}
	if err := log.Truncate(0); err != nil {
		return err
	}
	_, text, _ = bytes.Cut(text, []byte("\n"))
	_, err = log.Write(append([]byte("(devcluster has dropped what was before)\n"), text...))
	return err
}

// endOf returns the end of a log after an offset, or of the whole log if it was cut.
func endOf(log *os.File, from int64) string {
	size, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return err.Error()
	}
	if size < from {
		from = 0
	}
	text := make([]byte, min(size-from, messageSize))
	if _, err := log.ReadAt(text, size-int64(len(text))); err != nil {
		return err.Error()
	}
	return strings.ToValidUTF8(strings.TrimSpace(string(text)), "")
}
