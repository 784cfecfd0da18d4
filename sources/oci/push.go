package oci

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"gitopsd.dev/sources"
)

// PushBlob uploads content, unless the registry has it. open is called for each
// attempt and must return size bytes with digest d. The error is an [*Error] or
// open's.
func (c *Client) PushBlob(ctx context.Context, repository string, d sources.Digest, size int64, open func() (io.ReadCloser, error)) error {
	hash, err := v1.NewHash(string(d))
	if err != nil {
		return &Error{Subject: repository, Reason: Malformed, Text: err.Error()}
	}
	err = c.push(ctx, repository, func(p *remote.Pusher, repo name.Repository) error {
		return p.Upload(ctx, repo, upload{hash: hash, size: size, open: open})
	})
	if err != nil {
		return c.explainPush(repository, repository, err) // the digest of a layer would not help
	}
	return nil
}

// PushManifest stores an index or manifest, after its blobs and children, under
// ref's tag, or without one by digest only. The error is an [*Error].
func (c *Client) PushManifest(ctx context.Context, ref sources.Ref, mediaType string, raw []byte) error {
	d := sources.DigestOf(raw)
	if ref.Digest != "" && ref.Digest != d {
		return &Error{Subject: ref.String(), Reason: Malformed, Text: fmt.Sprintf("the manifest to push has digest %s", d)}
	}
	err := c.push(ctx, ref.Repository, func(p *remote.Pusher, repo name.Repository) error {
		var target name.Reference = repo.Digest(string(d))
		if ref.Tag != "" {
			target = repo.Tag(ref.Tag)
		}
		return p.Put(ctx, target, document{raw, types.MediaType(mediaType)})
	})
	if err != nil {
		return c.explainPush(ref.String(), ref.Repository, err)
	}
	return nil
}

// explainPush is explain without advice about pull secrets.
func (c *Client) explainPush(subject, repository string, err error) error {
	err = c.explain(subject, repository, err)
	if failed, ok := errors.AsType[*Error](err); ok {
		failed.Text = strings.TrimSuffix(failed.Text, namePullSecret)
	}
	return err
}

// push calls do with a login to a repository, and once more with a new login if the old one
// is refused, as Client.do does.
func (c *Client) push(ctx context.Context, repository string, do func(*remote.Pusher, name.Repository) error) error {
	if c.offline {
		return &problem{Unasked, "it cannot be pushed, since no registry is asked"}
	}
	start := time.Now()
	own, err := c.keyring(ctx)
	if err != nil {
		return err
	}
	key := sessionKey{repository, transport.PushScope, own.key}
	for {
		s, err := c.session(ctx, key, own)
		if err != nil {
			return err
		}
		// The library recognizes the session's transport (*transport.Wrapper) as
		// logged in.
		pusher, err := remote.NewPusher(remote.WithTransport(s.client.Transport))
		if err != nil {
			return err
		}
		if err = do(pusher, s.repo); err == nil || ctx.Err() != nil {
			return err
		}
		c.forget(key, s)
		if answer, ok := errors.AsType[*transport.Error](err); !ok || !isRefusal(answer.StatusCode) || !s.outdated(start) {
			return err
		}
	}
}

// upload is a blob for the library.
type upload struct {
	hash v1.Hash
	size int64
	open func() (io.ReadCloser, error)
}

func (u upload) Digest() (v1.Hash, error)             { return u.hash, nil }
func (u upload) DiffID() (v1.Hash, error)             { return u.hash, nil }
func (u upload) Compressed() (io.ReadCloser, error)   { return u.open() }
func (u upload) Uncompressed() (io.ReadCloser, error) { return u.open() }
func (u upload) Size() (int64, error)                 { return u.size, nil }
func (u upload) MediaType() (types.MediaType, error)  { return types.OCILayer, nil }

// document is a manifest for the library.
type document struct {
	raw       []byte
	mediaType types.MediaType
}

func (d document) RawManifest() ([]byte, error)        { return d.raw, nil }
func (d document) MediaType() (types.MediaType, error) { return d.mediaType, nil }
