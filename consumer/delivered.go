package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/codec"
)

// deliveredDoneSQL finds out what became of delivered offsets. In: cursor, epoch, nonce, offsets.
// Out: one row with the cursor's position, the leader epoch that no batch below that exceeded (-1:
// not known), and offsets and hashes of those that are done above it; no row if the cursor has
// another owner. One statement, so that an offset that is being swept and pruned is in one of them.
const deliveredDoneSQL = `
select p.next_offset, coalesce(p.leader_epoch, -1),
       array(select d."offset" from onlyonce.done d where d.cursor_id = p.id and d.run = p.run and d."offset" = any ($4::bigint[]) order by d."offset"),
       array(select d.hash from onlyonce.done d where d.cursor_id = p.id and d.run = p.run and d."offset" = any ($4::bigint[]) order by d."offset")
  from onlyonce.positions p where p.id = $1 and p.epoch = $2 and p.nonce = $3`

// pausedSQL finds out whether an operator has paused a partition. In: scope, topic, partition.
const pausedSQL = `
select exists (select 1 from onlyonce.pauses p where p.scope = $1 and p.topic in ('', $2) and p.partition in (-1, $3))`

// deliveries applies what a share group delivers to this process.
type deliveries struct {
	c *Consumer

	mu         sync.Mutex
	partitions map[deliveredName]*deliveredPartition
}

type deliveredName struct {
	topic     string
	partition int32
}

// deliveredPartition is what this process knows of a partition that messages are delivered from.
type deliveredPartition struct {
	state *partitionState
	brake *brake

	mu     sync.Mutex
	known  *ownership // nil: nothing yet
	paused bool
	readAt time.Time
	logged haltLog
}

func newDeliveries(c *Consumer) *deliveries {
	return &deliveries{c: c, partitions: map[deliveredName]*deliveredPartition{}}
}

// of returns the partition of a delivery.
func (s *deliveries) of(d *delivery) *deliveredPartition {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := deliveredName{d.Topic, d.Partition}
	if s.partitions[name] == nil {
		state := s.c.partitions.add()
		s.c.partitions.setDelivered(state, d.Topic, d.Partition)
		s.partitions[name] = &deliveredPartition{state: state, brake: newBrake(s.c.cfg.Brake)}
	}
	return s.partitions[name]
}

// end removes the partitions from what Status returns.
func (s *deliveries) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.partitions {
		s.c.partitions.remove(p.state)
	}
}

// apply makes delivered messages take effect, or parks them, and returns which of them are done. It
// begins no new attempt after d.Until (G1).
func (s *deliveries) apply(ctx context.Context, d delivery) source.Applied {
	p := s.of(&d)
	own, paused, err := p.read(ctx, s.c, &d)
	switch {
	case err != nil:
		p.state.setTrouble(&p.state.reachTrouble, err)
		s.c.cfg.Logger.Warn("onlyonce: delivered messages are given back, and tried again", "scope", s.c.cfg.Scope, "topic", d.Topic, "partition", d.Partition, "error", err)
		return source.Applied{Rest: pollEvery}
	case paused || own == nil:
		p.state.clearTrouble(&p.state.reachTrouble)
		return source.Applied{Rest: pollEvery}
	case len(d.Messages) == 0:
		p.passHalt()
		return source.Applied{}
	}
	one := &delivered{from: &d, p: p, done: map[int64]bool{}}
	one.applier = applier{engine: engine{ownership: *own}, fence: &shareFence{d: one}, sideBySide: true}
	msgs, probing := d.Messages, p.brake.Stopped()
	for _, m := range msgs {
		m.clusterID, m.topicID, m.alone = d.ClusterID, d.TopicID, d.Again || probing
	}
	work, cancel := drainContext(ctx, s.c.cfg.DrainTimeout)
	defer cancel()
	taking, cease := context.WithDeadline(ctx, d.Until)
	defer cease()
	if until := (stop{taking, work}); probing {
		err = one.probe(until, msgs)
	} else {
		err = one.applyAll(until, msgs)
	}
	one.stopHandlers()
	p.state.clearTrouble(&p.state.logTrouble) // whoever gets the messages next tries them
	switch {
	case err == nil:
		p.passHalt()
	case !errors.Is(err, errMoved) && ctx.Err() == nil:
		p.report(s.c, err)
	}
	out := source.Applied{Done: one.offsetsDone()}
	switch {
	case len(out.Done) == len(d.Messages) || ctx.Err() != nil:
	case p.brake.Stopped():
		out.Rest = s.c.cfg.Brake.Every
	case err != nil && taking.Err() == nil:
		p.forget(one.cur)
		out.Rest = pollEvery
	}
	return out
}

// read returns what this process knows of the partition, at most a second old, with the epoch of
// its keeper. own is nil if no keeper has taken the partition over yet, or if it has to halt
// because the partition is not the one that was delivered: the keeper reports that (G5, G6).
func (p *deliveredPartition) read(ctx context.Context, c *Consumer, d *delivery) (own *ownership, paused bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known != nil && p.known.id.TopicID == d.TopicID && time.Since(p.readAt) < pollEvery {
		return p.known, p.paused, nil
	}
	p.known = nil
	idInTopic := false
	if c.cfg.Key != nil {
		// Before the cursor, so that the class of the scope is of the epoch that is read (K10).
		row, err := c.readScope(ctx)
		if err != nil || row == nil || !slices.Contains(row.topics, d.Topic) {
			return nil, false, err
		}
		idInTopic = row.idInTopic(d.Topic)
	}
	cur, err := c.readCursor(ctx, d.Topic, d.Partition)
	if err != nil {
		return nil, false, err
	}
	group := c.source.Group()
	if cur == nil || !cur.shared || cur.retired || cur.replayUntil != nil || cur.groupID == nil || *cur.groupID != group ||
		cur.clusterID == nil || *cur.clusterID != d.ClusterID || !cur.topicID.Valid || cur.topicID.Bytes != d.TopicID {
		return nil, false, nil
	}
	own = &ownership{c: c, cur: cur, state: p.state, brake: p.brake, redoUntil: cur.redoOffset(d.TopicID), idInTopic: idInTopic,
		id: source.Identity{ClusterID: d.ClusterID, TopicPartition: d.TopicPartition, TopicID: d.TopicID}}
	if err := c.queryRow(ctx, pausedSQL, c.cfg.Scope, d.Topic, d.Partition).Scan(&p.paused); err != nil {
		return nil, false, fmt.Errorf("asking whether the partition is paused: %w", err)
	}
	p.known, p.readAt = own, time.Now()
	p.state.position.Store(cur.position)
	return own, p.paused, nil
}

// forget makes the next read ask the database, unless the partition has another owner already than
// cur had.
func (p *deliveredPartition) forget(cur *cursor) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known != nil && p.known.cur.nonce == cur.nonce {
		p.known = nil
	}
}

// passHalt clears what report has recorded: the partition takes messages. The brake clears its own
// halt.
func (p *deliveredPartition) passHalt() {
	p.state.clearTrouble(&p.state.reachTrouble)
	if h := p.state.halted.Load(); h != nil && h.Reason != HaltEverythingFails {
		p.state.halted.CompareAndSwap(h, nil)
	}
}

// report logs why delivered messages are given back, for Status and Healthy too.
func (p *deliveredPartition) report(c *Consumer, err error) {
	var halt *HaltError
	if !errors.As(err, &halt) {
		return // each retry was reported
	}
	p.state.setHalted(halt)
	p.mu.Lock()
	due := p.logged.due(halt)
	p.mu.Unlock()
	if due {
		c.cfg.Logger.Error("onlyonce: delivered messages are given back", halt.attributes()...)
	}
	emit(c.cfg.Hooks.Halted, halt)
}

// delivered runs the transactions of one delivery, one after another, beside those of others.
type delivered struct {
	applier
	from *delivery
	p    *deliveredPartition
	done map[int64]bool
}

// renew reads the cursor again, and reports whether it has another keeper by now.
func (d *delivered) renew(ctx context.Context) (bool, error) {
	was := d.cur
	d.p.forget(was)
	own, paused, err := d.p.read(ctx, d.c, d.from)
	switch {
	case err != nil:
		return false, err
	case paused || own == nil:
		return false, fmt.Errorf("%w: no keeper of a share group owns cursor %d", source.ErrOwnershipLost, was.id)
	}
	d.ownership = *own
	return own.cur.nonce != was.nonce, nil
}

// applyAll handles messages until all are done, no more are to be taken, or an error ends the work.
// It goes on with the others if some were found to be done by another transaction, and under the
// epoch of the next keeper if the partition has one (G6).
func (d *delivered) applyAll(until stop, msgs []*Message) error {
	for {
		left := slices.DeleteFunc(slices.Clone(msgs), func(m *Message) bool { return d.done[m.Offset] })
		if len(left) == 0 {
			return nil
		}
		before := len(d.done)
		err := d.handleBatch(until, left, left[len(left)-1].Offset+1)
		if !errors.Is(err, errMoved) || errors.Is(err, errChanged) {
			return err
		}
		if len(d.done) == before {
			renewed, failed := d.renew(until.working)
			if failed != nil || !renewed {
				return errors.Join(failed, err)
			}
		}
	}
}

// probe tries one message while the brake holds the partition, after those that were done before.
func (d *delivered) probe(until stop, msgs []*Message) error {
	for i := range msgs {
		if err := d.applyAll(until, msgs[i:i+1]); err != nil || !d.brake.Stopped() {
			return err
		}
	}
	return nil
}

func (d *delivered) offsetsDone() (offsets []int64) {
	for o := range d.done {
		offsets = append(offsets, o)
	}
	slices.Sort(offsets)
	return offsets
}

// shareFence is the fence of delivered messages (G1). Messages that are done already, by this
// process or another one, are only acknowledged: if they are the records that were handled (G5).
type shareFence struct {
	d               *delivered
	offsets, hashes []int64 // of the current attempt
}

// begin locks the messages' places under the epoch of the partition's keeper (G1).
func (f *shareFence) begin(a *attempt) {
	offsets, hashes := make([]int64, len(a.msgs)), make([]int64, len(a.msgs))
	for i, m := range a.msgs {
		offsets[i], hashes[i] = m.Offset, storedHash(anchorOf(m).hash)
	}
	f.offsets, f.hashes, a.done.From, a.done.Next = offsets, hashes, offsets[0], offsets[len(offsets)-1]+1
	a.fence = f.d.markDone(0, offsets, hashes, nil)
}

func (f *shareFence) committed(a *attempt) {
	if a.answerLost {
		return // by another process, as far as is known
	}
	f.d.committedBeside(a)
	for _, o := range f.offsets {
		f.d.done[o] = true
	}
}

// explain also records which of the messages are done. It returns errMoved if not all are, or if
// the cursor has another owner (G1, G5).
func (f *shareFence) explain(work context.Context, a *attempt) error {
	d := f.d
	var position int64
	var epoch int32
	var doneOffsets, doneHashes []int64
	err := d.c.queryRow(work, deliveredDoneSQL, d.cur.id, d.cur.epoch, d.cur.nonce, codec.Bigints(f.offsets)).
		Scan(&position, &epoch, &doneOffsets, &doneHashes)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return errMoved
	case err != nil:
		return fmt.Errorf("reading which delivered messages are done: %w", err)
	}
	found := 0
	for i, m := range a.msgs {
		at, inSet := slices.BinarySearch(doneOffsets, m.Offset)
		switch {
		case m.Offset < position && (epoch < 0 || m.LeaderEpoch <= epoch), inSet && doneHashes[at] == f.hashes[i]:
			d.done[m.Offset] = true
			found++
		case m.Offset < position, inSet:
			return d.haltErrorAt(position, HaltTruncated, "the record at offset %d is not the one that was handled there: the log was truncated and written anew", m.Offset)
		}
	}
	if found < len(a.msgs) {
		return errMoved
	}
	return nil
}
