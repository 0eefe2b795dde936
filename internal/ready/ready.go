// Package ready answers readiness probes: whether a part of the program has what it needs for work.
package ready

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

var (
	errNotYet  = errors.New("Run has not begun its work")
	errStopped = errors.New("Run is stopping, or has stopped")
)

// Run is the state of a Run. The zero value is one that has not begun its work. It is safe for
// concurrent use.
type Run struct {
	ctx atomic.Pointer[context.Context]
}

// Begin is called when everything is there that the work needs. The Run is ready until ctx ends or
// end is called, whichever is first.
func (r *Run) Begin(ctx context.Context) (end func()) {
	ctx, end = context.WithCancel(ctx)
	r.ctx.Store(&ctx)
	return end
}

// Err returns nil if the Run works, or why it does not.
func (r *Run) Err() error {
	ctx := r.ctx.Load()
	switch {
	case ctx == nil:
		return errNotYet
	case (*ctx).Err() != nil:
		return errStopped
	}
	return nil
}

// Link is the state of something that comes and goes during a Run, for example the membership in a
// group. The zero value is a link that has not come yet. It is safe for concurrent use.
type Link struct{ state atomic.Pointer[link] }

type link struct {
	err   error
	since time.Time // of the first error in a row
}

// Set records that the link is there (nil), or why it is not. If two goroutines call it at once,
// the later one counts.
func (l *Link) Set(err error) {
	now := &link{err: err, since: time.Now()}
	if was := l.state.Load(); was != nil && was.err != nil {
		now.since = was.since
	}
	l.state.Store(now)
}

// Failing returns why the link has been away for longer than a time, or nil.
func (l *Link) Failing(longer time.Duration) error {
	if s := l.state.Load(); s != nil && s.err != nil && time.Since(s.since) > longer {
		return fmt.Errorf("failing since %s: %w", s.since.UTC().Format(time.RFC3339), s.err)
	}
	return nil
}

// Trouble returns why the link has been away, and since when. It returns nil and the zero time if
// the link is there, or has not come yet.
func (l *Link) Trouble() (since time.Time, err error) {
	if s := l.state.Load(); s != nil && s.err != nil {
		return s.since, s.err
	}
	return time.Time{}, nil
}

// Err returns nil if the link is there, or why it is not.
func (l *Link) Err() error {
	if s := l.state.Load(); s != nil {
		return s.err
	}
	return errNotYet
}
