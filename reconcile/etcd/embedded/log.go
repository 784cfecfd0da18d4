package embedded

import (
	"context"
	"log/slog"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// logger returns etcd's logger for ours. Etcd says much that interests nobody, so its
// warnings and errors alone are passed on. What is fatal to etcd panics instead of ending
// the process, so that it is told of like any other failure.
func logger(log *slog.Logger) *zap.Logger {
	if log == nil {
		return zap.NewNop()
	}
	return zap.New(core{log.With("component", "etcd")}, zap.WithFatalHook(zapcore.WriteThenPanic))
}

// core is a zapcore.Core that writes to a slog.Logger.
type core struct{ log *slog.Logger }

func (c core) Enabled(l zapcore.Level) bool { return l >= zapcore.WarnLevel }

func (c core) With(fields []zapcore.Field) zapcore.Core {
	return core{c.log.With(args(fields)...)}
}

func (c core) Check(e zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
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
