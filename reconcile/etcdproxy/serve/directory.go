package serve

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"gitopsd.dev/reconcile/etcdproxy"
	"gitopsd.dev/render/etcd"
)

// directory is the content of a directory.
type directory struct {
	tenant      etcdproxy.Tenant
	certificate tls.Certificate   // the proxy's serving certificate
	files       map[string][]byte // by path
}

// read reads a directory. A kubelet replaces all of its files at once, through the link ..data.
// Errors name the file and do not quote it.
func read(dir string) (*directory, error) {
	if data, err := filepath.EvalSymlinks(filepath.Join(dir, "..data")); err == nil {
		dir = data
	}
	files := make(map[string][]byte)
	for _, f := range etcd.Files {
		text, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(f.Path)))
		if err != nil {
			return nil, err
		}
		files[f.Path] = text
	}
	return parse(files)
}

// parse reads the files of a directory, by path.
func parse(files map[string][]byte) (*directory, error) {
	d := &directory{files: files}
	strict := json.NewDecoder(bytes.NewReader(files[etcd.NamespaceFile]))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&d.tenant.Namespace); err != nil {
		return nil, fmt.Errorf("%s: %w", etcd.NamespaceFile, err)
	}
	var err error
	if d.certificate, err = d.pair("server"); err != nil {
		return nil, err
	}
	if d.tenant.Upstream.Certificate, err = d.pair("upstream"); err != nil {
		return nil, err
	}
	if d.tenant.Upstream.CAs, err = d.pool("upstream/ca.crt"); err != nil {
		return nil, err
	}
	if cas, ok := d.files["client-ca.crt"]; ok && len(bytes.TrimSpace(cas)) == 0 {
		d.tenant.ClientCAs = x509.NewCertPool() // nobody may connect
	} else if d.tenant.ClientCAs, err = d.pool("client-ca.crt"); err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(d.files[etcd.EndpointsFile])) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if u, err := url.Parse(line); err != nil || u.Scheme != "https" || u.Host == "" {
			return nil, fmt.Errorf("%s: want an https URL in each line", etcd.EndpointsFile)
		}
		d.tenant.Upstream.Endpoints = append(d.tenant.Upstream.Endpoints, line)
	}
	if len(d.tenant.Upstream.Endpoints) == 0 {
		return nil, fmt.Errorf("%s: names no endpoint", etcd.EndpointsFile)
	}
	return d, nil
}

// pair reads a certificate with its key.
func (d *directory) pair(dir string) (tls.Certificate, error) {
	pair, err := tls.X509KeyPair(d.files[dir+"/tls.crt"], d.files[dir+"/tls.key"])
	if err != nil {
		return pair, fmt.Errorf("%[1]s/tls.crt and %[1]s/tls.key do not go together, or are no certificate and key in PEM", dir)
	}
	return pair, nil
}

// pool reads the certificates of CAs.
func (d *directory) pool(file string) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(d.files[file]) {
		return nil, errors.New(file + ": has no certificate in PEM")
	}
	return pool, nil
}

// same reports whether two directories have the same content.
func (d *directory) same(other *directory) bool {
	return maps.EqualFunc(d.files, other.files, bytes.Equal)
}
