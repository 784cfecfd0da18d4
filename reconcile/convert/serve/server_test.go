package serve

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"

	"gitopsd.dev/reconcile/convert"
	"gitopsd.dev/render/conversion"
)

// API servers send all reviews over one connection to a server on a loopback address, by
// HTTP/2, and over several to others, by HTTP/1.1. Many large ones at a time delay
// neither each other nor small ones until they fail: those that wait take no room of the
// connection from those that are read.
func TestManyLarge(t *testing.T) {
	t.Parallel()
	b := &bed{T: t, group: "example.io", dir: t.TempDir(), table: &convert.Table{}, ca: newAuthority(t), logger: slog.New(slog.DiscardHandler)}
	_, set := b.compile(liveRules)
	b.table.Hold("test", []*conversion.Set{set})
	writeCertificate(t, b.dir, b.ca, "127.0.0.1")
	var err error
	if b.certificates, err = LoadCertificates(b.dir, b.logger); err != nil {
		t.Fatal(err)
	}
	if b.handler, err = convert.New(convert.Config{Table: b.table, Log: b.logger}); err != nil {
		t.Fatal(err)
	}
	b.listen("127.0.0.1:0")
	defer b.end()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(b.ca.pem)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	url := "https://" + b.address + conversion.Path("dev", set.Name(), set.Digest())
	send := func(size int) {
		body := `{"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview","request":{"uid":"u","desiredAPIVersion":"example.io/v2","objects":[` +
			`{"apiVersion":"example.io/v1","kind":"Person","metadata":{"name":"a"},"spec":{"firstName":"` + strings.Repeat("x", size) + `"}}]}}`
		resp, err := client.Post(url, "application/json", strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return
		}
		defer resp.Body.Close()
		answer, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK || resp.ProtoMajor != 2 || !json.Valid(answer) || !strings.Contains(string(answer), `"Success"`) {
			t.Errorf("%d bytes: %s %s %.100s %v", size, resp.Proto, resp.Status, answer, err)
		}
	}
	send(1) // opens the connection
	var clients sync.WaitGroup
	for range 30 {
		clients.Go(func() { send(1 << 20) })
		clients.Go(func() { send(1 << 10) })
	}
	clients.Wait()
}
