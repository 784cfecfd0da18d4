package main

import (
	"archive/tar"
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/oci"
	"gitopsd.dev/sources/xpkg"
)

// pullRepository is the package's repository in the registry.
const pullRepository = "/upbound/provider-aws"

// pull compares reading the largest package from a registry with go-containerregistry:
// fetch, verify, decompress, extract package.yaml and hash it. xpkg decodes the documents
// while it reads, so the rival decodes them too, with sigs.k8s.io/yaml. Decoding is most of
// the work of both; BenchmarkPull in sources/xpkg compares the rest.
func (b *bench) pull(ctx context.Context, f *fixture) error {
	dir, err := f.upstream(ctx)
	if err != nil {
		return err
	}
	host, digest, err := f.publish(ctx, dir, pullRepository)
	if err != nil {
		return err
	}
	args := []string{host + pullRepository, string(digest)}
	return b.eachRound(ctx, "pull", [][]string{append([]string{"pull"}, args...), append([]string{"pull-rival"}, args...)}, func(u []usage) error {
		if u[0].result != u[1].result {
			return fmt.Errorf("we read %v documents, the rival %v", u[0].result, u[1].result)
		}
		b.add("pull-cpu", u[0].cpu, u[1].cpu)
		return nil
	})
}

// pullOurs reads a package: args are its repository and digest.
func pullOurs(args []string) (float64, error) {
	client, err := oci.New(oci.Config{})
	if err != nil {
		return 0, err
	}
	defer client.Close()
	p, err := xpkg.Read(context.Background(), client, args[0], sources.Digest(args[1]))
	if err != nil {
		return 0, err
	}
	return float64(len(p.Documents)), nil
}

// pullRival does the same with go-containerregistry.
func pullRival(args []string) (float64, error) {
	repository, err := name.NewRepository(args[0])
	if err != nil {
		return 0, err
	}
	image, err := remote.Image(repository.Digest(args[1]))
	if err != nil {
		return 0, err
	}
	layers, err := image.Layers()
	if err != nil {
		return 0, err
	}
	for _, layer := range layers {
		n, err := readLayer(layer)
		if n > 0 || err != nil {
			return float64(n), err
		}
	}
	return 0, errors.New("no layer has a package.yaml")
}

// readLayer decodes the objects in a layer's package.yaml, and returns their number without
// the package's metadata.
func readLayer(layer v1.Layer) (n int, err error) {
	expanded, err := layer.Uncompressed()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, expanded.Close()) }()
	archive := tar.NewReader(expanded)
	for {
		header, err := archive.Next()
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return 0, err
		}
		if header.Name != "package.yaml" {
			continue
		}
		documents := utilyaml.NewYAMLReader(bufio.NewReader(io.TeeReader(archive, sha256.New())))
		var kept []map[string]any
		for {
			text, err := documents.Read()
			if err == io.EOF {
				break
			}
			if err != nil {
				return 0, err
			}
			var tree map[string]any
			if err := yaml.Unmarshal(text, &tree); err != nil {
				return 0, err
			}
			if tree != nil {
				kept = append(kept, tree)
			}
		}
		n = len(kept) - 1
	}
}
