// Package upstream makes package directories of well-known projects at pinned
// releases, so that tests, benchmarks and the demo work on real types and real
// upgrades.
//
// The files come from the projects' own Go modules, as the go command downloads
// and verifies them (checksum database, and the sums below); nothing else is
// fetched, and the files stay as they are. Write adds only crossplane.yaml, the
// metadata that makes a directory of CRDs a package for xpkg.Build. A [Module] is a
// project's code instead, whose own tests can be run in a copy.
package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

// The projects, and the pinned releases of each.
const (
	ClusterAPI    = "cluster-api"
	ClusterAPIOld = "v1.8.12"
	ClusterAPINew = "v1.10.10"

	CertManager    = "cert-manager"
	CertManagerOld = "v1.20.0"
	CertManagerNew = "v1.21.2"

	// Crossplane's own types, for packages and compositions.
	Crossplane        = "crossplane"
	CrossplaneVersion = "v2.1.0"

	// ProviderAWS is the largest: 927 CRDs, 37 MB.
	ProviderAWS        = "provider-aws"
	ProviderAWSVersion = "v1.0.0"
)

// project says where a project's module keeps its types.
type project struct {
	module  string
	license string
	about   string
	// releases are the checksums of the module, as go.sum has them.
	releases map[string]release
}

type release struct {
	sum   string
	files []files
}

// files are copied from a module. Their number is checked: a package that lost
// some of its types would test less than it seems to.
type files struct {
	pattern string // of path.Match, in the module
	count   int
	into    string // directory in the package
}

var projects = map[string]project{
	ClusterAPI: {
		module:  "sigs.k8s.io/cluster-api",
		license: "Apache-2.0",
		about:   "Cluster API's core types and webhook configurations",
		releases: map[string]release{
			ClusterAPIOld: {"h1:+nZAMzO1DXERArdgmhp+igi2HiyXyi8wxHFb0cl+tgQ=", []files{
				{"config/crd/bases/*.yaml", 12, "crds"},
				{"config/webhook/manifests.yaml", 1, "webhooks"},
			}},
			ClusterAPINew: {"h1:GF9B04puY1IrK9l8nc7xZaDITvKEkPtFAzccfgN4Gp0=", []files{
				{"config/crd/bases/*.yaml", 13, "crds"},
				{"config/webhook/manifests.yaml", 1, "webhooks"},
			}},
		},
	},
	// Its webhook configurations exist only as Helm templates.
	CertManager: {
		module:  "github.com/cert-manager/cert-manager",
		license: "Apache-2.0",
		about:   "cert-manager's types",
		releases: map[string]release{
			CertManagerOld: {"h1:czZamsFJ1YdKPhpv+SopJZN9t3W68vQBnFYUevSHGqY=", []files{{"deploy/crds/*.yaml", 6, "crds"}}},
			CertManagerNew: {"h1:UWgoYM+KLNtRlqmoWOKjKBOBUPVHeepQ6/ac3ERJW68=", []files{{"deploy/crds/*.yaml", 6, "crds"}}},
		},
	},
	Crossplane: {
		module:  "github.com/crossplane/crossplane/v2",
		license: "Apache-2.0",
		about:   "Crossplane's own types",
		releases: map[string]release{
			CrossplaneVersion: {"h1:7RFel1CeIWQytwtHz1st7lZiycYXUIcS0LkaetCJa4Q=", []files{{"cluster/crds/*.yaml", 21, "crds"}}},
		},
	},
	ProviderAWS: {
		module:  "github.com/upbound/provider-aws",
		license: "Apache-2.0",
		about:   "Upbound's official AWS provider, all services in one package",
		releases: map[string]release{
			ProviderAWSVersion: {"h1:jywpQ3bIPdtqIKpThzfzwbadHqzwOP1ShRYtL2YhkVI=", []files{{"package/crds/*.yaml", 927, "crds"}}},
		},
	},
}

// metadata is crossplane.yaml.
const metadata = `apiVersion: meta.pkg.crossplane.io/v1
kind: Provider
metadata:
  name: %s
  annotations:
    meta.crossplane.io/description: %s
    meta.crossplane.io/source: %s
    meta.crossplane.io/license: %s
`

// Write makes a package directory of a project's release in dir, which need not
// exist. It reports on w what it has to download.
func Write(ctx context.Context, name, version, dir string, w io.Writer) error {
	p, ok := projects[name]
	if !ok {
		return fmt.Errorf("upstream: project %q is not one of those that are pinned", name)
	}
	r, ok := p.releases[version]
	if !ok {
		return fmt.Errorf("upstream: %s %s is not one of the releases that are pinned", name, version)
	}
	module, err := download(ctx, p.module+"@"+version, r.sum, w)
	if err != nil {
		return fmt.Errorf("upstream: %w", err)
	}
	for _, f := range r.files {
		if err := f.copy(os.DirFS(module), dir); err != nil {
			return fmt.Errorf("upstream: %s@%s: %w", p.module, version, err)
		}
	}
	text := fmt.Sprintf(metadata, name, p.about, p.module, p.license)
	if err := os.WriteFile(filepath.Join(dir, "crossplane.yaml"), []byte(text), 0o644); err != nil {
		return fmt.Errorf("upstream: %w", err)
	}
	return nil
}

func (f files) copy(module fs.FS, dir string) error {
	names, err := fs.Glob(module, f.pattern)
	if err != nil {
		return err
	}
	if len(names) != f.count {
		return fmt.Errorf("it has %d files %s, and %d were expected", len(names), f.pattern, f.count)
	}
	into := filepath.Join(dir, f.into)
	if err := os.MkdirAll(into, 0o755); err != nil {
		return err
	}
	for _, name := range names {
		content, err := fs.ReadFile(module, name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(into, path.Base(name)), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// downloaded is the output of "go mod download -json".
type downloaded struct {
	Dir   string
	Sum   string
	Error string
}

// download returns the directory of a module in the module cache.
func download(ctx context.Context, module, sum string, w io.Writer) (string, error) {
	// First without a network, to report when one is needed.
	d, err := goModDownload(ctx, module, "GOPROXY=off")
	if err != nil {
		fmt.Fprintf(w, "downloading %s\n", module)
		if d, err = goModDownload(ctx, module); err != nil {
			return "", err
		}
	}
	if d.Sum != sum {
		return "", fmt.Errorf("%s has the checksum %s, and %s is pinned: this is not the release it was", module, d.Sum, sum)
	}
	return d.Dir, nil
}

// goModDownload runs the go command outside of any module, so that no go.mod
// needs a requirement for files that are only read.
func goModDownload(ctx context.Context, module string, env ...string) (downloaded, error) {
	dir, err := os.MkdirTemp("", "upstream-")
	if err != nil {
		return downloaded{}, err
	}
	defer os.RemoveAll(dir)
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", module)
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off"), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, runErr := cmd.Output()
	var d downloaded
	if err := json.Unmarshal(out, &d); err != nil {
		return d, fmt.Errorf("go mod download %s: %w: %s", module, errors.Join(runErr, err), strings.TrimSpace(stderr.String()))
	}
	if d.Error != "" {
		return d, fmt.Errorf("go mod download %s: %s", module, d.Error)
	}
	if runErr != nil {
		return d, fmt.Errorf("go mod download %s: %w: %s", module, runErr, strings.TrimSpace(stderr.String()))
	}
	return d, nil
}
