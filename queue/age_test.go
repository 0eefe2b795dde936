package queue_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/queue"
)

// forgets has the database forget everything that was claimed until so long ago.
func (r *rig) forgets(ago time.Duration) {
	r.t.Helper()
	for segment := range 10 {
		r.exec(fmt.Sprintf(`truncate onlyonce_segments.standard_keys_%d`, segment))
	}
	r.exec(
		`update onlyonce.rings set forgotten = clock_timestamp() - make_interval(secs => $1), horizon = '1 day'
			where name = 'standard_keys'`,
		ago.Seconds(),
	)
}

// storedAt is a message that the broker has stored so long ago.
func storedAt(id string, ago time.Duration) queue.Delivery {
	d := message(id)
	d.Time = time.Now().Add(-ago)
	return d
}

// K9: a message of a queue whose id may be forgotten is parked once, under its id. What the broker
// stored later is stored, and so is a message without a time. A redrive stores it.
func TestK9MessagesOfAQueue(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.broker.Publish(storedAt("a", 5*time.Hour))
	_, stop := r.receives()
	r.until("it is stored", func() bool { return r.broker.Left() == 0 })
	stop()
	r.exec(`update onlyonce.streams set created_at = created_at - interval '1 day'`)
	r.forgets(3 * time.Hour)
	q, _ := r.receives(func(c *queue.Config) { c.CopiesWithin = 24 * time.Hour })
	r.broker.Publish(storedAt("a", 5*time.Hour), storedAt("fast clock", 3*time.Hour-30*time.Minute), storedAt("b", time.Hour), message("c"))
	r.until("all are acknowledged", func() bool { return r.broker.Left() == 0 })
	r.broker.Publish(storedAt("a", 5*time.Hour))
	r.until("the copy is acknowledged", func() bool { return r.broker.Left() == 0 })
	if got := r.stored(); got != (queue.StoredEvent{Fresh: 3, Copies: 1, Parked: 2}) || q.Healthy() != nil {
		t.Errorf("%+v, %v", got, q.Healthy())
	}
	if got := one[string](
		r,
		`select string_agg(reason || ' ' || event_id, ', ' order by event_id) from onlyonce.parked`,
	); got != "too-old a, too-old fast clock" {
		t.Error(got)
	}
	if n := one[int](r, `select onlyonce.append_parked(array(select id from onlyonce.parked))`); n != 2 {
		t.Errorf("%d are redriven", n)
	}
	r.broker.Publish(storedAt("a", 5*time.Hour))
	r.until("its copy is acknowledged", func() bool { return r.broker.Left() == 0 && r.stored().Copies == 2 })
}

// K9: a receiver that cannot ask which ids may be forgotten receives nothing until it can.
func TestK9AgeCannotBeRead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const function = `onlyonce.queue_too_old(text, text)`
	as := one[string](r, `select pg_get_functiondef('`+function+`'::regprocedure)`)
	r.exec(`create or replace function onlyonce.queue_too_old(scope text, topic text) returns timestamptz language plpgsql as $$
		begin
		  raise exception using errcode = '57014', message = 'it took too long';
		end $$`)
	r.broker.Publish(message("a"))
	q, _ := r.receives()
	r.until("it says so", func() bool {
		err := q.Healthy()
		return err != nil && strings.Contains(err.Error(), "it took too long")
	})
	if got := r.stored(); got != (queue.StoredEvent{}) || r.broker.Left() != 1 {
		t.Errorf("%+v is stored, and the broker has %d messages left", got, r.broker.Left())
	}
	r.exec(as)
	r.until("it is stored", func() bool { return r.broker.Left() == 0 && q.Healthy() == nil })
}

// K9: a queue that begins after ids were forgotten has forgotten none of its own, however old its
// first messages are; and what is forgotten while it runs is met by the next message.
func TestK9QueueThatBegins(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.forgets(2 * time.Hour)
	r.receives(func(c *queue.Config) { c.CopiesWithin = time.Minute })
	r.broker.Publish(storedAt("a", 24*time.Hour))
	r.until("it is stored", func() bool { return r.stored().Fresh == 1 })
	r.broker.Publish(storedAt("b", 24*time.Hour))
	r.until("another one is stored", func() bool { return r.stored().Fresh == 2 })
	r.exec(`update onlyonce.streams set created_at = created_at - interval '1 day'`)
	r.broker.Publish(storedAt("c", 24*time.Hour))
	r.until("it is parked", func() bool { return r.stored().Parked == 1 })
}

// K9: the class of a queue's scope decides in which ring its ids were forgotten, through two
// changes of it.
func TestK9ClassesOfAQueue(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.broker.Publish(message("a"))
	_, stop := r.receives()
	r.until("it is stored", func() bool { return r.broker.Left() == 0 })
	stop()
	r.exec(`update onlyonce.streams set created_at = clock_timestamp() - interval '100 days'`)
	r.exec(`update onlyonce.rings set horizon = '1 second'`)
	until := func(want string) {
		t.Helper()
		got := one[string](
			r,
			`select coalesce(extract(hour from clock_timestamp() - onlyonce.queue_too_old('queue/q', 'queue.q'))::text, 'never')`,
		)
		if got != want {
			t.Errorf("too old until %s hours ago, want %s", got, want)
		}
	}
	ring := func(name string, hours int) {
		r.exec(`update onlyonce.rings set forgotten = clock_timestamp() - make_interval(hours => $2, mins => 30) where name = $1`,
			name, hours)
	}
	until("never")
	ring("standard_keys", 9)
	until("9")
	ring("standard_short_keys", 1)
	until("9")
	r.exec(`insert into onlyonce.horizons values ('queue/q', 'long', 'standard', clock_timestamp() - interval '7 hours 30 minutes')`)
	until("9")
	ring("standard_keys", 2) // what was claimed there later is in the other ring too
	until("7")
	r.exec(`update onlyonce.horizons
		set class = 'short', class_before = 'long', forgotten = changed_at + interval '1 minute',
		changed_at = clock_timestamp() - interval '30 minutes'`)
	until("7")
	ring("standard_long_keys", 4)
	until("4")
	r.exec(`update onlyonce.streams set created_at = clock_timestamp() - interval '1 minute'`)
	until("never")
}

// anew is a broker that is about to deliver again what it stored so long ago.
type anew struct {
	queue.Broker
	ago time.Duration
}

func (a anew) Anew() (oldest time.Time, why string) {
	return time.Now().Add(-a.ago), "Its place is lost"
}

// Q6: a receiver does not begin if the broker is about to deliver again messages whose ids are
// forgotten, whatever CopiesWithin and the horizon are by now.
func TestQ6DeliveredAnew(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.broker.Publish(message("a"))
	begins := func(ago time.Duration) error {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		q := r.queue(r.pool, anew{r.broker.Connect(), ago}, func(c *queue.Config) {
			c.CopiesWithin = 24 * time.Hour
			c.OnStored = func(queue.StoredEvent) { stop() }
		})
		return q.Receive(ctx)
	}
	r.forgets(3 * time.Hour)
	if err := begins(1000 * time.Hour); err != nil {
		t.Errorf("a queue that never was: %v", err)
	}
	r.exec(`update onlyonce.streams set created_at = created_at - interval '1 day'`)
	r.broker.Publish(message("b"))
	if err := begins(time.Hour); err != nil {
		t.Error(err)
	}
	r.broker.Publish(message("c")) // ends a receiver that begins
	err := begins(4 * time.Hour)
	if !errors.Is(err, queue.ErrConfig) ||
		!strings.Contains(err.Error(), "Its place is lost") ||
		strings.Contains(err.Error(), "CopiesWithin") {
		t.Error(err)
	}
}
