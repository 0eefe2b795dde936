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

// Whichever returns first ends the other one, and both errors are told.
func TestBeside(t *testing.T) {
	t.Parallel()
	full := errors.New("disk full")
	late := errors.New("too late")
	fails := func(context.Context) error { return full }
	waits := func(ctx context.Context) error { <-ctx.Done(); return late }
	for name, err := range map[string]error{
		"run fails":  process.Beside(t.Context(), waits, fails),
		"run waits":  process.Beside(t.Context(), fails, waits),
		"both waits": errors.Join(full, process.Beside(ended(t), waits, waits)),
	} {
		if !errors.Is(err, full) || !errors.Is(err, late) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func ended(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
