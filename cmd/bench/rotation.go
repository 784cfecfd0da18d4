package main

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// The webhook under load, and where its certificate is kept.
const (
	rotationNamespace = "rotation"
	rotationSecret    = "webhook-tls"
	rotationWebhooks  = "rotation"
	// rotationHost is the name that the webhook is reached by: its URL, so that all sides
	// share one way to it.
	rotationHost = "localhost"
)

const (
	rotationLoad = 8 // clients at once
	// rotationPause is between two requests of a client.
	rotationPause = 5 * time.Millisecond
	// kubeletDelay is how long the files of a Secret lag behind it. A kubelet takes up to a
	// minute and more; a short time is in favour of whoever does not wait for the files.
	kubeletDelay = time.Second
	// rotationSettle is how long the load goes on after the last change.
	rotationSettle = 5 * time.Second
	rotationLimit  = 3 * time.Minute
)

// keeper keeps the certificate of a webhook: key and certificate in a Secret (tls.crt,
// tls.key), and the CA bundle in the webhook configuration. Both exist, and are empty
// at first. It turns CA and certificate over again and again until the context is done.
type keeper struct {
	name string
	keep func(ctx context.Context, cfg *rest.Config) error
}

// rivalKeeper is what projects embed for it today.
var rivalKeeper = keeper{"cert-controller", keepWithCertController}

// rotation counts the admission requests that fail while every certificate of a webhook
// turns over. The rival is a note: the goal is that none fails.
func (b *bench) rotation(ctx context.Context, f *fixture) error {
	kubeconfig, err := f.controlPlane(ctx)
	if err != nil {
		return err
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	cfg.QPS = -1
	program := filepath.Join(f.dir, "webhookserver")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", program, "gitopsd.dev/testscripts/webhookserver").CombinedOutput(); err != nil {
		return fmt.Errorf("building webhookserver: %w: %s", err, out)
	}
	for round := range b.rounds {
		fmt.Fprintf(b.say, "bench: rotation of certificates, round %d of %d\n", round+1, b.rounds)
		dir := filepath.Join(f.dir, fmt.Sprintf("rotation-%d", round))
		r, err := loadRotation(ctx, cfg, program, dir, rivalKeeper)
		if err != nil {
			return fmt.Errorf("%s: %w", rivalKeeper.name, err)
		}
		fmt.Fprintf(b.say, "bench: %s: %d of %d requests failed in %d turnovers; the last: %v\n", rivalKeeper.name, r.failed, r.failed+r.succeeded, r.turnovers, r.last)
		b.note("rotation-failed-requests", "rival:"+rivalKeeper.name, float64(r.failed))
	}
	return nil
}

// rotationResult is what a load saw.
type rotationResult struct {
	succeeded, failed int64
	// turnovers is how often both CA and certificate became others.
	turnovers int
	last      error
}

// loadRotation loads a webhook while its keeper turns everything over twice.
func loadRotation(ctx context.Context, cfg *rest.Config, program, certs string, k keeper) (r rotationResult, err error) {
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return r, err
	}
	if err := os.Mkdir(certs, 0o700); err != nil {
		return r, err
	}
	address, err := freeAddress()
	if err != nil {
		return r, err
	}
	s := &rotationSetup{client: client, certs: certs}
	defer func() { err = errors.Join(err, s.remove(context.WithoutCancel(ctx))) }()
	if err := s.create(ctx, address); err != nil {
		return r, err
	}
	ctx, stop := context.WithTimeout(ctx, rotationLimit)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	ended := make(chan error, 3)
	running.Go(func() { ended <- k.keep(ctx, cfg) })
	running.Go(func() { ended <- s.mount(ctx) })
	server := exec.CommandContext(ctx, program, "-addr", address)
	server.Env = append(os.Environ(), "TLS_SERVER_CERTS_DIR="+certs)
	server.Cancel = func() error { return server.Process.Signal(os.Interrupt) }
	running.Go(func() { ended <- server.Run() })

	// The load starts once the webhook works.
	before, err := s.await(ctx, ended, func(state) bool { return s.request(ctx) == nil })
	if err != nil {
		return r, fmt.Errorf("the webhook does not answer: %w", errors.Join(err, s.request(ctx)))
	}
	var succeeded, failed atomic.Int64
	var last atomic.Value
	loading, done := context.WithCancel(ctx)
	defer done()
	var clients sync.WaitGroup
	for range rotationLoad {
		clients.Go(func() {
			for loading.Err() == nil {
				switch err := s.request(ctx); {
				case loading.Err() != nil: // cut off by the end
				case err == nil:
					succeeded.Add(1)
				default:
					failed.Add(1)
					last.Store(err)
				}
				time.Sleep(rotationPause)
			}
		})
	}
	const turnovers = 2
	for r.turnovers = 0; r.turnovers < turnovers; r.turnovers++ {
		if before, err = s.await(ctx, ended, func(now state) bool { return now.differs(before) }); err != nil {
			return r, fmt.Errorf("the certificates did not turn over: %w", err)
		}
	}
	select {
	case <-ctx.Done():
		return r, ctx.Err()
	case <-time.After(rotationSettle):
	}
	done()
	clients.Wait()
	r.succeeded, r.failed = succeeded.Load(), failed.Load()
	r.last, _ = last.Load().(error)
	if r.succeeded == 0 {
		return r, fmt.Errorf("no request succeeded: %w", r.last)
	}
	return r, nil
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// rotationSetup are the objects around a webhook under load.
type rotationSetup struct {
	client dynamic.Interface
	certs  string
}

var (
	namespaceResource = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	secretResource    = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	configMapResource = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	webhookResource   = schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingwebhookconfigurations"}
)

func (s *rotationSetup) create(ctx context.Context, address string) error {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	object := func(apiVersion, kind, name string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind}}
		u.SetName(name)
		return u
	}
	if _, err := s.client.Resource(namespaceResource).Create(ctx, object("v1", "Namespace", rotationNamespace), metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	if _, err := s.client.Resource(secretResource).Namespace(rotationNamespace).Create(ctx, object("v1", "Secret", rotationSecret), metav1.CreateOptions{}); err != nil {
		return err
	}
	webhooks := object("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", rotationWebhooks)
	webhooks.Object["webhooks"] = []any{map[string]any{
		"name": "rotation.bench.example", "sideEffects": "None", "failurePolicy": "Fail", "timeoutSeconds": int64(5),
		"admissionReviewVersions": []any{"v1"},
		"clientConfig":            map[string]any{"url": "https://" + net.JoinHostPort(rotationHost, port) + "/validate-configmaps"},
		"namespaceSelector":       map[string]any{"matchLabels": map[string]any{"kubernetes.io/metadata.name": rotationNamespace}},
		"rules": []any{map[string]any{
			"apiGroups": []any{""}, "apiVersions": []any{"v1"}, "resources": []any{"configmaps"}, "operations": []any{"CREATE"},
		}},
	}}
	_, err = s.client.Resource(webhookResource).Create(ctx, webhooks, metav1.CreateOptions{})
	return err
}

func (s *rotationSetup) remove(ctx context.Context) error {
	var errs []error
	for _, err := range []error{
		s.client.Resource(webhookResource).Delete(ctx, rotationWebhooks, metav1.DeleteOptions{}),
		s.client.Resource(secretResource).Namespace(rotationNamespace).Delete(ctx, rotationSecret, metav1.DeleteOptions{}),
	} {
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// request is one request of the load: a dry run that the webhook has to allow.
func (s *rotationSetup) request(ctx context.Context) error {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap"}}
	u.SetGenerateName("load-")
	_, err := s.client.Resource(configMapResource).Namespace(rotationNamespace).Create(ctx, u, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// state is what is kept at one time: the certificate and the CA bundle.
type state struct{ certificate, bundle string }

// differs reports whether both have become others.
func (s state) differs(before state) bool {
	return s.certificate != before.certificate && s.bundle != before.bundle
}

// await polls until a state is as it should be.
func (s *rotationSetup) await(ctx context.Context, ended <-chan error, is func(state) bool) (state, error) {
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for {
		now, err := s.state(ctx)
		if err == nil && now.certificate != "" && now.bundle != "" && is(now) {
			return now, nil
		}
		select {
		case <-ctx.Done():
			return now, errors.Join(ctx.Err(), err)
		case end := <-ended:
			return now, fmt.Errorf("the webhook or what keeps its certificate ended: %w", errors.Join(end, ctx.Err()))
		case <-ticker.C:
		}
	}
}

func (s *rotationSetup) state(ctx context.Context) (state, error) {
	var now state
	data, err := s.secret(ctx)
	if err != nil {
		return now, err
	}
	if now.certificate, err = serial(data["tls.crt"]); err != nil {
		return now, err
	}
	webhooks, err := s.client.Resource(webhookResource).Get(ctx, rotationWebhooks, metav1.GetOptions{})
	if err != nil {
		return now, err
	}
	list, _, err := unstructured.NestedSlice(webhooks.Object, "webhooks")
	if err != nil || len(list) == 0 {
		return now, errors.Join(err, errors.New("there is no webhook"))
	}
	first, _ := list[0].(map[string]any)
	now.bundle, _, err = unstructured.NestedString(first, "clientConfig", "caBundle")
	return now, err
}

func (s *rotationSetup) secret(ctx context.Context) (map[string][]byte, error) {
	u, err := s.client.Resource(secretResource).Namespace(rotationNamespace).Get(ctx, rotationSecret, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return secretData(u)
}

// serial identifies the first certificate of a PEM text, "" if there is none yet. Serial
// numbers need not differ.
func serial(text []byte) (string, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return "", nil
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return "", err
	}
	return string(c.Signature), nil
}

// mount writes the Secret's certificate as files, as a kubelet does: both at once, some
// time after the Secret changed.
func (s *rotationSetup) mount(ctx context.Context) error {
	var written []byte
	for version := 0; ; {
		data, err := s.secret(ctx)
		if err == nil && len(data["tls.crt"]) > 0 && !bytes.Equal(data["tls.crt"], written) {
			version++
			if err := s.write(version, data); err != nil {
				return err
			}
			written = data["tls.crt"]
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(kubeletDelay):
		}
	}
}

func (s *rotationSetup) write(version int, data map[string][]byte) error {
	dir := fmt.Sprintf("..%d", version)
	if err := os.Mkdir(filepath.Join(s.certs, dir), 0o700); err != nil {
		return err
	}
	for _, name := range []string{"tls.crt", "tls.key"} {
		if err := os.WriteFile(filepath.Join(s.certs, dir, name), data[name], 0o600); err != nil {
			return err
		}
	}
	next := filepath.Join(s.certs, "..next")
	if err := os.Symlink(dir, next); err != nil {
		return err
	}
	if err := os.Rename(next, filepath.Join(s.certs, "..data")); err != nil {
		return err
	}
	for _, name := range []string{"tls.crt", "tls.key"} {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(s.certs, name)); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

func secretData(u *unstructured.Unstructured) (map[string][]byte, error) {
	values, _, err := unstructured.NestedStringMap(u.Object, "data")
	if err != nil {
		return nil, err
	}
	data := make(map[string][]byte, len(values))
	for name, v := range values {
		if data[name], err = base64.StdEncoding.DecodeString(v); err != nil {
			return nil, err
		}
	}
	return data, nil
}
