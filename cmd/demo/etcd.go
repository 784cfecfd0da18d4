package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"text/tabwriter"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/render/etcd"
)

// servingEtcd matches the daemon's log once it serves etcd namespaces; group 1 is the
// address.
var servingEtcd = regexp.MustCompile(`msg="serving etcd namespaces" address=(\S+)`)

// hub gets three namespaces in the daemon's etcd by a line in its registration and one in
// its kustomization. These lines come before them.
const (
	hubPath      = "  path: examples/fleet/hub\n"
	hubResources = "- types.yaml\n"
)

// teams each have a control plane with storage in an EtcdNamespace, which is in hub's
// namespace teamsNamespace. The Secret with the client certificate has the suffix
// clientSecret.
var teams = []string{"red", "green", "blue"}

const teamsNamespace, clientSecret = "control-planes", "-etcd-client"

// teamPrefix begins the names of the programs that are teams' control planes.
const teamPrefix = "devcluster-"

var (
	secrets        = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	etcdNamespaces = schema.GroupVersionResource{Group: "gitopsd.dev", Version: etcd.Version, Resource: "etcdnamespaces"}
)

func (s *stage) teamDir(team string) string { return filepath.Join(s.dir, "teams", team) }
func (s *stage) teamConfig(team string) string {
	return filepath.Join(s.teamDir(team), team+".kubeconfig")
}
func (s *stage) teamFile(team, f string) string { return s.teamDir(team + "-" + f) }

// namespaces declares a namespace of one etcd for each of three control planes, and starts
// them.
func (s *stage) namespaces(ctx context.Context) error {
	s.step("Three control planes, one etcd, three namespaces: hub declares storage for each, and gitopsd's proxy serves it")
	serving, err := s.logged(ctx, 30*time.Second, "the daemon to serve etcd namespaces", servingEtcd)
	if err != nil {
		return err
	}
	address := serving[1]
	if err := s.edit(ctx, "clusters.yaml", hubPath, hubPath+"  etcd: {proxy: {url: \"https://"+address+"\"}}\n"); err != nil {
		return err
	}
	if err := s.edit(ctx, "examples/fleet/hub/kustomization.yaml", hubResources, hubResources+"- ../../control-planes\n"); err != nil {
		return err
	}
	declaration, err := os.ReadFile(filepath.Join(s.clone, "examples/control-planes/"+teams[0]+".yaml"))
	if err != nil {
		return err
	}
	s.say("   examples/control-planes/%s.yaml, and the same for %s:", teams[0], strings.Join(teams[1:], " and "))
	s.indent(string(declaration))
	head, err := s.merge(ctx, "Give three control planes storage")
	if err != nil {
		return err
	}
	if err := s.rested(ctx, head); err != nil { // no package changes, so there is no lock commit
		return err
	}
	began := time.Now()
	for _, team := range teams {
		if err := s.startTeam(ctx, team, address); err != nil {
			return err
		}
	}
	for _, team := range teams {
		if err := s.wait(ctx, 2*time.Minute, "the control plane of "+team, func() bool { return answers(s.teamConfig(team)) }); err != nil {
			return err
		}
	}
	s.say("   A kube-apiserver for each, with the certificate in its Secret as --etcd-certfile, is ready after %s", time.Since(began).Round(100*time.Millisecond))
	for _, team := range teams {
		if err := s.kubectl(ctx, s.teamConfig(team), "created", "create", "configmap", "paint", "--from-literal=colour="+team); err != nil {
			return err
		}
	}
	looking, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := s.showKeys(looking); err != nil {
		return err
	}
	if err := s.showView(looking, address); err != nil {
		return err
	}
	return s.kubectl(ctx, s.teamConfig(teams[1]), teams[1], "get", "configmap", "paint", "-o", "jsonpath={.data}")
}

// startTeam starts a team's control plane with its client certificate from hub.
func (s *stage) startTeam(ctx context.Context, team, address string) error {
	hub, err := s.client("hub")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(s.dir, "teams"), 0o700); err != nil {
		return err
	}
	var data map[string]any
	err = s.wait(ctx, 2*time.Minute, "the certificate of "+team, func() bool {
		secret, err := hub.Resource(secrets).Namespace(teamsNamespace).Get(ctx, team+clientSecret, metav1.GetOptions{})
		if err != nil {
			return false
		}
		data, _ = secret.Object["data"].(map[string]any)
		return data["tls.crt"] != nil
	})
	if err != nil {
		return err
	}
	for _, name := range []string{"ca.crt", "tls.crt", "tls.key"} {
		text, _ := data[name].(string)
		content, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return fmt.Errorf("the Secret of %s: %s: %w", team, name, err)
		}
		if err := os.WriteFile(s.teamFile(team, name), content, 0o600); err != nil {
			return err
		}
	}
	return s.background(teamPrefix+team, exec.Command(s.bin("devcluster"), "up", "--foreground",
		"--dir", s.teamDir(team), "--clusters", team, "--controller-manager=false", "--etcd-servers", "https://"+address,
		"--etcd-cafile", s.teamFile(team, "ca.crt"), "--etcd-certfile", s.teamFile(team, "tls.crt"), "--etcd-keyfile", s.teamFile(team, "tls.key")))
}

// showKeys shows the keys of each team, as the etcd's administrator sees them.
func (s *stage) showKeys(ctx context.Context) error {
	s.say("   All three wrote the same key. In the etcd, as its administrator sees it:")
	file := func(name string) string { return filepath.Join(s.etcdDir(), name) }
	endpoint, err := os.ReadFile(file("endpoint"))
	if err != nil {
		return err
	}
	root, err := etcdClient(strings.TrimSpace(string(endpoint)), file("ca.crt"), file("root.crt"), file("root.key"))
	if err != nil {
		return err
	}
	defer root.Close()
	w := tabwriter.NewWriter(s.w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "   NAMESPACE\tKEYS\tONE OF THEM")
	for _, team := range teams {
		prefix := etcd.ID{Cluster: "hub", Namespace: teamsNamespace, Name: team}.DefaultPrefix()
		n, err := count(ctx, root, prefix)
		if err != nil {
			return err
		}
		one, err := root.Get(ctx, prefix+"/registry/configmaps/default/paint")
		if err != nil {
			return err
		}
		if len(one.Kvs) != 1 || !strings.Contains(string(one.Kvs[0].Value), team) {
			return fmt.Errorf("%s's ConfigMap is not below %s", team, prefix)
		}
		fmt.Fprintf(w, "   %s\t%d\t%s\n", team, n, one.Kvs[0].Key)
	}
	return w.Flush()
}

// showView shows the etcd as one of the teams sees it: its own keys, and no others.
func (s *stage) showView(ctx context.Context, address string) error {
	team := teams[0]
	client, err := etcdClient("https://"+address, s.teamFile(team, "ca.crt"), s.teamFile(team, "tls.crt"), s.teamFile(team, "tls.key"))
	if err != nil {
		return err
	}
	defer client.Close()
	all, err := client.Get(ctx, "", clientv3.WithPrefix())
	if err != nil {
		return err
	}
	paints := 0
	for _, kv := range all.Kvs {
		if strings.HasSuffix(string(kv.Key), "/paint") && strings.Contains(string(kv.Value), team) {
			paints++
		}
	}
	others, err := count(ctx, client, etcd.OwnPrefix)
	if err != nil {
		return err
	}
	if paints != 1 || others != 0 {
		return fmt.Errorf("%s sees %d ConfigMaps of its own, and %d keys of others", team, paints, others)
	}
	s.say("   %s's certificate shows an etcd with %d keys, none of which are below %s", team, len(all.Kvs), etcd.OwnPrefix)
	return nil
}

// count returns how many keys have a prefix.
func count(ctx context.Context, c *clientv3.Client, prefix string) (int64, error) {
	answer, err := c.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return 0, err
	}
	return answer.Count, nil
}

func etcdClient(endpoint, caFile, certFile, keyFile string) (*clientv3.Client, error) {
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(caFile)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return clientv3.New(clientv3.Config{
		Endpoints: []string{endpoint}, Logger: zap.NewNop(),
		TLS: &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots},
	})
}

// showNamespaces shows the status of the namespaces in hub. The daemon measures their
// sizes every minute.
func (s *stage) showNamespaces(ctx context.Context) error {
	s.step("How full the namespaces of the etcd are, against their quotas")
	hub, err := s.client("hub")
	if err != nil {
		return err
	}
	err = s.wait(ctx, 2*time.Minute, "the sizes of namespaces", func() bool {
		for _, team := range teams {
			n, err := hub.Resource(etcdNamespaces).Namespace(teamsNamespace).Get(ctx, team, metav1.GetOptions{})
			if err != nil {
				return false
			}
			status, _ := n.Object["status"].(map[string]any)
			if bytes, _ := status["bytes"].(int64); bytes == 0 {
				return false
			}
		}
		return true
	})
	if err != nil {
		return err
	}
	return s.kubectl(ctx, s.kubeconfig("hub"), teams[0], "get", "etcdnamespaces", "-n", teamsNamespace)
}

// kubectl runs kubectl in a cluster and shows its output, which must contain want.
func (s *stage) kubectl(ctx context.Context, kubeconfig, want string, args ...string) error {
	of, _, _ := strings.Cut(filepath.Base(kubeconfig), ".")
	s.say("   $ kubectl --context %s %s", of, quoted(args...))
	out, err := s.command(ctx, s.clone, s.bin("kubectl"), append([]string{"--kubeconfig", kubeconfig}, args...)...)
	if err != nil {
		return err
	}
	if !strings.Contains(out, want) {
		return fmt.Errorf("kubectl %s printed %q; want %s", strings.Join(args, " "), out, want)
	}
	s.indent(out)
	return nil
}
