package controllers

import (
	"context"
	"slices"
	"time"

	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"
	_ "k8s.io/kubernetes/pkg/apis/apps/install" // StatefulSets' revisions are encoded by legacyscheme
	"k8s.io/kubernetes/pkg/controller/clusterroleaggregation"
	"k8s.io/kubernetes/pkg/controller/cronjob"
	"k8s.io/kubernetes/pkg/controller/daemon"
	"k8s.io/kubernetes/pkg/controller/deployment"
	"k8s.io/kubernetes/pkg/controller/endpoint"
	"k8s.io/kubernetes/pkg/controller/endpointslice"
	"k8s.io/kubernetes/pkg/controller/endpointslicemirroring"
	"k8s.io/kubernetes/pkg/controller/job"
	"k8s.io/kubernetes/pkg/controller/replicaset"
	"k8s.io/kubernetes/pkg/controller/serviceaccount"
	"k8s.io/kubernetes/pkg/controller/statefulset"
	"k8s.io/kubernetes/pkg/controller/ttlafterfinished"
)

const storageMigratorName = "storage-version-migrator-controller"

// controllers returns the controllers in the order in which they start. Fewer controllers
// mean fewer caches and a faster start.
func (m *manager) controllers() []controller {
	all := slices.Concat(m.access(), m.workloads(), m.endpoints(), m.objects())
	if m.config.StorageMigration {
		all = append(all, controller{storageMigratorName, 1, m.storageMigrator})
	}
	return all
}

// access returns the controllers of service accounts and roles. Pods need service accounts.
func (m *manager) access() []controller {
	core := m.informers.Core().V1()
	return []controller{
		{"tokens-controller", m.defaults.SAController.ConcurrentSATokenSyncs, m.tokens},
		{"service-account-controller", 1, func(ctx context.Context, c client) (runFunc, error) {
			return running(serviceaccount.NewServiceAccountsController(
				klog.FromContext(ctx), core.ServiceAccounts(), core.Namespaces(), c, serviceaccount.DefaultServiceAccountsControllerOptions()))
		}},
		{"root-ca-cert-publisher", 1, m.rootCA},
		{"clusterrole-aggregation-controller", 5, func(_ context.Context, c client) (runFunc, error) {
			return clusterroleaggregation.NewClusterRoleAggregation(m.informers.Rbac().V1().ClusterRoles(), c.RbacV1()).Run, nil
		}},
	}
}

// workloads returns the controllers of pods' owners.
func (m *manager) workloads() []controller {
	core, apps, batch, d := m.informers.Core().V1(), m.informers.Apps().V1(), m.informers.Batch().V1(), m.defaults
	return []controller{
		{"deployment-controller", d.DeploymentController.ConcurrentDeploymentSyncs, func(ctx context.Context, c client) (runFunc, error) {
			return running(deployment.NewDeploymentController(ctx, apps.Deployments(), apps.ReplicaSets(), core.Pods(), c))
		}},
		{"replicaset-controller", d.ReplicaSetController.ConcurrentRSSyncs, func(ctx context.Context, c client) (runFunc, error) {
			return replicaset.NewReplicaSetController(ctx, apps.ReplicaSets(), core.Pods(), c, replicaset.BurstReplicas).Run, nil
		}},
		{"statefulset-controller", d.StatefulSetController.ConcurrentStatefulSetSyncs, func(ctx context.Context, c client) (runFunc, error) {
			return statefulset.NewStatefulSetController(
				ctx, core.Pods(), apps.StatefulSets(), core.PersistentVolumeClaims(), apps.ControllerRevisions(), c).Run, nil
		}},
		{"daemon-set-controller", d.DaemonSetController.ConcurrentDaemonSetSyncs, func(ctx context.Context, c client) (runFunc, error) {
			return running(daemon.NewDaemonSetsController(ctx, apps.DaemonSets(), apps.ControllerRevisions(), core.Pods(), core.Nodes(), c,
				flowcontrol.NewBackOff(time.Second, 15*time.Minute)))
		}},
		{"job-controller", d.JobController.ConcurrentJobSyncs, func(ctx context.Context, c client) (runFunc, error) {
			// The last two informers belong to a feature that is off.
			return running(job.NewController(ctx, c, core.Pods(), batch.Jobs(), nil, nil))
		}},
		{"cronjob-controller", d.CronJobController.ConcurrentCronJobSyncs, func(ctx context.Context, c client) (runFunc, error) {
			return running(cronjob.NewControllerV2(ctx, batch.Jobs(), batch.CronJobs(), c))
		}},
		{"ttl-after-finished-controller", d.TTLAfterFinishedController.ConcurrentTTLSyncs, func(ctx context.Context, c client) (runFunc, error) {
			return ttlafterfinished.New(ctx, batch.Jobs(), c).Run, nil
		}},
		{"disruption-controller", d.DisruptionController.ConcurrentDisruptionSyncs, m.disruption},
	}
}

// endpoints returns the controllers of Services' endpoints.
func (m *manager) endpoints() []controller {
	core, eps := m.informers.Core().V1(), m.informers.Discovery().V1().EndpointSlices()
	endpoints, own, mirrored := m.defaults.EndpointController, m.defaults.EndpointSliceController, m.defaults.EndpointSliceMirroringController
	return []controller{
		{"endpoint-controller", endpoints.ConcurrentEndpointSyncs, func(ctx context.Context, c client) (runFunc, error) {
			return endpoint.NewEndpointController(
				ctx, core.Pods(), core.Services(), core.Endpoints(), c, endpoints.EndpointUpdatesBatchPeriod.Duration).Run, nil
		}},
		{"endpointslice-controller", own.ConcurrentServiceEndpointSyncs, func(ctx context.Context, c client) (runFunc, error) {
			return endpointslice.NewController(ctx, core.Pods(), core.Services(), core.Nodes(), eps,
				own.MaxEndpointsPerSlice, c, own.EndpointUpdatesBatchPeriod.Duration).Run, nil
		}},
		{"endpointslicemirroring-controller", mirrored.MirroringConcurrentServiceEndpointSyncs, func(ctx context.Context, c client) (runFunc, error) {
			return endpointslicemirroring.NewController(ctx, core.Endpoints(), eps, core.Services(),
				mirrored.MirroringMaxEndpointsPerSubset, c, mirrored.MirroringEndpointUpdatesBatchPeriod.Duration).Run, nil
		}},
	}
}

// objects returns the controllers of namespaces, of nodes, and of objects of any kind.
func (m *manager) objects() []controller {
	d := m.defaults
	return []controller{
		{"namespace-controller", d.NamespaceController.ConcurrentNamespaceSyncs, m.namespaces},
		{"node-controller", 1, m.nodes},
		{"generic-garbage-collector", d.GarbageCollectorController.ConcurrentGCSyncs, m.garbageCollector},
		{"resourcequota-controller", d.ResourceQuotaController.ConcurrentResourceQuotaSyncs, m.quotas},
		{"validatingadmissionpolicy-status-controller", d.ValidatingAdmissionPolicyStatusController.ConcurrentPolicySyncs, m.admissionPolicies},
	}
}

// running returns the Run of what a constructor returned.
func running[C interface {
	Run(ctx context.Context, workers int)
}](c C, err error) (runFunc, error) {
	if err != nil {
		return nil, err
	}
	return c.Run, nil
}
