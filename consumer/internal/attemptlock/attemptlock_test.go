package attemptlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer/internal/attemptlock"
	"github.com/onlyonce/onlyonce/internal/process"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

const patience = 30 * time.Second

// F9: an attempt that is to be alone begins when all others have ended, and none begins before it
// has ended. Waiting ends with a context or with a bound, and then holds up nothing.
func TestF9TurnsApart(t *testing.T) {
	t.Parallel()
	var l attemptlock.Lock
	ctx := t.Context()
	enter := func(alone bool) (entered chan func()) {
		entered = make(chan func(), 1)
		go func() {
			leave, err := l.Acquire(ctx, alone, time.Hour)
			if err != nil {
				t.Error(err)
				leave = func() {}
			}
			entered <- leave
		}()
		return entered
	}
	first := <-enter(false)
	second := <-enter(false)

	late, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := l.Acquire(late, true, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
	if _, err := l.Acquire(ctx, true, time.Millisecond); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("behind its bound: %v", err)
	}
	(<-enter(false))() // neither of them holds up others

	alone := enter(true)
	pgtest.Until(t, patience, "the one that waits to go before others", func() bool {
		soon, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		leave, err := l.Acquire(soon, false, time.Hour)
		if err == nil {
			leave()
		}
		return err != nil
	})
	shared := enter(false)
	first()
	select {
	case <-alone:
		t.Fatal("it is not alone")
	case <-shared:
		t.Fatal("it did not wait for the one that is to be alone")
	default:
	}
	second()
	leave := pgtest.Receive(t, patience, "alone", alone)
	select {
	case <-shared:
		t.Fatal("it began beside one that is alone")
	default:
	}
	leave()
	(<-shared)()
}

// F9: the turns are the process's: a process that dies takes all of its consumers with it.
func TestF9TurnsAreTheProcesss(t *testing.T) {
	t.Parallel()
	one := attemptlock.Of(t.Context())
	other := attemptlock.Of(context.Background())
	if one != other {
		t.Error("two consumers of one process do not know of each other")
	}
	if attemptlock.Of(process.With(t.Context(), &process.Process{})) == one {
		t.Error("an imaginary process shares its turns with the others")
	}
}
