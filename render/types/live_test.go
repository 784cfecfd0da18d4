package types

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	apischema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/sources"
	"gitopsd.dev/testscripts/devcluster"
	"gitopsd.dev/testscripts/upstream"
)

func TestMain(m *testing.M) { os.Exit(devcluster.Main(m)) }

// release is a project's types at one release.
type release struct{ project, version string }

// corpora are the definitions of several projects.
var corpora = []release{
	{upstream.ClusterAPI, upstream.ClusterAPIOld}, {upstream.ClusterAPI, upstream.ClusterAPINew},
	{upstream.CertManager, upstream.CertManagerOld}, {upstream.CertManager, upstream.CertManagerNew},
	{upstream.ProviderAWS, upstream.ProviderAWSVersion},
}

// crds are the CustomResourceDefinitions of a release, by file.
func (r release) crds(t testing.TB) []sources.Document {
	t.Helper()
	dir := t.TempDir()
	if err := upstream.Write(t.Context(), r.project, r.version, dir, os.Stderr); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "crds", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var docs []sources.Document
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		docs = append(docs, manifesttest.Documents(t, string(text))...)
	}
	return docs
}

var all = flag.Bool("all", false, "take every definition of the corpora to an API server, not a sample")

// sampled limits the definitions of a corpus that are sent to an API server; they are
// spread evenly over the corpus.
const sampled = 100

// The definitions of the corpora have the same digests in a real API server as in their
// files. Some are created or applied, and read back from etcd; most only pass through a
// dry run.
func TestLive(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts a control plane")
	}
	planes := devcluster.Start(t, "types")
	cfg, err := clientcmd.BuildConfigFromFlags("", planes.Kubeconfig("types"))
	if err != nil {
		t.Fatal(err)
	}
	cfg.QPS = -1
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	crds := client.Resource(apischema.GroupVersionResource{Group: manifest.CRD.Group, Version: "v1", Resource: "customresourcedefinitions"})
	for _, r := range corpora {
		t.Run(r.project+" "+r.version, func(t *testing.T) {
			docs := r.crds(t)
			if every := (len(docs) + sampled - 1) / sampled; every > 1 && !*all {
				var some []sources.Document
				for i := 0; i < len(docs); i += every {
					some = append(some, docs[i])
				}
				docs = some
			}
			for i, d := range docs {
				live, err := throughServer(t.Context(), crds, d.Tree, i)
				if err != nil {
					t.Error(err)
					continue
				}
				want, err := Of(d.Tree)
				if err != nil {
					t.Fatal(err)
				}
				have, err := Of(live)
				if err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(have, want) {
					t.Errorf("live %v\npublished %v", have, want)
				}
			}
		})
	}
}

// throughServer sends a definition to the API server and returns the result. i selects
// how: by creating, applying or a dry run.
func throughServer(ctx context.Context, crds dynamic.ResourceInterface, tree map[string]any, i int) (map[string]any, error) {
	u := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(tree)}
	u.SetLabels(nil) // in cert-manager's files they are Helm's to fill in
	if strings.HasSuffix(u.GetName(), ".k8s.io") {
		u.SetAnnotations(map[string]string{"api-approved.kubernetes.io": "unapproved, a test"})
	}
	var live *unstructured.Unstructured
	var err error
	switch i % 20 {
	case 0:
		live, err = crds.Create(ctx, u, metav1.CreateOptions{})
	case 1:
		live, err = crds.Apply(ctx, u.GetName(), u, metav1.ApplyOptions{FieldManager: "types-test"})
	case 2:
		live, err = crds.Apply(ctx, u.GetName(), u, metav1.ApplyOptions{FieldManager: "types-test", DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			return nil, err
		}
		return live.Object, nil
	default:
		live, err = crds.Create(ctx, u, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			return nil, err
		}
		return live.Object, nil
	}
	if err != nil {
		return nil, err
	}
	if live, err = established(ctx, crds, live.GetName()); err != nil {
		return nil, err
	}
	return live.Object, remove(ctx, crds, live.GetName())
}

// established waits until the API server serves a definition, and returns it. If one is
// deleted while its conditions are still written, the API server may notice that only when it
// looks at all definitions again, every five minutes.
func established(ctx context.Context, crds dynamic.ResourceInterface, name string) (*unstructured.Unstructured, error) {
	for {
		live, err := crds.Get(ctx, name, metav1.GetOptions{})
		if err != nil || manifest.ConditionTrue(live.Object, "Established") {
			return live, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%s: %w: %v", name, ctx.Err(), live.Object["status"])
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// remove deletes a definition, and waits until it is gone: another release has one of the
// same name.
func remove(ctx context.Context, crds dynamic.ResourceInterface, name string) error {
	if err := crds.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	for {
		if _, err := crds.Get(ctx, name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
			return nil
		} else if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}
