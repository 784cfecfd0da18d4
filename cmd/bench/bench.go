package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
)

// experiment measures several benchmarks at once.
type experiment struct {
	run   func(*bench, context.Context, *fixture) error
	goals []goal
}

// goal is a benchmark with the highest acceptable ratio.
type goal struct {
	name, unit string
	ratio      float64
}

var experiments = []experiment{
	{(*bench).apply, []goal{
		{"apply-cold-server-cpu", "s", 1.05},
		{"apply-cold-client-cpu", "s", 0.25},
		{"apply-cold-requests", "requests", 1.01},
		{"noop-requests", "requests", 0},
		{"noop-restart-client-cpu", "s", 0.005},
		{"noop-restart-server-cpu", "s", 0.002},
		{"drift-requests", "requests", 3},
	}},
	{(*bench).data, []goal{
		{"data-plan-cpu", "s", 1},
		{"data-plan-rss", "MB", 1},
	}},
	{(*bench).convert, []goal{{"convert-moves", "s", 0.25}, {"convert-mixed", "s", 0.5}}},
	{(*bench).convertServer, []goal{
		{"convert-get", "s", 0.9},
		{"convert-create", "s", 0.9},
		{"convert-apply", "s", 0.9},
	}},
	{(*bench).etcd, []goal{
		{"etcd-proxy-get-cpu", "s", 1.4},
		{"etcd-proxy-put-cpu", "s", 0.9},
		{"etcd-proxy-vs-grpcproxy", "s", 0.9},
		{"etcd-proxy-fast-get-cpu", "s", 0.75},
		{"etcd-proxy-fast-put-cpu", "s", 0.5},
		{"etcd-proxy-fast-vs-grpcproxy", "s", 0.9},
	}},
	{(*bench).etcdEmbedded, []goal{{"etcd-embedded", "1/s", 1.11}}},
	{(*bench).etcdNamespaces, []goal{{"etcd-namespaces-rss", "MB", 1}}},
	{(*bench).etcdNeighbour, []goal{{"etcd-neighbour-p99", "s", 1.25}}},
	{(*bench).git, []goal{
		{"git-poll", "s", 0.25},
		{"git-fetch", "s", 1.2},
		{"git-rss", "MB", 1},
		{"git-commit-back", "s", 0.75},
	}},
	{(*bench).isolation, []goal{{"isolation", "s", 1.1}}},
	{(*bench).live, []goal{{"live-heap", "MB", 1.2}}},
	{(*bench).pull, []goal{{"pull-cpu", "s", 0.7}}},
	{(*bench).render, []goal{
		{"render-cpu", "s", 1.2},
		{"render-krusty-cpu", "s", 0.125},
		{"render-rss", "MB", 0.25},
		{"fleet-heap", "MB", 1.1},
	}},
	{(*bench).resolve, []goal{{"resolve-100", "s", 1.5}}},
	{(*bench).rotation, []goal{{"rotation-failed-requests", "requests", 0}}},
	{(*bench).soak, []goal{{"soak-heap", "MB", 1.05}}},
	{(*bench).types, []goal{
		{"types-digest", "s", 1.5},
		{"types-compat", "s", 3},
		{"types-rss", "MB", 2},
	}},
}

// goalOf returns the goal of a benchmark.
func goalOf(name string) goal {
	for _, e := range experiments {
		for _, g := range e.goals {
			if g.name == name {
				return g
			}
		}
	}
	return goal{}
}

// bench collects samples.
type bench struct {
	want    *regexp.Regexp
	rounds  int
	crds    int
	out     io.Writer // results
	say     io.Writer // progress
	samples map[string]*samples
	notes   map[string]map[string][]float64 // by benchmark and part
}

// samples are the values of one benchmark, one for each side and round.
type samples struct{ ours, rival []float64 }

// experiment runs an experiment if one of its benchmarks is wanted.
func (b *bench) experiment(ctx context.Context, e experiment) (err error) {
	if !slices.ContainsFunc(e.goals, func(g goal) bool { return b.want.MatchString(g.name) }) {
		return nil
	}
	f, err := newFixture(b.say)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	return e.run(b, ctx, f)
}

func (b *bench) add(name string, ours, rival float64) {
	if !b.want.MatchString(name) {
		return
	}
	s := b.samples[name]
	if s == nil {
		s = new(samples)
		b.samples[name] = s
	}
	s.ours, s.rival = append(s.ours, ours), append(s.rival, rival)
}

// note records a value that report prints beside a benchmark, such as a part of our side's.
func (b *bench) note(name, what string, value float64) {
	if !b.want.MatchString(name) {
		return
	}
	if b.notes[name] == nil {
		b.notes[name] = make(map[string][]float64)
	}
	b.notes[name][what] = append(b.notes[name][what], value)
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	if n := len(sorted); n%2 == 0 {
		return (sorted[n/2-1] + sorted[n/2]) / 2
	}
	return sorted[len(sorted)/2]
}

// report prints the notes, and then a line for each benchmark.
func (b *bench) report() {
	fmt.Fprintf(b.out, "medians of n=%d rounds; %d CRDs are applied, all %d are parsed\n", b.rounds, b.crds, allCRDs)
	for _, name := range slices.Sorted(maps.Keys(b.notes)) {
		for _, what := range slices.Sorted(maps.Keys(b.notes[name])) {
			fmt.Fprintf(b.out, "note name=%s part=%s ours=%s unit=%s\n", name, what, number(median(b.notes[name][what])), goalOf(name).unit)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(b.samples)) {
		s, g := b.samples[name], goalOf(name)
		ours, rival := median(s.ours), median(s.rival)
		ratio := ours / rival
		verdict := "ok"
		if !(ratio <= g.ratio) { // NaN falls short, too
			verdict = "short"
		}
		fmt.Fprintf(b.out, "bench name=%s ours=%s rival=%s unit=%s ratio=%s goal=%s %s\n", name, number(ours), number(rival), g.unit, number(ratio), number(g.ratio), verdict)
	}
}

func number(v float64) string { return strconv.FormatFloat(v, 'g', 4, 64) }
