package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"gitopsd.dev/testscripts/devcluster"
)

// In a round each side gets convertTurns batches of convertBatch requests of a kind,
// convertClients at once. A batch lasts convertPause longer: the API server converts what
// was written for its watch caches, too.
const (
	convertTurns   = 48
	convertBatch   = 24
	convertClients = 4
	convertPause   = 20 * time.Millisecond
	// convertLimit is how long a new definition may take to be served.
	convertLimit = time.Minute
)

// convertOrder has the sides take turns, and each come after each other one equally often
// in four turns: no side always gets what the one before it left to do. The first side
// moves by one after each turn.
var convertOrder = [...]int{0, 1, 3, 2}

// The sides. Ours and the rival are compared, beyond none.
const (
	byNone = iota
	byOurs
	byRival
	byFloor
)

// convertSides are the arguments of the children, by side.
var convertSides = [...]string{byNone: "", byOurs: "ours", byRival: "rival", byFloor: "floor"}

// convertServer compares the CPU that requests in another version than the stored one
// take of the API server and of the webhook, beyond requests for an object as large that
// needs no webhook. Most of that is the API server's own part of the calls, whatever
// converts. The floor is what remains of it with the least a webhook can do; see
// [floorWebhook].
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
	sides, err := f.convertedSides(ctx, cfg.Host, client)
	if err != nil {
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
			atServer, atWebhook, err := takeTurns(ctx, sides, kind.send, server)
			if err != nil {
				return err
			}
			webhook := func(side int) float64 { return mean(atWebhook[side]) }
			added := func(side int) float64 { return beyond(atServer, side, byNone) + webhook(side) }
			b.add(kind.name, added(byOurs), added(byRival))
			b.note(kind.name, "none", mean(atServer[byNone]))
			b.note(kind.name, "floor", added(byFloor))
			b.note(kind.name, "webhook", webhook(byOurs))
			b.note(kind.name, "floor:webhook", webhook(byFloor))
			b.note(kind.name, "rival:webhook", webhook(byRival))
		}
	}
	return nil
}

// convertedSides starts the webhooks, and creates a type for each side.
func (f *fixture) convertedSides(ctx context.Context, host string, client *http.Client) ([]*convertedSide, error) {
	dir, bundle, err := f.webhookCertificate()
	if err != nil {
		return nil, err
	}
	sides := make([]*convertedSide, len(convertSides))
	for i, by := range convertSides {
		s := &convertedSide{by: by, host: host, client: client, converted: moved}
		sides[i] = s
		s.group = fmt.Sprintf("side%d.%s", i, convertedGroup)
		if i == byNone || i == byFloor {
			s.v2 = s.v1
		}
		conversion := noConversion
		if i != byNone {
			url, process, err := f.converter(ctx, s, dir)
			if err != nil {
				return nil, err
			}
			s.process = process
			conversion = fmt.Sprintf("{strategy: Webhook, webhook: {conversionReviewVersions: [v1], clientConfig: {url: %q, caBundle: %s}}}", url, base64.StdEncoding.EncodeToString(bundle))
		}
		if err := s.start(ctx, conversion); err != nil {
			return nil, err
		}
	}
	for _, pair := range [][2]int{{byOurs, byRival}, {byNone, byFloor}} {
		if err := sameAnswers(ctx, sides[pair[0]], sides[pair[1]]); err != nil {
			return nil, err
		}
	}
	return sides, nil
}

// takeTurns returns the CPU that a request takes of the API server and of the webhook, in
// each batch of each side.
func takeTurns(ctx context.Context, sides []*convertedSide, send convertRequest, server serverProcess) (atServer, atWebhook [][]float64, err error) {
	atServer, atWebhook = make([][]float64, len(sides)), make([][]float64, len(sides))
	for turn := range convertTurns {
		for _, at := range convertOrder {
			at = (at + turn) % len(sides)
			cpu, err := sides[at].batch(ctx, send, server, sides[at].process)
			if err != nil {
				return nil, nil, err
			}
			atServer[at], atWebhook[at] = append(atServer[at], cpu[0]), append(atWebhook[at], cpu[1])
		}
	}
	return atServer, atWebhook, nil
}

// beyond returns what a request of a side takes of the API server beyond one of another,
// of the CPU of each side's batches. Batches of a turn are compared with each other, since
// what else the machine does changes from turn to turn, and the median counts: a garbage
// collection of the API server takes more CPU than a batch, and falls into few of them.
// The difference is raised by as much as the mean of all batches is above medians, so
// that each side pays for collections by what it takes otherwise.
func beyond(batches [][]float64, side, other int) float64 {
	pairs := make([]float64, len(batches[side]))
	for turn := range pairs {
		pairs[turn] = batches[side][turn] - batches[other][turn]
	}
	all, usual := 0.0, 0.0
	for _, cpu := range batches {
		all += mean(cpu)
		usual += median(cpu)
	}
	return median(pairs) * all / usual
}

func mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
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
	time.Sleep(convertPause)
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
