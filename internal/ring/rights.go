package ring

import (
	"context"
	"log/slog"
	"sync/atomic"

	"github.com/onlyonce/onlyonce/internal/process"
)

// saidNotRotating is whether a process has said that it does not rotate.
type saidNotRotating struct{ atomic.Bool }

// LogNotRotating logs, once in a process, that its role may not rotate: for all rings, filters and
// rows whose retention has passed, because the roles that may are one (docs/roles.sql).
func LogNotRotating(ctx context.Context, log *slog.Logger) {
	if !process.Shared[saidNotRotating](ctx).Swap(true) {
		log.Warn("onlyonce: this process does not rotate: it empties no old segments, builds no filters and " +
			"deletes no rows whose retention has passed; grant onlyonce_rotator to its role, or see that " +
			"another process has it (onlyonce doctor)")
	}
}
