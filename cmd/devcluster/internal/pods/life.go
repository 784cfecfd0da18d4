package pods

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"gitopsd.dev/cmd/devcluster/internal/podspec"
)

// refresh is how often a pod's files are compared with its watched Secrets and ConfigMaps,
// which are in memory.
const refresh = 300 * time.Millisecond

// life runs one pod, from its first process to its last.
type life struct {
	*Runtime
	pod *corev1.Pod
	// ip is the pod's address in the cluster, address the one on this machine.
	ip, address netip.Addr
	commands    map[string][]string
	// dir has the pod's files. Those of a volume are in volumes/NAME.
	dir    string
	cancel context.CancelFunc
	killed chan struct{} // closed when the grace period is over
	kill   func()        // closes killed
	done   chan struct{} // closed when nothing is left

	mu         sync.Mutex
	containers map[string]Container
	ends       bool

	// Only run's goroutine uses these.
	written map[string]map[string][]byte // the files of each volume
	tokens  map[string]token
}

// token is a token of a service account.
type token struct {
	text  string
	renew time.Time
}

func (r *Runtime) newLife(pod *corev1.Pod, ip, address netip.Addr, commands map[string][]string, cancel context.CancelFunc) *life {
	l := &life{
		Runtime:    r,
		pod:        pod,
		ip:         ip,
		address:    address,
		commands:   commands,
		dir:        filepath.Join(podsIn(r.cfg.Dir), string(pod.UID)),
		cancel:     cancel,
		killed:     make(chan struct{}),
		done:       make(chan struct{}),
		containers: waiting(commands, "ContainerCreating", ""),
		written:    map[string]map[string][]byte{},
		tokens:     map[string]token{},
	}
	l.kill = sync.OnceFunc(func() { close(l.killed) })
	// An earlier devcluster may have run the containers before.
	for _, s := range pod.Status.ContainerStatuses {
		if c, ok := l.containers[s.Name]; ok {
			c.RestartCount, c.Last = s.RestartCount, s.LastTerminationState
			if s.State.Running != nil || s.State.Terminated != nil {
				c.RestartCount++
			}
			l.containers[s.Name] = c
		}
	}
	return l
}

// end makes the processes end within the shortest grace of all calls.
func (l *life) end(grace time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ends = true
	l.cancel()
	time.AfterFunc(grace, l.kill)
}

func (l *life) ending() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ends
}

func (l *life) states() map[string]Container {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.containers)
}

// update changes the state of a container.
func (l *life) update(name string, change func(*Container)) {
	l.mu.Lock()
	c := l.containers[name]
	change(&c)
	l.containers[name] = c
	l.mu.Unlock()
	l.cfg.Changed(l.pod.Namespace, l.pod.Name)
}

// run runs the pod until ctx ends.
func (l *life) run(ctx context.Context) {
	defer os.RemoveAll(l.dir)
	ok := retry(ctx, func() error { return l.prepare(ctx) }, func(message string) {
		for name := range l.commands {
			l.update(name, func(c *Container) { c.State = waitingState("ContainerCreating", message) })
		}
	})
	if !ok {
		return
	}
	var containers sync.WaitGroup
	defer containers.Wait()
	for i := range l.pod.Spec.Containers {
		c := &l.pod.Spec.Containers[i]
		if command, ok := l.commands[c.Name]; ok {
			containers.Go(func() { l.runContainer(ctx, c, command) })
		}
	}
	said := ""
	for sleep(ctx, refresh) {
		err := l.writeVolumes(ctx)
		for name := range l.commands {
			err = errors.Join(err, boundLog(l.log(name)))
		}
		if err == nil {
			said = ""
		} else if err.Error() != said && ctx.Err() == nil {
			said = err.Error()
			utilruntime.HandleErrorWithContext(ctx, err, "Files of a pod stay as they are", "pod", l.pod.Namespace+"/"+l.pod.Name)
		}
	}
}

// retry calls do until it succeeds, and reports true then, or false if ctx ends before. It
// calls report with each error that differs from the previous one.
func retry(ctx context.Context, do func() error, report func(message string)) bool {
	said := ""
	for {
		err := do()
		if err == nil {
			return true
		}
		if err.Error() != said {
			said = err.Error()
			report(said)
		}
		if !sleep(ctx, refresh) {
			return false
		}
	}
}

// sleep reports whether d passed before the end of ctx.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// prepare makes the pod's directories, volumes and kubeconfig.
func (l *life) prepare(ctx context.Context) error {
	for _, dir := range []string{l.tmp(), l.logs()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	if err := l.writeVolumes(ctx); err != nil {
		return err
	}
	return l.writeKubeconfig()
}

func (l *life) tmp() string               { return filepath.Join(l.dir, "tmp") }
func (l *life) logs() string              { return filepath.Join(l.cfg.Logs, l.pod.Namespace, l.pod.Name) }
func (l *life) volume(name string) string { return filepath.Join(l.dir, "volumes", name) }
func (l *life) kubeconfig() string        { return filepath.Join(l.dir, "kubeconfig") }
func (l *life) facts() podspec.Facts {
	return podspec.Facts{PodIP: l.address.String(), HostIP: l.cfg.HostIP}
}
func (l *life) log(container string) string { return filepath.Join(l.logs(), container+".log") }

// writeVolumes writes the files of all changed volumes, those of each volume at once. It
// returns the first error, after which it continues; the files of a failed volume stay.
func (l *life) writeVolumes(ctx context.Context) error {
	var failed error
	for i := range l.pod.Spec.Volumes {
		v := &l.pod.Spec.Volumes[i]
		files, err := podspec.Files(l.pod, v, l.facts(), l.references, func(audience string, seconds int64) (string, error) {
			return l.token(ctx, audience, seconds)
		})
		switch was, ok := l.written[v.Name]; {
		case err != nil:
		case files == nil:
			err = os.MkdirAll(l.volume(v.Name), 0o700)
		case !ok || !maps.EqualFunc(was, files, bytes.Equal):
			if err = replaceFiles(l.volume(v.Name), files); err == nil {
				l.written[v.Name] = files
			}
		}
		if err != nil && failed == nil {
			failed = err
		}
	}
	return failed
}

// token returns a token of the pod's service account, bound to the pod. It is renewed when
// a fifth of its lifetime is left.
func (l *life) token(ctx context.Context, audience string, seconds int64) (string, error) {
	key := fmt.Sprint(seconds, " ", audience)
	if t, ok := l.tokens[key]; ok && time.Now().Before(t.renew) {
		return t.text, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: &seconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: l.pod.Name, UID: l.pod.UID},
	}}
	if audience != "" {
		request.Spec.Audiences = []string{audience}
	}
	got, err := l.cfg.Client.CoreV1().ServiceAccounts(l.pod.Namespace).CreateToken(ctx, l.pod.Spec.ServiceAccountName, request, metav1.CreateOptions{})
	if err != nil {
		// The old token is better than none.
		if t, ok := l.tokens[key]; ok {
			return t.text, nil
		}
		return "", err
	}
	l.tokens[key] = token{text: got.Status.Token, renew: time.Now().Add(time.Duration(seconds) * time.Second * 4 / 5)}
	return got.Status.Token, nil
}

// serviceAccount is the directory in which client-go looks for a pod's token.
const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

// writeKubeconfig writes a kubeconfig with the pod's token, if it has one: client-go's
// fixed path for tokens does not exist on this machine.
func (l *life) writeKubeconfig() error {
	for _, c := range l.pod.Spec.Containers {
		for _, m := range c.VolumeMounts {
			if m.MountPath != serviceAccount {
				continue
			}
			text, err := clientcmd.Write(clientcmdapi.Config{
				Clusters: map[string]*clientcmdapi.Cluster{"cluster": {
					Server:                   l.cfg.API.Host,
					CertificateAuthorityData: l.cfg.API.CAData,
				}},
				AuthInfos:      map[string]*clientcmdapi.AuthInfo{"pod": {TokenFile: filepath.Join(l.volume(m.Name), "token")}},
				Contexts:       map[string]*clientcmdapi.Context{"pod": {Cluster: "cluster", AuthInfo: "pod", Namespace: l.pod.Namespace}},
				CurrentContext: "pod",
			})
			if err != nil {
				return err
			}
			return os.WriteFile(l.kubeconfig(), text, 0o600)
		}
	}
	return nil
}

// environment returns the environment of a container's process, which the pod's
// variables may override.
func (l *life) environment(c *corev1.Container) []string {
	env := []string{
		"PATH=" + os.Getenv("PATH"),
		"HOME=" + l.tmp(),
		"TMPDIR=" + l.tmp(),
		"HOSTNAME=" + l.pod.Name,
		"POD_IP=" + l.address.String(),
	}
	if api, err := url.Parse(l.cfg.API.Host); err == nil {
		if host, port, err := net.SplitHostPort(api.Host); err == nil {
			env = append(env, "KUBERNETES_SERVICE_HOST="+host, "KUBERNETES_SERVICE_PORT="+port)
		}
	}
	for _, m := range c.VolumeMounts {
		if m.MountPath == serviceAccount {
			env = append(env, "KUBECONFIG="+l.kubeconfig())
		}
	}
	return env
}

// mounts returns the directories of a container's volumes.
func (l *life) mounts(c *corev1.Container) ([]podspec.Mount, error) {
	var mounts []podspec.Mount
	for _, m := range c.VolumeMounts {
		if m.SubPathExpr != "" {
			return nil, fmt.Errorf("mount of volume %q: devcluster has no subPathExpr", m.Name)
		}
		if m.SubPath != "" && !filepath.IsLocal(m.SubPath) {
			return nil, fmt.Errorf("mount of volume %q: subPath %q leaves it", m.Name, m.SubPath)
		}
		mounts = append(mounts, podspec.Mount{Path: m.MountPath, Dir: filepath.Join(l.volume(m.Name), m.SubPath)})
	}
	return mounts, nil
}
