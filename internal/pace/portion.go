package pace

import (
	"context"
	"errors"
	"sync"
)

// growsAfter is how many full portions in a row end in time until a larger one is tried.
const growsAfter = 16

// canceled is the SQLSTATE of a statement that has reached its timeout.
const canceled = "57014"

// Portion is how many rows a statement handles that is repeated until none is left, for example one
// that deletes old rows. A statement that does not end in time has done nothing, and the same one
// would do nothing each time. So the one after it handles half as many. When some have ended in a
// row, twice as many are tried. Each statement has a portion of its own: what a row costs differs.
// It is safe for concurrent use.
type Portion struct {
	most int

	mu    sync.Mutex
	now   int
	ended int // full portions in a row that have ended in time
}

// Statement handles up to most rows, and returns how many it has handled.
type Statement func(most int) (handled int, err error)

// NewPortion returns a portion of at least one row, and at most most. It begins with most.
func NewPortion(most int) *Portion { return &Portion{most: most, now: most} }

// Run runs a statement once. It reports whether there may be more rows.
func (p *Portion) Run(statement Statement) (more bool, err error) {
	_, more, err = p.run(statement)
	return more, err
}

// run is Run, which says of how many rows the statement was.
func (p *Portion) run(statement Statement) (most int, more bool, err error) {
	most = p.size()
	handled, err := statement(most)
	p.note(most, handled, err)
	return most, err == nil && handled >= most, err
}

// All runs a statement until no rows are left, it fails, or ctx ends. One that does not end in time
// is followed by a smaller one. It fails if a portion of one row does not end in time.
func (p *Portion) All(ctx context.Context, statement Statement) error {
	for ctx.Err() == nil {
		most, more, err := p.run(statement)
		if late(err) && most > 1 {
			continue
		}
		if err != nil || !more {
			return err
		}
	}
	return ctx.Err()
}

// size is how many rows the next statement handles at most.
func (p *Portion) size() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now
}

// note notes how a statement of at most most rows has ended.
func (p *Portion) note(most, handled int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case late(err):
		p.now = max(most/2, 1)
		p.ended = 0
	case err == nil && handled >= most:
		p.ended++
	}
	if p.ended == growsAfter {
		p.now = min(2*p.now, p.most)
		p.ended = 0
	}
}

// late reports whether a statement did not end in time.
func late(err error) bool {
	var answer interface{ SQLState() string }
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &answer) && answer.SQLState() == canceled
}
