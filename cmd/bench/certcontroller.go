package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"gitopsd.dev/testscripts/devcluster"
)

// keepWithCertController keeps a webhook's certificate with cert-controller, which projects
// embed. Lifetimes are so short that CA and certificate are replaced every few seconds. It
// does not restart the process after a replacement, which is the default.
func keepWithCertController(ctx context.Context, kubeconfig, dir string) error {
	ctrl.SetLogger(logr.Discard())
	objects := filepath.Join(dir, "objects.yaml")
	secret := fmt.Sprintf("---\napiVersion: v1\nkind: Secret\nmetadata: {name: %s, namespace: %s}\n", rotationSecret, rotationNamespace)
	if err := os.WriteFile(objects, []byte(rotationObjects+secret), 0o600); err != nil {
		return err
	}
	apply, err := devcluster.Kubectl(ctx, "apply", "--kubeconfig", kubeconfig, "-f", objects)
	if err != nil {
		return err
	}
	if out, err := apply.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl apply: %w\n%s", err, out)
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	// The rotator waits for this file. Another process serves the certificate.
	if err := os.WriteFile(filepath.Join(dir, "tls.crt"), nil, 0o600); err != nil {
		return err
	}
	manager, err := ctrl.NewManager(cfg, ctrl.Options{Metrics: server.Options{BindAddress: "0"}})
	if err != nil {
		return err
	}
	err = rotator.AddRotator(manager, &rotator.CertRotator{
		SecretKey: types.NamespacedName{Namespace: rotationNamespace, Name: rotationSecret},
		CertDir:   dir, CAName: "bench-ca", CAOrganization: "bench", DNSName: rotationHost,
		IsReady:        make(chan struct{}),
		Webhooks:       []rotator.WebhookInfo{{Name: rotationWebhooks, Type: rotator.Validating}},
		ControllerName: fmt.Sprintf("rotation-%d", time.Now().UnixNano()), // unique in a process
		CaCertDuration: 40 * time.Second, ServerCertDuration: 40 * time.Second,
		LookaheadInterval: 25 * time.Second, RotationCheckFrequency: time.Second,
	})
	if err != nil {
		return err
	}
	return manager.Start(ctx)
}
