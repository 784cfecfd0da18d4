package xpkg

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"golang.org/x/sync/errgroup"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/oci"
	"gitopsd.dev/testscripts/registry"
	"gitopsd.dev/testscripts/upstream"
)

// The benchmarks count this process's CPU time, so the registry is another: this
// program again, told so by the environment.
const serveRegistry = "GITOPSD_BENCH_REGISTRY"

func TestMain(m *testing.M) {
	if os.Getenv(serveRegistry) == "" {
		os.Exit(m.Run())
	}
	reg, err := registry.New(registry.Config{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(reg.Host())
	_, _ = io.Copy(io.Discard, os.Stdin) // until the benchmark ends
}

func registryProcess(b *testing.B) string {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), serveRegistry+"=1")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		stdin.Close()
		_ = cmd.Wait()
	})
	var host string
	if _, err := fmt.Fscanln(stdout, &host); err != nil {
		b.Fatal(err)
	}
	return host
}

// cpu is the CPU time of this process so far.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// measure runs a benchmark's loop and reports its CPU time.
func measure(b *testing.B, do func() error) {
	b.Helper()
	b.ReportAllocs()
	start := cpu(b)
	for b.Loop() {
		if err := do(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64((cpu(b)-start).Microseconds())/1000/float64(b.N), "cpu-ms/op")
}

// BenchmarkPull fetches provider-aws (927 CRDs, 37 MB of YAML in a layer of 2.5
// MB): ours and the library's as far as the bytes of package.yaml, then with
// everything that makes a package of them, against the bare steps.
func BenchmarkPull(b *testing.B) {
	dir := b.TempDir()
	if err := upstream.Write(b.Context(), upstream.ProviderAWS, upstream.ProviderAWSVersion, dir, os.Stderr); err != nil {
		b.Fatal(err)
	}
	img, err := Build(os.DirFS(dir), nil)
	if err != nil {
		b.Fatal(err)
	}
	client, err := oci.New(oci.Config{})
	if err != nil {
		b.Fatal(err)
	}
	repository := registryProcess(b) + "/acme/provider-aws"
	if err := img.Push(b.Context(), client, sources.Ref{Repository: repository, Tag: "v1"}); err != nil {
		b.Fatal(err)
	}
	ref, err := name.NewDigest(repository + "@" + string(img.Digest()))
	if err != nil {
		b.Fatal(err)
	}
	fetched, err := remote.Image(ref)
	if err != nil {
		b.Fatal(err)
	}
	manifest, err := fetched.Manifest()
	if err != nil {
		b.Fatal(err)
	}
	base := manifest.Layers[0]
	layers, err := fetched.Layers()
	if err != nil {
		b.Fatal(err)
	}
	compressed, err := layers[0].Compressed()
	if err != nil {
		b.Fatal(err)
	}
	layer, err := io.ReadAll(compressed)
	if err != nil {
		b.Fatal(err)
	}

	b.Run("bytes/ours", func(b *testing.B) {
		measure(b, func() error {
			if _, err := client.Manifest(b.Context(), repository, img.Digest()); err != nil {
				return err
			}
			r := newReader(client, repository)
			d := descriptor{MediaType: mediaOCILayerGzip, Digest: sources.Digest(base.Digest.String()), Size: base.Size}
			_, err := r.content(b.Context(), image{layers: []descriptor{d}}, func(packageYAML io.Reader) error {
				_, err := io.Copy(io.Discard, packageYAML)
				return err
			})
			return err
		})
	})
	b.Run("bytes/go-containerregistry", func(b *testing.B) {
		puller, err := remote.NewPuller()
		if err != nil {
			b.Fatal(err)
		}
		measure(b, func() error {
			img, err := remote.Image(ref, remote.WithContext(b.Context()), remote.Reuse(puller))
			if err != nil {
				return err
			}
			layers, err := img.Layers()
			if err != nil {
				return err
			}
			r, err := layers[0].Uncompressed()
			if err != nil {
				return err
			}
			defer r.Close()
			archive := tar.NewReader(r)
			if _, err := archive.Next(); err != nil {
				return err
			}
			_, err = io.Copy(sha256.New(), archive)
			return err
		})
	})
	b.Run("package/ours", func(b *testing.B) {
		measure(b, func() error {
			_, err := Read(b.Context(), client, repository, img.Digest())
			return err
		})
	})
	b.Run("package/bare steps", func(b *testing.B) {
		measure(b, func() error {
			z, err := gzip.NewReader(bytes.NewReader(layer))
			if err != nil {
				return err
			}
			archive, err := io.ReadAll(z)
			if err != nil {
				return err
			}
			sha256.Sum256(layer)
			sha256.Sum256(archive)
			_, err = sources.DecodeYAML(bytes.NewReader(archive[512:bytes.IndexByte(archive[512:], 0)+512]), sources.Limits{})
			return err
		})
	})
}

// BenchmarkResolve looks at 100 unchanged references, against as many bare
// requests on connections that are kept.
func BenchmarkResolve(b *testing.B) {
	const references = 100
	host := registryProcess(b)
	img, err := Build(mapFS("crossplane.yaml", testMeta), nil)
	if err != nil {
		b.Fatal(err)
	}
	client, err := oci.New(oci.Config{})
	if err != nil {
		b.Fatal(err)
	}
	var refs []sources.Ref
	for i := range references {
		refs = append(refs, sources.Ref{Repository: fmt.Sprintf("%s/acme/p%d", host, i), Tag: "v1"})
		if err := img.Push(b.Context(), client, refs[i]); err != nil {
			b.Fatal(err)
		}
	}
	all := func(do func(ref sources.Ref) error) error {
		var group errgroup.Group
		for _, ref := range refs {
			group.Go(func() error { return do(ref) })
		}
		return group.Wait()
	}
	b.Run("ours", func(b *testing.B) {
		measure(b, func() error {
			return all(func(ref sources.Ref) error {
				_, err := client.Resolve(b.Context(), ref)
				return err
			})
		})
	})
	b.Run("bare HEADs", func(b *testing.B) {
		bare := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: references}}
		measure(b, func() error {
			return all(func(ref sources.Ref) error {
				resp, err := bare.Head("http://" + strings.Replace(ref.Repository, "/", "/v2/", 1) + "/manifests/" + ref.Tag)
				if err != nil {
					return err
				}
				return resp.Body.Close()
			})
		})
	})
}
