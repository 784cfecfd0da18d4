package kube

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// restConfig returns client-go's configuration. Of a kubeconfig from the fleet it uses
// the fields that are known to be harmless and no others.
func restConfig(c Config) (*rest.Config, error) {
	if c.Name == "" {
		return nil, errors.New("a cluster needs a name")
	}
	var cfg *rest.Config
	var err error
	switch {
	case c.InCluster:
		if c.Trusted || len(c.Kubeconfig) > 0 {
			return nil, errors.New("inCluster and a kubeconfig exclude each other")
		}
		cfg, err = rest.InClusterConfig()
	case c.Trusted:
		cfg, err = trustedConfig(c.Kubeconfig, c.Context)
	default:
		cfg, err = fleetConfig(c.Kubeconfig, c.Context)
	}
	if err != nil {
		return nil, err
	}
	cfg.QPS = -1 // the API server's priority and fairness decides
	if c.ServiceAccount == nil {
		return cfg, nil
	}
	// An empty name would impersonate nobody and act with the daemon's rights
	// (CVE-2026-23990 elsewhere).
	sa := *c.ServiceAccount
	if len(validation.IsDNS1123Label(sa.Namespace)) > 0 || len(validation.IsDNS1123Subdomain(sa.Name)) > 0 {
		return nil, fmt.Errorf("serviceAccount %q in namespace %q: not the name of a service account", sa.Name, sa.Namespace)
	}
	if cfg.Impersonate.UserName != "" {
		return nil, fmt.Errorf("kubeconfig: it impersonates %q already; serviceAccount %s/%s cannot be impersonated on top: remove \"as\" from the user",
			cfg.Impersonate.UserName, sa.Namespace, sa.Name)
	}
	cfg.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + sa.Namespace + ":" + sa.Name}
	return cfg, nil
}

// trustedConfig reads a kubeconfig as kubectl does.
func trustedConfig(content []byte, context string) (*rest.Config, error) {
	overrides := &clientcmd.ConfigOverrides{CurrentContext: context}
	if len(content) == 0 {
		cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
			clientcmd.NewDefaultClientConfigLoadingRules(), overrides).ClientConfig()
		if err != nil {
			return nil, fmt.Errorf("the user's kubeconfig: %w", err)
		}
		return cfg, nil
	}
	loaded, err := clientcmd.Load(content)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	cfg, err := clientcmd.NewDefaultClientConfig(*loaded, overrides).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return cfg, nil
}

// fleetConfig reads a kubeconfig of the fleet. Whoever can write it must get nothing out
// of the daemon's machine: no program is run (CVE-2022-24817), no file is read, nothing
// is sent to an unverified server or in clear.
func fleetConfig(content []byte, context string) (*rest.Config, error) {
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
	if err := errors.Join(checkCluster(ctx.Cluster, cluster), checkUser(ctx.AuthInfo, user)); err != nil {
		return nil, err
	}
	cfg := &rest.Config{
		Host:        cluster.Server,
		BearerToken: user.Token,
		Username:    user.Username,
		Password:    user.Password,
		Impersonate: rest.ImpersonationConfig{
			UserName: user.Impersonate, UID: user.ImpersonateUID,
			Groups: user.ImpersonateGroups, Extra: user.ImpersonateUserExtra,
		},
		TLSClientConfig: rest.TLSClientConfig{
			ServerName: cluster.TLSServerName,
			CAData:     cluster.CertificateAuthorityData,
			CertData:   user.ClientCertificateData,
			KeyData:    user.ClientKeyData,
		},
	}
	if cluster.ProxyURL != "" {
		proxy, err := url.Parse(cluster.ProxyURL)
		if err != nil || proxy.Host == "" || !slices.Contains([]string{"http", "https", "socks5"}, proxy.Scheme) {
			return nil, fmt.Errorf("kubeconfig: cluster %q: proxy-url must be an http, https or socks5 URL", ctx.Cluster)
		}
		cfg.Proxy = http.ProxyURL(proxy)
	}
	return cfg, nil
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
	if c.InsecureSkipTLSVerify {
		refuse("insecure-skip-tls-verify is refused: anyone on the way could take the credentials; give certificate-authority-data")
	}
	if c.CertificateAuthority != "" {
		refuse("certificate-authority names a file of the machine gitopsd runs on; put its content into certificate-authority-data (kubectl config view --flatten)")
	}
	return errors.Join(errs...)
}

func checkUser(name string, u *api.AuthInfo) error {
	var errs []error
	refuse := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("kubeconfig: user %q: %s", name, fmt.Sprintf(format, args...)))
	}
	if u.Exec != nil {
		refuse("exec plugins are refused: gitopsd runs no programs for a kubeconfig; use a token or a client certificate of a service account")
	}
	if u.AuthProvider != nil {
		refuse("auth-provider plugins are refused; use a token or a client certificate of a service account")
	}
	for _, file := range []struct{ key, value, data string }{
		{"client-certificate", u.ClientCertificate, "client-certificate-data"},
		{"client-key", u.ClientKey, "client-key-data"},
		{"tokenFile", u.TokenFile, "token"},
	} {
		if file.value != "" {
			refuse("%s names a file of the machine gitopsd runs on; put its content into %s (kubectl config view --flatten)", file.key, file.data)
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
