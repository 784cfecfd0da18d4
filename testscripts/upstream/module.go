package upstream

import (
	"context"
	"fmt"
	"io"
	"os"
)

// Module is a project's Go module at a pinned release. Its own code and tests can be
// run in a copy of it.
type Module struct {
	Path    string
	Version string
	// sum is the checksum of the module, as go.sum has it.
	sum string
}

// Modules with conversions between versions of their types that people wrote.
var (
	KueueModule           = Module{"sigs.k8s.io/kueue", "v0.15.0", "h1:9Khzc2ne6/eWuZx5o+R4KlVBzh3kZkTIMzpPC2e8Spg="}
	ExternalSecretsModule = Module{"github.com/external-secrets/external-secrets", "v0.9.20", "h1:SjCgevHllWRGinuC4mlnyreTSEfBd2sq40+acu8Ow6Q="}
	ClusterAPIModule      = Module{"sigs.k8s.io/cluster-api", "v1.11.0", "h1:4ZqKxjhdP3F/vvHMd675rGsDrT/siggnFPt5eKQ8nkI="}
)

// Kubernetes' server for CustomResourceDefinitions, with its tests.
var APIExtensionsModule = Module{"k8s.io/apiextensions-apiserver", "v0.37.2", "h1:myaUiAlm1NRLYdpAvWYTqdgeiCepFupJiRFVVueMUYw="}

// What is tested of etcd by its own project, and of its clients by Kubernetes.
var (
	APIServerModule = Module{"k8s.io/apiserver", "v0.37.2", "h1:9Jq73PeHAA0RThpW7ou6lBcO2+SxLcPrAgleONSMUNQ="}
	EtcdTestsModule = Module{"go.etcd.io/etcd/tests/v3", "v3.7.3", "h1:zQEpHCKe1ZGEL67G4B/dvNXH7hZcP0BQM90ltrwecR4="}
)

// Copy writes the module's files to dir, which need not exist, where they can be
// changed: nobody can change the module cache. It reports on w what it has to download.
func (m Module) Copy(ctx context.Context, dir string, w io.Writer) error {
	cached, err := download(ctx, m.Path+"@"+m.Version, m.sum, w)
	if err != nil {
		return fmt.Errorf("upstream: %w", err)
	}
	if err := os.CopyFS(dir, os.DirFS(cached)); err != nil {
		return fmt.Errorf("upstream: %s@%s: %w", m.Path, m.Version, err)
	}
	return nil
}
