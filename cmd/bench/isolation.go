package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"gitopsd.dev/cmd/gitopsd/cli"
	"gitopsd.dev/testscripts/gitserver"
)

// daemonChild is the name under which this program is gitopsd.
const daemonChild = "daemon-child"

func runDaemon(ctx context.Context, args []string) int {
	return cli.Run(ctx, cli.Env{Args: args, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, LookupEnv: os.LookupEnv})
}

const (
	healthyClusters   = 18
	objectsPerCluster = 100
)

// isolation compares the time until 18 clusters are ready with and without two more
// clusters: one hangs, the other refuses connections. All 18 are inventories of one API
// server, which has the same work both times.
func (b *bench) isolation(ctx context.Context, f *fixture) error {
	kubeconfig, err := f.controlPlane(ctx)
	if err != nil {
		return err
	}
	server, err := f.gitServer()
	if err != nil {
		return err
	}
	// This server accepts connections and never answers.
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer silent.Close()
	closed, err := unused("127.0.0.1")
	if err != nil {
		return err
	}
	l := &fleet{dir: f.dir, git: server, kubeconfig: kubeconfig, bad: []string{silent.Addr().String(), closed.String()}}
	for round := range b.rounds + 1 {
		fmt.Fprintf(b.say, "bench: isolation, round %d of %d\n", round, b.rounds)
		var took [2]float64
		for i := range took {
			with := (i+round)%2 == 0 // neither side is always the first
			d, err := l.run(ctx, fmt.Sprintf("r%d-%d", round, i), with)
			if err != nil {
				return err
			}
			if with {
				took[0] = d.Seconds()
			} else {
				took[1] = d.Seconds()
			}
		}
		if round > 0 {
			b.add("isolation", took[0], took[1])
		}
	}
	return nil
}

type fleet struct {
	dir        string
	git        *gitserver.Server
	kubeconfig string
	bad        []string // addresses of broken API servers
}

// run starts a new daemon on a new fleet, and returns the time until the working
// clusters are ready.
func (f *fleet) run(ctx context.Context, name string, withBad bool) (time.Duration, error) {
	kubeconfigs := filepath.Join(f.dir, name)
	if err := os.Mkdir(kubeconfigs, 0o700); err != nil {
		return 0, err
	}
	files := make(map[string]string)
	var registry strings.Builder
	register := func(cluster, address string) error {
		fmt.Fprintf(&registry, "---\napiVersion: gitopsd.dev/v1alpha1\nkind: Cluster\nmetadata: {name: %s}\nspec: {path: %s, kubeconfig: {file: %s}}\n", cluster, cluster, cluster)
		files[cluster+"/objects.yaml"] = objects(cluster)
		return f.credentials(filepath.Join(kubeconfigs, cluster), address)
	}
	// The bad ones come first in every order.
	if withBad {
		for i, address := range f.bad {
			if err := register(fmt.Sprintf("%s-a%d", name, i), "https://"+address); err != nil {
				return 0, err
			}
		}
	}
	for i := range healthyClusters {
		if err := register(fmt.Sprintf("%s-c%02d", name, i), ""); err != nil {
			return 0, err
		}
	}
	files["clusters.yaml"] = registry.String()
	repo, err := f.git.Create(ctx, name)
	if err != nil {
		return 0, err
	}
	if _, err := repo.Commit(ctx, "main", "Start", files); err != nil {
		return 0, err
	}
	free, err := unused("127.0.0.1")
	if err != nil {
		return 0, err
	}
	address := free.String()
	ctx, stop := context.WithCancel(ctx)
	cmd := exec.CommandContext(ctx, self, daemonChild, "run", "--repo", f.git.URL(name), "--kubeconfig-dir", kubeconfigs,
		"--cache-dir", filepath.Join(f.dir, name, "cache"), "--listen", address, "--interval", "1s")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	start := time.Now()
	if err := cmd.Start(); err != nil {
		stop()
		return 0, err
	}
	err = awaitReady(ctx, "http://"+address+"/status", healthyClusters)
	took := time.Since(start)
	stop()
	_ = cmd.Wait() // it was interrupted
	return took, err
}

// credentials writes a kubeconfig for the API server, or for another address.
func (f *fleet) credentials(name, address string) error {
	cfg, err := clientcmd.LoadFromFile(f.kubeconfig)
	if err != nil {
		return err
	}
	if address != "" {
		for _, c := range cfg.Clusters {
			c.Server = address
		}
	}
	return clientcmd.WriteToFile(*cfg, name)
}

// objects returns a namespace and ConfigMaps in it.
func objects(namespace string) string {
	var all strings.Builder
	fmt.Fprintf(&all, "apiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n", namespace)
	for i := range objectsPerCluster {
		fmt.Fprintf(&all, "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c%d, namespace: %s}\ndata: {number: '%d'}\n", i, namespace, i)
	}
	return all.String()
}

// awaitReady waits until n clusters are ready in a daemon's status.
func awaitReady(ctx context.Context, url string, n int) error {
	deadline := time.Now().Add(2 * time.Minute)
	for time.Now().Before(deadline) {
		ready, err := countReady(ctx, url)
		if err == nil && ready >= n {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
	return errors.New("the clusters did not become ready in two minutes")
}

func countReady(ctx context.Context, url string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	var status struct {
		Clusters []struct{ Phase string }
	}
	if err := json.NewDecoder(resp.Body).Decode(&status); err != nil {
		return 0, err
	}
	ready := 0
	for _, c := range status.Clusters {
		if c.Phase == "Ready" {
			ready++
		}
	}
	return ready, nil
}
