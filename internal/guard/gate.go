package guard

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/onlyonce/onlyonce/internal/origin"
)

// Handle is what a handler gets of a transaction: its statements, and nothing that ends it. It is
// valid for one turn, that is from [Tx.Lend] until [Tx.TakeBack]: a goroutine that a handler has
// left running, and a handler that kept the one of an earlier message, are refused with
// [ErrClosed].
//
// It is for one goroutine at a time. Two calls that overlap fail both, and the transaction with
// them: see [ErrForked].
type Handle struct {
	tx     *Tx
	turn   int
	origin *origin.Origin
}

// callGate lets one call at a time through, and only those of the handle that is lent. Its mutex is
// held for moments; what a call does on the connection and to the fields of Tx comes between enter
// and leave.
type callGate struct {
	mu        sync.Mutex
	idle      sync.Cond // signals that busy became false
	turn      int       // number of the handle that was lent last
	lent      bool      // that handle may call
	busy      bool      // a call is under way
	forked    bool      // and another one was made meanwhile
	abandoned bool      // Abandon was called
	ended     bool      // the transaction ends, and stray changes nothing any more
	stray     error     // a write that came behind its handler's return
}

// openSavepoint is a savepoint that is open.
type openSavepoint struct {
	name       string
	goroutine  uint64 // goroutine that has set it
	foreign    bool   // another one has used the transaction since
	ofFunction bool   // of Savepoint, which ends it when its function returns
}

// Lend begins a turn and returns its handle; origin is the inbound message that it is about, nil
// where there is none. Handles of earlier turns are refused from now on. The caller has taken the
// last one back.
func (t *Tx) Lend(origin *origin.Origin) *Handle {
	t.gate.mu.Lock()
	defer t.gate.mu.Unlock()
	t.gate.turn++
	t.gate.lent = true
	t.firstUses = nil
	t.turnStarts = append(t.turnStarts, t.statements)
	t.Handle = &Handle{tx: t, turn: t.gate.turn, origin: origin}
	return t.Handle
}

// TakeBack ends the turn. It waits for a call that another goroutine of the handler has under way,
// because that has the connection; the transaction fails then, because the handler has returned
// without its answer. Rows that are open are closed (T6).
func (t *Tx) TakeBack() {
	g := &t.gate
	g.mu.Lock()
	g.lent = false
	waited := g.busy
	for g.busy {
		g.idle.Wait()
	}
	g.mu.Unlock()
	if waited {
		t.breakTx(ErrUnderWay)
	}
	if t.openResult != nil {
		t.openResult.finish()
	}
}

// beginCall begins a call. It and the call behind it are one step: until leave the handle is not
// taken back (T6).
func (h *Handle) beginCall() error {
	t := h.tx
	g := &t.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.abandoned || !g.lent || h.turn != g.turn:
		return ErrClosed
	case g.busy:
		g.forked = true // leave makes the other call fail
		return &Failure{Step: t.step, Err: ErrForked}
	}
	g.busy = true
	if n := len(t.openSavepoints); n > 0 &&
		!t.openSavepoints[n-1].foreign &&
		GoroutineID() != t.openSavepoints[n-1].goroutine {
		t.openSavepoints[n-1].foreign = true
	}
	return nil
}

// endCall ends a call; err, if there is one, becomes the error of a call that another one has
// overlapped.
func (h *Handle) endCall(err *error) {
	t := h.tx
	g := &t.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	g.busy = false
	if g.forked {
		t.breakTx(ErrForked)
		if err != nil {
			*err = t.failure
		}
	}
	g.idle.Broadcast()
}

// breakTx makes the transaction fail for good. An error that a savepoint may undo gives way; one
// that is the engine's, or asks for another run, stays.
func (t *Tx) breakTx(err error) {
	if t.failure == nil || t.undoable() {
		t.failure = &Failure{Step: t.step, Err: err}
	}
}

// reportStray takes note of a write without an answer that came when its handler had returned: it
// is lost, and only the log can say so where the transaction has ended.
func (t *Tx) reportStray(sql string) {
	err := &Failure{Step: stepUser, SQL: excerpt(sql), Err: fmt.Errorf("%w: the statement was not sent", ErrClosed)}
	t.gate.mu.Lock()
	if !t.gate.ended && t.gate.stray == nil {
		t.gate.stray = err
	}
	t.gate.mu.Unlock()
	if t.Report != nil {
		t.Report(err)
	}
}

// endCalls says that the transaction ends now, and returns the write that was lost before.
func (t *Tx) endCalls() error {
	t.gate.mu.Lock()
	defer t.gate.mu.Unlock()
	t.gate.ended = true
	return t.gate.stray
}

// numberInTurn is the place of a statement among those of its turn, from 1, given its place among
// all of the transaction, from 0.
func (t *Tx) numberInTurn(at int) int {
	i, found := slices.BinarySearch(t.turnStarts, at)
	if !found {
		i--
	}
	for i+1 < len(t.turnStarts) && t.turnStarts[i+1] == at { // turns without a statement
		i++
	}
	if i < 0 {
		return at + 1
	}
	return at - t.turnStarts[i] + 1
}

// excerpt is how a statement begins, on one line.
func excerpt(sql string) string {
	const most = 80
	line := []rune(strings.Join(strings.Fields(strings.ToValidUTF8(sql[:min(len(sql), 16*most)], "?")), " "))
	if len(line) > most {
		return string(line[:most]) + "..."
	}
	return string(line)
}

// GoroutineID reads the id that a stack dump begins with ("goroutine 42 [running]:").
func GoroutineID() uint64 {
	var buf [40]byte
	fields := strings.Fields(string(buf[:runtime.Stack(buf[:], false)]))
	id, _ := strconv.ParseUint(fields[1], 10, 64) // 0 is no goroutine's
	return id
}
