package controllers

import (
	"context"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apiextensionsscheme "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/scheme"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/scale"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/certificates/rootcacertpublisher"
	"k8s.io/kubernetes/pkg/controller/disruption"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	"k8s.io/kubernetes/pkg/controller/namespace"
	"k8s.io/kubernetes/pkg/controller/nodelifecycle"
	"k8s.io/kubernetes/pkg/controller/resourcequota"
	serviceaccounts "k8s.io/kubernetes/pkg/controller/serviceaccount"
	migrator "k8s.io/kubernetes/pkg/controller/storageversionmigrator"
	policystatus "k8s.io/kubernetes/pkg/controller/validatingadmissionpolicystatus"
	"k8s.io/kubernetes/pkg/generated/openapi"
	quota "k8s.io/kubernetes/pkg/quota/v1/install"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

func (m *manager) tokens(ctx context.Context, c client) (runFunc, error) {
	key, err := keyutil.PrivateKeyFromFile(m.path("sa.key"))
	if err != nil {
		return nil, err
	}
	tokens, err := serviceaccount.JWTTokenGenerator(serviceaccount.LegacyIssuer, key)
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(m.path("ca.crt"))
	if err != nil {
		return nil, err
	}
	core := m.informers.Core().V1()
	return running(serviceaccounts.NewTokensController(klog.FromContext(ctx), core.ServiceAccounts(), core.Secrets(), c,
		serviceaccounts.TokensControllerOptions{TokenGenerator: tokens, RootCA: ca}))
}

func (m *manager) rootCA(_ context.Context, c client) (runFunc, error) {
	ca, err := os.ReadFile(m.path("ca.crt"))
	if err != nil {
		return nil, err
	}
	core := m.informers.Core().V1()
	return running(rootcacertpublisher.NewPublisher(core.ConfigMaps(), core.Namespaces(), c, ca))
}

func (m *manager) disruption(ctx context.Context, c client) (runFunc, error) {
	scales, err := scale.NewForConfig(c.config, m.mapper, dynamic.LegacyAPIPathResolverFunc, scale.NewDiscoveryScaleKindResolver(c.Discovery()))
	if err != nil {
		return nil, err
	}
	core, apps := m.informers.Core().V1(), m.informers.Apps().V1()
	return disruption.NewDisruptionController(ctx, core.Pods(), m.informers.Policy().V1().PodDisruptionBudgets(), core.ReplicationControllers(),
		apps.ReplicaSets(), apps.Deployments(), apps.StatefulSets(), c, m.mapper, scales, c.Discovery()).Run, nil
}

// namespaces deletes the objects of deleted namespaces, with many requests at a time.
func (m *manager) namespaces(ctx context.Context, c client) (runFunc, error) {
	config := c.faster(20, 100)
	objects, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	fast, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return namespace.NewNamespaceController(ctx, fast, objects, fast.Discovery().ServerPreferredNamespacedResources,
		m.informers.Core().V1().Namespaces(), m.defaults.NamespaceController.NamespaceSyncPeriod.Duration, corev1.FinalizerKubernetes).Run, nil
}

// nodes taints nodes that are silent. The numbers at the end are the defaults of flags, for
// large clusters with failing zones.
func (m *manager) nodes(ctx context.Context, c client) (runFunc, error) {
	core, d := m.informers.Core().V1(), m.defaults.NodeLifecycleController
	nodes, err := nodelifecycle.NewNodeLifecycleController(ctx,
		m.informers.Coordination().V1().Leases(), core.Pods(), core.Nodes(), m.informers.Apps().V1().DaemonSets(), c,
		d.NodeMonitorPeriod.Duration, d.NodeStartupGracePeriod.Duration, d.NodeMonitorGracePeriod.Duration, 0.1, 0.01, 50, 0.55)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, _ int) { nodes.Run(ctx) }, nil
}

// garbageCollector needs two requests to delete an object.
func (m *manager) garbageCollector(ctx context.Context, c client) (runFunc, error) {
	objects, err := metadata.NewForConfig(c.faster(2, 1))
	if err != nil {
		return nil, err
	}
	collector, err := garbagecollector.NewComposedGarbageCollector(ctx, c, objects, m.mapper, m.graph)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, workers int) {
		go collector.Sync(ctx, c.Discovery(), rediscovery)
		collector.Run(ctx, workers, rediscovery)
	}, nil
}

func (m *manager) quotas(ctx context.Context, c client) (runFunc, error) {
	counted, err := quota.NewQuotaConfigurationForControllers(generic.ListerFuncForResourceFunc(m.informers.ForResource), m.informers)
	if err != nil {
		return nil, err
	}
	discover := c.Discovery().ServerPreferredNamespacedResources
	resync := m.defaults.ResourceQuotaController.ResourceQuotaSyncPeriod.Duration
	quotas, err := resourcequota.NewController(ctx, &resourcequota.ControllerOptions{
		QuotaClient:               c.CoreV1(),
		ResourceQuotaInformer:     m.informers.Core().V1().ResourceQuotas(),
		ResyncPeriod:              func() time.Duration { return resync },
		Registry:                  generic.NewRegistry(counted.Evaluators()),
		DiscoveryFunc:             discover,
		IgnoredResourcesFunc:      counted.IgnoredResources,
		InformersStarted:          m.started,
		InformerFactory:           m.anyInformers,
		ReplenishmentResyncPeriod: m.resync,
		UpdateFilter:              quota.DefaultUpdateFilter(),
	})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, workers int) {
		go quotas.Sync(ctx, discover, rediscovery)
		quotas.Run(ctx, workers)
	}, nil
}

func (m *manager) admissionPolicies(_ context.Context, c client) (runFunc, error) {
	schemas := resolver.NewDefinitionsSchemaResolver(openapi.GetOpenAPIDefinitions, scheme.Scheme, apiextensionsscheme.Scheme).
		Combine(&resolver.ClientDiscoveryResolver{Discovery: c.Discovery()})
	return running(policystatus.NewController(m.informers.Admissionregistration().V1().ValidatingAdmissionPolicies(),
		c.AdmissionregistrationV1().ValidatingAdmissionPolicies(), &validating.TypeChecker{SchemaResolver: schemas, RestMapper: m.mapper}))
}

// storageMigrator writes the objects of a resource again, as fast as it can.
func (m *manager) storageMigrator(ctx context.Context, c client) (runFunc, error) {
	config := c.faster(20, 100)
	crds, err := apiextensions.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	versions, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	wanted := m.informers.Storagemigration().V1().StorageVersionMigrations()
	migration := migrator.NewSVMController(ctx, c, objects, wanted, storageMigratorName, m.mapper, m.graph)
	version := migrator.NewResourceVersionController(ctx, c, c.Discovery(), versions, wanted, m.mapper)
	definition := migrator.NewCustomResourceController(ctx, c, wanted, crds.ApiextensionsV1().CustomResourceDefinitions())
	return func(ctx context.Context, _ int) {
		go version.Run(ctx)
		go definition.Run(ctx)
		migration.Run(ctx)
	}, nil
}
