package pods

import (
	"context"
	"errors"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"gitopsd.dev/cmd/devcluster/internal/podspec"
)

// errNotRead is returned for an object that has not been read from the API server yet.
var errNotRead = errors.New("not read yet")

// references watches each Secret and ConfigMap that pods refer to, one by one: a cluster
// may have many others.
type references struct {
	client kubernetes.Interface

	mu      sync.Mutex
	watched map[podspec.Reference]*watched
}

type watched struct {
	store  cache.Store
	synced func() bool
	stop   context.CancelFunc
	pods   map[types.UID]bool
}

func newReferences(client kubernetes.Interface) *references {
	return &references{client: client, watched: map[podspec.Reference]*watched{}}
}

// follow watches the references of a pod until unfollow.
func (r *references) follow(pod types.UID, all []podspec.Reference) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, ref := range all {
		w := r.watched[ref]
		if w == nil {
			w = r.watch(ref)
			r.watched[ref] = w
		}
		w.pods[pod] = true
	}
}

func (r *references) watch(ref podspec.Reference) *watched {
	var like runtime.Object = &corev1.Secret{}
	if ref.Resource == "configmaps" {
		like = &corev1.ConfigMap{}
	}
	store, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(r.client.CoreV1().RESTClient(), ref.Resource, ref.Namespace,
			fields.OneTermEqualSelector("metadata.name", ref.Name)),
		ObjectType: like,
		Handler:    cache.ResourceEventHandlerFuncs{},
	})
	ctx, stop := context.WithCancel(context.Background())
	go controller.RunWithContext(ctx)
	return &watched{store: store, synced: controller.HasSynced, stop: stop, pods: map[types.UID]bool{}}
}

func (r *references) unfollow(pod types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for ref, w := range r.watched {
		delete(w.pods, pod)
		if len(w.pods) == 0 {
			w.stop()
			delete(r.watched, ref)
		}
	}
}

func (r *references) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for ref, w := range r.watched {
		w.stop()
		delete(r.watched, ref)
	}
}

func (r *references) get(ref podspec.Reference) (any, error) {
	r.mu.Lock()
	w := r.watched[ref]
	r.mu.Unlock()
	if w == nil || !w.synced() {
		return nil, errNotRead
	}
	obj, exists, err := w.store.GetByKey(ref.Namespace + "/" + ref.Name)
	if err == nil && !exists {
		err = apierrors.NewNotFound(schema.GroupResource{Resource: ref.Resource}, ref.Name)
	}
	return obj, err
}

// Secret implements [podspec.Objects].
func (r *references) Secret(namespace, name string) (*corev1.Secret, error) {
	obj, err := r.get(podspec.Reference{Resource: "secrets", Namespace: namespace, Name: name})
	if err != nil {
		return nil, err
	}
	return obj.(*corev1.Secret), nil
}

// ConfigMap implements [podspec.Objects].
func (r *references) ConfigMap(namespace, name string) (*corev1.ConfigMap, error) {
	obj, err := r.get(podspec.Reference{Resource: "configmaps", Namespace: namespace, Name: name})
	if err != nil {
		return nil, err
	}
	return obj.(*corev1.ConfigMap), nil
}
