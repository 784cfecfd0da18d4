package testscripts

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

func takeClusters(ctx context.Context, s *scenario, c *call) error {
	var proxied bool
	if err := c.flags(func(f *flag.FlagSet) { f.BoolVar(&proxied, "proxy", false, "") }, 1, -1); err != nil {
		return err
	}
	for _, name := range c.args {
		if s.clusters[name] != nil {
			return fmt.Errorf("cluster %s is there already", name)
		}
	}
	got, err := planes.lease(ctx, len(c.args))
	if err != nil {
		return err
	}
	for i, name := range c.args {
		l := &leased{name: name, plane: got[i]}
		s.clusters[name] = l
		if proxied {
			if l.proxy, err = newProxy(l.plane.config); err != nil {
				return err
			}
		}
		if err := s.writeKubeconfig(c, l); err != nil {
			return err
		}
	}
	return s.mergeKubeconfigs(c)
}

// writeKubeconfig writes the kubeconfig that gitopsd reads.
func (s *scenario) writeKubeconfig(c *call, l *leased) error {
	var server string
	var ca []byte
	if l.proxy != nil {
		server, ca = l.proxy.url, l.proxy.ca
	}
	text, err := l.kubeconfigFor(server, ca)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(c.ts.Getenv("GITOPSD_KUBECONFIG_DIR"), l.name+".yaml"), text, 0o600)
}

// mergeKubeconfigs writes the kubeconfig that kubectl reads: a context for each
// cluster, without proxies. If there is only one cluster, its context is current.
func (s *scenario) mergeKubeconfigs(c *call) error {
	merged := clientcmdapi.NewConfig()
	for _, name := range slices.Sorted(maps.Keys(s.clusters)) {
		text, err := s.clusters[name].kubeconfigFor("", nil)
		if err != nil {
			return err
		}
		one, err := clientcmd.Load(text)
		if err != nil {
			return err
		}
		merged.Clusters[name], merged.AuthInfos[name], merged.Contexts[name] = one.Clusters[name], one.AuthInfos[name], one.Contexts[name]
		if len(s.clusters) == 1 {
			merged.CurrentContext = name
		}
	}
	text, err := clientcmd.Write(*merged)
	if err != nil {
		return err
	}
	return os.WriteFile(c.ts.Getenv("KUBECONFIG"), text, 0o600)
}

// cluster returns the script's cluster with this name.
func (s *scenario) cluster(name string) (*leased, error) {
	l := s.clusters[name]
	if l == nil {
		return nil, fmt.Errorf("the script has no cluster %s", name)
	}
	return l, nil
}

func stopCluster(ctx context.Context, s *scenario, c *call) error {
	l, err := s.cluster(c.args[0])
	if err != nil {
		return err
	}
	l.plane.stopped = true
	return planes.devs.Stop(ctx, l.plane.name)
}

func startCluster(ctx context.Context, s *scenario, c *call) error {
	l, err := s.cluster(c.args[0])
	if err != nil {
		return err
	}
	if err := planes.devs.Resume(ctx, l.plane.name); err != nil {
		return err
	}
	l.plane.stopped = false
	return nil
}

func mapImage(ctx context.Context, s *scenario, c *call) error {
	l, err := s.cluster(c.args[0])
	if err != nil {
		return err
	}
	repository, command := c.args[1], slices.Clone(c.args[2:])
	if strings.Contains(command[0], "/") {
		command[0] = c.ts.MkAbs(command[0])
	}
	l.plane.images = true
	return planes.devs.SetImage(ctx, l.plane.name, repository, command...)
}

// proxyOf returns the proxy through which gitopsd reaches a cluster.
func (s *scenario) proxyOf(name string) (*proxy, error) {
	l, err := s.cluster(name)
	if err != nil {
		return nil, err
	}
	if l.proxy == nil {
		return nil, fmt.Errorf("cluster %s has no proxy: take it with `clusters -proxy`", name)
	}
	return l.proxy, nil
}

func breakCluster(_ context.Context, s *scenario, c *call) error {
	p, err := s.proxyOf(c.args[0])
	if err != nil {
		return err
	}
	c.args = c.args[1:]
	var f apiFault
	err = c.flags(func(fs *flag.FlagSet) {
		fs.StringVar(&f.method, "method", "", "")
		fs.IntVar(&f.left, "times", 0, "")
	}, 2, 2)
	if err != nil {
		return err
	}
	f.always = f.left == 0
	if err := f.parse(c.args[0], c.args[1]); err != nil {
		return err
	}
	p.fail(&f)
	return nil
}

func healCluster(_ context.Context, s *scenario, c *call) error {
	p, err := s.proxyOf(c.args[0])
	if err != nil {
		return err
	}
	p.heal()
	return nil
}

func clusterRequests(_ context.Context, s *scenario, c *call) error {
	p, err := s.proxyOf(c.args[0])
	if err != nil {
		return err
	}
	printRequests(c, p.takeRequests())
	return nil
}

// number parses a positive number.
func number(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("want a positive number, not %q", text)
	}
	return n, nil
}
