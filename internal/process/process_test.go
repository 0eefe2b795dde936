package process_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/process"
)

// A part has the given logger, or that of the process whose pool it is made with.
func TestLogger(t *testing.T) {
	given := slog.New(slog.DiscardHandler)
	own := slog.New(slog.DiscardHandler)
	pool := new(pgxpool.Pool)
	if process.Logger(pool, nil) != nil {
		t.Error("a real process has one")
	}
	defer (&process.Process{Logger: own}).Adopt(pool)()
	if process.Logger(pool, nil) != own || process.Logger(pool, given) != given {
		t.Error("it is another one")
	}
}

// Processes share nothing with each other, and nothing with the real one.
func TestShared(t *testing.T) {
	real := process.Shared[int](t.Context())
	if process.Shared[int](context.Background()) != real {
		t.Error("without an imaginary process, it is not the real one")
	}
	a := process.With(t.Context(), &process.Process{})
	b := process.With(t.Context(), &process.Process{})
	inA := process.Shared[int](a)
	inB := process.Shared[int](b)
	if inA == real || inB == real || inA == inB {
		t.Error("two processes share it")
	}
	if process.Shared[int](a) != inA {
		t.Error("one process has two of it")
	}
}

// A process learns which parts are made with its pool, and with no other, until it gives the pool
// up.
func TestMade(t *testing.T) {
	var made []process.Part
	p := &process.Process{Made: func(part process.Part) { made = append(made, part) }}
	pool := new(pgxpool.Pool)
	other := new(pgxpool.Pool)
	release := p.Adopt(pool)
	process.Made(pool, process.Part{Relay: true})
	process.Made(other, process.Part{Relay: true})
	release()
	process.Made(pool, process.Part{Topics: []string{"webhooks.e"}})
	if len(made) != 1 || !made[0].Relay {
		t.Errorf("%+v", made)
	}
}
