package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/oci"
)

// The number of references, and how often each is looked up on the same connections.
const (
	references  = 100
	resolutions = 50
)

// resolve compares looking up unchanged references with as many bare requests on persistent
// connections. The registry is in this process, and each side is a child.
func (b *bench) resolve(ctx context.Context, f *fixture) error {
	meta := "apiVersion: meta.pkg.crossplane.io/v1\nkind: Provider\nmetadata: {name: small}\n"
	if err := os.WriteFile(filepath.Join(f.dir, "crossplane.yaml"), []byte(meta), 0o600); err != nil {
		return err
	}
	var repositories []string
	for _, ref := range smallRefs("") {
		repositories = append(repositories, ref.Repository)
	}
	host, _, err := f.publish(ctx, f.dir, repositories...)
	if err != nil {
		return err
	}
	return b.eachRound(ctx, "resolve", [][]string{{"resolve", host}, {"heads", host}}, func(u []usage) error {
		b.add("resolve-100", u[0].cpu/resolutions, u[1].cpu/resolutions)
		return nil
	})
}

func smallRefs(host string) []sources.Ref {
	var refs []sources.Ref
	for i := range references {
		refs = append(refs, sources.Ref{Repository: fmt.Sprintf("%s/acme/p%d", host, i), Tag: "v1"})
	}
	return refs
}

// lookAtAll calls look for all references at once, repeatedly.
func lookAtAll(host string, look func(sources.Ref) error) (float64, error) {
	refs := smallRefs(host)
	for range resolutions {
		var group errgroup.Group
		for _, ref := range refs {
			group.Go(func() error { return look(ref) })
		}
		if err := group.Wait(); err != nil {
			return 0, err
		}
	}
	return float64(len(refs)), nil
}

func resolveRefs(args []string) (float64, error) {
	client, err := oci.New(oci.Config{})
	if err != nil {
		return 0, err
	}
	defer client.Close()
	return lookAtAll(args[0], func(ref sources.Ref) error {
		_, err := client.Resolve(context.Background(), ref)
		return err
	})
}

func headRefs(args []string) (float64, error) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: references}}
	return lookAtAll(args[0], func(ref sources.Ref) error {
		resp, err := client.Head("http://" + strings.Replace(ref.Repository, "/", "/v2/", 1) + "/manifests/" + ref.Tag)
		if err != nil {
			return err
		}
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", ref, resp.Status)
		}
		return resp.Body.Close()
	})
}
