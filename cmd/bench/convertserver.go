package main

import (
	"context"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"os/exec"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"gitopsd.dev/testscripts/devcluster"
)

// convertChild is the name under which this program converts the objects of an API
// server, until its standard input ends.
const convertChild = "convert-child"

// In a round each side gets convertBatches times convertBatch requests of a kind,
// convertClients at once. The sides take turns after each batch, since what else the
// machine does changes.
const (
	convertBatches = 10
	convertBatch   = 400
	convertClients = 4
	// convertLimit is how long a new definition may take to be served.
	convertLimit = time.Minute
)

// convertServer compares the CPU that requests in another version than the stored one
// take of the API server and of the webhook, beyond requests for an object as large that
// needs no webhook.
func (b *bench) convertServer(ctx context.Context, f *fixture) error {
	planes, err := f.planes(ctx, devcluster.Config{NoControllerManager: true})
	if err != nil {
		return err
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", planes.Kubeconfig(benchCluster))
	if err != nil {
		return err
	}
	cfg.QPS = -1
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return err
	}
	server, err := findServer(cfg.Host)
	if err != nil {
		return err
	}
	sides := []*convertedSide{{by: "", converted: moved}, {by: "ours", converted: moved}, {by: "rival", converted: moved}}
	sides[0].v2 = sides[0].v1
	processes := make([]serverProcess, len(sides))
	for i, s := range sides {
		s.group, s.host, s.client = fmt.Sprintf("side%d.%s", i, convertedGroup), cfg.Host, client
		conversion := noConversion
		if s.by != "" {
			if conversion, processes[i], err = f.converter(ctx, s); err != nil {
				return err
			}
		}
		if err := s.start(ctx, conversion); err != nil {
			return err
		}
	}
	if err := sameAnswers(ctx, sides[1], sides[2]); err != nil {
		return err
	}
	for round := range b.rounds {
		for _, kind := range convertRequests {
			if !b.want.MatchString(kind.name) {
				continue
			}
			fmt.Fprintf(b.say, "bench: %s, round %d of %d\n", kind.name, round+1, b.rounds)
			if _, err := server.quiet(ctx); err != nil {
				return err
			}
			var atServer, atWebhook [3]float64
			for batch := range convertBatches {
				for i := range sides {
					at := (i + batch) % len(sides)
					cpu, err := sides[at].batch(ctx, kind.send, server, processes[at])
					if err != nil {
						return err
					}
					atServer[at] += cpu[0] / convertBatches
					atWebhook[at] += cpu[1] / convertBatches
				}
			}
			b.add(kind.name, atServer[1]+atWebhook[1]-atServer[0], atServer[2]+atWebhook[2]-atServer[0])
			b.note(kind.name, "webhook", atWebhook[1])
			b.note(kind.name, "rival:webhook", atWebhook[2])
			b.note(kind.name, "none", atServer[0])
		}
	}
	return nil
}

// converter starts a process that converts the objects of a side. It returns the
// conversion for the definition.
func (f *fixture) converter(ctx context.Context, s *convertedSide) (conversion string, process serverProcess, err error) {
	cmd := exec.CommandContext(ctx, self, convertChild, s.by, s.group)
	cmd.Stderr = f.log
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return "", 0, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return "", 0, err
	}
	if err := cmd.Start(); err != nil {
		return "", 0, err
	}
	f.closes = append(f.closes, func() error { return errors.Join(stdin.Close(), cmd.Wait()) })
	var url, bundle string
	if _, err := fmt.Fscan(stdout, &url, &bundle); err != nil {
		return "", 0, fmt.Errorf("the converter %s does not start: %w", s.by, err)
	}
	conversion = fmt.Sprintf("{strategy: Webhook, webhook: {conversionReviewVersions: [v1], clientConfig: {url: %q, caBundle: %s}}}", url, bundle)
	return conversion, serverProcess(cmd.Process.Pid), nil
}

// serveConversions converts the objects of a group: args are the side and the group.
func serveConversions(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	c := moved
	c.group = args[1]
	handler, path, err := conversionWebhook(c.group), "/convert", error(nil)
	if args[0] == "ours" {
		handler, path, err = conversionRules(&c)
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	fmt.Fprintln(stdout, server.URL+path, base64.StdEncoding.EncodeToString(ca))
	_, _ = io.Copy(io.Discard, stdin)
	return 0
}

// batch sends requests, and returns the CPU that each takes of two processes; 0 is none.
func (s *convertedSide) batch(ctx context.Context, send convertRequest, processes ...serverProcess) ([]float64, error) {
	before, err := used(processes)
	if err != nil {
		return nil, err
	}
	var clients sync.WaitGroup
	failed := make(chan error, convertClients)
	for worker := range convertClients {
		clients.Go(func() {
			for range convertBatch / convertClients {
				if err := send(s, ctx, worker); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	clients.Wait()
	close(failed)
	if err := <-failed; err != nil {
		return nil, err
	}
	cpu, err := used(processes)
	for i := range cpu {
		cpu[i] = (cpu[i] - before[i]) / convertBatch
	}
	return cpu, err
}

// used is the CPU of processes.
func used(processes []serverProcess) ([]float64, error) {
	all := make([]float64, len(processes))
	for i, p := range processes {
		if p == 0 {
			continue
		}
		var err error
		if all[i], err = p.cpu(); err != nil {
			return nil, err
		}
	}
	return all, nil
}
