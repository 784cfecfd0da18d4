package controlplane

import (
	"context"
	"fmt"
	"strings"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Stored prints the objects of a resource, such as "acme.example/widgets", as etcd has
// them.
func Stored(ctx context.Context, cfg Config, cluster, resource string) error {
	state, err := cfg.Dir.Load()
	if err != nil {
		return err
	}
	cl, err := existing(cfg, state, cluster)
	if err != nil {
		return err
	}
	etcd := etcdClient(cfg.Dir, *cl, state.Etcd)
	tls, err := transport.TLSInfo{CertFile: etcd.CertFile, KeyFile: etcd.KeyFile, TrustedCAFile: etcd.CAFile}.ClientConfig()
	if err != nil {
		return err
	}
	client, err := clientv3.New(clientv3.Config{Context: ctx, Endpoints: etcd.Servers, TLS: tls})
	if err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	defer client.Close()
	prefix := etcd.Prefix + "/" + resource + "/"
	answer, err := client.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	for _, kv := range answer.Kvs {
		if _, err := fmt.Fprintf(cfg.Out, "%s %s\n", strings.TrimPrefix(string(kv.Key), prefix), strings.TrimSuffix(string(kv.Value), "\n")); err != nil {
			return err
		}
	}
	return nil
}
