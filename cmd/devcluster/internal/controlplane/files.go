package controlplane

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"gitopsd.dev/cmd/devcluster/internal/component"
	"gitopsd.dev/cmd/devcluster/internal/pki"
	"gitopsd.dev/cmd/devcluster/internal/statedir"
)

// admins is the group that may do everything.
const admins = "system:masters"

// files has the content of a folder's files by name.
type files map[string][]byte

func (f files) add(name string, p pki.Pair) {
	f[name+".crt"], f[name+".key"] = p.Cert, p.Key
}

// ensureFolder makes a folder with these files, completely or not at all, unless it
// exists.
func ensureFolder(path string, generate func() (files, error)) (made bool, err error) {
	if _, err := os.Stat(path); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	content, err := generate()
	if err != nil {
		return false, fmt.Errorf("make %s: %w", path, err)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(path), statedir.Temporary)
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(tmp)
	for name, text := range content {
		if err := os.WriteFile(filepath.Join(tmp, name), text, 0o600); err != nil {
			return false, err
		}
	}
	return true, os.Rename(tmp, path)
}

// etcdFiles returns the certificates of etcd and of its clients, the API servers.
func etcdFiles() (files, error) {
	ca, err := pki.NewAuthority("devcluster-etcd-ca")
	if err != nil {
		return nil, err
	}
	server, err := ca.Serving("etcd", nil)
	if err != nil {
		return nil, err
	}
	client, err := ca.Client("kube-apiserver")
	if err != nil {
		return nil, err
	}
	f := files{"ca.crt": ca.Cert}
	f.add("server", server)
	f.add("client", client)
	return f, nil
}

// clusterFiles returns the certificates and kubeconfigs of a cluster.
func clusterFiles(cl statedir.Cluster) (files, error) {
	ca, err := pki.NewAuthority(cl.Name + "-ca")
	if err != nil {
		return nil, err
	}
	frontProxyCA, err := pki.NewAuthority(cl.Name + "-front-proxy-ca")
	if err != nil {
		return nil, err
	}
	f := files{"front-proxy-ca.crt": frontProxyCA.Cert}
	// The CA's key is kept, so that tests can issue certificates for their own users.
	f.add("ca", ca.Pair)
	if f["sa.key"], err = pki.NewKey(); err != nil {
		return nil, err
	}
	server, err := ca.Serving("kube-apiserver", []string{
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
	}, net.ParseIP(component.ServiceIP))
	if err != nil {
		return nil, err
	}
	f.add("apiserver", server)
	frontProxy, err := frontProxyCA.Client("front-proxy-client")
	if err != nil {
		return nil, err
	}
	f.add("front-proxy-client", frontProxy)
	for file, user := range map[string]string{
		"admin":              "devcluster-admin",
		"controller-manager": "system:kube-controller-manager",
		"kubelet":            "devcluster-kubelet",
	} {
		client, err := ca.Client(user, admins)
		if err != nil {
			return nil, err
		}
		if f[file+".kubeconfig"], err = kubeconfig(cl, user, ca.Cert, client); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// kubeconfig returns a kubeconfig with one context, named like the cluster.
func kubeconfig(cl statedir.Cluster, user string, ca []byte, client pki.Pair) ([]byte, error) {
	return clientcmd.Write(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{cl.Name: {
			Server:                   url(cl),
			CertificateAuthorityData: ca,
		}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{user: {
			ClientCertificateData: client.Cert,
			ClientKeyData:         client.Key,
		}},
		Contexts:       map[string]*clientcmdapi.Context{cl.Name: {Cluster: cl.Name, AuthInfo: user}},
		CurrentContext: cl.Name,
	})
}

func url(cl statedir.Cluster) string { return fmt.Sprintf("https://127.0.0.1:%d", cl.Port) }

// ensureCluster makes a cluster's folder and the kubeconfig beside it. An
// existing kubeconfig stays as it is: its user may have added to it.
func (c *command) ensureCluster(cl statedir.Cluster) error {
	made, err := ensureFolder(c.dir.Path(cl.Name), func() (files, error) { return clusterFiles(cl) })
	if err != nil {
		return err
	}
	// Clusters of older versions of devcluster lack this file.
	selector := c.dir.Path(cl.Name, component.EgressSelectorFile)
	if err := statedir.WriteFile(selector, component.EgressSelector(egressSocket(cl.Name))); err != nil {
		return err
	}
	if _, err := os.Stat(c.dir.Kubeconfig(cl.Name)); err == nil && !made {
		return nil
	}
	admin, err := os.ReadFile(c.dir.Path(cl.Name, "admin.kubeconfig"))
	if err != nil {
		return err
	}
	return statedir.WriteFile(c.dir.Kubeconfig(cl.Name), admin)
}

// remove deletes the files that `up` made and returns those that it left: other files,
// and kubeconfigs that were changed.
func (c *command) remove(state *statedir.State) (kept []string, err error) {
	for _, name := range state.Names() {
		if err := c.removeKubeconfig(name); err != nil {
			return nil, err
		}
	}
	trees := []string{c.dir.Path("etcd", "data")}
	for _, name := range state.Names() {
		trees = append(trees, c.dir.Path(name, "pods"), c.dir.PodLogs(name))
	}
	for _, tree := range trees {
		if err := os.RemoveAll(tree); err != nil {
			return nil, err
		}
	}
	folders, err := madeIn(state)
	if err != nil {
		return nil, err
	}
	for folder, names := range folders {
		left, err := removeFrom(c.dir.Path(folder), names)
		if err != nil {
			return nil, err
		}
		kept = append(kept, left...)
	}
	// The state goes last: as long as it is there, a second `down` can finish.
	if err := c.dir.Remove(); err != nil {
		return nil, err
	}
	left, err := os.ReadDir(string(c.dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range left {
		if _, ours := folders[e.Name()]; !ours {
			kept = append(kept, c.dir.Path(e.Name()))
		}
	}
	slices.Sort(kept)
	return kept, err
}

// removeKubeconfig removes a cluster's kubeconfig unless it was changed.
func (c *command) removeKubeconfig(cluster string) error {
	made, err := os.ReadFile(c.dir.Path(cluster, "admin.kubeconfig"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	now, err := os.ReadFile(c.dir.Kubeconfig(cluster))
	if err == nil && bytes.Equal(made, now) {
		err = os.Remove(c.dir.Kubeconfig(cluster))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// madeIn returns the names of the files that `up` makes, by folder.
func madeIn(state *statedir.State) (map[string][]string, error) {
	etcd, err := etcdFiles()
	if err != nil {
		return nil, err
	}
	folders := map[string][]string{"etcd": slices.Collect(maps.Keys(etcd))}
	for _, cl := range state.Clusters {
		made, err := clusterFiles(cl)
		if err != nil {
			return nil, err
		}
		folders[cl.Name] = append(slices.Collect(maps.Keys(made)), component.EgressSelectorFile, imagesFile, filepath.Base(egressSocket(cl.Name)))
	}
	for _, component := range append(serversOf(state), component.NameEtcd) {
		folders["logs"] = append(folders["logs"], component+".log")
		folders["run"] = append(folders["run"], component+".json")
	}
	folders["run"] = append(folders["run"], "owner.json")
	return folders, nil
}

// removeFrom removes files, and temporary files that a crash left, from a folder, and the
// folder if it is empty then. It returns the other files.
func removeFrom(folder string, names []string) (left []string, err error) {
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		path := filepath.Join(folder, e.Name())
		if !statedir.IsTemporary(e.Name()) && !slices.Contains(names, e.Name()) {
			left = append(left, path)
		} else if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	if len(left) > 0 {
		return left, nil
	}
	return nil, os.Remove(folder)
}
