// Package kubelet stands in for the scheduler and the kubelet of a cluster
// without machines: it registers one node, binds pods to it and reports them
// ready, failed or completed without running anything.
//
// What a pod needs next is a pure function of the pod (pod.go); this file
// watches pods and carries it out; node.go keeps the node alive.
package kubelet

import (
	"context"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/workqueue"
)

// Config configures the stand-in.
type Config struct {
	// Kubeconfig is a file with the rights of cluster-admin: the stand-in is the
	// scheduler too, which needs more than a kubelet's rights.
	Kubeconfig string
	// NodeName is the node that it registers.
	NodeName string
}

// workers write statuses at the same time.
const workers = 4

// kubelet is one running stand-in.
type kubelet struct {
	client kubernetes.Interface
	queue  workqueue.TypedRateLimitingInterface[string]
	ips    *ipPool
	// template is what is registered.
	template *corev1.Node
	// pods and nodes are what the API server has.
	pods, nodes cache.SharedIndexInformer
}

// Run registers the node and serves its pods until ctx ends.
func Run(ctx context.Context, cfg Config) error {
	rest, err := clientcmd.BuildConfigFromFlags("", cfg.Kubeconfig)
	if err != nil {
		return fmt.Errorf("kubelet stand-in: %w", err)
	}
	rest.ContentType, rest.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	// A negative rate is no limit: the API server has priority and fairness.
	rest.QPS = -1
	rest.UserAgent = "devcluster-kubelet"
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return fmt.Errorf("kubelet stand-in: %w", err)
	}
	k := &kubelet{
		client: client,
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](10*time.Millisecond, 5*time.Second)),
		ips:      newIPPool(),
		template: newNode(cfg.NodeName),
	}
	defer k.queue.ShutDown()
	return k.run(ctx)
}

func (k *kubelet) run(ctx context.Context) error {
	factory := informers.NewSharedInformerFactoryWithOptions(k.client, 0, informers.WithTransform(dropManagedFields))
	k.pods, k.nodes = factory.Core().V1().Pods().Informer(), factory.Core().V1().Nodes().Informer()
	enqueue := func(obj any) {
		if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
			k.queue.Add(key)
		}
	}
	if _, err := k.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    enqueue,
		UpdateFunc: func(_, obj any) { enqueue(obj) },
		DeleteFunc: enqueue,
	}); err != nil {
		return err
	}
	// A pod that did not fit may fit when somebody labels the node.
	again := func() {
		for _, pod := range k.pods.GetStore().List() {
			enqueue(pod)
		}
	}
	if _, err := k.nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { again() },
		UpdateFunc: func(before, after any) {
			if !maps.Equal(before.(*corev1.Node).Labels, after.(*corev1.Node).Labels) {
				again()
			}
		},
	}); err != nil {
		return err
	}
	go k.keepNode(ctx)
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	// Until the addresses in use are known, none is given out.
	if !cache.WaitForCacheSync(ctx.Done(), k.pods.HasSynced, k.nodes.HasSynced) {
		return nil
	}
	for _, obj := range k.pods.GetStore().List() {
		if pod := obj.(*corev1.Pod); pod.Status.PodIP != "" {
			k.ips.take(key(pod), pod.Status.PodIP)
		}
	}
	for range workers {
		go wait.UntilWithContext(ctx, k.work, time.Second)
	}
	<-ctx.Done()
	return nil
}

// dropManagedFields halves the cache; nothing here reads them, and a status
// update without them leaves the server's as they are.
func dropManagedFields(obj any) (any, error) {
	if pod, ok := obj.(*corev1.Pod); ok {
		pod.ManagedFields = nil
	}
	return obj, nil
}

func key(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

func (k *kubelet) work(ctx context.Context) {
	for {
		key, stop := k.queue.Get()
		if stop {
			return
		}
		if err := k.sync(ctx, key); err != nil {
			utilruntime.HandleErrorWithContext(ctx, err, "Retrying", "pod", key)
			k.queue.AddRateLimited(key)
		} else {
			k.queue.Forget(key)
		}
		k.queue.Done(key)
	}
}

// sync carries out what a pod needs next. A conflict means that the cache is
// behind: the change that caused it brings the pod here again.
func (k *kubelet) sync(ctx context.Context, key string) error {
	obj, exists, err := k.pods.GetStore().GetByKey(key)
	if err != nil {
		return err
	}
	if !exists {
		k.ips.release(key)
		return nil
	}
	node, registered, err := k.nodes.GetStore().GetByKey(k.template.Name)
	if err != nil || !registered {
		return err // its registration brings all pods here again
	}
	pod := obj.(*corev1.Pod)
	err = k.apply(ctx, pod, decide(pod, node.(*corev1.Node), k.ips.of(key), metav1.Now()))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

func (k *kubelet) apply(ctx context.Context, pod *corev1.Pod, d decision) error {
	pods := k.client.CoreV1().Pods(pod.Namespace)
	switch d.action {
	case bind:
		return pods.Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
			Target:     corev1.ObjectReference{Kind: "Node", Name: k.template.Name},
		}, metav1.CreateOptions{})
	case report:
		changed := pod.DeepCopy()
		changed.Status = d.status
		_, err := pods.UpdateStatus(ctx, changed, metav1.UpdateOptions{})
		return err
	case remove:
		return pods.Delete(ctx, pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: new(int64),
			Preconditions:      metav1.NewUIDPreconditions(string(pod.UID)),
		})
	}
	return nil
}
