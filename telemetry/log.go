package telemetry

import (
	"context"
	"log/slog"

	"go.opentelemetry.io/otel/trace"
)

// LogHandler returns a handler that adds trace_id and span_id to records logged in a context with a
// span. In a consumer's handler it also adds scope, topic and partition.
func LogHandler(next slog.Handler) slog.Handler { return &logHandler{next} }

type logHandler struct{ slog.Handler }

// Handle implements slog.Handler.
func (h *logHandler) Handle(ctx context.Context, rec slog.Record) error {
	if of := trace.SpanContextFromContext(ctx); of.IsValid() {
		rec = rec.Clone()
		rec.AddAttrs(slog.String("trace_id", of.TraceID().String()), slog.String("span_id", of.SpanID().String()))
		if t, ok := ctx.Value(transactionKey{}).(*transaction); ok {
			rec.AddAttrs(
				slog.String("scope", t.scope),
				slog.String("topic", t.topic),
				slog.Int("partition", int(t.partition)),
			)
		}
	}
	return h.Handler.Handle(ctx, rec)
}

// WithAttrs implements slog.Handler.
func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &logHandler{h.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h *logHandler) WithGroup(name string) slog.Handler {
	return &logHandler{h.Handler.WithGroup(name)}
}
