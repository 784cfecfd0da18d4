package testscripts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"gitopsd.dev/testscripts/devcluster"
)

// planes are the control planes of this process.
var planes pool

// pool lends control planes, each to one script at a time. It empties a returned
// control plane and lends it again, or takes it out of service if that fails. It
// starts new ones when none is free.
type pool struct {
	starting sync.Mutex // held while control planes are started

	mu      sync.Mutex
	devs    *devcluster.ControlPlanes
	dir     string
	made    int
	free    []*plane
	resets  sync.WaitGroup
	pending int           // resets under way
	back    chan struct{} // closed and replaced when a reset has ended
}

// plane is a control plane.
type plane struct {
	name       string // its name in devcluster
	kubeconfig []byte
	config     *rest.Config
	discovery  discovery.DiscoveryInterface
	metadata   metadata.Interface
	stopped    bool
	images     bool // commands stand for some images
}

// lease takes n empty control planes.
func (p *pool) lease(ctx context.Context, n int) ([]*plane, error) {
	var got []*plane
	for len(got) < n {
		p.mu.Lock()
		if len(p.free) > 0 {
			got = append(got, p.free[0])
			p.free = p.free[1:]
			p.mu.Unlock()
			continue
		}
		if p.pending > 0 {
			// Waiting for one to be emptied is quicker than starting one.
			if p.back == nil {
				p.back = make(chan struct{})
			}
			back := p.back
			p.mu.Unlock()
			select {
			case <-back:
			case <-ctx.Done():
				p.giveBack(got...)
				return nil, ctx.Err()
			}
			continue
		}
		p.mu.Unlock()
		more, err := p.start(ctx, n-len(got))
		if err != nil {
			p.giveBack(got...)
			return nil, err
		}
		got = append(got, more...)
	}
	return got, nil
}

// start starts n more control planes.
func (p *pool) start(ctx context.Context, n int) ([]*plane, error) {
	p.starting.Lock()
	defer p.starting.Unlock()
	begun := time.Now()
	var names []string
	for range n {
		p.made++
		names = append(names, fmt.Sprintf("plane-%d", p.made))
	}
	if err := p.startNamed(ctx, names); err != nil {
		return nil, fmt.Errorf("starting control planes: %w", err)
	}
	fmt.Fprintf(os.Stderr, "# control planes %v are up after %s\n", names, time.Since(begun).Round(100*time.Millisecond))
	var started []*plane
	for _, name := range names {
		pl, err := newPlane(name, p.devs.Kubeconfig(name))
		if err != nil {
			return nil, err
		}
		started = append(started, pl)
	}
	return started, nil
}

func (p *pool) startNamed(ctx context.Context, names []string) error {
	if p.devs != nil {
		return p.devs.Add(ctx, names...)
	}
	binary, err := devcluster.Binary(ctx, os.Stderr)
	if err != nil {
		return err
	}
	if p.dir, err = os.MkdirTemp("", "devcluster"); err != nil {
		return err
	}
	// The control planes outlive the script that first needs them.
	p.devs, err = devcluster.Up(context.WithoutCancel(ctx), devcluster.Config{Dir: p.dir, Binary: binary, Frugal: true}, names...)
	return err
}

func newPlane(name, kubeconfig string) (*plane, error) {
	text, err := os.ReadFile(kubeconfig)
	if err != nil {
		return nil, err
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(text)
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	config.UserAgent = systemManager
	config.WarningHandler = rest.NoWarnings{}
	// A hanging request must not block the tests.
	config.Timeout = 20 * time.Second
	d, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	m, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &plane{name: name, kubeconfig: text, config: config, discovery: d, metadata: m}, nil
}

// giveBack returns control planes to the pool, which empties them in the background.
func (p *pool) giveBack(planes ...*plane) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, pl := range planes {
		p.pending++
		p.resets.Go(func() {
			err := p.reset(pl)
			if err != nil {
				fmt.Fprintf(os.Stderr, "# control plane %s is taken out of service: %v\n", pl.name, err)
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			p.pending--
			if err == nil {
				p.free = append(p.free, pl)
			}
			if p.back != nil {
				close(p.back)
				p.back = nil
			}
		})
	}
}

func (p *pool) reset(pl *plane) error {
	const patience = 30 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if pl.stopped {
		if err := p.devs.Resume(ctx, pl.name); err != nil {
			return err
		}
		pl.stopped = false
	}
	err := pl.empty(ctx)
	if err == nil && pl.images {
		err = p.devs.RemoveImages(ctx, pl.name)
	}
	if err != nil {
		return errors.Join(err, p.devs.Stop(context.WithoutCancel(ctx), pl.name))
	}
	pl.images = false
	return nil
}

// close ends all control planes.
func (p *pool) close() error {
	p.resets.Wait()
	if p.devs == nil {
		return nil
	}
	return errors.Join(p.devs.Close(), os.RemoveAll(p.dir))
}

// leased is a control plane that is lent to a script as a cluster.
type leased struct {
	name  string // the cluster's name in the script
	plane *plane
	proxy *proxy // may be nil
}

func (l *leased) giveBack() {
	if l.proxy != nil {
		l.proxy.close()
	}
	planes.giveBack(l.plane)
}

// kubeconfigFor returns the plane's kubeconfig with a context named like the cluster.
// If server is not empty, server and ca replace the plane's own.
func (l *leased) kubeconfigFor(server string, ca []byte) ([]byte, error) {
	config, err := clientcmd.Load(l.plane.kubeconfig)
	if err != nil {
		return nil, err
	}
	context := config.Contexts[config.CurrentContext]
	cluster := config.Clusters[context.Cluster]
	if server != "" {
		cluster.Server, cluster.CertificateAuthorityData = server, ca
	}
	user := config.AuthInfos[context.AuthInfo]
	config.Clusters = map[string]*clientcmdapi.Cluster{l.name: cluster}
	config.AuthInfos = map[string]*clientcmdapi.AuthInfo{l.name: user}
	context.Cluster, context.AuthInfo = l.name, l.name
	config.Contexts = map[string]*clientcmdapi.Context{l.name: context}
	config.CurrentContext = l.name
	return clientcmd.Write(*config)
}
