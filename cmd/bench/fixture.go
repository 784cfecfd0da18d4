package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/oci"
	"gitopsd.dev/sources/xpkg"
	"gitopsd.dev/testscripts/devcluster"
	"gitopsd.dev/testscripts/gitserver"
	"gitopsd.dev/testscripts/registry"
	"gitopsd.dev/testscripts/upstream"
)

// fixture makes the servers and files of an experiment, in a directory of its own. close
// ends and removes them.
type fixture struct {
	dir    string
	log    io.Writer
	closes []func() error
}

func newFixture(log io.Writer) (*fixture, error) {
	dir, err := os.MkdirTemp("", "gitopsd-bench-")
	return &fixture{dir: dir, log: log, closes: []func() error{func() error { return os.RemoveAll(dir) }}}, err
}

func (f *fixture) close() error {
	var errs []error
	for _, end := range slices.Backward(f.closes) {
		errs = append(errs, end())
	}
	return errors.Join(errs...)
}

// benchCluster is the name of the measured cluster.
const benchCluster = "bench"

// controlPlane starts a control plane, and returns the path of its kubeconfig. It has no
// controllers, since their requests would count as work of the server.
func (f *fixture) controlPlane(ctx context.Context) (kubeconfig string, err error) {
	planes, err := f.planes(ctx, devcluster.Config{NoControllerManager: true})
	if err != nil {
		return "", err
	}
	return planes.Kubeconfig(benchCluster), nil
}

// planes starts a control plane. More can be added.
func (f *fixture) planes(ctx context.Context, cfg devcluster.Config) (*devcluster.ControlPlanes, error) {
	fmt.Fprintln(f.log, "bench: starting a control plane")
	cfg.Dir, cfg.Log = filepath.Join(f.dir, "cluster"), f.log
	if err := os.Mkdir(cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	planes, err := devcluster.Up(ctx, cfg, benchCluster)
	if err == nil {
		f.closes = append(f.closes, planes.Close)
	}
	return planes, err
}

// gitServer starts a Git server.
func (f *fixture) gitServer() (*gitserver.Server, error) {
	server, err := gitserver.New(gitserver.Config{Root: filepath.Join(f.dir, "git")})
	if err == nil {
		f.closes = append(f.closes, server.Close)
	}
	return server, err
}

// publish builds the package in a directory, and pushes it to repositories of a new
// registry in this process.
func (f *fixture) publish(ctx context.Context, dir string, repositories ...string) (host string, digest sources.Digest, err error) {
	image, err := xpkg.Build(os.DirFS(dir), nil)
	if err != nil {
		return "", "", err
	}
	reg, err := registry.New(registry.Config{})
	if err != nil {
		return "", "", err
	}
	f.closes = append(f.closes, func() error { reg.Close(); return nil })
	client, err := oci.New(oci.Config{})
	if err != nil {
		return "", "", err
	}
	defer client.Close()
	for _, repository := range repositories {
		if err := image.Push(ctx, client, sources.Ref{Repository: reg.Host() + repository, Tag: "v1"}); err != nil {
			return "", "", err
		}
	}
	return reg.Host(), image.Digest(), nil
}

// upstream writes the files of the largest package, and returns their directory.
func (f *fixture) upstream(ctx context.Context) (dir string, err error) {
	dir = filepath.Join(f.dir, "package")
	return dir, upstream.Write(ctx, upstream.ProviderAWS, upstream.ProviderAWSVersion, dir, f.log)
}

// crds writes n of the largest package's CRDs, evenly spread, into one file.
func (f *fixture) crds(ctx context.Context, n int) (file string, err error) {
	source, err := f.upstream(ctx)
	if err != nil {
		return "", err
	}
	var files []string
	err = filepath.WalkDir(source, func(name string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && d.Name() != "crossplane.yaml" {
			files = append(files, name)
		}
		return err
	})
	if err != nil {
		return "", err
	}
	if n > len(files) {
		return "", fmt.Errorf("-crds %d: the package has %d", n, len(files))
	}
	var all bytes.Buffer
	for i := range n {
		text, err := os.ReadFile(files[i*len(files)/n])
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&all, "---\n%s\n", bytes.TrimPrefix(bytes.TrimSpace(text), []byte("---")))
	}
	file = filepath.Join(f.dir, "crds.yaml")
	return file, os.WriteFile(file, all.Bytes(), 0o600)
}

// serverChild starts this program as a server that runs until its standard input ends. The
// server prints its address to stdout.
func (f *fixture) serverChild(ctx context.Context, args ...string) (stdout io.Reader, pid serverProcess, err error) {
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Stderr = f.log
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, 0, err
	}
	if stdout, err = cmd.StdoutPipe(); err != nil {
		return nil, 0, err
	}
	if err := cmd.Start(); err != nil {
		return nil, 0, err
	}
	f.closes = append(f.closes, func() error { return errors.Join(stdin.Close(), cmd.Wait()) })
	return stdout, serverProcess(cmd.Process.Pid), nil
}

// unused returns an address of a host at which nobody listens.
func unused(host string) (*net.TCPAddr, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return nil, err
	}
	return l.Addr().(*net.TCPAddr), l.Close()
}
