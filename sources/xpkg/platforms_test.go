package xpkg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"gitopsd.dev/sources"
)

// manifestOnly is a Source of one manifest.
type manifestOnly string

func (m manifestOnly) Manifest(context.Context, string, sources.Digest) ([]byte, error) {
	return []byte(m), nil
}

func (manifestOnly) Blob(context.Context, string, sources.Digest, int64) (io.ReadCloser, error) {
	return nil, errors.New("no blob is to be read")
}

func TestPlatforms(t *testing.T) {
	d := func(c string) string { return "sha256:" + strings.Repeat(c, 64) }
	child := func(digest, rest string) string {
		return fmt.Sprintf(`{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":%q,"size":1,%s}`, digest, rest)
	}
	index := func(children ...string) manifestOnly {
		return manifestOnly(`{"schemaVersion":2,"manifests":[` + strings.Join(children, ",") + `]}`)
	}
	for _, tt := range []struct {
		name string
		in   manifestOnly
		want string
	}{
		{"an image", manifestOnly(`{"schemaVersion":2,"config":{"digest":"` + d("1") + `","size":1},"layers":[]}`), ""},
		{"sorted, with variant", index(
			child(d("2"), `"platform":{"os":"linux","architecture":"arm","variant":"v7"}`),
			child(d("1"), `"platform":{"os":"linux","architecture":"amd64"}`),
		), "linux/amd64 sha256:1, linux/arm/v7 sha256:2"},
		{"attestations and builds of Windows", index(
			child(d("1"), `"platform":{"os":"linux","architecture":"amd64"}`),
			child(d("2"), `"platform":{"os":"unknown","architecture":"unknown"}`),
			child(d("3"), `"platform":{"os":"linux","architecture":"amd64"},"annotations":{"vnd.docker.reference.type":"attestation-manifest"}`),
			child(d("4"), `"platform":{"os":"windows","architecture":"amd64","os.version":"10.0.1"}`),
			child(d("5"), `"platform":{"os":"windows","architecture":"amd64","os.version":"10.0.2"}`),
			child(d("6"), `"artifactType":"x"`),
		), "linux/amd64 sha256:1"},
		{"a name that is none", index(child(d("1"), `"platform":{"os":"linux evil","architecture":"amd64"}`)), "reg.io/x@" + d("0") + ": its image"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			children, err := Platforms(t.Context(), tt.in, "reg.io/x", sources.Digest(d("0")))
			var have []string
			for _, c := range children {
				have = append(have, fmt.Sprintf("%s %.8s", c.Platform, c.Digest))
			}
			text := strings.Join(have, ", ")
			if err != nil {
				text = err.Error()
			}
			if !strings.HasPrefix(text, tt.want) || tt.want == "" && text != "" {
				t.Errorf("have %q, want %q", text, tt.want)
			}
		})
	}
}
