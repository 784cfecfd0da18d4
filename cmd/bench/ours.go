package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/checkpoint"
	"gitopsd.dev/render/manifest"
)

// childReport is the output of our child.
type childReport struct {
	// First, Warm and Drift are requests: of the first pass, of a second pass in the same
	// process, and of all passes until a drifted object is corrected.
	First, Warm, Drift float64
	// Before is the CPU, in seconds, to start and to decode the input.
	Before float64
}

// runOurs works like the daemon: in mode "cold" it applies a file to a cluster and saves a
// checkpoint, in "restart" it starts from the checkpoint, and in "warm" it starts without
// one, follows the cluster and makes further passes. args are a kubeconfig, the file, the
// directory of checkpoints and the mode.
func runOurs(args []string, stdout, stderr io.Writer) int {
	report, err := ours(context.Background(), args[0], args[1], &checkpoint.Store{Dir: args[2]}, args[3])
	if err == nil {
		err = json.NewEncoder(stdout).Encode(report)
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

// counting counts requests.
type counting struct {
	next http.RoundTripper
	n    *atomic.Int64
}

func (c counting) RoundTrip(r *http.Request) (*http.Response, error) {
	c.n.Add(1)
	return c.next.RoundTrip(r)
}

func ours(ctx context.Context, kubeconfig, input string, kept *checkpoint.Store, mode string) (*childReport, error) {
	var requests atomic.Int64
	f, err := connect(kubeconfig, func(next http.RoundTripper) http.RoundTripper { return counting{next, &requests} })
	if err != nil {
		return nil, err
	}
	defer f.close()
	out := childReport{}
	if mode == "restart" {
		r := kept.Load("bench", input)
		if r == nil {
			return nil, errors.New("no checkpoint was kept")
		}
		if out.Before, err = usedCPU(); err != nil {
			return nil, err
		}
		rests, err := f.AtRest(ctx, r.Cluster)
		if err == nil && !rests {
			err = errors.New("the cluster is not as it was left")
		}
		out.First = float64(requests.Load())
		return &out, err
	}
	set, err := load(input)
	if err != nil {
		return nil, err
	}
	if out.Before, err = usedCPU(); err != nil {
		return nil, err
	}
	var at *apply.Checkpoint
	// pass returns the number of requests, and of corrected drift.
	pass := func() (asked float64, corrected int, err error) {
		before := requests.Load()
		p, report, err := f.pass(set)
		if err != nil {
			return 0, 0, err
		}
		for _, r := range report.Results {
			if r.Outcome == apply.Done && r.Step.Drift {
				corrected++
			}
		}
		at = f.Checkpoint(p)
		return float64(requests.Load() - before), corrected, nil
	}
	if mode == "cold" {
		if out.First, _, err = pass(); err == nil {
			err = kept.Save("bench", &checkpoint.Record{Input: input, Cluster: at, Objects: set.Len()})
		}
		return &out, err
	}
	// The daemon, too, waits for notifications between passes.
	stirred := make(chan struct{}, 1)
	f.follow(func() {
		select {
		case stirred <- struct{}{}:
		default:
		}
	})
	if out.First, _, err = pass(); err != nil {
		return nil, err
	}
	if out.Warm, _, err = pass(); err != nil {
		return nil, err
	}
	if err := meddle(ctx, kubeconfig, set); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for corrected := 0; corrected == 0; {
		select {
		case <-stirred:
		case <-ctx.Done():
			return nil, errors.New("the change of an object was not noticed")
		}
		var asked float64
		if asked, corrected, err = pass(); err != nil {
			return nil, err
		}
		out.Drift += asked
	}
	return &out, nil
}

// usedCPU returns the CPU time of this process in seconds.
func usedCPU() (float64, error) {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0, fmt.Errorf("getrusage: %w", err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano()).Seconds(), nil
}

// meddle changes a field of one CRD as another writer.
func meddle(ctx context.Context, kubeconfig string, set *manifest.Set) error {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return err
	}
	if set.Len() == 0 {
		return errors.New("nothing to meddle with")
	}
	_, err = client.Resource(crdResource).Patch(ctx, set.All()[0].ID().Name, types.MergePatchType,
		[]byte(`{"spec":{"names":{"categories":["oops"]}}}`), metav1.PatchOptions{FieldManager: "kubectl-edit"})
	return err
}

// load reads the objects of a file.
func load(name string) (*manifest.Set, error) {
	docs, err := decode(name)
	if err != nil {
		return nil, err
	}
	var objects []*manifest.Object
	for _, doc := range docs {
		o, err := manifest.New(doc.Tree, manifest.Origin{})
		if err != nil {
			return nil, err
		}
		objects = append(objects, o)
	}
	set, duplicates := manifest.NewSet(objects)
	if len(duplicates) > 0 {
		return nil, duplicates[0]
	}
	return set, nil
}
