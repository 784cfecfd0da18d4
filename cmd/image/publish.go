package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// replaceable returns an error unless a directory is missing, empty, or an image layout.
func replaceable(dir string) error {
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0:
		return nil
	case err != nil:
		return fmt.Errorf("-layout: %w", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "oci-layout")); err != nil {
		return fmt.Errorf("-layout %s: the directory is not empty, and no OCI image layout; name another", dir)
	}
	for _, e := range entries {
		if !slices.Contains([]string{"blobs", "index.json", "oci-layout"}, e.Name()) {
			return fmt.Errorf("-layout %s: the directory is an OCI image layout, and has %s beside it, which would be lost; name another", dir, e.Name())
		}
	}
	return nil
}

// write writes the image and its SBOMs into a directory, as an OCI image layout. It replaces
// an existing layout once everything is written.
func (i *image) write(dir string) (err error) {
	dir = filepath.Clean(dir) // without a final slash, so that next is beside it
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	next, err := os.MkdirTemp(filepath.Dir(dir), "."+filepath.Base(dir)+"-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(next)) }()
	if err := os.Chmod(next, 0o755); err != nil {
		return err
	}
	all := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), mutate.IndexAddendum{Add: i.index})
	for _, s := range i.sboms {
		all = mutate.AppendManifests(all, mutate.IndexAddendum{Add: s, Descriptor: v1.Descriptor{ArtifactType: sbomType}})
	}
	if _, err := layout.Write(next, all); err != nil {
		return err
	}
	if err := replaceable(dir); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return os.Rename(next, dir)
}

// push pushes the image and its SBOMs. The tag comes last, so that whoever pulls it finds
// everything. push gives up after patience.
func (i *image) push(ctx context.Context, tag name.Tag, patience time.Duration) error {
	slow := fmt.Errorf("%s did not take everything within %s; it keeps the pushed parts, so the next try has less to push", tag.RegistryStr(), patience)
	ctx, cancel := context.WithTimeoutCause(ctx, patience, slow)
	defer cancel()
	options := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain), remote.WithUserAgent("gitopsd-image")}
	repository := tag.Context()
	err := remote.WriteIndex(repository.Digest(i.digest.String()), i.index, options...)
	for _, s := range i.sboms {
		if err != nil {
			break
		}
		var d v1.Hash
		if d, err = s.Digest(); err == nil {
			err = remote.Write(repository.Digest(d.String()), s, options...)
		}
	}
	if err == nil {
		err = remote.Tag(tag, i.index, options...)
	}
	if refused, ok := errors.AsType[*transport.Error](err); ok && (refused.StatusCode == http.StatusUnauthorized || refused.StatusCode == http.StatusForbidden) {
		return fmt.Errorf("push %s: %w; log in with `docker login %s`, as an account that may push there", tag, err, repository.RegistryStr())
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("push %s: %w", tag, err)
	}
	return nil
}
