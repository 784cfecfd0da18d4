package controlplane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"gitopsd.dev/cmd/devcluster/internal/component"
	"gitopsd.dev/cmd/devcluster/internal/pods"
	"gitopsd.dev/cmd/devcluster/internal/podspec"
	"gitopsd.dev/cmd/devcluster/internal/process"
	"gitopsd.dev/cmd/devcluster/internal/statedir"
)

// imagesFile is the file in a cluster's folder that maps images to commands.
const imagesFile = "images.json"

// SetImage makes a command stand for the images of a repository in a cluster, also for
// existing pods.
func SetImage(ctx context.Context, cfg Config, cluster, repository string, command []string) error {
	if repository != podspec.Repository(repository) || strings.TrimSpace(repository) == "" {
		return fmt.Errorf("%q is not an image's repository: leave tag and digest out", repository)
	}
	program, err := exec.LookPath(command[0])
	if err != nil {
		return fmt.Errorf("the command for %s: %w", repository, err)
	}
	if program, err = filepath.Abs(program); err != nil {
		return err
	}
	return changeImages(ctx, cfg, cluster, func(images pods.Images) error {
		images[repository] = append([]string{program}, command[1:]...)
		return nil
	})
}

// RemoveImages undoes [SetImage] for some repositories, or for all of the cluster if there
// are none. A repository that is not mapped is an error.
func RemoveImages(ctx context.Context, cfg Config, cluster string, repositories []string) error {
	return changeImages(ctx, cfg, cluster, func(images pods.Images) error {
		if len(repositories) == 0 {
			clear(images)
		}
		for _, repository := range repositories {
			if _, ok := images[repository]; !ok {
				return fmt.Errorf("no command stands for %q in %s, only for %q", repository, cluster, slices.Sorted(maps.Keys(images)))
			}
			delete(images, repository)
		}
		return nil
	})
}

// changeImages changes the images of a cluster and tells its kubelet stand-in.
func changeImages(ctx context.Context, cfg Config, cluster string, edit func(pods.Images) error) error {
	return change(ctx, cfg, []string{cluster}, func(c *command, _ *statedir.State) error {
		path := c.dir.Path(cluster, imagesFile)
		images, err := pods.LoadImages(path)
		if err != nil {
			return err
		}
		if err := edit(images); err != nil {
			return err
		}
		text, err := json.MarshalIndent(images, "", "  ")
		if err != nil {
			return err
		}
		if err := statedir.WriteFile(path, append(text, '\n')); err != nil {
			return err
		}
		kubelet, err := c.dir.Running(of(cluster, component.NameKubelet))
		if err != nil || kubelet == (process.ID{}) {
			return err // without a process, the next one reads the file at its start
		}
		if err := kubelet.Signal(syscall.SIGHUP); !errors.Is(err, process.ErrGone) {
			return err
		}
		return nil
	})
}

// ListImages prints the images of a cluster.
func ListImages(ctx context.Context, cfg Config, cluster string) error {
	return change(ctx, cfg, []string{cluster}, func(c *command, _ *statedir.State) error {
		images, err := pods.LoadImages(c.dir.Path(cluster, imagesFile))
		if err != nil {
			return err
		}
		for _, repository := range slices.Sorted(maps.Keys(images)) {
			c.say("%s: %s", repository, strings.Join(images[repository], " "))
		}
		return nil
	})
}

// Logs prints the output of the processes of a pod, NAMESPACE/NAME, or of all pods of a
// cluster if pod is empty. Output is kept until [Down].
func Logs(ctx context.Context, cfg Config, cluster, pod string) error {
	namespace, name, ok := strings.Cut(pod, "/")
	if pod != "" && (!ok || !filepath.IsLocal(namespace) || !filepath.IsLocal(name)) {
		return fmt.Errorf("pod %q: want NAMESPACE/NAME", pod)
	}
	state, err := cfg.Dir.Load()
	if err != nil {
		return err
	}
	if _, err := existing(cfg, state, cluster); err != nil {
		return err
	}
	found := false
	err = filepath.WalkDir(filepath.Join(cfg.Dir.PodLogs(cluster), namespace, name), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		found = true
		rel, err := filepath.Rel(cfg.Dir.PodLogs(cluster), path)
		if err != nil {
			return err
		}
		fmt.Fprintf(cfg.Out, "==> %s <==\n", strings.TrimSuffix(rel, ".log"))
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(cfg.Out, f)
		return errors.Join(err, ctx.Err())
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil && !found {
		return fmt.Errorf("no pod %s has run as a process in %s; `devcluster image` maps images to commands", pod, cluster)
	}
	return err
}
