// Package controllers runs the controllers of kube-controller-manager that a cluster
// without machines, disks and clouds needs: Kubernetes' own code, with its default
// configuration.
//
// Kubernetes' package cmd/kube-controller-manager/app runs them, too, but imports all other
// controllers. With them come the scheduler, volume plugins and much of the kubelet, which
// would be more than a quarter of what is compiled for devcluster.
//
// table.go lists the controllers. special.go makes those that need more than their
// constructor.
package controllers

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/controller-manager/pkg/informerfactory"
	"k8s.io/klog/v2"
	defaults "k8s.io/kube-controller-manager/config/v1alpha1"
	"k8s.io/kubernetes/pkg/controller/apis/config/scheme"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"

	"gitopsd.dev/cmd/devcluster/internal/component"
)

// rediscovery is how often controllers look for new kinds of objects.
const rediscovery = 30 * time.Second

// controller is a controller that can be started.
type controller struct {
	// name ends the user agent of its client.
	name string
	// workers is how many objects it handles at a time.
	workers int32
	create  func(context.Context, client) (runFunc, error)
}

// runFunc runs a controller until the context ends.
type runFunc func(ctx context.Context, workers int)

// client is a controller's client.
type client struct {
	kubernetes.Interface
	config *rest.Config
}

// faster returns the client's configuration with multiplied limits.
func (c client) faster(qps float32, burst int) *rest.Config {
	config := rest.CopyConfig(c.config)
	config.QPS *= qps
	config.Burst *= burst
	return config
}

// manager has what the controllers share.
type manager struct {
	config component.ControllersConfig
	rest   *rest.Config
	// defaults is the default configuration of kube-controller-manager.
	defaults  *defaults.KubeControllerManagerConfiguration
	informers informers.SharedInformerFactory
	// anyInformers adds informers for the metadata of other kinds of objects.
	anyInformers informerfactory.InformerFactory
	// started is closed when informers may start.
	started chan struct{}
	mapper  *restmapper.DeferredDiscoveryRESTMapper
	// graph has the owners of all objects.
	graph *garbagecollector.GraphBuilder
}

// Run runs the controllers until ctx ends, and then returns without waiting for them: like
// all of Kubernetes' controllers, they can be killed at any time. The API server must be
// ready.
func Run(ctx context.Context, cfg component.ControllersConfig) error {
	m, err := newManager(ctx, cfg)
	if err != nil {
		return err
	}
	var starts []func()
	for _, c := range m.controllers() {
		ctx := klog.NewContext(ctx, klog.LoggerWithName(klog.FromContext(ctx), c.name))
		api, err := m.client(c.name)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		run, err := c.create(ctx, api)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		starts = append(starts, func() { run(ctx, int(c.workers)) })
	}
	m.anyInformers.Start(ctx.Done())
	close(m.started)
	for _, start := range starts {
		go start()
	}
	<-ctx.Done()
	return nil
}

func newManager(ctx context.Context, cfg component.ControllersConfig) (*manager, error) {
	m := &manager{config: cfg, defaults: &defaults.KubeControllerManagerConfiguration{}, started: make(chan struct{})}
	scheme.Scheme.Default(m.defaults)
	var err error
	if m.rest, err = restConfig(m.path("controller-manager.kubeconfig")); err != nil {
		return nil, err
	}
	api, err := m.client("shared-informers")
	if err != nil {
		return nil, err
	}
	metadataClient, err := metadata.NewForConfig(api.config)
	if err != nil {
		return nil, err
	}
	m.informers = informers.NewSharedInformerFactoryWithOptions(api, m.resync(), informers.WithTransform(dropManagedFields))
	m.anyInformers = informerfactory.NewInformerFactory(m.informers,
		metadatainformer.NewSharedInformerFactoryWithOptions(metadataClient, m.resync(), metadatainformer.WithTransform(dropManagedFields)))
	m.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(api.Discovery()))
	go wait.UntilWithContext(ctx, func(context.Context) { m.mapper.Reset() }, rediscovery)
	m.graph = garbagecollector.NewDependencyGraphBuilder(
		ctx, metadataClient, m.mapper, garbagecollector.DefaultIgnoredResources(), m.anyInformers, m.started)
	return m, nil
}

// restConfig returns the configuration of clients.
func restConfig(kubeconfig string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	config.ContentType = runtime.ContentTypeProtobuf
	config.DisableCompression = true
	// The API server has priority and fairness; a low limit here would only delay.
	config.QPS, config.Burst = 500, 1000
	// Controllers use deprecated versions on purpose.
	config.WarningHandler = rest.NoWarnings{}
	return config, nil
}

// path returns the path of one of the control plane's files.
func (m *manager) path(name string) string { return filepath.Join(m.config.Dir, name) }

// client returns a client whose user agent ends with name.
func (m *manager) client(name string) (client, error) {
	config := rest.AddUserAgent(rest.CopyConfig(m.rest), name)
	c, err := kubernetes.NewForConfig(config)
	return client{Interface: c, config: config}, err
}

// resync returns a period after which informers repeat their objects. The periods differ,
// so that not all come at once.
func (m *manager) resync() time.Duration {
	return wait.Jitter(m.defaults.Generic.MinResyncPeriod.Duration, 1)
}

// dropManagedFields makes caches smaller.
func dropManagedFields(obj any) (any, error) {
	if o, ok := obj.(metav1.Object); ok {
		o.SetManagedFields(nil)
	}
	return obj, nil
}
