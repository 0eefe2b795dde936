package process_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/internal/process"
)

// When one part fails, the others end, and the error names the database.
func TestTogether(t *testing.T) {
	t.Parallel()
	full := errors.New("disk full")
	err := process.Together(t.Context(), map[string]bool{"eu": true, "us": false}, func(ctx context.Context, fails bool) error {
		if fails {
			return full
		}
		<-ctx.Done()
		return nil
	})
	if !errors.Is(err, full) || !strings.Contains(err.Error(), `database "eu"`) || strings.Contains(err.Error(), `"us"`) {
		t.Errorf("%v", err)
	}
}
