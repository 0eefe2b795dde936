package onlyoncetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/rig/histories"
	"github.com/onlyonce/onlyonce/internal/rig/wire"
	"github.com/onlyonce/onlyonce/internal/rig/workerdb"
	"github.com/onlyonce/onlyonce/queue/queuetest"
)

// play is one run of a case, with the faults of a history.
type play struct {
	ctx  context.Context
	db   *workerdb.DB
	c    *Case
	h    history
	logs *logs
	sent []Message

	timeline *histories.Timeline

	notes  *journal
	number int // of the play, in notes

	copies     atomic.Bool     // copies of messages can be recognized
	tuned      atomic.Bool     // Process.Tune was called
	concurrent atomic.Bool     // a consumer handles messages of one partition at the same time
	left       sync.WaitGroup  // the client
	dead       *sync.WaitGroup // what is left of processes that have died

	mu          sync.Mutex
	wakeup      chan struct{}
	processes   []*Process
	live        *Process // the one that serves
	zombie      *Process // the one that is stopped at a point
	counts      map[string]int
	points      []point
	struck      []bool
	calling     map[string]time.Time // calls of the handler that have not returned
	refused     map[place]bool       // messages that the handler has refused for good
	order       []place              // messages in the order in which the handler has last succeeded with them
	requests    []request
	remotes     []string                     // what took effect at remotes
	brokers     map[string]*queuetest.Memory // by topic
	connections []*connection                // to them
	writes      []write
	answers     []string
	served      bool // all requests have their answers
	standby     standby
	wrong       *Verdict
	awaited     string // the part that has to begin before all work can be done; empty for none
}

// write is a statement that the user's code has sent past the engine.
type write struct {
	sql  string
	from origin
}

// perPlay bounds one history. It is a variable for tests of handlers that hang.
var perPlay = time.Minute

// newPlay prepares one.
func newPlay(ctx context.Context, db *workerdb.DB, c *Case, h history) *play {
	return &play{
		ctx:      ctx,
		db:       db,
		c:        c,
		h:        h,
		logs:     newLogs(c.sent),
		wakeup:   make(chan struct{}),
		counts:   map[string]int{},
		struck:   make([]bool, len(h.events)),
		calling:  map[string]time.Time{},
		refused:  map[place]bool{},
		brokers:  map[string]*queuetest.Memory{},
		timeline: histories.NewTimeline(),
	}
}

// changed wakes the loop.
func (x *play) changed() {
	x.mu.Lock()
	defer x.mu.Unlock()
	close(x.wakeup)
	x.wakeup = make(chan struct{})
}

// say adds a line to the timeline.
func (x *play) say(p *Process, m histories.Mark, format string, args ...any) {
	x.timeline.Say(m, "%s%s", p.who(), fmt.Sprintf(format, args...))
}

// who begins a line about a process. It is empty for none.
func (p *Process) who() string {
	if p == nil {
		return ""
	}
	return fmt.Sprintf("process %d: ", p.number)
}

// strikes counts a point, and returns the fault that happens there. The caller has mu.
func (x *play) strikes(name string, kind wire.Kind, users bool, whats ...string) (what string) {
	x.counts[name]++
	p := point{name: fmt.Sprintf("%s%d", name, x.counts[name]), kind: kind, users: users}
	x.points = append(x.points, p)
	for i, e := range x.h.events {
		if e.at == p.name && !x.struck[i] && slices.Contains(whats, e.what) {
			x.struck[i] = true
			return e.what
		}
	}
	return ""
}

// meets reports whether the history has an event that has no point, and notes that it has happened.
func (x *play) meets(what string) bool {
	i := slices.Index(x.h.events, event{what: what})
	if i < 0 {
		return false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.struck[i] {
		x.say(nil, histories.Fault, "each message is a batch of its own  <<< %s", what)
	}
	x.struck[i] = true
	return true
}

// isUsers reports whether a statement is likely the program's own.
func isUsers(sql string) bool {
	if !writing.MatchString(sql) {
		return false
	}
	for _, ours := range []string{"onlyonce.", "onlyonce_segments.", "pg_", "current_setting"} {
		if strings.Contains(sql, ours) {
			return false
		}
	}
	return true
}

// at is called at each message of a process to Postgres.
func (x *play) at(p *Process, m wire.Message) wire.Action {
	if p.dead.Load() {
		return wire.Unsent
	}
	if m.Kind != wire.Bind && m.Kind != wire.Query && m.Kind != wire.Sync {
		return wire.Pass
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.standby.gone != nil {
		return wire.Unsent
	}
	label := wire.Label(m)
	sql := strings.Join(strings.Fields(m.SQL), " ")
	what := x.strikes(label+".", m.Kind, isUsers(sql), before, after, cut, lost, zombie, rebalance, failover, rewind)
	fences := m.Kind == wire.Bind && isFence(label)
	if what == "" && x.standby.event == failover && fences {
		x.down() // the server is gone before it gets this batch
		go x.promote()
		return wire.Unsent
	}
	if what == "" {
		if m.Kind != wire.Sync {
			x.say(p, histories.Minor, "%.90s", sql)
		}
		return wire.Pass
	}
	switch what {
	case before:
		x.say(p, histories.Fault, "%.90s  <<< dies before it", sql)
		p.dead.Store(true)
		go p.bury()
		return wire.Unsent
	case after:
		x.say(p, histories.Fault, "%.90s  <<< dies after it, before the answer", sql)
		p.dead.Store(true)
		return wire.Unheard
	case cut:
		x.say(p, histories.Fault, "%.90s  <<< the connection breaks before it", sql)
		return wire.Unsent
	case lost:
		x.say(p, histories.Fault, "%.90s  <<< carried out, and the connection breaks", sql)
		return wire.Unheard
	case zombie:
		x.say(p, histories.Fault, "%.90s  <<< stops before it", sql)
		x.zombie = p
		go x.changed()
		return wire.Stalled
	case failover, rewind:
		x.keep(p, what, sql)
		return wire.Pass
	default:
		x.say(p, histories.Fault, "%.90s  <<< a rebalance", sql)
		go p.rebalance()
		return wire.Pass
	}
}

// statement is called at each statement through the pool.
func (x *play) statement(sql string, o origin) {
	if !o.direct {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.writes = append(x.writes, write{strings.Join(strings.Fields(sql), " "), o})
}

// request is called before a request is sent (over is false), and after its answer. An error means
// that the process has died there.
func (x *play) request(p *Process, r request, over bool) error {
	if p.dead.Load() {
		return errDead
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	what := ""
	if !over {
		what = x.strikes(requestPoint, "", false, before)
		if what == "" {
			x.requests = append(x.requests, r)
		}
	} else {
		for i, e := range x.h.events { // the point was counted when the request was sent
			if e.what == after && e.at == fmt.Sprintf("%s%d", requestPoint, x.counts[requestPoint]) && !x.struck[i] {
				x.struck[i] = true
				what = after
			}
		}
	}
	switch what {
	case before:
		x.say(p, histories.Fault, "request %.100s  <<< dies before it", r.text)
	case after:
		x.say(p, histories.Fault, "request %.100s  <<< dies after its answer", r.text)
	default:
		x.say(p, histories.Plain, "request %.100s ", r.text)
		return nil
	}
	p.dead.Store(true)
	go p.bury()
	return errDead
}

// handled is the middleware of each consumer.
func (x *play) handled(
	ctx context.Context,
	_ consumer.Tx,
	msgs []*consumer.Message,
	next func(context.Context) error,
) error {
	x.mu.Lock()
	name := placeOf(msgs[0]).String()
	what := x.strikes(handlePoint, "", false, fail40001, fail40P01)
	x.say(nil, histories.Plain, "the handler runs for %s", name)
	x.calling[name] = time.Now()
	x.mu.Unlock()
	x.notes.write(note{Play: x.number, What: noteCalls, Name: "the handler for " + name})
	err := next(ctx)
	x.notes.write(note{Play: x.number, What: noteReturns, Name: "the handler for " + name})
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.calling, name)
	switch {
	case err != nil:
		if consumer.IsPermanent(err) {
			for _, m := range msgs {
				x.refused[placeOf(m)] = true
			}
		}
		x.say(nil, histories.Plain, "the handler fails: %.160v", err)
	case what != "":
		x.say(nil, histories.Fault, "the handler has returned  <<< its transaction fails with %s", what)
		err = &pgconn.PgError{Severity: "ERROR", Code: what, Message: "forged by onlyoncetest"}
	default:
		for _, m := range msgs {
			at := placeOf(m)
			x.order = append(slices.DeleteFunc(x.order, func(p place) bool { return p == at }), at)
		}
	}
	return err
}

// rebalance ends the generation of the process's sources.
func (p *Process) rebalance() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.sources {
		for _, part := range s.parts() {
			part.Rebalance()
		}
	}
}
