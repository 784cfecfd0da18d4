package controlplane

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"gitopsd.dev/cmd/devcluster/internal/component"
	"gitopsd.dev/cmd/devcluster/internal/pki"
	"gitopsd.dev/cmd/devcluster/internal/statedir"
)

// admins is the group that may do everything.
const admins = "system:masters"

// files are a folder's files by name.
type files map[string][]byte

func (f files) add(name string, p pki.Pair) {
	f[name+".crt"], f[name+".key"] = p.Cert, p.Key
}

// ensureFolder makes a folder with these files, as a whole or not at all,
// unless it is there already.
func ensureFolder(path string, generate func() (files, error)) (made bool, err error) {
	if _, err := os.Stat(path); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	content, err := generate()
	if err != nil {
		return false, fmt.Errorf("make %s: %w", path, err)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
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

// etcdFiles are the certificates of etcd and of its clients, the API servers.
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

// clusterFiles are the certificates and kubeconfigs of a cluster.
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
	// The key stays, so that tests can issue certificates of their own users.
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

// kubeconfig has one context, named like the cluster.
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

// ensureCluster makes a cluster's folder and the kubeconfig beside it. One that
// is there stays as it is: its user may have added to it.
func (c *command) ensureCluster(cl statedir.Cluster) error {
	made, err := ensureFolder(c.dir.Path(cl.Name), func() (files, error) { return clusterFiles(cl) })
	if err != nil {
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

// remove deletes what `up` has made and returns the files in the directory
// that are not its own, or that somebody has changed since; those stay.
func (c *command) remove(state *statedir.State) (kept []string, err error) {
	for _, name := range state.Names() {
		made, err := os.ReadFile(c.dir.Path(name, "admin.kubeconfig"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		now, err := os.ReadFile(c.dir.Kubeconfig(name))
		if err == nil && bytes.Equal(made, now) {
			err = os.Remove(c.dir.Kubeconfig(name))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	for _, folder := range append([]string{"etcd", "logs", "run"}, state.Names()...) {
		if err := os.RemoveAll(c.dir.Path(folder)); err != nil {
			return nil, err
		}
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
		kept = append(kept, c.dir.Path(e.Name()))
	}
	return kept, err
}
