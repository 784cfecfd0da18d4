package serve

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"

	"gitopsd.dev/reconcile/convert"
	"gitopsd.dev/render/conversion"
)

// newServer returns a bed that serves without an API server, and a client of it that speaks
// HTTP/1 or HTTP/2.
func newServer(t *testing.T, version int) (b *bed, url string, client *http.Client) {
	b = &bed{T: t, group: "example.io", dir: t.TempDir(), table: &convert.Table{}, ca: newAuthority(t), logger: slog.New(slog.DiscardHandler)}
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
	t.Cleanup(b.end)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(b.ca.pem)
	protocols := new(http.Protocols)
	protocols.SetHTTP1(version == 1)
	protocols.SetHTTP2(version == 2)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, Protocols: protocols}
	t.Cleanup(transport.CloseIdleConnections)
	return b, "https://" + b.address + conversion.Path("dev", set.Name(), set.Digest()), &http.Client{Transport: transport}
}

// review is a review of one object with a text of a size.
func review(size int) io.Reader {
	return strings.NewReader(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview","request":{"uid":"u","desiredAPIVersion":"example.io/v2","objects":[` +
		`{"apiVersion":"example.io/v1","kind":"Person","metadata":{"name":"a"},"spec":{"firstName":"` + strings.Repeat("x", size) + `"}}]}}`)
}

// A server that leaves has no connection on which a request could meet its end, and
// answers whoever still comes.
func TestLeave(t *testing.T) {
	t.Parallel()
	for _, version := range []int{1, 2} {
		b, url, client := newServer(t, version)
		send := func() (reused bool) {
			ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) { reused = c.Reused }})
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, review(1))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if answer, err := io.ReadAll(resp.Body); err != nil || resp.ProtoMajor != version || !strings.Contains(string(answer), `"Success"`) {
				t.Errorf("%s %s %.100s %v", resp.Proto, resp.Status, answer, err)
			}
			return reused
		}
		if send() || !send() {
			t.Errorf("HTTP/%d: the second request and no other is to reuse the connection", version)
		}
		b.leave()
		if !send() {
			t.Errorf("HTTP/%d: a connection ends before its next answer", version)
		}
		more := send()
		for try := 0; version == 2 && more && try < 1000; try++ { // the end takes a moment to arrive
			more = send()
		}
		if more {
			t.Errorf("HTTP/%d: a connection does not end", version)
		}
	}
}

// API servers send all reviews over one connection to a server on a loopback address, by
// HTTP/2, and over several to others, by HTTP/1.1. Many large ones at a time delay
// neither each other nor small ones until they fail: those that wait take no room of the
// connection from those that are read.
func TestManyLarge(t *testing.T) {
	t.Parallel()
	_, url, client := newServer(t, 2)
	send := func(size int) {
		resp, err := client.Post(url, "application/json", review(size))
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
