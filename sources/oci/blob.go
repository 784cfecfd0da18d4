package oci

import (
	"context"
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"net/http"

	"gitopsd.dev/sources"
)

// Blob returns the content of size bytes with digest d. Read returns io.EOF
// only after size bytes with that digest, and a [*MismatchError] after others:
// do not trust the bytes before. If the connection breaks, the download is resumed
// there. Other errors are an [*Error].
//
// With a cache Blob fetches and verifies the whole content before it returns, so that
// reading does not wait for a slow registry.
func (c *Client) Blob(ctx context.Context, repository string, d sources.Digest, size int64) (io.ReadCloser, error) {
	if _, err := sources.ParseDigest(string(d)); err != nil {
		return nil, &Error{Subject: repository, Reason: Malformed, Text: err.Error()}
	}
	subject := repository + "@" + string(d)
	if size < 0 {
		return nil, &Error{Subject: subject, Reason: Malformed, Text: fmt.Sprintf("a size of %d bytes is impossible", size)}
	}
	if f := c.cache.open(d, size); f != nil {
		return f, nil
	}
	entry := c.cache.create(d, size)
	b, err := c.download(ctx, repository, d, size)
	if err != nil {
		entry.abort()
		return nil, err
	}
	if entry == nil {
		return b, nil
	}
	b.entry = entry
	_, err = io.Copy(io.Discard, b)
	b.Close()
	if err != nil {
		return nil, err
	}
	if f := c.cache.open(d, size); f != nil {
		return f, nil
	}
	// The disk is full, or somebody removed the file.
	b, err = c.download(ctx, repository, d, size)
	if err != nil {
		return nil, err
	}
	return b, nil
}

// download starts a download.
func (c *Client) download(ctx context.Context, repository string, d sources.Digest, size int64) (*blob, error) {
	located := c.locate(repository)
	b := &blob{
		client:     c,
		subject:    repository + "@" + string(d),
		repository: located,
		want:       d,
		size:       size,
		hash:       sha256.New(),
		open: func(ranges string) (*http.Response, error) {
			return c.do(ctx, request{repository: located, path: "blobs/" + string(d), ranges: ranges})
		},
	}
	if err := b.connect(); err != nil {
		return nil, c.explain(b.subject, located, err)
	}
	return b, nil
}

// blob is a download under way.
type blob struct {
	client     *Client
	subject    string
	repository string // that it is fetched from
	want       sources.Digest
	size       int64

	open     func(ranges string) (*http.Response, error)
	attempts int
	noRanges bool // the registry does not support ranges
	body     io.ReadCloser
	hash     hash.Hash
	n        int64 // bytes read so far
	entry    *entry
	err      error // of every further Read
}

// connect requests the bytes that have not been read yet.
func (b *blob) connect() error {
	b.attempts++
	var ranges string
	if b.n > 0 && !b.noRanges {
		ranges = fmt.Sprintf("bytes=%d-%d", b.n, b.size-1)
	}
	resp, err := b.open(ranges)
	if err != nil {
		return err
	}
	switch {
	case resp.StatusCode == http.StatusRequestedRangeNotSatisfiable && ranges != "":
		resp.Body.Close()
		b.noRanges = true
		return b.connect()
	case resp.StatusCode == http.StatusPartialContent && ranges != "":
		var start int64
		if _, err := fmt.Sscanf(resp.Header.Get("Content-Range"), "bytes %d-", &start); err != nil || start != b.n {
			resp.Body.Close()
			return &problem{Malformed, fmt.Sprintf("%s was asked to go on from byte %d and sends %q", registryOf(b.repository), b.n, printable(resp.Header.Get("Content-Range")))}
		}
	case resp.StatusCode == http.StatusOK:
		if resp.ContentLength >= 0 && resp.ContentLength != b.size {
			resp.Body.Close()
			return b.mismatch("", resp.ContentLength)
		}
		// A registry without support for ranges starts again.
		if _, err := io.CopyN(io.Discard, resp.Body, b.n); err != nil {
			resp.Body.Close()
			return err
		}
	default:
		defer resp.Body.Close()
		return statusError(resp)
	}
	b.body = resp.Body
	return nil
}

func (b *blob) mismatch(seen sources.Digest, size int64) error {
	return &MismatchError{Subject: b.subject, Registry: registryOf(b.repository), Want: b.want, Seen: seen, WantSize: b.size, SeenSize: size}
}

// Read implements io.Reader, as [Client.Blob] describes.
func (b *blob) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	if left := b.size - b.n; int64(len(p)) > left {
		p = p[:left]
	}
	n, err := 0, error(nil)
	if b.n < b.size {
		n, err = b.body.Read(p)
	}
	b.hash.Write(p[:n])
	b.entry.write(p[:n])
	b.n += int64(n)
	switch {
	case b.n == b.size:
		b.err = b.verify()
	case err == io.EOF:
		b.err = b.resume(io.ErrUnexpectedEOF)
	case err != nil:
		b.err = b.resume(err)
	}
	return n, b.err
}

// verify ends a download, with io.EOF if the content has the digest.
func (b *blob) verify() error {
	seen := sources.DigestSum(b.hash)
	if seen != b.want {
		b.entry.abort()
		return b.mismatch(seen, b.n)
	}
	b.entry.commit()
	return io.EOF
}

// resume continues after a broken connection, a few times.
func (b *blob) resume(cause error) error {
	b.body.Close()
	for isBroken(cause) && b.attempts < maxAttempts {
		if cause = b.connect(); cause == nil {
			return nil
		}
	}
	b.entry.abort()
	return b.client.explain(b.subject, b.repository, cause)
}

// Close ends the download. Content that was not read to the end is not cached.
func (b *blob) Close() error {
	if b.err == nil {
		b.err = fmt.Errorf("%s: read after close", b.subject)
	}
	b.entry.abort()
	return b.body.Close()
}
