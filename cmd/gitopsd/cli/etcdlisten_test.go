package cli

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gitopsd.dev/reconcile/certs/rotation"
	certificates "gitopsd.dev/reconcile/convert/serve"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/etcd"
	"gitopsd.dev/reconcile/etcd/identity"
	"gitopsd.dev/reconcile/etcd/namespaces"
	"gitopsd.dev/reconcile/unit"
	"gitopsd.dev/sources/clusters"
)

// Clusters with etcd namespaces are told when what an operator brings for them expires, and those alone.
func TestEtcdExpires(t *testing.T) {
	t.Parallel()
	dir, now := t.TempDir(), time.Now()
	profile := rotation.Profile{Name: "gitopsd", Host: "gitopsd.example.org", DNSNames: []string{"gitopsd.example.org"}}
	ca, err := profile.Mint(now.Add(-80*24*time.Hour), now.Add(20*24*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	crt, key, err := profile.Issue(ca, now.Add(-60*24*time.Hour), now.Add(10*24*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	for name, text := range map[string][]byte{"tls.crt": crt, "tls.key": key, "ca.crt": rotation.Encode(ca.Cert)} {
		if err := os.WriteFile(file(name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	loaded, err := certificates.LoadCertificates(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	files := etcd.Config{ClientCACertFile: file("ca.crt"), ClientCAKeyFile: file("tls.key"), CAFile: file("ca.crt")}
	config := &namespaces.Etcd{Upstream: func() (identity.Upstream, error) { return upstream(files) }}
	proxy := &etcdProxy{certificates: loaded}
	const ofProxy, ofCA = "--etcd-proxy-tls-dir", "--etcd-client-ca-cert"
	for _, tt := range []struct {
		name    string
		service etcdService
		spec    *clusters.Etcd
		want    string
	}{
		{"the daemon serves", etcdService{config: config, proxy: proxy, proxyBrought: true, caBrought: true}, &clusters.Etcd{Proxy: &clusters.EtcdProxy{URL: "https://gitopsd.example.org"}}, ofProxy + " " + ofCA},
		{"pods serve", etcdService{config: config, proxy: proxy, proxyBrought: true, caBrought: true}, &clusters.Etcd{Proxy: &clusters.EtcdProxy{Image: "gitopsd"}}, ofCA},
		{"an embedded etcd", etcdService{config: config, proxy: proxy}, &clusters.Etcd{Proxy: &clusters.EtcdProxy{URL: "https://gitopsd.example.org"}}, ""},
		{"a key space alone", etcdService{config: config, proxy: proxy, proxyBrought: true, caBrought: true}, &clusters.Etcd{Namespace: "dev"}, ""},
		{"another cluster", etcdService{config: config, proxy: proxy, proxyBrought: true, caBrought: true}, nil, ""},
		{"no etcd", etcdService{caBrought: true}, &clusters.Etcd{Proxy: &clusters.EtcdProxy{Image: "gitopsd"}}, ""},
	} {
		u := desired.Registered(clusters.Cluster{Name: "dev", Spec: clusters.Spec{Etcd: tt.spec}}, "")
		done, err := tt.service.Complete(t.Context(), unit.Request{Unit: u})
		if err != nil || done.Relied == nil || done.Again.IsZero() != (tt.want == "") {
			t.Errorf("%s: %+v, %v", tt.name, done, err)
		}
		flags := strings.Fields(tt.want)
		if len(done.Notes) != len(flags) || len(done.Certificates) != len(flags) {
			t.Fatalf("%s: %+v, want %q", tt.name, done, flags)
		}
		for i, flag := range flags {
			if c := done.Certificates[i]; c.Secret != flag || !c.Brought || !strings.Contains(done.Notes[i], "the certificate in "+flag+" expires on ") {
				t.Errorf("%s: %+v, %q", tt.name, c, done.Notes[i])
			}
		}
	}
}
