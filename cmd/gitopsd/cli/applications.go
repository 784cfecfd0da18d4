package cli

import (
	"context"
	"time"

	"gitopsd.dev/reconcile/applications"
	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/kube/kubeconfig"
	"gitopsd.dev/reconcile/target/connection"
	"gitopsd.dev/reconcile/turn"
)

// applicationsConfig returns how applications are run. accept says which kubeconfigs in
// connection Secrets are used, reach which addresses they may name, and attempt how long an
// attempt at an application may take. mayWrite is that of [kube.Config].
func applicationsConfig(accept kubeconfig.Accept, reach kubeconfig.Reach, fleet apply.Fleet, turns *turn.Turns, attempt time.Duration, mayWrite func(context.Context) error) applications.Config {
	return applications.Config{Fleet: fleet, Turns: turns, Timeout: attempt, Connect: func(name string, secret map[string]any, as *kube.ServiceAccount) (*kube.Client, error) {
		c, err := connection.ParseSecret(secret, accept)
		if err != nil {
			return nil, err
		}
		file, err := c.Kubeconfig()
		if err != nil {
			return nil, err
		}
		return kube.New(kube.Config{Name: name, Kubeconfig: file, Trusted: accept == kubeconfig.Plugins, ServiceAccount: as, MayReach: reach.Check, MayWrite: mayWrite, UserAgent: userAgent()})
	}}
}
