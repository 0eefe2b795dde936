package imagined_test

import (
	"log/slog"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/imagined"
)

// A part has the given logger, or that of the process whose pool it is made with.
func TestLogger(t *testing.T) {
	given, own := slog.New(slog.DiscardHandler), slog.New(slog.DiscardHandler)
	pool := new(pgxpool.Pool)
	if imagined.Logger(pool, nil) != nil {
		t.Error("a real process has one")
	}
	defer (&imagined.Process{Logger: own}).Adopt(pool)()
	if imagined.Logger(pool, nil) != own || imagined.Logger(pool, given) != given {
		t.Error("it is another one")
	}
}

// Processes share nothing with each other, and nothing with the real one.
func TestShared(t *testing.T) {
	var real int
	if imagined.Shared(t.Context(), &real) != &real {
		t.Error("without an imaginary process, it is not the real one")
	}
	a, b := imagined.With(t.Context(), &imagined.Process{}), imagined.With(t.Context(), &imagined.Process{})
	inA, inB := imagined.Shared(a, &real), imagined.Shared(b, &real)
	if inA == &real || inB == &real || inA == inB {
		t.Error("two processes share it")
	}
	if imagined.Shared(a, &real) != inA {
		t.Error("one process has two of it")
	}
}

// A process learns which parts are made with its pool, and with no other, until it gives the pool
// up.
func TestMade(t *testing.T) {
	var made []imagined.Part
	p := &imagined.Process{Made: func(part imagined.Part) { made = append(made, part) }}
	pool, other := new(pgxpool.Pool), new(pgxpool.Pool)
	release := p.Adopt(pool)
	imagined.Made(pool, imagined.Part{Relay: true})
	imagined.Made(other, imagined.Part{Relay: true})
	release()
	imagined.Made(pool, imagined.Part{Topics: []string{"webhooks.e"}})
	if len(made) != 1 || !made[0].Relay {
		t.Errorf("%+v", made)
	}
}
