// Package load is a program that sends an API server one request after the other, for
// scenarios in which none may fail.
//
//	load FILE
//
// It creates the object in FILE (JSON) in a dry run, so that webhooks are asked and
// nothing is stored, in the cluster and with the credentials of $KUBECONFIG. On SIGTERM
// it prints how many requests it made and how many failed, and exits with 1 if one
// failed.
package load

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// pause is the pause between two requests.
const pause = 20 * time.Millisecond

// Main runs the program with the arguments of this process, and exits.
func Main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) != 1 {
		fmt.Fprintln(stderr, "usage: load FILE")
		return 2
	}
	client, path, body, err := prepare(args[0])
	if err != nil {
		fmt.Fprintf(stderr, "load: %v\n", err)
		return 2
	}
	made, failed := 0, 0
	for ctx.Err() == nil {
		// The end of the load ends no request.
		err := client.Post().AbsPath(path).Param("dryRun", "All").Body(body).Do(context.WithoutCancel(ctx)).Error()
		made++
		if err != nil {
			failed++
			fmt.Fprintf(stderr, "load: request %d: %v\n", made, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	fmt.Fprintf(stdout, "%d requests, %d failed\n", made, failed)
	return min(failed, 1)
}

// prepare returns the path at which an object is created.
func prepare(file string) (client rest.Interface, path string, body []byte, err error) {
	body, err = os.ReadFile(file)
	if err != nil {
		return nil, "", nil, err
	}
	var object metav1.PartialObjectMetadata
	if err := json.Unmarshal(body, &object); err != nil {
		return nil, "", nil, fmt.Errorf("%s: %w", file, err)
	}
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	if err != nil {
		return nil, "", nil, err
	}
	cfg.QPS = -1
	d, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return nil, "", nil, err
	}
	served, err := d.ServerResourcesForGroupVersion(object.APIVersion)
	if err != nil {
		return nil, "", nil, err
	}
	for _, r := range served.APIResources {
		if r.Kind == object.Kind && !strings.Contains(r.Name, "/") {
			path = "/apis/" + object.APIVersion
			if r.Namespaced {
				path += "/namespaces/" + object.Namespace
			}
			return d.RESTClient(), path + "/" + r.Name, body, nil
		}
	}
	return nil, "", nil, fmt.Errorf("%s: the cluster serves no %s in %s", file, object.Kind, object.APIVersion)
}
