// Package kubeconfig reads kubeconfig files that others wrote: those of registered
// clusters, and those in connection Secrets. Reading them is pure.
//
// Whoever can write such a file must get nothing out of the daemon's machine: no program
// is run (CVE-2022-24817), no file is read, nothing is sent to an unverified server or in
// clear. No error quotes a credential.
package kubeconfig

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// Accept is what is accepted besides tokens, passwords and certificates in the file.
type Accept int

const (
	// Restricted accepts nothing else.
	Restricted Accept = iota
	// Plugins accepts exec and auth-provider plugins, which run as the daemon.
	Plugins
)

// Entry is one context of a kubeconfig file.
type Entry struct {
	// Context is its name.
	Context string
	// Cluster and User are what it names; read-only.
	Cluster *api.Cluster
	User    *api.AuthInfo

	context *api.Context
}

// Parse reads one context, the current one if context is empty. Errors name the cluster or
// user at fault, and what to do; everything that is wrong with these is told at once.
func Parse(content []byte, context string, accept Accept) (*Entry, error) {
	if len(content) == 0 {
		return nil, errors.New("kubeconfig: it is empty")
	}
	loaded, err := clientcmd.Load(content)
	if err != nil {
		// The parser's message may quote the content.
		return nil, errors.New("kubeconfig: it is not a kubeconfig file (apiVersion: v1, kind: Config) in YAML or JSON")
	}
	if context == "" {
		context = loaded.CurrentContext
	}
	ctx, ok := loaded.Contexts[context]
	switch {
	case context == "":
		return nil, fmt.Errorf("kubeconfig: it has no current-context; say which of %s with spec.context", names(loaded.Contexts))
	case !ok:
		return nil, fmt.Errorf("kubeconfig: there is no context %q; it has %s", context, names(loaded.Contexts))
	}
	cluster, ok := loaded.Clusters[ctx.Cluster]
	if !ok {
		return nil, fmt.Errorf("kubeconfig: context %q: there is no cluster %q; it has %s", context, ctx.Cluster, names(loaded.Clusters))
	}
	user, ok := loaded.AuthInfos[ctx.AuthInfo]
	if !ok {
		return nil, fmt.Errorf("kubeconfig: context %q: there is no user %q; it has %s", context, ctx.AuthInfo, names(loaded.AuthInfos))
	}
	if err := errors.Join(checkCluster(ctx.Cluster, cluster), checkUser(ctx.AuthInfo, user, accept)); err != nil {
		return nil, err
	}
	return &Entry{Context: context, Cluster: cluster, User: user, context: ctx}, nil
}

// File returns a kubeconfig file with this context alone.
func (e *Entry) File() ([]byte, error) {
	return clientcmd.Write(api.Config{
		CurrentContext: e.Context,
		Contexts:       map[string]*api.Context{e.Context: e.context},
		Clusters:       map[string]*api.Cluster{e.context.Cluster: e.Cluster},
		AuthInfos:      map[string]*api.AuthInfo{e.context.AuthInfo: e.User},
	})
}

// InCluster returns how a pod reaches the API server of its cluster, without
// credentials.
func InCluster() (*Entry, error) {
	cfg, err := rest.InClusterConfig()
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(cfg.CAFile)
	if err != nil {
		return nil, err
	}
	return New("in-cluster", &api.Cluster{Server: cfg.Host, CertificateAuthorityData: ca}, &api.AuthInfo{}), nil
}

// New returns the context of a cluster and a user, under the given name.
func New(name string, cluster *api.Cluster, user *api.AuthInfo) *Entry {
	return &Entry{Context: name, Cluster: cluster, User: user, context: &api.Context{Cluster: name, AuthInfo: name}}
}

// checkCluster and checkUser return everything that is wrong, so that it can be corrected
// at once.
func checkCluster(name string, c *api.Cluster) error {
	var errs []error
	refuse := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("kubeconfig: cluster %q: %s", name, fmt.Sprintf(format, args...)))
	}
	if server, err := url.Parse(c.Server); err != nil || server.Host == "" {
		refuse("server must be an https URL")
	} else if server.Scheme != "https" {
		refuse("server %s is not https: credentials and answers would travel in clear", server.Redacted())
	} else if server.User != nil {
		refuse("server %s has credentials in it; put them into the user", server.Redacted())
	}
	if c.ProxyURL != "" {
		proxy, err := url.Parse(c.ProxyURL)
		if err != nil || proxy.Host == "" || !slices.Contains([]string{"http", "https", "socks5"}, proxy.Scheme) {
			refuse("proxy-url must be an http, https or socks5 URL")
		}
	}
	if c.InsecureSkipTLSVerify {
		refuse("insecure-skip-tls-verify is refused: anyone on the way could take the credentials; give certificate-authority-data")
	}
	if c.CertificateAuthority != "" {
		refuse("certificate-authority names a file of the machine gitopsd runs on; put its content into certificate-authority-data (kubectl config view --flatten)")
	}
	return errors.Join(errs...)
}

func checkUser(name string, u *api.AuthInfo, accept Accept) error {
	var errs []error
	refuse := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("kubeconfig: user %q: %s", name, fmt.Sprintf(format, args...)))
	}
	if u.Exec != nil && accept == Restricted {
		refuse("exec plugins are refused: gitopsd runs no programs for a kubeconfig; use a token or a client certificate of a service account")
	}
	if u.AuthProvider != nil && accept == Restricted {
		refuse("auth-provider plugins are refused; use a token or a client certificate of a service account")
	}
	const flatten = "put its content into %s (kubectl config view --flatten)" // which leaves a tokenFile as it is
	for _, file := range []struct{ key, value, data, how string }{
		{"client-certificate", u.ClientCertificate, "client-certificate-data", flatten},
		{"client-key", u.ClientKey, "client-key-data", flatten},
		{"tokenFile", u.TokenFile, "token", "put its content into %s, or if that expires the token of an account for gitopsd (examples/cluster/account.yaml)"},
	} {
		if file.value != "" {
			refuse("%s names a file of the machine gitopsd runs on; "+file.how, file.key, file.data)
		}
	}
	if u.Impersonate == "" && (u.ImpersonateUID != "" || len(u.ImpersonateGroups) > 0 || len(u.ImpersonateUserExtra) > 0) {
		refuse("as-groups, as-uid or as-user-extra without \"as\" impersonates nobody")
	}
	return errors.Join(errs...)
}

// names returns the keys of a map for an error.
func names[V any](m map[string]V) string {
	if len(m) == 0 {
		return "none"
	}
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, fmt.Sprintf("%q", k))
	}
	slices.Sort(keys)
	return strings.Join(keys, ", ")
}
