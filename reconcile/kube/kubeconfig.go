package kube

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"gitopsd.dev/reconcile/kube/kubeconfig"
)

// restConfig returns client-go's configuration. From a kubeconfig of the fleet it takes
// only fields that are known to be harmless.
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
	// An empty name would impersonate no account, and act with the daemon's rights
	// (CVE-2026-23990 elsewhere).
	sa := *c.ServiceAccount
	if len(validation.IsDNS1123Label(sa.Namespace)) > 0 || len(validation.IsDNS1123Subdomain(sa.Name)) > 0 {
		return nil, fmt.Errorf("serviceAccount %q in namespace %q: not the name of a service account", sa.Name, sa.Namespace)
	}
	if cfg.Impersonate.UserName != "" {
		return nil, fmt.Errorf("kubeconfig: it impersonates %q already; serviceAccount %s/%s cannot be impersonated on top: remove \"as\" from the user",
			cfg.Impersonate.UserName, sa.Namespace, sa.Name)
	}
	cfg.Impersonate = rest.ImpersonationConfig{UserName: accountUser(sa)}
	return cfg, nil
}

// Contexts returns the names of the contexts in the user's own kubeconfig, sorted. It
// reads the files that kubectl reads.
func Contexts() ([]string, error) {
	loaded, err := clientcmd.NewDefaultClientConfigLoadingRules().Load()
	if err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(loaded.Contexts)), nil
}

// trustedConfig reads a kubeconfig as kubectl does.
func trustedConfig(content []byte, context string) (*rest.Config, error) {
	overrides := &clientcmd.ConfigOverrides{CurrentContext: context}
	if len(content) == 0 {
		rules := clientcmd.NewDefaultClientConfigLoadingRules()
		cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
		if err != nil {
			files := rules.GetLoadingPrecedence()
			missing := func(file string) bool {
				_, err := os.Stat(file)
				return errors.Is(err, fs.ErrNotExist)
			}
			if len(files) > 0 && !slices.ContainsFunc(files, func(file string) bool { return !missing(file) }) {
				err = fmt.Errorf("%s does not exist; name your kubeconfig in KUBECONFIG", strings.Join(files, ", "))
			}
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

// fleetConfig reads a kubeconfig of the fleet; see [kubeconfig.Parse].
func fleetConfig(content []byte, context string) (*rest.Config, error) {
	entry, err := kubeconfig.Parse(content, context, kubeconfig.Restricted)
	if err != nil {
		return nil, err
	}
	cluster, user := entry.Cluster, entry.User
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
		if err != nil {
			return nil, errors.New("kubeconfig: proxy-url is not a URL") // which Parse has checked
		}
		cfg.Proxy = http.ProxyURL(proxy)
	}
	return cfg, nil
}
