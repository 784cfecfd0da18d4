package devcluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// BinaryVariable is the environment variable with the path of a devcluster that
// is already built; kubectl is beside it.
const BinaryVariable = "GITOPSD_DEVCLUSTER"

// Binary returns the path of devcluster: the value of BinaryVariable, or else a
// binary built from the sources in this repository and kept, with kubectl, in the
// user's cache directory under their hash. Processes that need it at the same time
// build it once. A build reports on log: with a cold cache it takes minutes.
func Binary(ctx context.Context, log io.Writer) (string, error) {
	if path := os.Getenv(BinaryVariable); path != "" {
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("%s: %w", BinaryVariable, err)
		}
		return path, nil
	}
	source, err := sourceDir()
	if err != nil {
		return "", err
	}
	hash, err := hashSources(source)
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("where to keep devcluster: %w", err)
	}
	cache = filepath.Join(cache, "gitopsd")
	dir := filepath.Join(cache, "devcluster-"+hash)
	path := filepath.Join(dir, "devcluster")
	if exists(dir) {
		return path, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	unlock, err := lock(ctx, filepath.Join(cache, "devcluster.lock"), log)
	if err != nil {
		return "", err
	}
	defer unlock()
	if exists(dir) {
		return path, nil
	}
	if err := build(ctx, source, dir, log); err != nil {
		return "", err
	}
	removeOthers(cache, dir)
	return path, nil
}

// Kubectl returns a command that runs the kubectl beside devcluster.
func Kubectl(ctx context.Context, args ...string) (*exec.Cmd, error) {
	binary, err := Binary(ctx, io.Discard)
	if err != nil {
		return nil, err
	}
	return exec.CommandContext(ctx, filepath.Join(filepath.Dir(binary), "kubectl"), args...), nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// build makes dir with both programs.
func build(ctx context.Context, source, dir string, log io.Writer) error {
	fmt.Fprintln(log, "building devcluster: etcd, kube-apiserver and Kubernetes' controllers; some minutes when the cache is cold")
	start := time.Now()
	made, err := os.MkdirTemp(filepath.Dir(dir), "new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(made)
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", made, ".", "./kubectl")
	cmd.Dir = source
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building devcluster in %s: %w\n%s", source, err, out)
	}
	fmt.Fprintf(log, "devcluster was built in %s\n", time.Since(start).Round(time.Second))
	return os.Rename(made, dir)
}

// removeOthers removes binaries of older sources; one that is running is not
// disturbed.
func removeOthers(cache, dir string) {
	old, _ := filepath.Glob(filepath.Join(cache, "devcluster-*"))
	for _, o := range old {
		if o != dir {
			os.RemoveAll(o)
		}
	}
}

// sourceDir finds cmd/devcluster from the working directory, which in a test is
// the directory of its package.
func sourceDir() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for at := dir; ; at = filepath.Dir(at) {
		source := filepath.Join(at, "cmd", "devcluster")
		if exists(filepath.Join(source, "go.mod")) {
			return source, nil
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("no cmd/devcluster above %s; run this inside the repository, or name a binary with %s", dir, BinaryVariable)
		}
	}
}

// hashSources returns the hash of everything that the binary is built from: Go
// files, go.mod and go.sum, and the toolchain's version.
func hashSources(dir string) (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		name := d.Name()
		if err != nil || d.IsDir() || strings.HasSuffix(name, "_test.go") ||
			!strings.HasSuffix(name, ".go") && name != "go.mod" && name != "go.sum" {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		fmt.Fprintf(h, "%s %x\n", rel, sha256.Sum256(content))
		return err
	})
	if err != nil {
		return "", fmt.Errorf("the sources of devcluster: %w", err)
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

// lock acquires a lock that the kernel releases when this process ends.
func lock(ctx context.Context, path string, log io.Writer) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	told := false
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if err != syscall.EWOULDBLOCK {
			f.Close()
			return nil, fmt.Errorf("locking %s: %w", path, err)
		}
		if !told {
			fmt.Fprintln(log, "waiting for another process that builds devcluster")
			told = true
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}
