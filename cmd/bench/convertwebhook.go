package main

import (
	"bytes"
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"

	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"

	"gitopsd.dev/cmd/gitopsd/cli"
	"gitopsd.dev/reconcile/convert/serve"
	"gitopsd.dev/reconcile/etcdproxy/proxytest"
)

// convertChild is the name under which this program is a conversion webhook, until its
// standard input ends.
const convertChild = "convert-child"

// webhookHost is the address of webhooks. It is not a loopback address: API servers speak
// HTTP/2 only to those, and HTTP/1.1 to deployed webhooks.
const webhookHost = "0.0.0.0"

// webhookCertificate writes the certificate of all webhooks to a directory. bundle is its
// CA.
func (f *fixture) webhookCertificate() (dir string, bundle []byte, err error) {
	dir = filepath.Join(f.dir, "webhook")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", nil, err
	}
	ca, err := proxytest.NewAuthority("webhooks")
	if err != nil {
		return "", nil, err
	}
	certificate, err := ca.Issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: "webhook"}, IPAddresses: []net.IP{net.ParseIP(webhookHost)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return "", nil, err
	}
	return dir, ca.PEM(), proxytest.WritePair(filepath.Join(dir, "tls"), certificate)
}

// converter starts the webhook of a side, with the certificate in a directory.
func (f *fixture) converter(ctx context.Context, s *convertedSide, dir string) (url string, process serverProcess, err error) {
	stdout, process, err := f.serverChild(ctx, convertChild, s.by, s.group, dir)
	if err != nil {
		return "", 0, err
	}
	if _, err := fmt.Fscan(stdout, &url); err != nil {
		return "", 0, fmt.Errorf("the converter %s does not start: %w", s.by, err)
	}
	return url, process, nil
}

// serveConversions serves a conversion webhook: args are the side, the API group and the
// directory of the certificate. Ours and the rival use the server that each is deployed
// with.
func serveConversions(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	start := map[string]func(c *converted, dir string) (string, error){"ours": startOurs, "rival": startRival, "floor": startFloor}[args[0]]
	c := moved
	c.group = args[1]
	url, err := start(&c, args[2])
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	fmt.Fprintln(stdout, url)
	_, _ = io.Copy(io.Discard, stdin)
	return 0
}

func startOurs(c *converted, dir string) (url string, err error) {
	cli.TuneGC()
	handler, path, err := conversionRules(c)
	if err != nil {
		return "", err
	}
	log := slog.New(slog.DiscardHandler)
	certificates, err := serve.LoadCertificates(dir, log)
	if err != nil {
		return "", err
	}
	server, err := serve.Listen(net.JoinHostPort(webhookHost, "0"), handler, certificates, log, ended)
	if err != nil {
		return "", err
	}
	_, port, _ := net.SplitHostPort(server.Address.String())
	return "https://" + net.JoinHostPort(webhookHost, port) + path, nil
}

func startRival(c *converted, dir string) (url string, err error) {
	handler := conversionWebhook(c.group)
	free, err := unused(webhookHost) // the server does not say which port it got for 0
	if err != nil {
		return "", err
	}
	server := ctrlwebhook.NewServer(ctrlwebhook.Options{Host: webhookHost, Port: free.Port, CertDir: dir})
	server.Register("/convert", handler)
	go func() { ended(server.Start(context.Background())) }()
	return "https://" + net.JoinHostPort(webhookHost, strconv.Itoa(free.Port)) + "/convert", nil
}

func startFloor(_ *converted, dir string) (url string, err error) {
	listener, err := net.Listen("tcp", net.JoinHostPort(webhookHost, "0"))
	if err != nil {
		return "", err
	}
	server := &http.Server{Handler: http.HandlerFunc(floorWebhook)}
	go func() { ended(server.ServeTLS(listener, filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))) }()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	return "https://" + net.JoinHostPort(webhookHost, port) + "/convert", nil
}

// ended ends a child whose server ended.
func ended(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// floorWebhook changes only the version of the object in a review, and checks nothing: the
// least that a webhook in Go can do. It depends on the order of fields in the reviews of API
// servers.
func floorWebhook(w http.ResponseWriter, r *http.Request) {
	body := make([]byte, r.ContentLength)
	if _, err := io.ReadFull(r.Body, body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	_, rest, _ := bytes.Cut(body, []byte(`"uid":"`))
	uid, rest, _ := bytes.Cut(rest, []byte(`","desiredAPIVersion":"`))
	version, rest, _ := bytes.Cut(rest, []byte(`","objects":[{"apiVersion":"`))
	_, rest, ok := bytes.Cut(rest, []byte(`"`))
	end := bytes.LastIndex(rest, []byte(`]},"response":`))
	if !ok || end < 0 {
		http.Error(w, "the fields of the review are in another order", http.StatusBadRequest)
		return
	}
	answer := make([]byte, 0, len(body)+256)
	answer = append(answer, `{"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview","response":{"uid":"`...)
	answer = append(append(answer, uid...), `","convertedObjects":[{"apiVersion":"`...)
	answer = append(append(append(answer, version...), '"'), rest[:end]...)
	answer = append(answer, `],"result":{"status":"Success"}}}`...)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
	_, _ = w.Write(answer)
}
