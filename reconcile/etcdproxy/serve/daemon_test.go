package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"gitopsd.dev/render/etcd"
)

// files are those of the directory, by path.
func (w *world) files() map[string][]byte {
	w.Helper()
	d, err := read(w.dir)
	if err != nil {
		w.Fatal(err)
	}
	return d.files
}

// Two namespaces may exchange their numbers, as after etcd was restored from before both: the daemon serves both
// once it was told of each, and the one that comes again.
func TestExchanged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d, err := NewDaemon(DaemonConfig{Log: slog.New(slog.DiscardHandler), Certificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, nil }})
	if err != nil {
		t.Fatal(err)
	}
	a, b := w.namespace, w.namespace
	b.ID.Name, b.Number = "zeta", a.Number+1
	b.Prefix = b.ID.DefaultPrefix()
	serve := func(n etcd.Namespace) error {
		w.namespace = n
		w.write()
		return d.Serve(n.ID, w.files())
	}
	if err := errors.Join(serve(a), serve(b)); err != nil {
		t.Fatal(err)
	}
	a.Number, b.Number = b.Number, a.Number
	if err := serve(a); err == nil || d.Has(a.ID) {
		t.Errorf("it is served with the number of another, or with that of before: %v", err)
	}
	if err := errors.Join(serve(b), serve(a)); err != nil || !d.Has(a.ID) || !d.Has(b.ID) {
		t.Errorf("not both are served: %v", err)
	}
}

// The daemon serves a namespace from the same files as Run, until it is withdrawn. Invalid files change nothing.
func TestDaemon(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	certificate, err := tls.X509KeyPair(w.files()["server/tls.crt"], w.files()["server/tls.key"])
	if err != nil {
		t.Fatal(err)
	}
	d, err := NewDaemon(DaemonConfig{
		Log:         slog.New(slog.DiscardHandler),
		Certificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &certificate, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var ran sync.WaitGroup
	defer ran.Wait()
	defer cancel()
	ran.Go(func() {
		if err := d.Listen(ctx, listener); err != nil {
			t.Error(err)
		}
	})
	id := w.namespace.ID
	if _, known := d.Bytes(id); known || len(d.Counts()) > 0 {
		t.Error("something is served at the beginning")
	}
	if err := d.Serve(id, w.files()); err != nil {
		t.Fatal(err)
	}
	within, cancelAll := context.WithTimeout(t.Context(), patience)
	defer cancelAll()
	c := w.client(listener.Addr().String())
	if _, err := c.Put(within, "/a", "123"); err != nil {
		t.Fatal(err)
	}
	for {
		n, known := d.Bytes(id)
		if known && n == 5 {
			break
		}
		if within.Err() != nil {
			t.Fatalf("%d bytes, %v", n, known)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if all := d.Counts(); len(all) != 1 || all[0].Namespace != id.String() || all[0].Connections != 1 {
		t.Errorf("counts are %+v", all)
	}

	for name, text := range map[string]string{
		"upstream/tls.key": "garbled", "client-ca.crt": "none", "endpoints": "https://\n", "namespace.json": `{"id": {"Cluster": "other"}}`,
	} {
		files := w.files()
		files[name] = []byte(text)
		if err := d.Serve(id, files); err == nil || !strings.Contains(err.Error(), strings.TrimSuffix(name, ".key")) {
			t.Errorf("%s: %v", name, err)
		}
	}
	overlapping := w.namespace
	overlapping.ID.Name, overlapping.Number = "inside", w.namespace.Number+1
	w.namespace, overlapping = overlapping, w.namespace
	w.write()
	if err := d.Serve(w.namespace.ID, w.files()); err == nil || !strings.Contains(err.Error(), "those of dev/default/sample, too") {
		t.Errorf("keys of another: %v", err)
	}
	w.namespace = overlapping
	w.write()
	if answer, err := c.Get(within, "/a"); err != nil || len(answer.Kvs) != 1 {
		t.Errorf("it is not served as before: %v, %v", answer, err)
	}

	// Clients of other CAs are admitted, and no others, also on connections that are open.
	if err := d.Admit(etcd.ID{Cluster: "unknown"}, nil); err != nil || d.Has(etcd.ID{Cluster: "unknown"}) {
		t.Errorf("a namespace that is not served: %v", err)
	}
	if err := d.Admit(id, []byte("garbled")); err == nil || !strings.Contains(err.Error(), "client-ca.crt") {
		t.Errorf("garbled CAs: %v", err)
	}
	if err := d.Admit(id, nil); err != nil {
		t.Error(err)
	}
	short, end := context.WithTimeout(within, time.Second)
	if _, err := c.Get(short, "/a"); err == nil {
		t.Error("a client is served without its CA")
	}
	end()
	if err := d.Admit(id, w.files()["client-ca.crt"]); err != nil {
		t.Error(err)
	}
	if answer, err := w.client(listener.Addr().String()).Get(within, "/a"); err != nil || len(answer.Kvs) != 1 {
		t.Errorf("with its CA again: %v, %v", answer, err)
	}
	if _, err := c.Get(within, "/a"); err != nil {
		t.Errorf("on the connection of before: %v", err)
	}

	d.Withdraw(func(other etcd.ID) bool { return other != id })
	if _, err := c.Get(within, "/a"); err != nil {
		t.Errorf("after others were withdrawn: %v", err)
	}
	d.Withdraw(func(other etcd.ID) bool { return other == id })
	if len(d.Counts()) > 0 {
		t.Error("it is still served")
	}
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	pair, err := tls.X509KeyPair(w.secrets[w.wanted.Clients[0].Secret].Data["tls.crt"], w.secrets[w.wanted.Clients[0].Secret].Data["tls.key"])
	if err != nil {
		t.Fatal(err)
	}
	client := tls.Client(conn, &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err := client.HandshakeContext(within); err == nil {
		if _, err := client.Read(make([]byte, 1)); err == nil {
			t.Error("a client is let in after it was withdrawn")
		}
	}
}
