package cli

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"time"
)

// log returns the logger. Without --verbose a command that prints a result logs only
// problems, and the daemon logs what it does and leaves out repeated records.
func (g *global) log(daemon bool) *slog.Logger {
	level := slog.LevelWarn
	if daemon {
		level = slog.LevelInfo
	}
	if g.verbose {
		level = slog.LevelDebug
	}
	var handler slog.Handler
	if g.logFormat == "json" {
		handler = slog.NewJSONHandler(g.env.Stderr, &slog.HandlerOptions{Level: level})
	} else {
		handler = slog.NewTextHandler(g.env.Stderr, &slog.HandlerOptions{Level: level, ReplaceAttr: readable})
	}
	if daemon && !g.verbose {
		handler = &folding{next: handler, said: &said{lines: make(map[string]*line), now: time.Now}}
	}
	return slog.New(handler)
}

// readable puts an attribute on one line for people: commas join the items of a list, and
// semicolons the lines of a text. A stack stays as it is.
func readable(_ []string, a slog.Attr) slog.Attr {
	switch v := a.Value; v.Kind() {
	case slog.KindString:
		if a.Key != "stack" {
			a.Value = slog.StringValue(singleLine(v.String()))
		}
	case slog.KindAny:
		if err, ok := v.Any().(error); ok {
			a.Value = slog.StringValue(singleLine(err.Error()))
			break
		}
		if list := reflect.ValueOf(v.Any()); list.Kind() == reflect.Slice {
			items := make([]string, list.Len())
			for i := range items {
				items[i] = singleLine(fmt.Sprint(list.Index(i).Interface()))
			}
			a.Value = slog.StringValue(strings.Join(items, ", "))
		}
	}
	return a
}

// singleLine joins the lines of a text.
func singleLine(text string) string {
	if !strings.Contains(text, "\n") {
		return text
	}
	var b strings.Builder
	for part := range strings.Lines(text) {
		part = strings.TrimSpace(part)
		switch {
		case part == "":
			continue
		case strings.HasSuffix(b.String(), ":"):
			b.WriteString(" ")
		case b.Len() > 0:
			b.WriteString("; ")
		}
		b.WriteString(part)
	}
	return b.String()
}

// folding is a handler that leaves out records equal to a recent one. The next one that it
// passes on has the number of those left out in the attribute repeated.
type folding struct {
	next slog.Handler
	// with are the attributes and groups of the logger.
	with string
	said *said
}

// said is what a process has logged lately.
type said struct {
	mu    sync.Mutex
	lines map[string]*line
	now   func() time.Time
}

// line is a record that was passed on, and the number of equal ones left out since.
type line struct {
	at       time.Time
	repeated int
}

// How long equal records are left out. A problem lasts; an event that happens again is news.
const (
	foldProblems = 10 * time.Minute
	foldEvents   = time.Minute
)

// mostSaid bounds the records that are remembered.
const mostSaid = 1000

// Enabled implements slog.Handler.
func (f *folding) Enabled(ctx context.Context, level slog.Level) bool {
	return f.next.Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (f *folding) Handle(ctx context.Context, r slog.Record) error {
	var key strings.Builder
	fmt.Fprintf(&key, "%s %s\x00%s", r.Level, r.Message, f.with)
	r.Attrs(func(a slog.Attr) bool {
		fmt.Fprintf(&key, "\x00%s", a)
		return true
	})
	again, repeated := f.said.again(key.String(), r.Level)
	if again {
		return nil
	}
	if repeated > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("repeated", repeated))
	}
	return f.next.Handle(ctx, r)
}

// again reports whether an equal record was passed on recently. If not, repeated is the
// number of equal ones that were left out.
func (s *said) again(key string, level slog.Level) (again bool, repeated int) {
	window := foldEvents
	if level >= slog.LevelWarn {
		window = foldProblems
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	l := s.lines[key]
	if l != nil && now.Sub(l.at) < window {
		l.repeated++
		return true, 0
	}
	if l != nil {
		repeated = l.repeated
	} else if len(s.lines) >= mostSaid {
		clear(s.lines) // a repeated line is better than more memory
	}
	s.lines[key] = &line{at: now}
	return false, repeated
}

// WithAttrs implements slog.Handler.
func (f *folding) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := f.with
	for _, a := range attrs {
		with += fmt.Sprintf("\x00%s", a)
	}
	return &folding{next: f.next.WithAttrs(attrs), with: with, said: f.said}
}

// WithGroup implements slog.Handler.
func (f *folding) WithGroup(name string) slog.Handler {
	return &folding{next: f.next.WithGroup(name), with: f.with + "\x00" + name + ".", said: f.said}
}
