// Package kubelet stands in for the scheduler, the kubelet and the network of a
// cluster without machines: it registers one node, binds pods to it and reports
// them ready, failed or completed. Package pods runs the pods with an image that is
// mapped to a command, as processes. The others run nothing.
//
// pod.go decides what to do with a pod, as a pure function of the pod and its processes.
// kubelet.go watches pods and carries the decisions out. node.go keeps the node alive,
// ips.go assigns addresses to pods, and egress.go connects the API server to the
// processes.
package kubelet

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
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

	"gitopsd.dev/cmd/devcluster/internal/pods"
)

// Config configures the stand-in.
type Config struct {
	// Kubeconfig is a file with the rights of cluster-admin: the stand-in is also the
	// scheduler, which needs more rights than a kubelet.
	Kubeconfig string
	// NodeName is the name of the node.
	NodeName string
	// Images is the file that maps images to commands; see [pods.LoadImages].
	Images string
	// Dir is the directory of pods' files, and Logs of their logs.
	Dir, Logs string
	// Egress is the path of the Unix socket that the API server connects through.
	Egress string
}

// workers is how many pods are handled at a time.
const workers = 4

// kubelet is one running stand-in.
type kubelet struct {
	client kubernetes.Interface
	queue  workqueue.TypedRateLimitingInterface[string]
	ips    *ipPool
	// template is the node to register.
	template    *corev1.Node
	pods, nodes cache.SharedIndexInformer
	services    *services
	// images is the file that maps images to commands.
	images  string
	runtime *pods.Runtime
}

// Run registers the node and runs its pods until ctx ends. All processes end before it
// returns. A signal on reload says that the file of images has changed.
func Run(ctx context.Context, cfg Config, reload <-chan os.Signal) error {
	rest, err := clientcmd.BuildConfigFromFlags("", cfg.Kubeconfig)
	if err != nil {
		return fmt.Errorf("kubelet stand-in: %w", err)
	}
	rest.ContentType, rest.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	// A negative rate means no limit: the API server has priority and fairness.
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
		images:   cfg.Images,
	}
	defer k.queue.ShutDown()
	k.runtime, err = pods.New(pods.Config{
		Client:  client,
		API:     rest,
		Dir:     cfg.Dir,
		Logs:    cfg.Logs,
		HostIP:  address,
		Changed: func(namespace, name string) { k.queue.Add(namespace + "/" + name) },
	})
	if err != nil {
		return fmt.Errorf("kubelet stand-in: %w", err)
	}
	defer k.runtime.Close()
	return k.run(ctx, cfg.Egress, reload)
}

func (k *kubelet) run(ctx context.Context, egress string, reload <-chan os.Signal) error {
	g, ctx := errgroup.WithContext(ctx)
	factory := informers.NewSharedInformerFactoryWithOptions(k.client, 0, informers.WithTransform(dropManagedFields))
	k.pods, k.nodes = factory.Core().V1().Pods().Informer(), factory.Core().V1().Nodes().Informer()
	enqueue := func(obj any) {
		if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
			k.queue.Add(key)
		}
	}
	var err error
	if k.services, err = watchServices(factory); err != nil {
		return err
	}
	if _, err := k.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    enqueue,
		UpdateFunc: func(_, obj any) { enqueue(obj) },
		DeleteFunc: enqueue,
	}); err != nil {
		return err
	}
	// A pod that did not fit may fit after a change of the node's labels.
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
	g.Go(func() error { return k.serveEgress(ctx, egress) })
	// Addresses are assigned only once those in use are known.
	if !cache.WaitForCacheSync(ctx.Done(), k.pods.HasSynced, k.nodes.HasSynced) {
		return g.Wait()
	}
	for _, obj := range k.pods.GetStore().List() {
		if pod := obj.(*corev1.Pod); pod.Status.PodIP != "" {
			k.ips.take(key(pod), pod.Status.PodIP)
		}
	}
	for range workers {
		go wait.UntilWithContext(ctx, k.work, time.Second)
	}
	for {
		select {
		case <-ctx.Done():
			return g.Wait()
		case <-reload:
			again()
		}
	}
}

// dropManagedFields halves the cache. Nothing here reads managed fields, and an update of
// the status without them does not change them.
func dropManagedFields(obj any) (any, error) {
	if o, ok := obj.(metav1.Object); ok {
		o.SetManagedFields(nil)
	}
	return obj, nil
}

func key(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

func (k *kubelet) work(ctx context.Context) {
	for {
		key, stop := k.queue.Get()
		if stop || ctx.Err() != nil {
			return // statuses of processes that end now are not reported
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

// sync decides and carries out the next action on a pod. A conflict means that the cache
// is stale: the change that caused it will enqueue the pod again.
func (k *kubelet) sync(ctx context.Context, key string) error {
	obj, exists, err := k.pods.GetStore().GetByKey(key)
	if err != nil {
		return err
	}
	if !exists {
		namespace, name, err := cache.SplitMetaNamespaceKey(key)
		if err != nil {
			return err
		}
		k.runtime.Stop(namespace, name, forcedGrace)
		k.ips.release(key)
		return nil
	}
	node, registered, err := k.nodes.GetStore().GetByKey(k.template.Name)
	if err != nil || !registered {
		return err // the registration of the node enqueues all pods again
	}
	pod := obj.(*corev1.Pod)
	ip := k.ips.of(key)
	processes, settled, err := k.processes(pod, ip)
	if err != nil || !settled {
		return err
	}
	err = k.apply(ctx, pod, decide(pod, node.(*corev1.Node), ip, processes, metav1.Now()))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// forcedGrace is the grace period for processes of a pod that is already deleted.
const forcedGrace = 2 * time.Second

// processes runs the pod's processes, or ends them if it should have none, and returns
// their states, nil if it has none. settled is false while the processes of a terminating
// pod end; the pod is enqueued again then.
func (k *kubelet) processes(pod *corev1.Pod, ip string) (states map[string]pods.Container, settled bool, err error) {
	if pod.Spec.NodeName != k.template.Name {
		return nil, true, nil
	}
	if pod.DeletionTimestamp != nil {
		return nil, k.runtime.Stop(pod.Namespace, pod.Name, graceOf(pod)), nil
	}
	images, err := pods.LoadImages(k.images)
	if err != nil {
		return nil, false, err
	}
	_, fails := pod.Annotations[FailAnnotation]
	commands := images.Commands(pod)
	if len(commands) == 0 || fails || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		k.runtime.Stop(pod.Namespace, pod.Name, graceOf(pod))
		return nil, true, nil
	}
	states, err = k.runtime.Run(pod, cmp.Or(pod.Status.PodIP, ip), commands)
	return states, err == nil, err
}

func (k *kubelet) apply(ctx context.Context, pod *corev1.Pod, d decision) error {
	client := k.client.CoreV1().Pods(pod.Namespace)
	switch d.action {
	case bind:
		return client.Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
			Target:     corev1.ObjectReference{Kind: "Node", Name: k.template.Name},
		}, metav1.CreateOptions{})
	case report:
		changed := pod.DeepCopy()
		changed.Status = d.status
		_, err := client.UpdateStatus(ctx, changed, metav1.UpdateOptions{})
		return err
	case remove:
		return client.Delete(ctx, pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: new(int64),
			Preconditions:      metav1.NewUIDPreconditions(string(pod.UID)),
		})
	}
	return nil
}
