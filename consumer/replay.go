package consumer

import (
	"context"
	"fmt"
)

// endReplaySQL ends a replay, in the transaction that moves the position to where the replay
// interrupted the work.
const endReplaySQL = `
update onlyonce.cursors
   set replay_until = null, replay_resume = null, replay_resend = false where id = $1 and replay_no = $2`

// resumeDoneSQL takes over what was done above the position that a replay has interrupted, in the
// transaction that ends the replay. In: cursor, its run, the interrupted position. The rows below
// it are pruned, as those of the replay itself (C5, C7).
const resumeDoneSQL = `
update onlyonce.done set run = $2 where cursor_id = $1 and run = $2::integer - 1 and "offset" >= $3`

// endReplayHeldSQL is endReplaySQL and resumeDoneSQL for a position that stays as it is.
const endReplayHeldSQL = `
with held as (select id from onlyonce.leases where id = $1 and epoch = $3 and nonce = $4 for share),
resumed as (
  update onlyonce.done d
     set run = $5 from held where d.cursor_id = held.id and d.run = $5::integer - 1 and d."offset" >= $6)
update onlyonce.cursors c set replay_until = null, replay_resume = null, replay_resend = false
  from held where c.id = held.id and c.replay_no = $2`

// endReplay continues where the replay interrupted the work. It returns errMoved when that is done,
// because the messages that were fetched ahead are not the next ones (F5, F10).
//
// The position is the end of the replay by now. It is where the work was interrupted if the range
// ended there, and then stays; otherwise it is below that. It cannot be above: ops.Replay refuses
// such a range, and reader.admit lets in nothing that is beyond the end. If it were, messages in
// between would never be handled outside of the replay, so the partition does not go on.
func (w *worker) endReplay(work context.Context) error {
	position := w.pos
	resume := w.cur.replayResume
	if position > resume {
		return fmt.Errorf("replay %d has ended at offset %d, above offset %d, where it interrupted the work",
			w.cur.replayNo, position, resume)
	}
	w.reader.discard(w.cur.runEpoch) // the epoch that belongs to the interrupted position
	var err error
	if resume > position {
		err = w.run(work, &plan{fence: w.replayEndFence()}).err
	} else {
		err = w.c.exec(work, endReplayHeldSQL, w.cur.id, w.cur.replayNo, w.cur.epoch, w.cur.nonce, w.cur.run, resume)
	}
	if err == nil {
		w.c.cfg.Logger.Info("onlyonce: replay ends: the partition continues from where it was interrupted",
			"scope", w.c.cfg.Scope, "topic", w.id.Topic, "partition", w.id.Partition, "replay", w.cur.replayNo,
			"position", position, "resume", resume)
		err = errMoved
	}
	return err
}

// announceReplay logs, once for each replay, that this process handles its messages.
func (w *worker) announceReplay() {
	if w.cur.replayUntil == nil || w.cur.replayNo == w.replay {
		return
	}
	w.replay = w.cur.replayNo
	w.c.cfg.Logger.Info("onlyonce: replay begins",
		"scope", w.c.cfg.Scope, "topic", w.id.Topic, "partition", w.id.Partition, "replay", w.cur.replayNo,
		"from", w.pos, "until", *w.cur.replayUntil, "resend", w.cur.replayResend)
}
