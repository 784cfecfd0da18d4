package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/go-logr/logr"
	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// keepWithCertController keeps a webhook's certificate with cert-controller, as projects
// embed it, and with lifetimes so short that all of it turns over every few seconds. It
// does not restart the process, which is its default.
func keepWithCertController(ctx context.Context, cfg *rest.Config) error {
	ctrl.SetLogger(logr.Discard())
	certs, err := os.MkdirTemp("", "gitopsd-bench-certs-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(certs)
	// It waits for its own certificate; another process serves it.
	if err := os.WriteFile(certs+"/tls.crt", nil, 0o600); err != nil {
		return err
	}
	manager, err := ctrl.NewManager(rest.CopyConfig(cfg), ctrl.Options{Metrics: server.Options{BindAddress: "0"}})
	if err != nil {
		return err
	}
	err = rotator.AddRotator(manager, &rotator.CertRotator{
		SecretKey: types.NamespacedName{Namespace: rotationNamespace, Name: rotationSecret},
		CertDir:   certs, CAName: "bench-ca", CAOrganization: "bench", DNSName: rotationHost,
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
