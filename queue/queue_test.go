package queue_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/inbox"
	"github.com/onlyonce/onlyonce/internal/lease"
	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/queue"
	"github.com/onlyonce/onlyonce/queue/queuetest"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// From the broker to the handler: id, tenant, key, headers and body as the broker had them.
func TestReceivesAndApplies(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	got := make(chan *consumer.Message, 1)
	r.applies(r.queue(r.pool, r.broker.Connect()), func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		got <- m
		return effect(ctx, tx, m)
	})
	r.broker.Publish(queue.Delivery{ID: "a", Tenant: "acme", Key: []byte("k"), Body: []byte("b\x00\xff"),
		Headers: []consumer.Header{{Name: "h", Value: []byte{0, 0xff}}, {Name: "bad\xff\x00", Value: nil}}})
	m := <-got
	good := m.ID() == "a" &&
		m.Tenant() == "acme" &&
		string(m.Key) == "k" &&
		string(m.Value) == "b\x00\xff" &&
		m.Topic == "queue.q" &&
		fmt.Sprint(m.Headers) == fmt.Sprint([]consumer.Header{{Name: "h", Value: []byte{0, 0xff}}, {Name: "bad%FF%00", Value: []byte{}}})
	if !good {
		t.Errorf("%+v, id %q, tenant %q", m, m.ID(), m.Tenant())
	}
	r.until("it is applied and acknowledged", func() bool { return r.count("effects") == 1 && r.broker.Left() == 0 })
}

// onlyonce explain finds a message by its id, in the scope of its queue.
func TestExplained(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.broker.Publish(message("order-17"))
	r.receives()
	r.until("it is stored", func() bool { return r.broker.Left() == 0 })
	got, err := ops.ExplainKey(t.Context(), r.pool, ops.ExplainQuestion{ID: "order-17", CountLimit: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Found) != 1 || got.Found[0].Scope != "queue/q" || !got.Claimed {
		t.Errorf("%+v", got)
	}
}

// Copies of a stored message are acknowledged and not stored, in one batch and in several; the same
// id of another tenant is another message (Q2).
func TestQ2Copies(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	other := message("a")
	other.Tenant = "acme"
	r.broker.Publish(message("a"), message("a"), message("b"), other)
	r.receives(func(c *queue.Config) { c.Batch = 3 })
	r.until("all are acknowledged", func() bool { return r.broker.Left() == 0 })
	r.broker.Publish(message("b"), message("a"))
	r.until("all are acknowledged", func() bool { return r.broker.Left() == 0 })
	if got := r.stored(); got != (queue.StoredEvent{Fresh: 3, Copies: 3}) || r.count("onlyonce.event_log") != 3 {
		t.Errorf("%+v", got)
	}
}

// A message of a known id with another body is parked once, however often it comes. Messages
// without an id are parked whole (Q2).
func TestQ2Parked(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	tenant := message("t")
	panics := message("panics")
	fails := message("fails")
	exits := message("exits")
	tenant.Tenant = "a\nb"
	r.broker.Publish(
		message("a"),
		message("a", "other"),
		message("a", "other"),
		message("a", "third"),
		message(""),
		message(""),
		message("nul\x00"),
		message("\xff"),
		message(strings.Repeat("x", 1025)),
		tenant,
		panics,
		fails,
		exits,
	)
	r.receives(func(c *queue.Config) {
		c.Identify = func(d *queue.Delivery) error {
			switch d.ID {
			case "panics":
				panic("oh")
			case "fails":
				return errors.New("no field order_id")
			case "exits":
				runtime.Goexit()
			}
			return nil
		}
	})
	r.until("all are acknowledged", func() bool { return r.broker.Left() == 0 })
	r.broker.Publish(message("a", "other"))
	r.until("all are acknowledged", func() bool { return r.broker.Left() == 0 })
	if got := r.stored(); got != (queue.StoredEvent{Fresh: 1, Copies: 2, Parked: 11}) {
		t.Errorf("%+v", got)
	}
	got := one[string](
		r,
		`select string_agg(reason || ': ' || error, E'\n' order by id) from onlyonce.parked
			where kind = 'event' and state = 'waiting' and key is null`,
	)
	want := strings.Join([]string{
		"no-key: the message has no id", "no-key: the message has no id",
		"no-key: the message's id is not 1 to 1,024 bytes of UTF-8 without NUL",
		"no-key: the message's id is not 1 to 1,024 bytes of UTF-8 without NUL",
		"no-key: the message's id is not 1 to 1,024 bytes of UTF-8 without NUL",
		"no-key: the message's tenant is not UTF-8 of at most 255 bytes without control characters",
		"no-key: Config.Identify: panic: oh", "no-key: Config.Identify: no field order_id",
		"no-key: Config.Identify: the function called runtime.Goexit (testing's FailNow does)",
		"conflict: a message of this id was stored before, with another body",
		"conflict: a message of this id was stored before, with another body",
	}, "\n")
	sorted := func(s string) string {
		lines := strings.Split(s, "\n")
		return fmt.Sprint(len(lines), countLines(lines))
	}
	if sorted(got) != sorted(want) {
		t.Errorf("parked:\n%s\nwant:\n%s", got, want)
	}
	// An operator's redrive appends them, each as a message of its own.
	if n := one[int](r, `select onlyonce.append_parked(array(select id from onlyonce.parked))`); n != 11 {
		t.Errorf("%d can be redriven, want 11", n)
	}
}

func countLines(lines []string) map[string]int {
	n := map[string]int{}
	for _, l := range lines {
		n[l]++
	}
	return n
}

// remote returns a pool of its own, whose network can be away.
func (r *rig) remote() (*pgxpool.Pool, *atomic.Bool) {
	r.t.Helper()
	var away atomic.Bool
	cfg := r.pool.Config().Copy()
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if away.Load() {
			return nil, errors.New("the network is away")
		}
		return dial(ctx, network, addr)
	}
	pool, err := pgxpool.NewWithConfig(r.t.Context(), cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(pool.Close)
	return pool, &away
}

// While the database is away the receiver holds what it has and takes no more, so that the broker
// delivers nothing a second time (Q3).
func TestQ3DatabaseAway(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pool, away := r.remote()
	taken := &counting{Broker: r.broker.Connect()}
	q := r.queue(pool, taken, func(c *queue.Config) { c.Batch = 5 })
	stop := r.runs(q.Receive)
	defer stop()
	r.until("the receiver works", func() bool { return q.Healthy() == nil })
	away.Store(true)
	pool.Reset()
	r.broker.Publish(messages(0, 20)...)
	r.until("it says so", func() bool { return q.Healthy() != nil })
	if n := taken.deliveries.Load(); n > 5 || !strings.Contains(q.Healthy().Error(), "the network is away") {
		t.Errorf("%d deliveries were taken, at most 5 of which can be stored; %v", n, q.Healthy())
	}
	away.Store(false)
	r.until("all are acknowledged", func() bool { return r.broker.Left() == 0 })
	if n := taken.deliveries.Load(); n != 20 || q.Healthy() != nil {
		t.Errorf("%d deliveries, want 20, each once; %v", n, q.Healthy())
	}
	if got := r.stored(); got != (queue.StoredEvent{Fresh: 20}) {
		t.Errorf("%+v", got)
	}
}

// A stop in the middle of a batch: it is stored and acknowledged before Receive returns (Q1).
func TestQ1StopAcknowledges(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	q := r.queue(r.pool, r.broker.Connect(), func(c *queue.Config) {
		c.Identify = func(*queue.Delivery) error { stop(); return nil }
	})
	r.broker.Publish(messages(0, 3)...)
	if err := q.Receive(ctx); err != nil || r.broker.Left() != 0 || r.count("onlyonce.event_log") != 3 {
		t.Errorf("%v; %d are left, %d stored", err, r.broker.Left(), r.count("onlyonce.event_log"))
	}
}

// A role with synchronous_commit = off: the receiver's COMMIT is flushed nevertheless, because the
// broker forgets what it acknowledges (Q1).
func TestQ1CommitIsFlushed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`create table seen (setting text)`)
	r.exec(`create function note() returns trigger language plpgsql as $$ begin insert into seen
		values (current_setting('synchronous_commit'));
		return null;
		end $$`)
	r.exec(`create constraint trigger note after insert on onlyonce.event_log initially deferred for each row execute function note()`)
	for set, want := range map[string]string{"off": "local", "remote_write": "remote_write"} {
		cfg := r.pool.Config().Copy()
		cfg.ConnConfig.RuntimeParams["synchronous_commit"] = set
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		stop := r.runs(r.queue(pool, r.broker.Connect()).Receive)
		r.broker.Publish(message(set))
		r.until("it is acknowledged", func() bool { return r.broker.Left() == 0 })
		stop()
		pool.Close()
		if got := one[string](r, `delete from seen returning setting`); got != want {
			t.Errorf("COMMIT under %s, want %s", got, want)
		}
	}
}

// counting counts deliveries.
type counting struct {
	queue.Broker
	deliveries, begun atomic.Int64
}

func (c *counting) Receive(ctx context.Context, most int) ([]*queue.Delivery, error) {
	all, err := c.Broker.Receive(ctx, most)
	c.deliveries.Add(int64(len(all)))
	return all, err
}

func (c *counting) Begin(ctx context.Context, ordered bool) error {
	c.begun.Add(1)
	return c.Broker.Begin(ctx, ordered)
}

// A message that the database refuses is parked, and the others of its batch are stored. One that
// cannot be parked either is not acknowledged, and the others are (Q4).
func TestQ4RefusedByTheDatabase(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`create function refuse() returns trigger language plpgsql as $$
		begin
			if convert_from(new.body, 'UTF8') like any (tg_argv::text[]) then raise exception using errcode = '22000', message = 'refused';
			end if;
			return new;
		end $$`)
	r.exec(`create trigger refuse before insert on onlyonce.event_log for each row execute function refuse('bad%', 'worst%')`)
	r.exec(`create trigger refuse before insert on onlyonce.parked for each row execute function refuse('worst%')`)
	r.broker.Publish(message("a"), message("b", "bad"), message("c", "worst"), message("d"), message("b", "bad"))
	q, _ := r.receives()
	r.until("all that can be stored is acknowledged", func() bool { return r.broker.Left() == 1 })
	r.until("the receiver reports the refused message", func() bool {
		err := q.Healthy()
		return err != nil && strings.Contains(err.Error(), "neither stored nor parked")
	})
	if got := one[string](r, `select string_agg(event_id || ' ' || reason, ' ') from onlyonce.parked`); got != "b permanent" ||
		r.count("onlyonce.event_log") != 2 {
		t.Errorf("parked: %s; %d are stored", got, r.count("onlyonce.event_log"))
	}
	r.exec(`drop trigger refuse on onlyonce.event_log`)
	r.until("the last one is stored", func() bool { return r.broker.Left() == 0 && q.Healthy() == nil })
	if got := r.count("onlyonce.event_log"); got != 3 {
		t.Errorf("%d are stored", got)
	}
}

// One process at a time receives from an ordered queue. The next one takes over what the one before
// it held, in the broker's order, and that one stores nothing any more (Q5).
func TestQ5Ordered(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ordered := func(c *queue.Config) {
		c.Ordered = true
		c.Batch = 4
		c.LeaseTTL = 3 * time.Second
		c.Identify = func(d *queue.Delivery) error { d.Key = []byte("one"); return nil }
	}
	held := &holding{Broker: r.broker.Connect(), got: make(chan struct{}), let: make(chan struct{})}
	r.broker.Publish(messages(0, 10)...)
	firstStop := r.runs(r.queue(r.pool, held, ordered).Receive)
	<-held.got // four messages, and one that only this process has
	q, _ := r.receives(ordered)
	r.until("the second one stands by", func() bool { return q.Healthy() == nil })
	if n := r.broker.Left(); n != 10 {
		t.Errorf("%d messages are left while one receiver holds the place, want 10", n)
	}
	if err := lease.ExpireAll(t.Context(), r.pool); err != nil {
		t.Fatal(err)
	}
	r.until("the second one has stored all", func() bool { return r.broker.Left() == 0 })
	close(held.let)
	r.until("the first one is told", func() bool { return held.begun.Load() > 0 || held.returned.Load() })
	r.until("the first one stands by", func() bool { return held.returned.Load() })
	firstStop()
	want := make([]string, 10)
	for n := range want {
		want[n] = fmt.Sprintf("m%04d", n)
	}
	if got := one[string](r, `select string_agg(id, ' ' order by "offset") from onlyonce.event_log`); got != strings.Join(want, " ") {
		t.Errorf("stored: %s", got)
	}
}

// holding is a connection that keeps its first deliveries back, and adds one that it made up.
type holding struct {
	queue.Broker
	got, let chan struct{}
	begun    atomic.Int64
	returned atomic.Bool
	second   bool
}

func (h *holding) Receive(ctx context.Context, most int) ([]*queue.Delivery, error) {
	if h.second {
		return h.Broker.Receive(ctx, most)
	}
	h.second = true
	all, err := h.Broker.Receive(ctx, most)
	close(h.got)
	<-h.let
	h.returned.Store(true)
	return append(all, &queue.Delivery{ID: "made up", Body: []byte{}}), err
}

// A receiver that cannot reach the database, while others can, ends its session once its place may
// be another's: a broker with one active consumer delivers to the next one only then (Q5).
func TestQ5ReceiverWithoutADatabase(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ordered := func(c *queue.Config) { c.Ordered = true }
	pool, away := r.remote()
	var active atomic.Pointer[single]
	first := r.queue(pool, &single{r.broker.Connect(), &active}, ordered)
	r.runs(first.Receive)
	r.until("the first one is active", func() bool { return first.Healthy() == nil && active.Load() != nil })
	second := r.queue(r.pool, &single{r.broker.Connect(), &active}, ordered)
	r.runs(second.Receive)
	away.Store(true)
	pool.Reset()
	r.broker.Publish(messages(0, 10)...)
	r.until("the second one has stored all", func() bool { return r.broker.Left() == 0 })
	away.Store(false)
	r.until("the first one stands by", func() bool { return first.Healthy() == nil })
}

// single is a connection to a queue with one active consumer: it gets nothing while another one has
// a session that began before.
type single struct {
	queue.Broker
	active *atomic.Pointer[single]
}

func (s *single) Receive(ctx context.Context, most int) ([]*queue.Delivery, error) {
	if !s.active.CompareAndSwap(nil, s) && s.active.Load() != s {
		pace.Sleep(ctx, 10*time.Millisecond)
		return nil, nil
	}
	return s.Broker.Receive(ctx, most)
}

func (s *single) Begin(ctx context.Context, _ bool) error { return s.Broker.Begin(ctx, false) }

func (s *single) End() {
	s.Broker.(interface{ End() }).End() // gives back
	s.active.CompareAndSwap(s, nil)
}

// A receiver does not begin if the inbox forgets ids sooner than copies may come, or if the broker
// says that messages would be lost (Q6, Q3).
func TestQ6Horizon(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	q := r.queue(r.pool, r.broker.Connect(), func(c *queue.Config) { c.CopiesWithin = 8 * 24 * time.Hour })
	if err := q.Receive(t.Context()); !errors.Is(err, inbox.ErrHorizon) {
		t.Errorf("%v", err)
	}
	for kept, want := range map[time.Duration]bool{time.Hour + 1: false, time.Hour: true} {
		ctx, stop := context.WithCancel(t.Context())
		q = r.queue(r.pool, keeping{r.broker.Connect(), kept, stop}, func(c *queue.Config) { c.CopiesWithin = time.Hour })
		if err := q.Receive(ctx); (err == nil) != want || err != nil && !errors.Is(err, queue.ErrConfig) {
			t.Errorf("%v: %v", kept, err)
		}
		stop()
	}
	q = r.queue(r.pool, failing{r.broker.Connect()})
	if err := q.Receive(t.Context()); !errors.Is(err, queue.ErrConfig) || q.Healthy() == nil {
		t.Errorf("%v; %v", err, q.Healthy())
	}
}

// keeping is a broker that keeps messages for so long, and says when something is received.
type keeping struct {
	queue.Broker
	kept     time.Duration
	received func()
}

func (k keeping) Retention() time.Duration { return k.kept }

func (k keeping) Receive(context.Context, int) ([]*queue.Delivery, error) {
	k.received()
	return nil, nil
}

type failing struct{ queue.Broker }

func (failing) Begin(context.Context, bool) error {
	return fmt.Errorf("%w: the queue drops messages", queue.ErrConfig)
}

// A broker that is away at the start and later: stored messages are applied meanwhile.
func TestBrokerAway(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.broker.SetAway(true)
	broker := &counting{Broker: r.broker.Connect()}
	q := r.queue(r.pool, broker)
	if q.Healthy() == nil {
		t.Error("healthy before it runs")
	}
	r.applies(q, effect)
	r.until("it says so", func() bool {
		err := q.Healthy()
		return err != nil && strings.Contains(err.Error(), queuetest.ErrAway.Error())
	})
	r.broker.Publish(message("a"))
	r.broker.SetAway(false)
	r.until("one is applied", func() bool { return r.count("effects") == 1 })
	r.broker.SetAway(true)
	r.until("it says so", func() bool { return q.Healthy() != nil })
	other := queuetest.Memory{} // of a process whose broker is there
	other.Publish(message("b"))
	r.runs(r.queue(r.pool, other.Connect()).Receive)
	r.until("another is applied", func() bool { return r.count("effects") == 2 })
	r.broker.SetAway(false)
	r.until("it works again", func() bool { return q.Healthy() == nil && r.broker.Left() == 0 })
}

// A broker that loses every acknowledgement makes 10,000 deliveries of 250 messages: each has one
// effect.
func TestBrokerThatAcknowledgesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.broker.SetDeaf(true)
	r.broker.Publish(messages(0, 250)...)
	r.applies(r.queue(r.pool, r.broker.Connect()), effect)
	r.until("10,000 were delivered", func() bool { return r.broker.Lost() >= 10_000 })
	r.broker.SetDeaf(false)
	r.until("all are acknowledged and applied", func() bool { return r.broker.Left() == 0 && r.count("effects") == 250 })
	if got := r.stored(); got.Fresh != 250 || got.Parked != 0 || r.count("onlyonce.event_log") != 250 {
		t.Errorf("%+v", got)
	}
}

// A batch above 8 MiB is stored in several transactions, and a message above it in one.
func TestLargeMessages(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for n := range 5 {
		d := message(fmt.Sprint(n))
		d.Body = make([]byte, 3<<20)
		r.broker.Publish(d)
	}
	large := message("large")
	large.Body = make([]byte, 20<<20)
	r.broker.Publish(large)
	var transactions atomic.Int64
	q := r.queue(r.pool, r.broker.Connect(), func(c *queue.Config) { c.OnStored = func(queue.StoredEvent) { transactions.Add(1) } })
	r.applies(q, effect)
	r.until("all are applied", func() bool { return r.count("effects") == 6 })
	if n := transactions.Load(); n != 4 {
		t.Errorf("%d transactions, want 4: two, two, one, and the large one", n)
	}
}

// Two receivers of one queue side by side, and a process that only applies.
func TestReceiversSideBySide(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.broker.Publish(messages(0, 500)...)
	r.receives(func(c *queue.Config) { c.Batch = 7 })
	r.receives(func(c *queue.Config) { c.Batch = 7 })
	r.applies(r.queue(r.pool, nil), effect)
	r.until("all are applied", func() bool { return r.count("effects") == 500 })
	if err := r.queue(r.pool, nil).Receive(t.Context()); !errors.Is(err, queue.ErrConfig) {
		t.Errorf("receiving without a broker: %v", err)
	}
}

// S2: a receiver and a consumer need only the rights of onlyonce_app, with Ordered too.
func TestS2QueueWithLeastPrivileges(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, nil) // of its own, because roles are the whole server's
	r := &rig{t: t, pool: pgtest.Pool(t, server)}
	roles, err := os.ReadFile("../docs/roles.sql")
	if err != nil {
		t.Fatal(err)
	}
	r.exec(string(roles))
	r.exec(`create role app login in role onlyonce_app`)
	r.exec(`create table effects (id text not null, at bigserial);
		grant insert, select on effects to app;
		grant usage on sequence effects_at_seq to app`)
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User("app")
	r.pool = pgtest.Pool(t, u.String()+"&default_query_exec_mode=exec")
	r.applies(r.queue(r.pool, r.broker.Connect(), func(c *queue.Config) { c.Ordered = true }), effect)
	r.broker.Publish(message("a"), message("a", "other"), message("b"), message(""))
	r.until("all are acknowledged and applied", func() bool {
		return r.broker.Left() == 0 && r.count("effects") == 2 && r.count("onlyonce.parked") == 2
	})
}

func TestConfigFaults(t *testing.T) {
	t.Parallel()
	_, err := queue.New(nil, invalid{}, queue.Config{
		Name:         "a/b",
		Batch:        1001,
		Partitions:   -1,
		PollInterval: 1,
		LeaseTTL:     1,
		Retention:    -1,
		Group:        "\xff",
		Brake:        consumer.Brake{Percent: 101, Window: -1},
	})
	for _, want := range []string{
		"pool", "Config.Name: \"a/b\"", "Config.CopiesWithin", "Config.Batch", "Config.Partitions",
		"Config.PollInterval", "Config.LeaseTTL", "Config.Retention", "Config.Brake.Percent",
		"Config.Brake.Window", "Config.Group", "Stream: must not be empty",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no word of %s in %v", want, err)
		}
	}
	if !errors.Is(err, queue.ErrConfig) {
		t.Errorf("%v", err)
	}
}

type invalid struct{ queue.Broker }

func (invalid) Validate() error { return fmt.Errorf("%w: Stream: must not be empty", queue.ErrConfig) }

// ending counts the sessions of a broker that must be told of their end.
type ending struct {
	queue.Broker
	begun, ended atomic.Int64
}

func (e *ending) Begin(ctx context.Context, ordered bool) error {
	e.begun.Add(1)
	return e.Broker.Begin(ctx, ordered)
}

func (e *ending) End() { e.ended.Add(1) }

// A broker is told of each session's end: of one that did not begin, and of the last one.
func TestQ5SessionsEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	e := &ending{Broker: r.broker.Connect()}
	r.broker.SetAway(true)
	stop := r.runs(r.queue(r.pool, e).Receive)
	r.until("two sessions have failed", func() bool { return e.ended.Load() >= 2 })
	r.broker.SetAway(false)
	r.broker.Publish(message("a"))
	r.until("a session works", func() bool { return r.broker.Left() == 0 })
	stop()
	b := e.begun.Load()
	n := e.ended.Load()
	if b != n {
		t.Errorf("%d sessions began, and %d ended", b, n)
	}
}

// Q4: a Config.Identify that does not return is named by Healthy, until it returns.
func TestQ4IdentifyThatHangs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	free := make(chan struct{})
	q, _ := r.receives(func(c *queue.Config) {
		c.LeaseTTL = time.Second
		c.Identify = func(d *queue.Delivery) error {
			if d.ID == "hangs" {
				<-free
			}
			return nil
		}
	})
	r.broker.Publish(message("hangs"), message("b"))
	r.until("it is named", func() bool { err := q.Healthy(); return err != nil && strings.Contains(err.Error(), "Config.Identify") })
	close(free)
	r.until("all are stored", func() bool { return r.broker.Left() == 0 && q.Healthy() == nil })
}
