package ready_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/internal/ready"
)

func TestRun(t *testing.T) {
	var r ready.Run
	if r.Err() == nil {
		t.Error("ready before Begin")
	}
	ctx, cancel := context.WithCancel(t.Context())
	end := r.Begin(ctx)
	if err := r.Err(); err != nil {
		t.Error(err)
	}
	cancel() // a stop is asked for, and the Run drains
	if r.Err() == nil {
		t.Error("ready while it stops")
	}
	end()
	end = r.Begin(t.Context())
	if err := r.Err(); err != nil {
		t.Error(err)
	}
	end() // it has ended by itself
	if r.Err() == nil {
		t.Error("ready after the end")
	}
}

func TestLink(t *testing.T) {
	var l ready.Link
	if l.Err() == nil {
		t.Error("ready before Set")
	}
	l.Set(nil)
	if err := l.Err(); err != nil {
		t.Error(err)
	}
	gone := errors.New("gone")
	l.Set(gone)
	if !errors.Is(l.Err(), gone) || !errors.Is(l.Failing(0), gone) || l.Failing(time.Hour) != nil {
		t.Error(l.Err(), l.Failing(0), l.Failing(time.Hour))
	}
	if since, err := l.Trouble(); !errors.Is(err, gone) || since.IsZero() {
		t.Error(err, since)
	}
	l.Set(nil)
	if l.Failing(0) != nil {
		t.Error(l.Failing(0))
	}
	if since, err := l.Trouble(); err != nil || !since.IsZero() {
		t.Error(err, since)
	}
}
