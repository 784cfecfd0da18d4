package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"gitopsd.dev/cmd/devcluster/internal/kubelet"
)

const (
	namespace = metav1.NamespaceDefault
	digest    = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
)

// template is a template of pods with one container and the label app.
func template(app, image string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: image}}},
	}
}

func selector(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
}

// newPod creates a pod.
func newPod(t *testing.T, client kubernetes.Interface, name string, edit func(*corev1.Pod)) {
	t.Helper()
	tmpl := template(name, "nginx:1.27")
	pod := &corev1.Pod{ObjectMeta: tmpl.ObjectMeta, Spec: tmpl.Spec}
	pod.Name = name
	edit(pod)
	if _, err := client.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func uidOf(t *testing.T, client kubernetes.Interface, pod string) types.UID {
	t.Helper()
	p, err := client.CoreV1().Pods(namespace).Get(t.Context(), pod, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return p.UID
}

// podIs checks a pod's status.
func podIs(client kubernetes.Interface, name, want string, is func(corev1.PodStatus) bool) func(context.Context) error {
	return func(ctx context.Context) error {
		pod, err := client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err == nil && !is(pod.Status) {
			err = fmt.Errorf("pod %s is not %s: %s", name, want, pod.Status.String())
		}
		return err
	}
}

func ready(s corev1.PodStatus) bool {
	for _, c := range s.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func waitsFor(reason string) func(corev1.PodStatus) bool {
	return func(s corev1.PodStatus) bool {
		return !ready(s) && len(s.ContainerStatuses) == 1 && s.ContainerStatuses[0].State.Waiting != nil &&
			s.ContainerStatuses[0].State.Waiting.Reason == reason
	}
}

func unschedulable(s corev1.PodStatus) bool {
	return len(s.Conditions) > 0 && s.Conditions[0].Type == corev1.PodScheduled && s.Conditions[0].Reason == corev1.PodReasonUnschedulable
}

// testWorkloads tests workloads in cluster a.
func testWorkloads(t *testing.T, f *fleet) {
	client := f.client(t, "a")
	t.Run("version", func(t *testing.T) {
		out := f.must(t, "version")
		got, err := client.Discovery().ServerVersion()
		if err != nil || !strings.Contains(out, "kubernetes "+got.GitVersion+"\n") || got.Major != "1" {
			t.Errorf("the API server reports %+v, %v; the binary\n%s", got, err, out)
		}
	})
	t.Run("Deployment and Service", func(t *testing.T) { testDeployment(t, client) })
	t.Run("controllers", func(t *testing.T) { testControllers(t, client) })
	t.Run("DaemonSet", func(t *testing.T) {
		sets := client.AppsV1().DaemonSets(namespace)
		if _, err := sets.Create(t.Context(), &appsv1.DaemonSet{
			ObjectMeta: metav1.ObjectMeta{Name: "agent"},
			Spec:       appsv1.DaemonSetSpec{Selector: selector("agent"), Template: template("agent", "agent")},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "one ready pod", func(ctx context.Context) error {
			set, err := sets.Get(ctx, "agent", metav1.GetOptions{})
			if err == nil && set.Status.NumberReady != 1 {
				err = errors.New(set.Status.String())
			}
			return err
		})
	})
	t.Run("Job", func(t *testing.T) {
		tmpl := template("job", "busybox")
		tmpl.Spec.RestartPolicy = corev1.RestartPolicyNever
		jobs := client.BatchV1().Jobs(namespace)
		if _, err := jobs.Create(t.Context(), &batchv1.Job{
			ObjectMeta: metav1.ObjectMeta{Name: "job"}, Spec: batchv1.JobSpec{Template: tmpl},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is complete", func(ctx context.Context) error {
			job, err := jobs.Get(ctx, "job", metav1.GetOptions{})
			if err == nil && job.Status.CompletionTime == nil {
				err = errors.New(job.Status.String())
			}
			return err
		})
	})
	t.Run("pod that fails, and recovers", func(t *testing.T) {
		newPod(t, client, "failing", func(p *corev1.Pod) {
			p.Annotations = map[string]string{kubelet.FailAnnotation: "ImagePullBackOff"}
		})
		eventually(t, "it fails", podIs(client, "failing", "waiting", waitsFor("ImagePullBackOff")))
		annotate(t, client, "failing", "null")
		eventually(t, "it is ready", podIs(client, "failing", "ready", ready))
		annotate(t, client, "failing", `"CrashLoopBackOff"`)
		eventually(t, "it fails again", podIs(client, "failing", "waiting", waitsFor("CrashLoopBackOff")))
	})
	t.Run("pod that does not fit", func(t *testing.T) {
		newPod(t, client, "picky", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} })
		eventually(t, "it cannot be scheduled", podIs(client, "picky", "unschedulable", unschedulable))
		if _, err := client.CoreV1().Nodes().Patch(t.Context(), "a-node", types.MergePatchType,
			[]byte(`{"metadata":{"labels":{"disk":"ssd"}}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it runs once the node is labelled", podIs(client, "picky", "ready", ready))
	})
	t.Run("terminating pod", func(t *testing.T) {
		newPod(t, client, "leaving", func(*corev1.Pod) {})
		eventually(t, "it is ready", podIs(client, "leaving", "ready", ready))
		if err := client.CoreV1().Pods(namespace).Delete(t.Context(), "leaving", metav1.DeleteOptions{
			GracePeriodSeconds: ptr.To[int64](3600),
		}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is gone", func(ctx context.Context) error {
			_, err := client.CoreV1().Pods(namespace).Get(ctx, "leaving", metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return fmt.Errorf("still there: %w", err)
		})
	})
	t.Run("node", func(t *testing.T) {
		// The node controller takes this taint away from a node that it finds
		// alive.
		eventually(t, "it has no taint", func(ctx context.Context) error {
			node, err := client.CoreV1().Nodes().Get(ctx, "a-node", metav1.GetOptions{})
			if err == nil && len(node.Spec.Taints) > 0 {
				err = fmt.Errorf("taints %v", node.Spec.Taints)
			}
			return err
		})
	})
}

func annotate(t *testing.T, client kubernetes.Interface, pod, value string) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, kubelet.FailAnnotation, value)
	if _, err := client.CoreV1().Pods(namespace).Patch(t.Context(), pod, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

func testDeployment(t *testing.T, client kubernetes.Interface) {
	deployments := client.AppsV1().Deployments(namespace)
	image := "ghcr.io/example/web@" + digest
	if _, err := deployments.Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       appsv1.DeploymentSpec{Replicas: ptr.To[int32](3), Selector: selector("web"), Template: template("web", image)},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Services(namespace).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.ServiceSpec{Selector: selector("web").MatchLabels, Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the Deployment is available", func(ctx context.Context) error {
		d, err := deployments.Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range d.Status.Conditions {
			if c.Type == appsv1.DeploymentAvailable && c.Status == corev1.ConditionTrue && d.Status.AvailableReplicas == 3 {
				return nil
			}
		}
		return errors.New(d.Status.String())
	})
	pods, err := client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil {
		t.Fatal(err)
	}
	ips := map[string]bool{}
	for _, pod := range pods.Items {
		ips[pod.Status.PodIP] = true
		if got := pod.Status.ContainerStatuses[0].ImageID; got != image {
			t.Errorf("image ID %s, want %s", got, image)
		}
	}
	eventually(t, "the Service's endpoints are the pods", func(ctx context.Context) error {
		slices, err := client.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=web"})
		if err != nil {
			return err
		}
		found := map[string]bool{}
		for _, slice := range slices.Items {
			for _, endpoint := range slice.Endpoints {
				if ptr.Deref(endpoint.Conditions.Ready, false) {
					found[endpoint.Addresses[0]] = true
				}
			}
		}
		if len(found) != 3 || fmt.Sprint(found) != fmt.Sprint(ips) {
			return fmt.Errorf("endpoints %v, pods %v", found, ips)
		}
		return nil
	})
	if err := deployments.Delete(t.Context(), "web", metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the pods are collected", func(ctx context.Context) error {
		pods, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("%d left", len(pods.Items))
		}
		return err
	})
}

// testApart checks that clusters share only an etcd.
func testApart(t *testing.T, f *fleet) {
	mark(t, f, "a", "only-a")
	if _, err := f.client(t, "b").CoreV1().ConfigMaps(namespace).Get(t.Context(), "only-a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("b has what a has: %v", err)
	}
	// The admin of one cluster is unknown in the other.
	config, err := clientcmd.BuildConfigFromFlags("", f.dir.Kubeconfig("a"))
	if err != nil {
		t.Fatal(err)
	}
	other, err := clientcmd.BuildConfigFromFlags("", f.dir.Kubeconfig("b"))
	if err != nil {
		t.Fatal(err)
	}
	config.Host, config.CAData = other.Host, other.CAData
	stranger, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stranger.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("a's admin in b: %v", err)
	}
}

// mark creates an object that checkMark finds.
func mark(t *testing.T, f *fleet, cluster, name string) {
	t.Helper()
	if _, err := f.client(t, cluster).CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func checkMark(t *testing.T, f *fleet, cluster, name string) {
	t.Helper()
	if _, err := f.client(t, cluster).CoreV1().ConfigMaps(namespace).Get(t.Context(), name, metav1.GetOptions{}); err != nil {
		t.Errorf("what was in %s: %v", cluster, err)
	}
}
