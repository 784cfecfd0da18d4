package main

import (
	"bytes"
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net/http"
	"runtime"

	"gitopsd.dev/reconcile/convert"
	"gitopsd.dev/render/conversion"
)

// convertedReviews is the number of reviews to answer.
const convertedReviews = 30_000

// benchTypes has the types by the name of their benchmark.
var benchTypes = map[string]*converted{"convert-moves": &moved, "convert-mixed": &mixed}

// convert compares answering ConversionReviews by rules, from the bytes of the request to
// the bytes of the response, with controller-runtime's webhook and the same conversion
// written in Go. The objects have 2 KB.
func (b *bench) convert(ctx context.Context, _ *fixture) error {
	for name := range benchTypes {
		err := b.eachRound(ctx, name, [][]string{{"convert", name}, {"convert-rival", name}}, func(u []usage) error {
			if u[0].result != u[1].result {
				return fmt.Errorf("%s: the rival's result differs", name)
			}
			b.add(name, u[0].cpu/convertedReviews, u[1].cpu/convertedReviews)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// convertReviews answers reviews by the rules of the type with that name.
func convertReviews(args []string) (float64, error) {
	c := benchTypes[args[0]]
	handler, path, err := conversionRules(c)
	if err != nil {
		return 0, err
	}
	return answer(handler, path, c)
}

func convertReviewsRival(args []string) (float64, error) {
	c := benchTypes[args[0]]
	return answer(conversionWebhook(c.group), "/convert", c)
}

// conversionRules returns our handler, and the path of the type's rules.
func conversionRules(c *converted) (handler *convert.Handler, path string, err error) {
	set, err := c.set()
	if err != nil {
		return nil, "", err
	}
	table := new(convert.Table)
	table.Hold("bench", []*conversion.Set{set})
	handler, err = convert.New(convert.Config{Table: table, Log: slog.New(slog.DiscardHandler)})
	return handler, conversion.Path("bench", set.Name(), set.Digest()), err
}

// answer makes a handler answer reviews on one core. It returns a checksum of the converted
// object.
func answer(handler http.Handler, path string, c *converted) (float64, error) {
	runtime.GOMAXPROCS(1)
	review := c.review()
	var to recorder
	for range convertedReviews {
		r, err := http.NewRequest(http.MethodPost, "https://bench.example"+path, bytes.NewReader(review))
		if err != nil {
			return 0, err
		}
		r.Header.Set("Content-Type", "application/json")
		to.header = make(http.Header)
		to.body.Reset()
		handler.ServeHTTP(&to, r)
	}
	object, err := answered(to.body.Bytes())
	if err != nil {
		return 0, fmt.Errorf("%w\n%s", err, &to.body)
	}
	sum := fnv.New32()
	_, _ = sum.Write(object)
	return float64(sum.Sum32()), nil
}

// recorder keeps the body of a response.
type recorder struct {
	header http.Header
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header            { return r.header }
func (r *recorder) WriteHeader(int)                {}
func (r *recorder) Write(text []byte) (int, error) { return r.body.Write(text) }
