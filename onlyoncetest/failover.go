package onlyoncetest

import (
	"context"
	"errors"
	"fmt"

	"github.com/onlyonce/onlyonce/internal/rig/histories"
)

// standby is a server that gets no commits after a certain one, and takes over from the primary.
//
// It is one database: what a standby would have is kept in a schema of its own, and put back when
// it takes over (workerdb.Keep and Promote). Meanwhile all sessions end, statements are cut off,
// and new connections wait. All processes live on, and so do Kafka's offsets and the remotes, which
// know of work that the database has forgotten:
//
//	COMMIT of A (kept before it), COMMIT of B, call of A sent;  fence of C: the server is gone
//	the standby takes over without A and B, and the owner's memory is ahead of the position
//	A, B and C are handled: the tables are as ever, and the call of A goes out again under its key
//
// A request is another matter: its client has the answer and does not send it again, so its effect
// is gone whatever the program does. Cases with Serve have no failovers.
type standby struct {
	event  string        // failover or rewind while there is one that has not taken over; else empty
	gone   chan struct{} // closed when the standby has taken over; nil while a server is up
	failed error         // of the machinery
}

// keep keeps the state before a COMMIT. The caller has mu, so no process commits meanwhile.
//
// A failover that loses a cursor is not played: the group has committed offsets and the database
// has no cursor, so the consumer halts as history-lost until an operator decides.
func (x *play) keep(p *Process, what, sql string) {
	kept, err := x.owned(x.ctx)
	if err == nil && kept {
		kept, err = x.db.Keep(x.ctx)
	}
	if err != nil || !kept || x.standby.event != "" {
		if err == nil {
			err = errNoStandby
		}
		x.say(p, histories.Plain, "no failover: %v", err)
		x.unstrike(what)
		return
	}
	x.say(p, histories.Fault, "%.90s  <<< the standby does not get this", sql)
	x.standby.event = what
}

var errNoStandby = errors.New("a cursor is missing yet, or the role is no superuser")

// unstrike notes that a fault has not happened after all. The caller has mu.
func (x *play) unstrike(what string) {
	for i, e := range x.h.events {
		if e.what == what {
			x.struck[i] = false
		}
	}
}

// down takes the server away. The caller has mu.
func (x *play) down() {
	x.standby.gone = make(chan struct{})
	x.say(nil, histories.Fault, "the server dies, and its standby takes over  <<< %s", x.standby.event)
}

// awaitServer waits while no server is up.
func (x *play) awaitServer(ctx context.Context) error {
	x.mu.Lock()
	gone := x.standby.gone
	x.mu.Unlock()
	if gone == nil {
		return nil
	}
	select {
	case <-gone:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// promote makes the standby the server.
func (x *play) promote() {
	promoted, err := x.db.Promote(x.ctx)
	x.mu.Lock()
	s := &x.standby
	if err != nil {
		s.failed = machineError{fmt.Errorf("a failover: %w", err)}
	} else if !promoted {
		x.say(nil, histories.Plain, "no failover: a table was changed since")
		x.unstrike(s.event)
	}
	close(s.gone)
	s.gone = nil
	s.event = ""
	x.mu.Unlock()
	x.changed()
}

// failOver makes the standby take over, if it has not, and waits until all work is done again.
func (x *play) failOver(ctx context.Context, what string) error {
	x.mu.Lock()
	waiting := x.standby.event == what && x.standby.gone == nil
	if waiting {
		x.down()
	}
	x.mu.Unlock()
	if waiting {
		x.promote()
	}
	if err := x.awaitServer(ctx); err != nil {
		return x.stuck()
	}
	x.mu.Lock()
	failed := x.standby.failed
	x.mu.Unlock()
	if failed != nil {
		return failed
	}
	return x.finish(ctx)
}
