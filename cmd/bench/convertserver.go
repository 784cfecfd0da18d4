package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"gitopsd.dev/testscripts/devcluster"
)

// In a round, each side gets convertTurns batches of convertBatch requests of a kind,
// convertClients at once. A batch lasts convertPause longer, since the API server also
// converts written objects for its watch caches.
const (
	convertTurns   = 48
	convertBatch   = 24
	convertClients = 4
	convertPause   = 20 * time.Millisecond
	// convertLimit is how long a new definition may take to be served.
	convertLimit = time.Minute
)

// convertOrder is the order of the sides in a turn, rotated by one side every turn. In four
// turns every side follows every other equally often, so that no side always pays for work
// that its predecessor left behind.
var convertOrder = [...]int{0, 1, 3, 2}

// The sides. Ours and the rival are compared by their cost beyond none.
const (
	byNone = iota
	byOurs
	byRival
	byFloor
)

// convertSides are the arguments of the children, by side.
var convertSides = [...]string{byNone: "", byOurs: "ours", byRival: "rival", byFloor: "floor"}

// convertServer compares the CPU, of the API server and the webhook, for requests in
// another version than the stored one, beyond the CPU for requests for an equally large
// object without a webhook. Most of it is the API server's own part of calling any webhook.
// The floor is the cost with a webhook that does as little as possible; see [floorWebhook].
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

// convertedSides starts the webhooks and creates a type for each side.
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

// takeTurns returns the CPU that a request costs the API server and the webhook, for each
// side and batch.
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

// beyond returns the CPU that a request of a side costs the API server beyond a request of
// another side, given the CPU of each side's batches. It compares the batches of a turn with
// each other, since other load on the machine changes from turn to turn. The median counts:
// a garbage collection of the API server takes more CPU than a batch, and falls into few of
// them. The difference is scaled by the ratio of means to medians, so that each side pays
// for collections in proportion to its other cost.
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

// batch sends requests, and returns the CPU that each request costs the processes.
func (s *convertedSide) batch(ctx context.Context, send convertRequest, processes ...serverProcess) ([]float64, error) {
	cpu, err := spent(processes, func() error {
		defer time.Sleep(convertPause)
		return concurrently(convertClients, convertBatch, func(worker, _ int) error { return send(s, ctx, worker) })
	})
	for i := range cpu {
		cpu[i] /= convertBatch
	}
	return cpu, err
}
