package outbox

import (
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/frozen"
	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/internal/parked"
	"github.com/onlyonce/onlyonce/outbox/internal/gate"
)

// pickAtOnce bounds how many parked calls one transaction picks: their bodies are held in memory.
const pickAtOnce = 16

// setAsideAtOnce bounds at how many due calls one transaction looks for those that are to wait for
// a rate.
const setAsideAtOnce = 1000

// parkedCalls is the clock of a lane's parked calls: when the next is due, which are under way, and
// which have returned and are not settled yet.
type parkedCalls struct {
	lane       *heldLane
	promotions *keyPromotions
	calls      *laneCalls
	dueAt      time.Time         // when the next is due, or may be, as far as this owner knows; see pollWorkSQL
	needSlot   bool              // some are due, and there was no slot for them
	waiting    map[gate.Key]bool // whose calls wait for a rate, or may
	// Calls under way, none of which is picked again: picked ones by the ids of their parked rows,
	// and those that their chunk did not wait for by the ids of their rows in the log.
	picked   map[int64]*callAttempt
	late     map[int64]*callAttempt
	returned []*callAttempt // of both

	setAside *pace.Portion // at how many due calls a turn looks for those that are to wait for a rate
}

func newParkedCalls(lane *heldLane, promotions *keyPromotions, calls *laneCalls) *parkedCalls {
	return &parkedCalls{
		lane:       lane,
		promotions: promotions,
		calls:      calls,
		dueAt:      never,
		waiting:    map[gate.Key]bool{},
		picked:     map[int64]*callAttempt{},
		late:       map[int64]*callAttempt{},
		setAside:   pace.NewPortion(setAsideAtOnce),
	}
}

// dueIn notes that a parked call is due after d.
func (p *parkedCalls) dueIn(d time.Duration) {
	if at := time.Now().Add(d); at.Before(p.dueAt) {
		p.dueAt = at
	}
}

// due is at once if calls have returned, or else when calls are to be picked.
func (p *parkedCalls) due(now time.Time) time.Time {
	if len(p.returned) > 0 {
		return time.Time{}
	}
	return p.pickAt(now)
}

// pickAt is when a call is due, or at once if one that waits for a rate may be made now.
func (p *parkedCalls) pickAt(now time.Time) time.Time {
	if p.lane.releasing.Load() {
		return never
	}
	at := p.dueAt
	someWait := len(p.waiting) > 0 && !p.needSlot
	if someWait && p.lane.mayStartCalls() && p.releasable() {
		at = time.Time{}
	}
	return p.lane.sink.whenOpen(now, at)
}

// run settles what has returned, and picks calls if some are due.
func (p *parkedCalls) run() error {
	now := time.Now()
	return p.turn(!now.Before(p.pickAt(now)), nil)
}

// keysUnderWay returns the ordering keys of parked calls that are under way. If an operator
// discards such a call meanwhile, it blocks nothing any more in the database, but the remote may
// still accept it.
func (p *parkedCalls) keysUnderWay() []uuid.UUID {
	keys := []uuid.UUID{}
	for _, m := range []map[int64]*callAttempt{p.picked, p.late} {
		for _, a := range m {
			if a.order != nil {
				keys = append(keys, *a.order)
			}
		}
	}
	return keys
}

// parkedTurn is one transaction that settles and picks parked calls, and what it has read.
type parkedTurn struct {
	settle  []*callAttempt
	slots   int            // how many calls it may pick
	tickets []*gate.Ticket // one for each, but those of calls that were admitted; some are reserved
	limited gate.Limited   // calls that need permits now

	startedAt   time.Time // the database measures ages after this moment
	found       []*callAttempt
	nextDue     *int64 // in how many microseconds the next call is due; nil: there is none
	walPosition string // empty if the relay waits for no standby
}

// turn settles the parked calls that have returned, picks due ones for which there is a slot,
// journals their attempts, in one fenced transaction, and begins them. If the transaction fails, or
// its outcome is unknown, nothing of it counts. Calls that were to be settled are settled by the
// next one (the statement may run twice), and picked calls become due again by themselves. It takes
// tickets beside those that the caller has taken for it, and ends all with which no call begins.
func (p *parkedCalls) turn(pick bool, tickets []*gate.Ticket) error {
	sink := p.lane.sink
	if pick {
		tickets = append(tickets, sink.gate.Take(pickAtOnce-len(tickets))...)
	}
	if pick && len(tickets) == 0 && len(p.returned) == 0 {
		p.needSlot = true
		p.dueAt = time.Now().Add(sink.cfg.PollInterval) // until the owner has a slot
		return nil
	}
	p.needSlot = p.needSlot && len(tickets) == 0
	t := &parkedTurn{settle: p.returned, slots: len(tickets), tickets: tickets, startedAt: time.Now()}
	if t.picks() {
		t.limited = sink.gate.Limited()
		p.reserve(t.tickets)
	}
	if err := p.commit(t); err != nil {
		sink.gate.Unused(t.tickets...)
		return err
	}
	p.returned = nil
	for _, a := range t.settle {
		p.settled(a)
	}
	if t.picks() {
		toMake := p.takeIn(t)
		sink.gate.Unused(t.tickets...)
		p.calls.start(toMake...)
	}
	return nil
}

// picks reports whether the turn may pick calls.
func (t *parkedTurn) picks() bool { return t.slots > 0 }

// settled emits what became of a call whose settlement is committed, and notes what needs attention
// next.
func (p *parkedCalls) settled(a *callAttempt) {
	delete(p.picked, a.parked)
	if a.parked == 0 {
		delete(p.late, a.ID)
	}
	sink := p.lane.sink
	d := sink.dispositionOf(a)
	switch a.state {
	case attemptRated:
		p.noteWaiting(a.waitsFor)
		return
	case attemptWaiting:
		p.dueIn(d.delay)
		return
	}
	// A completion's transaction may have settled its call even if it reported an error.
	settled := d.state == parked.Resolved || a.completing()
	passedOn := sink.cfg.PassOn && (d.state == parked.Waiting || d.state == parked.Reconcile)
	if a.order != nil && (settled || passedOn) {
		p.promotions.add(*a.order)
	}
	if d.due && (d.state == parked.Retrying || sink.cfg.Reconcile != nil) {
		p.dueIn(d.delay)
	}
	sink.reportSettled(a)
}

// setsAside reports whether the turn looks for calls that are to wait for a rate.
func (t *parkedTurn) setsAside() bool { return t.picks() && !t.limited.None() }

// commit runs the transaction.
func (p *parkedCalls) commit(t *parkedTurn) error {
	if !t.setsAside() {
		return p.write(t, 0)
	}
	_, err := p.setAside.Run(func(most int) (int, error) { return most, p.write(t, most) })
	return err
}

// write is commit. If the turn sets calls aside, it looks at up to most due ones.
func (p *parkedCalls) write(t *parkedTurn, most int) error {
	sink := p.lane.sink
	waiting, permits := t.reservedArgs()
	args := pgx.NamedArgs{
		"sink": sink.name, "lane": p.lane.number, "slots": t.slots, "reconciles": sink.cfg.Reconcile != nil,
		"picked": callIDs(p.picked), "late": callIDs(p.late), "keys": pgUUIDs(p.keysUnderWay()),
		"start_window": windowBound(sink.limits.startWindow()), "lease_ttl": sink.cfg.LeaseTTL,
		"waiting": waiting, "permits": permits, "most": most,
	}
	maps.Copy(args, limitedArgs(t.limited))
	return p.lane.fenced(func(b *pgx.Batch) {
		queueSettlements(b, sink, t.settle)
		if t.setsAside() {
			setAsideSQL.queue(b, args).Exec(ignoreTag)
		}
		if t.picks() {
			pickSQL.queue(b, args).Query(collect(&t.found, sink.scanParked))
		}
	}, func(b *pgx.Batch) {
		if t.picks() {
			nextDueSQL.queue(b, args).QueryRow(func(r pgx.Row) error { return r.Scan(&t.nextDue) })
			sink.queueWALPosition(b, &t.walPosition)
		}
	})
}

// takeIn notes what a transaction has picked, and returns the calls that are to be made.
func (p *parkedCalls) takeIn(t *parkedTurn) (toMake []*callAttempt) {
	p.dueAt = never
	if t.nextDue != nil {
		p.dueAt = t.startedAt.Add(fromMicros(*t.nextDue))
		if len(t.found) == 0 && !p.dueAt.After(time.Now()) { // another session has locked it
			p.dueAt = time.Now().Add(p.lane.sink.cfg.PollInterval)
		}
	}
	p.admit(t)
	if len(t.found) == 0 || !p.lane.awaitStandbys(t.walPosition) {
		for _, a := range t.found {
			if a.ticket != nil {
				t.tickets = append(t.tickets, a.ticket)
				a.ticket = nil
			}
		}
		return nil // due again by themselves
	}
	window := p.lane.sink.limits.startWindow()
	for _, a := range t.found {
		if a.reconciling && a.ticket == nil {
			continue // due again by itself
		}
		p.picked[a.parked] = a
		if a.state != attemptReturned { // settled by the next turn
			p.returned = append(p.returned, a)
			continue
		}
		toMake = append(toMake, a)
		a.readAt = t.startedAt
		if !a.completing() && !a.reconciling {
			a.boundBy(window)
		}
	}
	return toMake
}

// noteWaiting notes whose calls wait for a rate in the lane, or may wait there.
func (p *parkedCalls) noteWaiting(all ...gate.Key) {
	for _, k := range all {
		p.waiting[k] = true
	}
}

// releasable reports whether a call that waits for a rate may be made now. For those that may not
// it asks for permits.
func (p *parkedCalls) releasable() bool {
	is := false
	for k := range p.waiting {
		if p.lane.sink.gate.Available(k) > 0 {
			is = true
		} else {
			p.lane.sink.gate.Want(k)
		}
	}
	return is
}

// reserve reserves tickets for calls that wait, as far as their rates have permits.
func (p *parkedCalls) reserve(blank []*gate.Ticket) {
	for k := range p.waiting {
		n := p.lane.sink.gate.Reserve(k, blank)
		blank = blank[n:]
	}
}

// reservedArgs returns for whose calls tickets are reserved, and how many for each, as pickSQL has
// them. The arrays are never nil, because that would become NULL.
func (t *parkedTurn) reservedArgs() (callsOf []string, permits []int32) {
	callsOf = []string{}
	permits = []int32{}
	for _, ticket := range t.tickets {
		k := ticket.Reserved()
		if k == gate.All {
			continue
		}
		stored := storedCallsOf(k)
		i := slices.Index(callsOf, stored)
		if i < 0 {
			i = len(callsOf)
			callsOf = append(callsOf, stored)
			permits = append(permits, 0)
		}
		permits[i]++
	}
	return callsOf, permits
}

// ticketFor returns the place of the ticket for a call that has waited for a rate: one that is
// reserved for it, or else one that is blank, or any. There is one for each call that was picked.
func (t *parkedTurn) ticketFor(waitedFor gate.Key) int {
	for _, k := range []gate.Key{waitedFor, gate.All} {
		i := slices.IndexFunc(t.tickets, func(ticket *gate.Ticket) bool { return ticket.Reserved() == k })
		if i >= 0 {
			return i
		}
	}
	return 0
}

// admit decides which of the calls that a transaction has picked may start, and gives these their
// tickets. It notes whose calls do not wait in the lane any more. A call that has waited for one
// rate may count for another by now, which may have no permit for it: then it waits for that one
// (O14). One that may not start waits for its tenant's others, or else for the next poll.
func (p *parkedCalls) admit(t *parkedTurn) {
	for _, a := range t.found {
		i := t.ticketFor(a.waitsFor)
		got, waitsFor := t.tickets[i].Admit(a.entrant())
		switch {
		case got == gate.Admitted:
			a.ticket = t.tickets[i]
			t.tickets = slices.Delete(t.tickets, i, i+1)
		case a.reconciling:
		case got == gate.NotYet && a.Tenant == "":
			a.state = attemptWaiting
		case got == gate.NotYet:
			a.waitsFor = gate.Key{Tenant: a.Tenant}
			a.state = attemptRated
		default:
			a.waitsFor = waitsFor
			a.state = attemptRated
		}
	}
	if len(t.found) == t.slots {
		return
	}
	for _, ticket := range t.tickets {
		if k := ticket.Reserved(); k != gate.All {
			delete(p.waiting, k) // until the next poll finds more
		}
	}
}

// scanParked reads a row of pickSQL.
func (s *relaySink) scanParked(row pgx.CollectableRow) (*callAttempt, error) {
	a := &callAttempt{state: attemptReturned}
	var headers, state, answerHeaders, waitedFor string
	var age, waited int64
	var status *int32
	var answer []byte
	err := row.Scan(
		&a.parked, &a.ID, &a.key, &a.order, &a.orderPrefix, &a.Tenant, &a.Scope, &a.Name,
		&a.Method, &a.Target, &headers, &a.Trace, &a.Body, &a.Capture, &a.sealed, &a.firstKey,
		&a.noneOpen, &a.maybeCalledBefore, &a.Number, &a.pick, &state, &age, &waited, &status,
		&answerHeaders, &answer, &waitedFor,
	)
	if a.order != nil {
		a.Order = a.order.String()
	}
	a.Key = a.key.String()
	a.Sink = s.name
	a.Header = frozen.Parse(headers)
	a.waitsFor = parseCallsOf(waitedFor)
	// The database's clock may have been set back.
	a.age = max(fromMicros(age), 0)
	a.waited = max(fromMicros(waited), 0)
	switch {
	case status != nil:
		a.answer = &Response{Status: int(*status), Header: frozen.Parse(answerHeaders), Body: answer}
	case state == parked.Reconcile:
		a.reconciling = true
	}
	return a, err
}

// callIDs returns the keys of a map. The list is never nil, because it would become NULL, and a
// comparison with NULL is unknown.
func callIDs(calls map[int64]*callAttempt) []int64 {
	return slices.AppendSeq(make([]int64, 0, len(calls)), maps.Keys(calls))
}
