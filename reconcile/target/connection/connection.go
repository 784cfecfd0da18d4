// Package connection reads and writes connection Secrets: the Secrets that KubernetesTargets
// refer to, with the connection to a cluster. It is pure.
//
// A connection Secret has one or both of two layouts: a whole kubeconfig under the key
// kubeconfig, or endpoint, clusterCA, clientCert, clientKey, token, username and password,
// each under its own key (the names of crossplane-runtime). The kubeconfig takes precedence.
// The keys value, which Cluster API writes, and Config or config (KEP-4322) also stand for
// kubeconfig.
//
// reconcile/kube/kubeconfig decides what a kubeconfig may hold: no programs, no files, no
// unverified servers. To connect, pass [Connection.Kubeconfig] to kube.New.
package connection

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"k8s.io/client-go/tools/clientcmd/api"

	"gitopsd.dev/reconcile/kube/kubeconfig"
	"gitopsd.dev/render/manifest"
)

// The keys of a connection Secret.
const (
	KeyKubeconfig = "kubeconfig"
	KeyEndpoint   = "endpoint"
	KeyCA         = "clusterCA"
	KeyClientCert = "clientCert"
	KeyClientKey  = "clientKey"
	KeyToken      = "token"
	KeyUsername   = "username"
	KeyPassword   = "password"
)

// kubeconfigKeys are the keys of a kubeconfig in order of precedence: gitopsd's, Cluster API's,
// and both spellings of KEP-4322.
var kubeconfigKeys = []string{KeyKubeconfig, "value", "Config", "config"}

// Connection is the connection of a user to a cluster. It is immutable.
type Connection struct{ entry *kubeconfig.Entry }

// ParseSecret parses a Secret as an API server returns it. Errors are those of [Parse].
func ParseSecret(tree map[string]any, accept kubeconfig.Accept) (*Connection, error) {
	data := make(map[string][]byte)
	for key, v := range manifest.Mapping(tree, "data") {
		text, _ := v.(string)
		decoded, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return nil, fmt.Errorf("key %q is not base64", key)
		}
		data[key] = decoded
	}
	return Parse(data, accept)
}

// Parse parses the content of a Secret. Errors name the key at fault and say what to do;
// they quote no value.
func Parse(data map[string][]byte, accept kubeconfig.Accept) (*Connection, error) {
	for _, key := range kubeconfigKeys {
		if len(data[key]) == 0 {
			continue
		}
		entry, err := kubeconfig.Parse(data[key], "", accept)
		if err != nil {
			return nil, fmt.Errorf("key %q: %w", key, err)
		}
		return &Connection{entry}, nil
	}
	if len(data[KeyEndpoint]) == 0 {
		return nil, fmt.Errorf("it has neither the key %q nor %q, but %s", KeyKubeconfig, KeyEndpoint, keys(data))
	}
	text := func(key string) string { return strings.TrimSpace(string(data[key])) }
	endpoint := text(KeyEndpoint)
	if !strings.Contains(endpoint, "://") {
		endpoint = "https://" + endpoint // a host, as some providers write it
	}
	c := New(&api.Cluster{Server: endpoint, CertificateAuthorityData: data[KeyCA]}, &api.AuthInfo{
		Token: text(KeyToken), ClientCertificateData: data[KeyClientCert], ClientKeyData: data[KeyClientKey],
		Username: text(KeyUsername), Password: string(data[KeyPassword]),
	})
	file, err := c.Kubeconfig()
	if err != nil {
		return nil, err
	}
	if _, err = kubeconfig.Parse(file, "", accept); err != nil { // by the same rules
		return nil, err
	}
	return c, nil
}

// New returns the connection of a user to a cluster. It copies addresses, certificates and
// credentials, and leaves out anything else in a kubeconfig, such as extensions.
func New(cluster *api.Cluster, user *api.AuthInfo) *Connection {
	return &Connection{kubeconfig.New("target", &api.Cluster{
		Server: cluster.Server, TLSServerName: cluster.TLSServerName, ProxyURL: cluster.ProxyURL,
		CertificateAuthorityData: cluster.CertificateAuthorityData,
	}, &api.AuthInfo{
		Token: user.Token, ClientCertificateData: user.ClientCertificateData, ClientKeyData: user.ClientKeyData,
		Username: user.Username, Password: user.Password,
	})}
}

// Check returns an error if the server or its proxy has an IP address that r refuses. It does
// not resolve names.
func (c *Connection) Check(r kubeconfig.Reach) error {
	for _, text := range []string{c.entry.Cluster.Server, c.entry.Cluster.ProxyURL} {
		to, err := url.Parse(text)
		if err != nil {
			continue // Parse refuses it
		}
		if address, err := netip.ParseAddr(to.Hostname()); err == nil {
			if err := r.Check(address); err != nil {
				return err
			}
		}
	}
	return nil
}

// Kubeconfig returns the connection as a kubeconfig file with one context.
func (c *Connection) Kubeconfig() ([]byte, error) { return c.entry.File() }

// Data returns the content of a connection Secret, in both layouts.
func (c *Connection) Data() (map[string][]byte, error) {
	file, err := c.Kubeconfig()
	if err != nil {
		return nil, err
	}
	cluster, user := c.entry.Cluster, c.entry.User
	data := map[string][]byte{
		KeyKubeconfig: file, KeyEndpoint: []byte(cluster.Server), KeyCA: cluster.CertificateAuthorityData,
		KeyClientCert: user.ClientCertificateData, KeyClientKey: user.ClientKeyData,
		KeyToken: []byte(user.Token), KeyUsername: []byte(user.Username), KeyPassword: []byte(user.Password),
	}
	maps.DeleteFunc(data, func(_ string, value []byte) bool { return len(value) == 0 })
	return data, nil
}

// keys returns the keys of a Secret for an error.
func keys(data map[string][]byte) string {
	if len(data) == 0 {
		return "nothing"
	}
	return strings.Join(slices.Sorted(maps.Keys(data)), ", ")
}
