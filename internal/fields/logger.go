package fields

import (
	"context"
	"log/slog"

	"github.com/onlyonce/onlyonce/internal/pace"
)

// Logger returns the logger of a configuration: the one that the user set, or slog.Default() at
// WARN and above. So a program without a logger still learns of a halted partition or a parked
// message, and is not told of each step. What repeats is logged seldom.
func Logger(l *slog.Logger) *slog.Logger {
	if l != nil {
		return withoutRepeats(l)
	}
	quiet := quiet{slog.Default().Handler()}
	return slog.New(repeats{quiet, &quietSeen, ""})
}

var quietSeen pace.Seldom

// quiet passes on warnings and errors.
type quiet struct{ slog.Handler }

func (h quiet) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && h.Handler.Enabled(ctx, level)
}

func (h quiet) WithAttrs(attrs []slog.Attr) slog.Handler { return quiet{h.Handler.WithAttrs(attrs)} }
func (h quiet) WithGroup(name string) slog.Handler       { return quiet{h.Handler.WithGroup(name)} }
