package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"gitopsd.dev/cmd/devcluster/internal/pki"
)

// serverImage is an image that this test binary stands for.
const serverImage = "registry.example:5000/server"

// secretServed is the certificate of the Service "server" for server pods, and more.
func secretServed(t *testing.T, more map[string][]byte) (*corev1.Secret, []byte) {
	t.Helper()
	ca, err := pki.NewAuthority("server")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Serving("server", []string{"server.default.svc"})
	if err != nil {
		t.Fatal(err)
	}
	data := map[string][]byte{"tls.crt": pair.Cert, "tls.key": pair.Key}
	for name, text := range more {
		data[name] = text
	}
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "server-tls"}, Data: data}, ca.Cert
}

// server makes a pod one of the Service's pods.
func server(p *corev1.Pod) {
	p.Labels["app"] = "server"
	p.Spec.Volumes = []corev1.Volume{{Name: "tls", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "server-tls"}}}}
	p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](5)
	c := &p.Spec.Containers[0]
	c.Image = serverImage + "@" + digest
	c.Args = []string{"--config=/tls/server/config", "$(GREETING)"}
	c.Env = []corev1.EnvVar{
		{Name: serverVariable, Value: "1"},
		{Name: "TLS_SERVER_CERTS_DIR", Value: "/tls/server"},
		{Name: "GREETING", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: "server-tls"}, Key: "greeting",
		}}},
	}
	c.VolumeMounts = []corev1.VolumeMount{{Name: "tls", MountPath: "/tls/server"}}
	c.Ports = []corev1.ContainerPort{{Name: "https", ContainerPort: 9443}}
	c.ReadinessProbe = &corev1.Probe{
		ProbeHandler:     corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/readyz", Port: intstr.FromString("https"), Scheme: corev1.URISchemeHTTPS}},
		PeriodSeconds:    1,
		FailureThreshold: 1,
	}
}

// ask returns the response of the Service to a GET through the API server.
func ask(ctx context.Context, client kubernetes.Interface, path string) (string, error) {
	text, err := client.CoreV1().RESTClient().Get().
		AbsPath("/api/v1/namespaces/default/services/https:server:443/proxy/" + path).DoRaw(ctx)
	if err != nil {
		err = fmt.Errorf("%w: %s", err, text)
	}
	return string(text), err
}

// answers checks the Service's response.
func answers(client kubernetes.Interface, path, want string) func(context.Context) error {
	return func(ctx context.Context) error {
		got, err := ask(ctx, client, path)
		if err == nil && got != want {
			err = fmt.Errorf("%s: got %q, want %q", path, got, want)
		}
		return err
	}
}

// testProcesses tests pods with processes in cluster a.
func testProcesses(t *testing.T, f *fleet) {
	client := f.client(t, "a")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	image := func(args ...string) {
		t.Helper()
		// Flags come first: what follows the image is the command's.
		if out, err := exec.Command(f.binary, append([]string{"image", "--dir", string(f.dir)}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("image %v: %v\n%s", args, err, out)
		}
	}
	image("a", serverImage, self, "--first")
	if _, err := client.CoreV1().Services(namespace).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "server"},
		Spec: corev1.ServiceSpec{
			Selector: selector("server").MatchLabels,
			Ports:    []corev1.ServicePort{{Name: "https", Port: 443, TargetPort: intstr.FromString("https")}},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	secret, ca := secretServed(t, map[string][]byte{"greeting": []byte("hello")})
	registerWebhook(t, client, ca)
	t.Run("nobody serves", func(t *testing.T) {
		eventually(t, "writes are refused, with the reason", judged(client, "allowed", "connection refused: Service default/server has no ready endpoint"))
	})
	t.Run("waits for a Secret", func(t *testing.T) {
		newPod(t, client, "server-1", server)
		eventually(t, "it waits", podIs(client, "server-1", "waiting for the Secret", func(s corev1.PodStatus) bool {
			return waitsFor("ContainerCreating")(s) && strings.Contains(s.ContainerStatuses[0].State.Waiting.Message, `secret "server-tls" not found`)
		}))
		if _, err := client.CoreV1().Secrets(namespace).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is ready", podIs(client, "server-1", "ready", ready))
	})
	t.Run("environment and files", func(t *testing.T) {
		eventually(t, "the Service leads to it", answers(client, "file/greeting", "hello"))
		volume := f.dir.Path("a", "pods", string(uidOf(t, client, "server-1")), "volumes", "tls")
		for path, want := range map[string]string{
			"env/GREETING":             "hello",
			"env/TLS_SERVER_CERTS_DIR": volume,
			"args":                     fmt.Sprintf("%q", []string{"--first", "--config=" + volume + "/config", "hello"}),
		} {
			if got, err := ask(t.Context(), client, path); got != want || err != nil {
				t.Errorf("%s: %q, %v; want %q", path, got, err, want)
			}
		}
		if got, err := ask(t.Context(), client, "env/POD_IP"); err != nil || !net.ParseIP(got).IsLoopback() {
			t.Errorf("its address: %q, %v", got, err)
		}
		if got, err := ask(t.Context(), client, "whoami"); err != nil || !strings.Contains(got, `"system:serviceaccount:default:default" cannot list`) {
			t.Errorf("to the API server it is %q, %v", got, err)
		}
	})
	t.Run("admission webhook of a Service", func(t *testing.T) { testAdmission(t, client) })
	t.Run("aggregated API", func(t *testing.T) { testAggregated(t, client, ca) })
	t.Run("Secret that changes", func(t *testing.T) {
		secret.Data["greeting"], secret.Data["not-ready"] = []byte("goodbye"), nil
		if _, err := client.CoreV1().Secrets(namespace).Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the readiness probe fails", podIs(client, "server-1", "not ready", func(s corev1.PodStatus) bool {
			return !ready(s) && s.ContainerStatuses[0].State.Running != nil
		}))
		delete(secret.Data, "not-ready")
		if _, err := client.CoreV1().Secrets(namespace).Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is ready again", podIs(client, "server-1", "ready", ready))
		eventually(t, "the process reads it", answers(client, "file/greeting", "goodbye"))
	})
	t.Run("process that fails", func(t *testing.T) {
		newPod(t, client, "failing-process", func(p *corev1.Pod) {
			p.Spec.Containers[0].Image = serverImage + ":v1"
			p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: serverVariable, Value: "1"}, {Name: "FAIL", Value: "no reason"}}
		})
		eventually(t, "it is started again and again", podIs(client, "failing-process", "in back-off", func(s corev1.PodStatus) bool {
			if !waitsFor("CrashLoopBackOff")(s) || s.Phase != corev1.PodRunning {
				return false
			}
			c := s.ContainerStatuses[0]
			last := c.LastTerminationState.Terminated
			return c.RestartCount > 1 && last.ExitCode == 3 && last.Message == "cannot go on: no reason"
		}))
		if out := f.must(t, "logs", "a", "default/failing-process"); strings.Count(out, "cannot go on: no reason") < 2 {
			t.Errorf("its output: %q", out)
		}
	})
	t.Run("process that ends", func(t *testing.T) {
		newPod(t, client, "once", func(p *corev1.Pod) {
			p.Spec.RestartPolicy = corev1.RestartPolicyNever
			p.Spec.Containers[0].Image = serverImage
			p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: serverVariable, Value: "1"}, {Name: "FAIL", Value: "bad luck"}}
		})
		eventually(t, "the pod has failed", podIs(client, "once", "failed", func(s corev1.PodStatus) bool {
			return s.Phase == corev1.PodFailed && s.ContainerStatuses[0].State.Terminated.ExitCode == 3
		}))
	})
	t.Run("pod that is deleted", func(t *testing.T) {
		pid := pidOf(t, f, "server-1")
		if err := client.CoreV1().Pods(namespace).Delete(t.Context(), "server-1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "its process is gone", func(ctx context.Context) error {
			if _, err := client.CoreV1().Pods(namespace).Get(ctx, "server-1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("the pod is there: %w", err)
			}
			if _, err := os.Stat(pid); err == nil {
				return errors.New("it runs")
			}
			return nil
		})
	})
	t.Run("image that is forgotten", func(t *testing.T) {
		newPod(t, client, "server-2", server)
		eventually(t, "it runs", podIs(client, "server-2", "ready", ready))
		pid := pidOf(t, f, "server-2")
		image("--remove", "a", serverImage)
		eventually(t, "its process is gone", func(context.Context) error {
			if _, err := os.Stat(pid); err == nil {
				return errors.New("it runs")
			}
			return nil
		})
		eventually(t, "the pod is ready as if it ran", podIs(client, "server-2", "ready", ready))
		eventually(t, "nobody is behind its address", func(ctx context.Context) error {
			if _, err := ask(ctx, client, "readyz"); err == nil || !strings.Contains(err.Error(), "no process stands for a pod") {
				return fmt.Errorf("got %w", err)
			}
			return nil
		})
		image("a", serverImage, self)
		eventually(t, "it runs again", answers(client, "file/greeting", "goodbye"))
	})
}

// registerWebhook registers the Service as webhook for ConfigMaps with the label app=judged.
func registerWebhook(t *testing.T, client kubernetes.Interface, ca []byte) {
	t.Helper()
	if _, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "server"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name:                    "server.example.org",
			AdmissionReviewVersions: []string{"v1"},
			SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				CABundle: ca,
				Service:  &admissionregistrationv1.ServiceReference{Namespace: namespace, Name: "server", Path: ptr.To("/validate")},
			},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}},
			ObjectSelector: selector("judged"),
		}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// judged checks that creating a ConfigMap with this name fails with an error that has a
// text, or succeeds if the text is empty.
func judged(client kubernetes.Interface, name, want string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := client.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: selector("judged").MatchLabels},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			return fmt.Errorf("%s: got %v, want %q", name, err, want)
		}
		return nil
	}
}

func testAdmission(t *testing.T, client kubernetes.Interface) {
	eventually(t, "it denies", judged(client, "denied", "not with this name"))
	if err := judged(client, "allowed", "")(t.Context()); err != nil {
		t.Error(err)
	}
	configurations := client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	// The API server verifies the certificate, and refuses one of another authority.
	_, stranger := secretServed(t, nil)
	eventually(t, "the bundle is replaced", func(ctx context.Context) error {
		c, err := configurations.Get(ctx, "server", metav1.GetOptions{})
		if err != nil {
			return err
		}
		c.Webhooks[0].ClientConfig.CABundle = stranger
		_, err = configurations.Update(ctx, c, metav1.UpdateOptions{})
		return err
	})
	eventually(t, "it is not believed", judged(client, "allowed", "x509: certificate signed by unknown authority"))
	if err := configurations.Delete(t.Context(), "server", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func testAggregated(t *testing.T, client kubernetes.Interface, ca []byte) {
	rest := client.Discovery().RESTClient()
	service := fmt.Sprintf(`{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":"v1.echo.example"},"spec":{
		"group":"echo.example","version":"v1","groupPriorityMinimum":1000,"versionPriority":1,"caBundle":%s,
		"service":{"namespace":"default","name":"server"}}}`, jsonOf(t, ca))
	const path = "/apis/apiregistration.k8s.io/v1/apiservices"
	if err := rest.Post().AbsPath(path).SetHeader("Content-Type", "application/json").Body([]byte(service)).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := rest.Delete().AbsPath(path, "v1.echo.example").Do(context.WithoutCancel(t.Context())).Error(); err != nil {
			t.Error(err)
		}
	}()
	eventually(t, "it answers", func(ctx context.Context) error {
		got, err := rest.Get().AbsPath("/apis/echo.example/v1/echoes/one").DoRaw(ctx)
		if err == nil && !strings.Contains(string(got), `"user":"devcluster-admin"`) {
			err = errors.New(string(got))
		}
		return err
	})
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// pidOf returns the path in /proc of a pod's process, the only one that runs in the pod's
// directory.
func pidOf(t *testing.T, f *fleet, pod string) string {
	t.Helper()
	dir := f.dir.Path("a", "pods", string(uidOf(t, f.client(t, "a"), pod)))
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if at, err := os.Readlink(link); err == nil && at == dir {
			return filepath.Dir(link)
		}
	}
	t.Fatalf("pod %s has no process in %s", pod, dir)
	return ""
}
