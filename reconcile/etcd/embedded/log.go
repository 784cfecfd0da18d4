package embedded

import (
	"context"
	"log/slog"
	"sync/atomic"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// logger returns a logger for etcd that passes warnings and errors on to log, which may be nil. Fatal
// errors panic instead of ending the process, so that they are reported like others.
//
// While quiet is set, it passes nothing on: an etcd that stops logs the end of each listener as an
// error.
func logger(log *slog.Logger, quiet *atomic.Bool) *zap.Logger {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return zap.New(core{log.With("component", "etcd"), quiet}, zap.WithFatalHook(zapcore.WriteThenPanic))
}

// core is a zapcore.Core that writes to a slog.Logger.
type core struct {
	log   *slog.Logger
	quiet *atomic.Bool
}

// tokens is a warning about tokens for passwords, which are not used here.
const tokens = "simple token is not cryptographically signed"

func (c core) Enabled(l zapcore.Level) bool {
	return l > zapcore.ErrorLevel || l >= zapcore.WarnLevel && !c.quiet.Load()
}

func (c core) With(fields []zapcore.Field) zapcore.Core {
	return core{c.log.With(args(fields)...), c.quiet}
}

func (c core) Check(e zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) && e.Message != tokens {
		return to.AddCore(e, c)
	}
	return to
}

func (c core) Write(e zapcore.Entry, fields []zapcore.Field) error {
	level := slog.LevelWarn
	if e.Level > zapcore.WarnLevel {
		level = slog.LevelError
	}
	c.log.Log(context.Background(), level, e.Message, args(fields)...)
	return nil
}

func (core) Sync() error { return nil }

func args(fields []zapcore.Field) []any {
	m := zapcore.NewMapObjectEncoder()
	var all []any
	for _, f := range fields {
		f.AddTo(m)
	}
	for key, value := range m.Fields {
		all = append(all, slog.Any(key, value))
	}
	return all
}
