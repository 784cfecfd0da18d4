package main

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"gitopsd.dev/testscripts/devcluster"
	"gitopsd.dev/testscripts/gitserver"
)

// webhookChild is the name under which this program is the webhook.
const webhookChild = "webhook-child"

// The webhook under load, and the place of its certificate.
const (
	rotationNamespace = "rotation"
	rotationSecret    = "webhook-tls"
	rotationWebhooks  = "rotation"
	rotationHost      = "webhook." + rotationNamespace + ".svc"
	rotationImage     = "registry.bench.example/webhook"
	rotationLabel     = "bench.example/denied"
)

// rotationObjects are the webhook's objects, the same for both sides. The annotations are
// for gitopsd; the rival's code names the Secret and the webhook configuration.
const rotationObjects = `apiVersion: v1
kind: Namespace
metadata: {name: ` + rotationNamespace + `}
---
apiVersion: v1
kind: Service
metadata:
  name: webhook
  namespace: ` + rotationNamespace + `
  annotations: {gitopsd.dev/serving-cert: ` + rotationSecret + `}
spec:
  selector: {app: webhook}
  ports: [{port: 443, targetPort: 9443}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: webhook, namespace: ` + rotationNamespace + `}
spec:
  selector: {matchLabels: {app: webhook}}
  template:
    metadata: {labels: {app: webhook}}
    spec:
      containers:
      - name: webhook
        image: ` + rotationImage + `:v1
        env: [{name: TLS_SERVER_CERTS_DIR, value: /tls}]
        volumeMounts: [{name: tls, mountPath: /tls}]
        readinessProbe: {tcpSocket: {port: 9443}, periodSeconds: 1}
      volumes: [{name: tls, secret: {secretName: ` + rotationSecret + `}}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata:
  name: ` + rotationWebhooks + `
  annotations: {gitopsd.dev/inject-ca: Service/` + rotationNamespace + `/webhook}
webhooks:
- name: rotation.bench.example
  sideEffects: None
  failurePolicy: Fail
  timeoutSeconds: 5
  admissionReviewVersions: [v1]
  clientConfig: {service: {name: webhook, namespace: ` + rotationNamespace + `, path: /validate-configmaps}}
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ` + rotationNamespace + `}}
  rules: [{apiGroups: [""], apiVersions: [v1], resources: [configmaps], operations: [CREATE]}]
`

const (
	rotationLoad = 8 // clients at once
	// rotationPause is between two requests of a client.
	rotationPause = 5 * time.Millisecond
	// rotationSettle is how long the load goes on after the last change.
	rotationSettle = 5 * time.Second
	rotationLimit  = 4 * time.Minute
)

// keeper applies the objects to a cluster, and keeps the certificate of the webhook: key and
// certificate in the Secret, and the CA bundle in the webhook configuration. It replaces CA
// and certificate again and again until the context ends. dir is an empty directory for it.
type keeper struct {
	name string
	keep func(ctx context.Context, kubeconfig, dir string) error
}

// rotation counts the admission requests that fail while CA and certificate of a webhook are
// replaced. The goal is that none fails, so the rival's number is only a note.
func (b *bench) rotation(ctx context.Context, f *fixture) error {
	planes, err := f.planes(ctx, devcluster.Config{})
	if err != nil {
		return err
	}
	server, err := f.gitServer()
	if err != nil {
		return err
	}
	keepers := []keeper{
		{"gitopsd", func(ctx context.Context, kubeconfig, dir string) error {
			return keepWithGitopsd(ctx, server, kubeconfig, dir)
		}},
		{"cert-controller", keepWithCertController},
	}
	for round := range b.rounds {
		for i, k := range keepers {
			fmt.Fprintf(b.say, "bench: rotation of certificates by %s, round %d of %d\n", k.name, round+1, b.rounds)
			r, err := loadRotation(ctx, planes, fmt.Sprintf("rotation-%d-%d", round, i), f.dir, k)
			if err != nil {
				return fmt.Errorf("%s: %w", k.name, err)
			}
			fmt.Fprintf(b.say, "bench: %s: %d of %d requests failed in %d turnovers; the last: %v\n", k.name, r.failed, r.failed+r.succeeded, rotationTurnovers, r.last)
			if i == 0 {
				b.add("rotation-failed-requests", float64(r.failed), 1)
			} else {
				b.note("rotation-failed-requests", "rival:"+k.name, float64(r.failed))
			}
		}
	}
	return nil
}

// keepWithGitopsd runs the daemon on a repository with the objects.
func keepWithGitopsd(ctx context.Context, server *gitserver.Server, kubeconfig, dir string) error {
	name := filepath.Base(dir)
	repo, err := server.Create(ctx, name)
	if err != nil {
		return err
	}
	_, err = repo.Commit(ctx, "main", "Start", map[string]string{
		"clusters.yaml":        fmt.Sprintf("apiVersion: gitopsd.dev/v1alpha1\nkind: Cluster\nmetadata: {name: %s}\nspec: {path: webhook, kubeconfig: {file: %s}}\n", name, filepath.Base(kubeconfig)),
		"webhook/objects.yaml": rotationObjects,
	})
	if err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(dir, "gitopsd.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, self, daemonChild, "run", "--repo", server.URL(name), "--kubeconfig-dir", filepath.Dir(kubeconfig),
		"--cache-dir", filepath.Join(dir, "cache"), "--listen", "127.0.0.1:0", "--interval", "1s",
		"--certificate-lifetime", "12s", "--ca-lifetime", "36s", "--certificate-settle", "2s")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	if err := cmd.Run(); ctx.Err() == nil {
		text, _ := os.ReadFile(log.Name()) // the error says enough without it
		return fmt.Errorf("gitopsd: %w\n%s", err, text)
	}
	return nil
}

// rotationTurnovers is how often CA and certificate are replaced under load.
const rotationTurnovers = 2

// rotationResult counts the requests of a load; last is its last error.
type rotationResult struct {
	succeeded, failed int64
	last              error
}

// loadRotation loads a webhook in a new cluster while its keeper replaces CA and certificate.
func loadRotation(ctx context.Context, planes *devcluster.ControlPlanes, cluster, dir string, k keeper) (r rotationResult, err error) {
	program, err := os.Executable()
	if err != nil {
		return r, err
	}
	if err := planes.Add(ctx, cluster); err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, planes.Stop(context.WithoutCancel(ctx), cluster)) }()
	if err := planes.SetImage(ctx, cluster, rotationImage, program, webhookChild, "-deny-label", rotationLabel+"=yes"); err != nil {
		return r, err
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", planes.Kubeconfig(cluster))
	if err != nil {
		return r, err
	}
	cfg.QPS = -1
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return r, err
	}
	dir = filepath.Join(dir, cluster)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return r, err
	}
	s := &underLoad{client}
	ctx, stop := context.WithTimeout(ctx, rotationLimit)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	ended := make(chan error, 1)
	running.Go(func() { ended <- k.keep(ctx, planes.Kubeconfig(cluster), dir) })

	// The load starts once the webhook answers.
	before, err := s.await(ctx, ended, func(kept) bool { return s.request(ctx) == nil })
	if err != nil {
		return r, fmt.Errorf("the webhook does not answer: %w", errors.Join(err, s.request(context.WithoutCancel(ctx))))
	}
	var succeeded, failed atomic.Int64
	var last atomic.Value
	loading, done := context.WithCancel(ctx)
	defer done()
	var clients sync.WaitGroup
	for range rotationLoad {
		clients.Go(func() {
			for loading.Err() == nil {
				switch err := s.request(loading); {
				case loading.Err() != nil: // cut off at the end of the load
				case err == nil:
					succeeded.Add(1)
				default:
					failed.Add(1)
					last.Store(fmt.Errorf("%w", err)) // an atomic.Value takes one type
				}
				time.Sleep(rotationPause)
			}
		})
	}
	for range rotationTurnovers {
		if before, err = s.await(ctx, ended, before.replaced); err != nil {
			return r, fmt.Errorf("CA and certificate were not replaced: %w", err)
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

// underLoad is a cluster with a webhook under load.
type underLoad struct{ client dynamic.Interface }

var (
	secretResource    = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	configMapResource = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	webhookResource   = schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingwebhookconfigurations"}
)

// request sends one request of the load. The webhook must deny it: an object that is admitted
// without the webhook is a failure, too.
func (s *underLoad) request(ctx context.Context) error {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap"}}
	u.SetGenerateName("load-")
	u.SetLabels(map[string]string{rotationLabel: "yes"})
	_, err := s.client.Resource(configMapResource).Namespace(rotationNamespace).Create(ctx, u, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	switch {
	case err == nil:
		return errors.New("admitted without the webhook")
	case strings.Contains(err.Error(), "denied the request"):
		return nil
	}
	return err
}

// kept is the certificate in the Secret and the CAs in the bundle, at one time.
type kept struct {
	certificate string
	bundle      map[string]bool
}

// replaced reports whether now has neither the certificate nor any CA of k.
func (k kept) replaced(now kept) bool {
	for ca := range now.bundle {
		if k.bundle[ca] {
			return false
		}
	}
	return now.certificate != k.certificate
}

// await polls until is reports true, and returns what is kept then.
func (s *underLoad) await(ctx context.Context, ended <-chan error, is func(kept) bool) (kept, error) {
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for {
		now, err := s.kept(ctx)
		if err == nil && now.certificate != "" && len(now.bundle) > 0 && is(now) {
			return now, nil
		}
		select {
		case <-ctx.Done():
			return now, errors.Join(ctx.Err(), err)
		case end := <-ended:
			return now, fmt.Errorf("its keeper ended: %w", errors.Join(end, ctx.Err()))
		case <-ticker.C:
		}
	}
}

func (s *underLoad) kept(ctx context.Context) (kept, error) {
	var now kept
	secret, err := s.client.Resource(secretResource).Namespace(rotationNamespace).Get(ctx, rotationSecret, metav1.GetOptions{})
	if err != nil {
		return now, err
	}
	text, _, err := unstructured.NestedString(secret.Object, "data", "tls.crt")
	if err != nil {
		return now, err
	}
	chain, err := certificates(text)
	if err != nil {
		return now, err
	}
	if len(chain) > 0 {
		now.certificate = chain[0]
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
	if text, _, err = unstructured.NestedString(first, "clientConfig", "caBundle"); err != nil {
		return now, err
	}
	cas, err := certificates(text)
	now.bundle = make(map[string]bool)
	for _, ca := range cas {
		now.bundle[ca] = true
	}
	return now, err
}

// certificates returns the signatures of the certificates in a text, which is PEM in base64.
// Signatures identify them: serial numbers need not differ.
func certificates(text string) (ids []string, err error) {
	rest, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, err
	}
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return ids, nil
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		ids = append(ids, string(c.Signature))
	}
}
