package inbox_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/internal/inbox"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// lines is a log that may be read while it is written.
type lines struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(b)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.all.String(), text)
}

// If a horizon is shortened below what a running process needs, that is reported, once each time.
func TestK6HorizonIsShortenedMeanwhile(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var told lines
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	looks := inbox.Counted(r.pool)
	go func() {
		defer close(ended)
		inbox.Watch(ctx, looks, slog.New(slog.NewTextHandler(&told, nil)), time.Millisecond, time.Minute, []inbox.Need{{Ring: "consumer_keys", Copies: time.Hour, Whose: "Config.CopiesWithin"}})
	}()
	const line = "declared=Config.CopiesWithin"
	looked := func() {
		t.Helper()
		from := looks.N.Load()
		r.until("two more looks", func() bool { return looks.N.Load() > from+2 })
	}
	for i := range 2 {
		looked()
		if n := told.count(line); n != i {
			t.Fatalf("told of it %d times, and not %d, where it holds", n, i)
		}
		r.exec(`update onlyonce.rings set horizon = '59 minutes' where name = 'consumer_keys'`)
		r.until("it is told of", func() bool { return told.count(line) == i+1 })
		looked()
		if n := told.count(line); n != i+1 {
			t.Fatalf("told of it %d times, and not %d", n, i+1)
		}
		r.exec(`update onlyonce.rings set horizon = '1 hour' where name = 'consumer_keys'`)
	}
	cancel()
	pgtest.Receive(t, patience, "Run ends", ended)
}

// K6: a month is as short as the shortest one: rotation adds it to a date.
func TestK6HorizonOfAMonth(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	if _, err := pool.Exec(t.Context(), `update onlyonce.rings set horizon = '1 mon'`); err != nil {
		t.Fatal(err)
	}
	for days, holds := range map[time.Duration]bool{28: true, 29: false, 30: false} {
		err := inbox.CheckHorizon(t.Context(), pool, inbox.Need{Ring: "consumer_keys", Copies: days * 24 * time.Hour})
		if (err == nil) != holds || err != nil && !errors.Is(err, inbox.ErrHorizon) {
			t.Errorf("%d days: %v", days, err)
		}
	}
}
