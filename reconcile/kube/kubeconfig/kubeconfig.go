// Package kubeconfig reads kubeconfig files that others wrote, for registered clusters or
// in connection Secrets. It is pure, except for [InCluster].
//
// The author of such a file must get nothing out of the daemon's machine: the daemon runs
// no program (CVE-2022-24817), reads no file, and sends nothing to an unverified server or
// in clear. [Reach] restricts the addresses that it may connect to (reach.go). No error
// quotes a credential.
package kubeconfig

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// Accept is what a file may have besides tokens, passwords and certificates.
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
	// Cluster and User are the cluster and the user that it names; read-only.
	Cluster *api.Cluster
	User    *api.AuthInfo

	context *api.Context
}

// Parse reads one context, the current one if context is empty. Errors name the cluster
// or user at fault, with advice, and list all problems at once.
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
	case context == "" && len(loaded.Contexts) == 0:
		return nil, errors.New("kubeconfig: it has no contexts: give it one, which names a cluster and a user, as its current-context")
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
	user.Token = strings.TrimSpace(user.Token) // as client-go does for a tokenFile; a header may not end with a newline
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

// InCluster returns the address of the API server of the pod's own cluster, without
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

// checkCluster and checkUser return all problems, so that people can correct them at
// once.
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
	certificate, key := u.ClientCertificate != "" || len(u.ClientCertificateData) > 0, u.ClientKey != "" || len(u.ClientKeyData) > 0
	if certificate != key { // without its key, client-go sends no certificate and is anonymous
		has, lacks := "client-certificate-data", "client-key-data"
		if key {
			has, lacks = lacks, has
		}
		refuse("it has %s but no %s; a client certificate needs both: add the other, or use a token", has, lacks)
	}
	switch {
	case (u.Username != "") != (u.Password != ""):
		refuse("a user name needs a password, and a password a user name")
	case u.Token == "" && u.TokenFile == "" && !certificate && !key && u.Username == "" && u.Exec == nil && u.AuthProvider == nil:
		// Many API servers accept an anonymous user, and give it some rights.
		refuse("it holds no credentials: no token (or an empty one), no client certificate, and no user name with a password; gitopsd would be anonymous: add one of them")
	}
	if strings.ContainsFunc(u.Token, unicode.IsControl) {
		refuse("its token has a line break or another control character in it, which no HTTP header may have; copy the token as one line")
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
	keys := slices.Sorted(maps.Keys(m))
	for i := range keys {
		keys[i] = strconv.Quote(keys[i])
	}
	return strings.Join(keys, ", ")
}
