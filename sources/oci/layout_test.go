package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"gitopsd.dev/sources"
)

// holding is a Reader of what it holds, as a registry is.
type holding struct {
	contents  map[sources.Digest]string
	tags      map[string]sources.Digest
	referrers map[sources.Digest][]sources.Digest
}

func (h *holding) put(content string) sources.Digest {
	d := sources.DigestOf([]byte(content))
	h.contents[d] = content
	return d
}

func (h *holding) Resolve(_ context.Context, ref sources.Ref) (sources.Digest, error) {
	if d, ok := h.tags[ref.String()]; ok {
		return d, nil
	}
	return "", &Error{Subject: ref.String(), Reason: NotFound}
}

func (h *holding) Manifest(_ context.Context, _ string, d sources.Digest) ([]byte, error) {
	return []byte(h.contents[d]), nil
}

func (h *holding) Blob(_ context.Context, _ string, d sources.Digest, _ int64) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader(h.contents[d])), nil
}

func (h *holding) Referrers(_ context.Context, _ string, d sources.Digest, _ string) ([]sources.Digest, error) {
	return h.referrers[d], nil
}

func (h *holding) Tags(context.Context, string) ([]string, error) { return nil, nil }

// A layout has the contents that were read, and no others. The same contents have the same
// bytes.
func TestLayout(t *testing.T) {
	const repository, artifact = "reg.io/acme/a", "application/x"
	h := &holding{contents: make(map[sources.Digest]string), tags: make(map[string]sources.Digest), referrers: make(map[sources.Digest][]sources.Digest)}
	layer := h.put("layer")
	child := h.put(fmt.Sprintf(`{"layers":[{"digest":%q,"size":5}]}`, layer))
	index := h.put(fmt.Sprintf(`{"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{"digest":%q}]}`, child))
	signed := h.put(`{"mediaType":"application/vnd.oci.image.manifest.v1+json","layers":[]}`)
	bundle := h.put(fmt.Sprintf(`{"subject":{"digest":%q}}`, index))
	unread := h.put(fmt.Sprintf(`{"subject":{"digest":%q},"unread":true}`, index))
	signature := sources.Ref{Repository: repository, Tag: strings.Replace(string(index), ":", "-", 1) + ".sig"}
	h.tags[signature.String()] = signed
	h.referrers[index] = []sources.Digest{bundle, unread}

	read := func(r Reader) error {
		ctx := t.Context()
		var errs []error
		for _, d := range []sources.Digest{index, child, signed, bundle} {
			raw, err := r.Manifest(ctx, repository, d)
			if err == nil && string(raw) != h.contents[d] {
				err = fmt.Errorf("%s is %q", d, raw)
			}
			errs = append(errs, err)
		}
		blob, err := r.Blob(ctx, repository, layer, 5)
		if err == nil {
			defer blob.Close()
			var content []byte
			if content, err = io.ReadAll(blob); err == nil && string(content) != "layer" {
				err = fmt.Errorf("the layer is %q", content)
			}
		}
		d, tagErr := r.Resolve(ctx, signature)
		if tagErr == nil && d != signed {
			tagErr = fmt.Errorf("the signature is %s", d)
		}
		_, otherErr := r.Resolve(ctx, sources.Ref{Repository: repository, Tag: strings.Replace(string(child), ":", "-", 1) + ".sig"})
		if errors.Is(otherErr, sources.ErrNotFound) {
			otherErr = nil
		}
		found, refErr := r.Referrers(ctx, repository, index, artifact)
		if refErr == nil && (len(found) == 0 || found[0] != bundle) {
			refErr = fmt.Errorf("referrers are %v", found)
		}
		return errors.Join(append(errs, err, tagErr, otherErr, refErr)...)
	}
	layoutOf := func() fstest.MapFS {
		recorder := NewRecorder()
		if err := read(recorder.Reader(h)); err != nil {
			t.Fatal(err)
		}
		files, err := recorder.Files(t.Context(), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		tree := make(fstest.MapFS)
		for _, f := range files {
			text, err := f.Content(t.Context())
			if err != nil || !Owned(f.Name) {
				t.Fatal(f.Name, err)
			}
			tree["p/"+f.Name] = &fstest.MapFile{Data: text}
		}
		if files[len(files)-1].Name != indexFile {
			t.Errorf("%s is written last", files[len(files)-1].Name)
		}
		return tree
	}
	tree := layoutOf()
	for name, f := range layoutOf() {
		if string(tree[name].Data) != string(f.Data) {
			t.Errorf("%s differs from one time to the next", name)
		}
	}
	l := OpenLayout(tree, "p")
	if err := read(l); err != nil {
		t.Fatal(err)
	}
	if found, _ := l.Referrers(t.Context(), repository, index, artifact); len(found) != 1 {
		t.Errorf("what was not read is listed: %v", found)
	}
	var names layoutIndex
	if err := json.Unmarshal(tree["p/index.json"].Data, &names); err != nil || len(names.Manifests) != 3 {
		t.Errorf("the index is\n%s", tree["p/index.json"].Data) // the child is the index's
	}
	for _, ask := range []func() error{
		func() error {
			_, err := l.Resolve(t.Context(), sources.Ref{Repository: repository, Tag: "v1"})
			return err
		},
		func() error { _, err := l.Tags(t.Context(), repository); return err },
		func() error { _, err := l.Manifest(t.Context(), repository, unread); return err },
		func() error { _, err := l.Blob(t.Context(), repository, unread, 1); return err },
	} {
		if err := ask(); !errors.Is(err, sources.ErrUnasked) || !strings.Contains(err.Error(), "`gitopsd lock vendor p`") {
			t.Errorf("have %v", err)
		}
	}

	// Anybody may have changed a file.
	for _, d := range []sources.Digest{index, layer, bundle} {
		name := "p/" + blobDir + "/" + d.Hex()
		was := tree[name]
		for _, forged := range []string{"", h.contents[d][1:] + "x", h.contents[d] + "\n", h.contents[d][1:]} {
			tree[name] = &fstest.MapFile{Data: []byte(forged)}
			var mismatch *MismatchError
			if err := read(l); !errors.As(err, &mismatch) {
				t.Errorf("%q instead of %q: %v", forged, h.contents[d], err)
			}
		}
		tree[name] = &fstest.MapFile{Data: []byte("version https://git-lfs.github.com/spec/v1\noid sha256:" + d.Hex() + "\nsize 5\n")}
		var mismatch *MismatchError
		if err := read(l); errors.As(err, &mismatch) || !strings.Contains(fmt.Sprint(err), "p has a pointer of Git LFS in its place; run `gitopsd lock vendor p`") {
			t.Errorf("a pointer of Git LFS: %v", err)
		}
		tree[name] = was
	}
	if _, err := (&Recorder{blobs: map[sources.Digest]recordedBlob{layer: {h, repository, 5}}}).Files(t.Context(), 4); !errors.Is(err, sources.ErrLimit) {
		t.Errorf("a large file: %v", err)
	}
}

func TestOpenLayoutFaults(t *testing.T) {
	t.Parallel()
	good := fstest.MapFS{"p/oci-layout": {Data: []byte(layoutVersion)}, "p/index.json": {Data: []byte("{}")}}
	fault := func(files fs.FS) error {
		l := OpenLayout(files, "p")
		_, err := l.Referrers(t.Context(), "r", sources.DigestOf(nil), "x")
		_, err2 := l.Manifest(t.Context(), "r", sources.DigestOf(nil))
		_, err3 := l.Resolve(t.Context(), sources.Ref{Repository: "r", Tag: "v1"})
		_, err4 := l.Tags(t.Context(), "r")
		if err != nil && (err2 == nil || err3 == nil || err4 == nil) {
			t.Errorf("some of it can be read: %v, %v, %v", err2, err3, err4)
		}
		return err
	}
	if err := fault(good); err != nil {
		t.Error(err)
	}
	for _, tt := range []struct{ name, text, want string }{
		{"p/oci-layout", `{"imageLayoutVersion":"2.0.0"}`, "oci-layout is of an unknown version"},
		{"p/index.json", "[", "index.json: unexpected end of JSON input; run that again"},
		{"p/index.json", `{"manifests":[{"digest":"sha256:../../x"}]}`, "index.json: "},
		{"p/index.json", strings.Repeat(" ", maxLayoutIndexBytes+1), "p/index.json: more than"},
	} {
		bad := fstest.MapFS{"p/oci-layout": good["p/oci-layout"], "p/index.json": good["p/index.json"]}
		bad[tt.name] = &fstest.MapFile{Data: []byte(tt.text)}
		if err := fault(bad); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("have %v\nwant %s", err, tt.want)
		}
	}
	if err := fault(fstest.MapFS{}); !errors.Is(err, sources.ErrUnasked) || !strings.Contains(err.Error(), "there are no packages in p, and no registry is asked; run `gitopsd lock vendor p`") {
		t.Errorf("have %v", err)
	}
}

func FuzzOpenLayout(f *testing.F) {
	f.Add([]byte(`{"manifests":[{"digest":"sha256:` + strings.Repeat("0", 64) + `","annotations":{"org.opencontainers.image.ref.name":"a"}}]}`))
	f.Fuzz(func(t *testing.T, index []byte) {
		l := OpenLayout(fstest.MapFS{"p/oci-layout": {Data: []byte(layoutVersion)}, "p/index.json": {Data: index}}, "p")
		if l.fault != nil {
			return
		}
		for _, m := range l.index.Manifests {
			if !fs.ValidPath(m.Digest.Hex()) {
				t.Errorf("digest %q", m.Digest)
			}
			_, _ = l.Manifest(t.Context(), "r", m.Digest)
			_, _ = l.Referrers(t.Context(), "r", m.Digest, m.ArtifactType)
		}
	})
}
