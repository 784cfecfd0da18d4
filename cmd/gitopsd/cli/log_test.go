package cli

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"gitopsd.dev/reconcile/problem"
)

// In text a record is one line, with lists for people.
func TestLogIsReadable(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: readable}))
	log.Error("two things:\n  one\n\n  two", "clusters", []string{"dev", "prod"}, "error", errors.Join(errors.New("a"), errors.New("b")),
		"problems", []problem.Problem{{Cluster: "dev", Reason: "down"}}, "count", 2, "took", time.Second)
	_, have, _ := strings.Cut(out.String(), " ")
	const want = `level=ERROR msg="two things: one; two" clusters="dev, prod" error="a; b" problems="cluster dev: down" count=2 took=1s` + "\n"
	if have != want {
		t.Errorf("%s\nwant\n%s", have, want)
	}
}

// Repeated records are left out for a while, and then counted.
func TestLogFoldsRepeats(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var out bytes.Buffer
	heard := &said{lines: make(map[string]*line), now: func() time.Time { return now }}
	log := slog.New(&folding{next: slog.NewTextHandler(&out, nil), said: heard})
	lines := func() string {
		defer out.Reset()
		var all []string
		for l := range strings.Lines(out.String()) {
			_, l, _ = strings.Cut(strings.TrimSpace(l), "level=")
			all = append(all, l)
		}
		return strings.Join(all, "|")
	}
	for _, tt := range []struct {
		after time.Duration
		log   func()
		want  string
	}{
		{log: func() { log.Error("down", "cluster", "dev") }, want: `ERROR msg=down cluster=dev`},
		{after: time.Minute, log: func() { log.Error("down", "cluster", "dev") }},
		{log: func() { log.Error("down", "cluster", "prod") }, want: `ERROR msg=down cluster=prod`},
		{log: func() { log.With("cluster", "dev").Error("down") }},
		{log: func() { log.WithGroup("a").Error("down", "cluster", "dev") }, want: `ERROR msg=down a.cluster=dev`},
		{log: func() { log.Warn("down", "cluster", "dev") }, want: `WARN msg=down cluster=dev`},
		{after: 8 * time.Minute, log: func() { log.Error("down", "cluster", "dev") }},
		{after: time.Minute, log: func() { log.Error("down", "cluster", "dev") }, want: `ERROR msg=down cluster=dev repeated=3`},
		{after: 10 * time.Minute, log: func() { log.Error("down", "cluster", "dev") }, want: `ERROR msg=down cluster=dev`},
		{log: func() { log.Info("configure", "object", "a") }, want: `INFO msg=configure object=a`},
		{log: func() { log.Info("configure", "object", "a") }},
		{after: time.Minute, log: func() { log.Info("configure", "object", "a") }, want: `INFO msg=configure object=a repeated=1`},
		{log: func() { log.Debug("not asked for") }},
	} {
		now = now.Add(tt.after)
		tt.log()
		if have := lines(); have != tt.want {
			t.Errorf("%q, want %q", have, tt.want)
		}
	}
	for i := range 3 * mostSaid {
		log.Info("create", "object", i)
	}
	if n := len(heard.lines); n > mostSaid {
		t.Errorf("%d records are remembered", n)
	}
}
