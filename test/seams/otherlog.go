package main

import (
	"fmt"

	"github.com/onlyonce/onlyonce/ops"
)

// rewriting is a consumer with slots, whose log is cut off and written anew between its position
// and what is done above it (C8).
type rewriting struct {
	consuming
	above int // how many messages are done above the position
	keeps int // and how many of those are still in the log
}

func drawOtherLog(d *dice) (stage, []act) {
	x := &rewriting{consuming: consuming{slots: 3, positions: d.once(2), sick: map[string]bool{}, slow: map[string]bool{}}, above: 2 + d.IntN(3)}
	x.keeps = d.IntN(x.above)
	return x, []act{
		{"a message whose handler waits, and others behind it", x.fill},
		{"the others are done", x.workAhead},
		{"the log is cut off above the position, and written anew", x.rewrite},
	}
}

func (x *rewriting) send(w *world, key string) string {
	token := fmt.Sprintf("m-%d", len(x.sent)+1)
	m := &message{token: token, key: key, from: w.now()}
	x.sent = append(x.sent, m)
	x.append(w, m)
	w.promises.add(token, 1, 0)
	w.promises.outlive(token)
	return token
}

func (x *rewriting) fill(w *world) error {
	x.slow[x.send(w, "a")] = true
	for range x.above {
		x.send(w, "b")
	}
	return nil
}

// doneAboveSQL reports whether so many messages are done above the position.
const doneAboveSQL = `select count(*) >= $1 from onlyonce.done`

func (x *rewriting) workAhead(w *world) error {
	return w.work("those behind it are done", w.is(doneAboveSQL, x.above), x.consume(w))
}

// rewrite cuts off only what is done: records that were never handled would be the log's loss.
func (x *rewriting) rewrite(w *world) error {
	done, err := one[bool](w, doneAboveSQL, x.above)
	if err != nil || !done {
		return err
	}
	clear(x.slow)
	x.log.Truncate(0, int64(1+x.keeps))
	w.say("log: cut off at %d", 1+x.keeps)
	for range x.above {
		x.send(w, "b")
	}
	return nil
}

// settle implements stage: the first message is well, and if the partition halts, its position is
// adopted at the first offset whose record was not handled (docs/operations/partitions.md).
func (x *rewriting) settle(w *world) error {
	clear(x.slow)
	for range 3 {
		x.halted.Store(false)
		var done bool
		err := w.work("all messages were handled, or the partition halts", func() (bool, error) {
			var err error
			done, err = one[bool](w, appliedSQL, scope, topic, x.log.End(0))
			return done || x.halted.Load(), err
		}, x.consume(w))
		if err != nil {
			return err
		}
		if done {
			return w.settleParked("message", x.work, x.decide)
		}
		partition := int32(0)
		_, err = ops.AdoptCursor(w.ctx, w.pool, ops.By{Reason: "INC-1"}, ops.AdoptInput{Scope: scope, Topic: topic, Partition: &partition, At: "0"})
		w.say("operator: cursor adopt -at 0: %v", err)
		if err != nil {
			return err
		}
	}
	w.breach("the partition halts again, whatever is adopted")
	return errStands
}
